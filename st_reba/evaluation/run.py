"""Methods side by side on one task (`compare`), over an option's values (`curve`); a model on tasks (`evaluate`)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from sentence_transformers import SentenceTransformer

from ..encode import DEFAULT_BATCH_TOKENS, transformer_of
from ..methods import OPTIONS, Method, method_of
from ..safety import load
from . import mteb_tasks
from .encoding import compute_evidence, model_vectors, name_of, shared_vectors
from .figures import FilePath, check_figure, draw_curve, save_figure
from .instructions import Instructions, read_instructions
from .readouts import build_on, load_base
from .result_files import OutputFiles
from .results import Comparison, Result, Scorer
from .statistics import DRAWS, check_seed
from .task import Task
from .tasks import read_task, split_kind
from .toy import toy_tasks_named


def compare(
    base: Any,
    table: Any,
    methods: Sequence[str | Method],
    *,
    metric: str | None = None,
    prompts: Any = None,
    out: FilePath | None = None,
    figure: FilePath | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    draws: int = DRAWS,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    loading: Mapping[str, Any] | None = None,
    **reading_options: Any,
) -> Comparison:
    """Compare methods on a labelled table; methods with the same input and masks share their forward passes.

    Args:
        base: As for ``build``; or a model of ``readouts.load_base``.
        table: A task, or what :func:`~st_reba.evaluation.tasks.read_task` reads.
        methods: ``Method`` objects or their short form, such as ``"echo:pooling=mean"``. A word's
            vector is the mean over its tokens, whatever the pooling.
        metric: The metric to compare by; None: the kind's main one; ``"paper"``: the papers'.
        prompts: Instructions, as for :func:`~st_reba.evaluation.instructions.read_instructions`.
        out, figure: Files: ``out`` gets one more JSON line per method, ``figure`` a plot.
        batch_tokens: Positions per forward pass.
        draws: Bootstrap samples; 0: no intervals.
        seed: Seed of the bootstrap, and of a draw of items.
        show_progress_bar: Show a bar with the time left; None: only on a terminal.
        loading: Arguments of ``build`` for the base, such as ``{"dtype": "bfloat16"}``.
        **reading_options: Arguments of ``read_task``.

    Raises:
        ValueError: A table or a method that cannot be used.

    Example:
        >>> import pandas as pd
        >>> words = ["cat", "tiger", "lion", "dog", "wolf", "fox", "rain", "snow", "hail", "storm", "fog"]
        >>> pairs = pd.DataFrame({"text1": words, "text2": words[::-1], "score": range(11)})
        >>> comparison = compare("mini", pairs, ["classical:pooling=mean", "echo:pooling=mean"])
        >>> [result.method for result in comparison.results], len(comparison.differences)
        (['classical:pooling=mean', 'echo:pooling=mean'], 1)
    """
    check_seed(seed)
    task = read_task(table, seed=seed, **reading_options)
    parsed_methods = _parse_methods(methods)
    scorer = Scorer(task, metric, draws, seed)
    files = OutputFiles(out, figure)
    model = open_base(base, loading)
    instructions = read_instructions(prompts).for_task(task.name)
    start_time = time.perf_counter()
    vectors = shared_vectors(
        model, task, parsed_methods, instructions, batch_tokens, show_progress_bar
    )
    seconds = time.perf_counter() - start_time
    evidences = {
        str(method): compute_evidence(task, vectors[method], str(method))
        for method in parsed_methods
    }
    model_name = str(base) if isinstance(base, (str, os.PathLike)) else name_of(model)
    results, differences = scorer.score(
        evidences,
        model=model_name,
        prompts=instructions.name,
        seconds=seconds,
    )
    files.append(results)
    files.draw(results)
    return Comparison(str(task), results, differences)


def _parse_methods(methods: Sequence[str | Method]) -> list[Method]:
    parsed_methods = [Method.parse(str(method)) for method in methods]
    if not parsed_methods:
        raise ValueError("methods: name one at least, such as 'classical' or 'echo:pooling=mean'.")
    return list(dict.fromkeys(parsed_methods))


def curve(
    base: Any,
    table: Any,
    methods: Sequence[str | Method],
    option: str,
    values: Sequence[Any],
    *,
    figure: FilePath | None = None,
    loading: Mapping[str, Any] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Scores of methods over the values of one of their options.

    Args:
        base, table, methods, loading: As for `compare`.
        option: A field of ``Method``: ``"max_seq_length"`` (token budgets), ``"repeats"``,
            ``"layer"``, …
        values: Its values.
        figure: Draw one line per method into this file.
        **options: Further arguments of `compare`.

    Returns:
        One row per method, one column per value; NaN where a method cannot take the value, such as
        a budget smaller than its template.

    Source:
        Echo, sections 4.6 and 4.7 (budgets, copies, templates); ReBA and NoSink, figures by layer.
    """
    if option not in OPTIONS:
        raise ValueError(f"option={option!r} is not known. Choose from {', '.join(OPTIONS)}.")
    if not values:
        raise ValueError(f"{option} (--vary): give one value at least.")
    if figure is not None:
        check_figure(figure)
    model = open_base(base, loading)
    frame = _vary_methods(model, _parse_methods(methods), option, values)
    varied_methods = frame.stack().dropna().tolist()
    results = compare(model, table, varied_methods, draws=0, **options).results
    scores = {result.method: result.score for result in results}
    frame = frame.map(scores.get).astype(float)
    if figure is not None:
        save_figure(draw_curve(frame, option, results[0].metric), figure)
    return frame


def _vary_methods(
    base: SentenceTransformer,
    methods: Sequence[Method],
    option: str,
    values: Sequence[Any],
) -> pd.DataFrame:
    """Short forms of the methods with each value; None where a method cannot have it."""
    columns: dict[str, list[str | None]] = {}
    for value in values:
        column: list[str | None] = []
        reasons: list[str] = []
        for method in methods:
            try:
                varied_method = replace(method, **{option: value})
                transformer_of(build_on(base, varied_method, check=False)).budget()
            except (ValueError, TypeError) as error:
                reasons.append(f"{method}: {error}")
                column.append(None)
            else:
                column.append(str(varied_method))
        if len(reasons) == len(methods):
            raise ValueError(
                f"{option}={value} (--vary): no method takes this value. {' '.join(reasons)}"
            )
        columns[str(value)] = column
    return pd.DataFrame(columns, index=list(map(str, methods)), dtype=object)


def evaluate(
    model: Any,
    tasks: Any,
    *,
    prompts: Any = None,
    out: FilePath | None = None,
    figure: FilePath | None = None,
    loading: Mapping[str, Any] | None = None,
    batch_tokens: int | None = None,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    **reading_options: Any,
) -> list[Result]:
    """Score a model on tasks.

    Args:
        model: A SentenceTransformer, or the folder or Hub id of one.
        tasks: One or a list of: tasks, or what ``read_task`` reads (also as ``"KIND=FILE"``);
            ``"toy"`` (the toy structures); the papers' sets (C-MTEB, MTEB-15, MTEB-MINI, MTEB-56),
            mteb's tasks or benchmarks by name; mteb's task objects.
        prompts: Instructions before the texts; None: those of the papers' set, or the model's own
            prompts.
        out: Append a JSON line for each task to this file as soon as it is scored.
        loading: How the model is loaded, as `st_reba.load` takes it.
        figure, batch_tokens, seed, show_progress_bar: As for `compare`.
        **reading_options: As for `compare`.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> [(result.task, result.items) for result in evaluate(model, "toy:S1,en", limit=20)]
        [('S1 en', 20)]
    """
    check_seed(seed)
    files = OutputFiles(out, figure)
    # All are read before the model is loaded: a table that cannot be used is an error now.
    instructed_tasks: list[tuple[Any, Instructions]] = []
    for task, task_prompts in _find_tasks(tasks, seed, reading_options):
        instructions = read_instructions(task_prompts if prompts is None else prompts)
        instructed_tasks.append((task, instructions))
    if isinstance(model, (str, os.PathLike)):
        model = load(model, **(loading or {}))
    results: list[Result] = []
    for task, instructions in instructed_tasks:
        if isinstance(task, Task):
            instructions = instructions.for_task(task.name)
            result = _score_task(model, task, instructions, batch_tokens, show_progress_bar)
        else:
            result = _score_mteb_task(model, task, instructions, show_progress_bar)
        files.append([result])
        results.append(result)
    files.draw(results)
    return results


def _score_task(
    model: SentenceTransformer,
    task: Task,
    instructions: Instructions,
    batch_tokens: int | None,
    show_progress_bar: bool | None,
) -> Result:
    model_name = name_of(model)
    start_time = time.perf_counter()
    vectors = model_vectors(model, task, instructions, batch_tokens, show_progress_bar)
    seconds = time.perf_counter() - start_time
    evidences = {_method_name(model): compute_evidence(task, vectors, model_name)}
    results, _ = Scorer(task).score(
        evidences,
        model=model_name,
        prompts=instructions.name,
        seconds=seconds,
    )
    return results[0]


def _score_mteb_task(
    model: SentenceTransformer,
    task: Any,
    instructions: Instructions,
    show_progress_bar: bool | None,
) -> Result:
    start_time = time.perf_counter()
    scores = mteb_tasks.scores_of(
        model, task, instructions, show_progress_bar=bool(show_progress_bar)
    )
    return Result(
        task=task.metadata.name,
        kind=task.metadata.type,
        model=name_of(model),
        method=_method_name(model),
        metric=task.metadata.main_score,
        score=scores[task.metadata.main_score],
        scores=scores,
        seconds=time.perf_counter() - start_time,
        prompts=instructions.name,
    )


def _method_name(model: SentenceTransformer) -> str:
    return str(method_of(model) or "")


def open_base(base: Any, loading: Mapping[str, Any] | None) -> SentenceTransformer:
    """The base, loaded unless it is a model of ``readouts.load_base``."""
    if isinstance(base, SentenceTransformer):
        return base
    return load_base(base, **(loading or {}))


def _find_tasks(
    tasks: Any,
    seed: int,
    reading_options: Mapping[str, Any],
) -> Iterator[tuple[Any, str | None]]:
    """Tasks, or mteb's objects, each with the name of its instructions."""
    if not isinstance(tasks, (list, tuple)):
        tasks = [tasks]
    for task in tasks:
        word = str(task) if isinstance(task, (str, os.PathLike)) else ""
        kind, _ = split_kind(word)
        is_name = word and Path(word).name == word and not Path(word).exists()
        if word.partition(":")[0] == "toy":
            for toy_task in toy_tasks_named(word, reading_options.get("limit"), seed):
                yield toy_task, None
        elif (is_name and kind is None) or hasattr(task, "metadata"):
            yield from mteb_tasks.find_tasks(word or task)
        else:
            yield read_task(task, **reading_options, seed=seed), None
