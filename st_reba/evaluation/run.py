"""Methods side by side on one task (`compare`), over an option's values (`curve`); a model on tasks (`evaluate`)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from sentence_transformers import SentenceTransformer

from ..encode import DEFAULT_BATCH_TOKENS
from ..methods import OPTIONS, Method, method_of
from ..safety import load
from . import mteb_tasks, readouts
from .encoding import model_vectors, name_of, shared_vectors, usable
from .figures import check_figure, check_writable, draw_curve, draw_results, save_figure
from .instructions import read_instructions
from .scores import SCORINGS
from .statistics import DRAWS, Difference, Evidence, check_seed, paired_bootstrap
from .tasks import KINDS, Task, read_task, warn_of_dropped
from .toy import toy_tasks_named

Path_ = str | os.PathLike[str]


@dataclass(frozen=True)
class Result:
    """The scores of one method, or model, on one task.

    Args:
        task, kind: The task's.
        model: The base, or the model.
        method: The method, in the short form; empty: a model of another package.
        metric, score, interval: The metric, its value (more is better) and 95 % interval; None: not known.
        scores: All metrics.
        items: How many were scored; None: mteb's.
        seconds: To compute the vectors; methods that share a pass are measured together.
        prompts: Name of the instructions before the texts.
    """

    task: str
    kind: str
    model: str
    method: str
    metric: str
    score: float
    interval: tuple[float, float] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    items: int | None = None
    seconds: float | None = None
    prompts: str = "none"


@dataclass(frozen=True)
class Comparison:
    """Methods on one task: a result each, and the differences of all pairs, whose intervals hold together."""

    task: str  # with its kind, the number of items, and the rows that were dropped
    results: Sequence[Result]
    differences: Sequence[Difference]

    def table(self) -> pd.DataFrame:
        """A row a method: score, 95 % interval, and how many of the others it is significantly above and below."""
        certain = [each for each in self.differences if each.significant]
        winners = [each.first if each.value > 0 else each.second for each in certain]
        losers = [each.second if each.value > 0 else each.first for each in certain]
        rows = {}
        for each in self.results:
            low, high = each.interval or (None, None)
            counts = {"better": winners.count(each.method), "worse": losers.count(each.method)}
            rows[each.method] = {each.metric: each.score, "low": low, "high": high, **counts}
        return pd.DataFrame.from_dict(rows, orient="index")

    def __str__(self) -> str:
        first = self.results[0]
        legend = "better, worse: than how many of the other methods it is, for certain (95 %, corrected for all pairs)"
        return f"{first.model}, {self.task}, {first.seconds:.1f} seconds\n\n{markdown(self.table())}\n\n{legend}"


def compare(
    base: Any,
    table: Any,
    methods: Sequence[str | Method],
    *,
    metric: str | None = None,
    prompts: Any = None,
    out: Path_ | None = None,
    figure: Path_ | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    draws: int = DRAWS,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    loading: Mapping[str, Any] | None = None,
    **reading: Any,
) -> Comparison:
    """Compare methods on a labelled table; methods with the same input and masks share their forward passes.

    Args:
        base: What ``build`` takes, or a model of ``readouts.opened``.
        table: A task, or what :func:`~st_reba.evaluation.tasks.read_task` reads.
        methods: ``Method`` objects or their short form, such as ``"echo:pooling=mean"``. A word's vector is the mean
            over its tokens, whatever the pooling.
        metric: The metric to compare by; None: the kind's main one; ``"paper"``: the papers'.
        prompts: Instructions, as for :func:`~st_reba.evaluation.instructions.read_instructions`.
        out, figure: Files: a JSON line a method is appended, and the scores are drawn.
        batch_tokens: Positions a forward pass.
        draws: Bootstrap samples; 0: no intervals.
        seed: Seed of the bootstrap, and of a draw of items.
        show_progress_bar: Show one, with the time that is left; None: on a terminal.
        loading: Arguments of ``build`` for the base, such as ``{"dtype": "bfloat16"}``.
        **reading: Arguments of ``read_task``.

    Raises:
        ValueError: A table or a method that cannot be used.

    Example:
        >>> import pandas as pd
        >>> words = ["cat", "tiger", "lion", "dog", "wolf", "fox", "rain", "snow", "hail", "storm", "fog"]
        >>> pairs = pd.DataFrame({"text1": words, "text2": words[::-1], "score": range(11)})
        >>> found = compare("mini", pairs, ["classical:pooling=mean", "echo:pooling=mean"])
        >>> [each.method for each in found.results], len(found.differences)
        (['classical:pooling=mean', 'echo:pooling=mean'], 1)
    """
    check_seed(seed)
    task = read_task(table, seed=seed, **reading)
    warn_of_dropped(task)
    chosen = list(dict.fromkeys(Method.parse(str(each)) for each in methods))
    if not chosen:
        raise ValueError("methods: name one at least, such as 'classical' or 'echo:pooling=mean'.")
    scoring = SCORINGS[task.kind]
    name = scoring.main if metric is None else metric
    if metric == "paper":
        name = scoring.paper or scoring.main
    if name not in scoring.metrics:
        raise ValueError(f"metric={metric!r}: {task.kind} has {', '.join(scoring.metrics)}.")
    _keep((), out, figure)  # what cannot be written is an error now
    model, instructions = loaded_base(base, loading), read_instructions(prompts)
    began = time.perf_counter()
    vectors = shared_vectors(model, task, chosen, instructions, batch_tokens, show_progress_bar)
    about: dict[str, Any] = {"model": str(base) if isinstance(base, (str, os.PathLike)) else name_of(model)}
    about |= {"seconds": time.perf_counter() - began, "prompts": instructions.name}
    evidences = {str(each): scoring.evidence(task, usable(vectors[each], task, str(each))) for each in chosen}
    results, differences = _scored(task, evidences, name, draws, seed, about)
    _keep(results, out, figure)
    return Comparison(str(task), results, differences)


def curve(
    base: Any,
    table: Any,
    methods: Sequence[str | Method],
    option: str,
    values: Sequence[Any],
    *,
    figure: Path_ | None = None,
    loading: Mapping[str, Any] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Scores of methods over the values of one of their options.

    Args:
        base, table, methods, loading: As for `compare`.
        option: A field of ``Method``: ``"max_seq_length"`` (token budgets), ``"repeats"``, ``"layer"``, …
        values: Its values.
        figure: Draw a line a method to this file.
        **options: Further arguments of `compare`.

    Returns:
        A row a method, a column a value; NaN where a method cannot have it, as a budget smaller than its template.

    Source:
        Echo, sections 4.6 and 4.7 (budgets, copies, templates); ReBA and NoSink, figures by layer.
    """
    if option not in OPTIONS:
        raise ValueError(f"option={option!r} is not known. Choose from {', '.join(OPTIONS)}.")
    if not values:
        raise ValueError(f"{option} (--vary): give one value at least.")
    if figure is not None:
        check_figure(figure)
    model, asked = loaded_base(base, loading), [Method.parse(str(each)) for each in methods]
    names = list(dict.fromkeys(map(str, values)))
    frame = pd.DataFrame(index=list(dict.fromkeys(map(str, asked))), columns=names, dtype=object)
    reasons: dict[str, str] = {}
    for method, value in product(asked, values):
        try:
            varied_method = replace(method, **{option: value})
            transformer: Any = readouts.of_base(model, varied_method, check=False)[0]
            transformer.budget()
        except (ValueError, TypeError) as error:
            reasons.setdefault(str(value), str(error))
            continue
        frame.loc[str(method), str(value)] = str(varied_method)
    for name in names:
        if frame[name].isna().all():
            raise ValueError(f"{option}={name} (--vary): no method takes this value. {reasons[name]}")
    varied = [cell for cell in frame.to_numpy().ravel() if isinstance(cell, str)]
    results = compare(model, table, varied, draws=0, **options).results
    scores = {each.method: each.score for each in results}
    frame = frame.map(scores.get).astype(float)
    if figure is not None:
        save_figure(draw_curve(frame, option, results[0].metric), figure)
    return frame


def evaluate(
    model: Any,
    tasks: Any,
    *,
    prompts: Any = None,
    out: Path_ | None = None,
    figure: Path_ | None = None,
    batch_tokens: int | None = None,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    **reading: Any,
) -> list[Result]:
    """Score a model on tasks.

    Args:
        model: A SentenceTransformer, or the folder or Hub id of one.
        tasks: One or a list of: tasks, or what ``read_task`` reads (also as ``"KIND=FILE"``); ``"toy"`` (the toy
            structures); the papers' sets (C-MTEB, MTEB-15, MTEB-MINI, MTEB-56), mteb's tasks or benchmarks by name;
            mteb's task objects.
        prompts: Instructions before the texts; None: those of the papers' set, or the model's own prompts.
        out: Append a JSON line a task to this file, as soon as it is scored.
        figure, batch_tokens, seed, show_progress_bar: As for `compare`.
        **reading: As for `compare`.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> [(each.task, each.items) for each in evaluate(model, "toy:S1,en", limit=20)]
        [('S1 en', 20)]
    """
    check_seed(seed)
    if isinstance(model, (str, os.PathLike)):
        model = load(model)
    label, method, results = name_of(model), str(method_of(model) or ""), list[Result]()
    _keep((), out, figure)
    # All are read before the first one is scored: a table that cannot be used is an error now.
    for task, named in list(_tasks(tasks, seed, reading)):
        instructions = read_instructions(prompts if prompts is not None else named)
        about: dict[str, Any] = {"model": label, "prompts": instructions.name}
        began = time.perf_counter()
        if isinstance(task, Task):
            warn_of_dropped(task)
            vectors = model_vectors(model, task, instructions, batch_tokens, show_progress_bar)
            about["seconds"] = time.perf_counter() - began
            scoring = SCORINGS[task.kind]
            evidence = scoring.evidence(task, usable(vectors, task, label))
            results += _scored(task, {method: evidence}, scoring.main, DRAWS, seed, about)[0]
        else:
            scores = mteb_tasks.scores_of(model, task, instructions, show_progress_bar=bool(show_progress_bar))
            about |= {"seconds": time.perf_counter() - began, "scores": scores}
            name, kind, metric = task.metadata.name, task.metadata.type, task.metadata.main_score
            results.append(Result(name, kind, method=method, metric=metric, score=scores[metric], **about))
        _keep(results[-1:], out)
    _keep(results, None, figure)
    return results


def markdown(frame: pd.DataFrame) -> str:
    """A table in Markdown, numbers to three digits."""

    def shown(value: Any) -> str:
        if isinstance(value, float):
            return "" if value != value else f"{value:.3f}"
        return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")

    rows = [["", *map(shown, frame.columns)], ["---"] * (len(frame.columns) + 1)]
    rows += [[shown(name), *map(shown, values)] for name, *values in frame.itertuples(name=None)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def loaded_base(base: Any, loading: Mapping[str, Any] | None) -> Any:
    """The base, loaded unless it is a model of ``readouts.opened``."""
    return base if isinstance(base, SentenceTransformer) else readouts.opened(base, **(loading or {}))


def _scored(
    task: Task, evidences: Mapping[str, Evidence], metric: str, draws: int, seed: int, about: Mapping[str, Any]
) -> tuple[list[Result], list[Difference]]:
    scoring, intervals, differences = SCORINGS[task.kind], dict[str, tuple[float, float]](), list[Difference]()
    if draws:
        options: dict[str, Any] = {"groups": task.groups, "recentred": scoring.recentred, "draws": draws, "seed": seed}
        intervals, differences = paired_bootstrap(evidences, scoring.metrics[metric], **options)
    results = []
    for method, evidence in evidences.items():
        scores = {name: score(evidence) for name, score in scoring.metrics.items()}
        shown: dict[str, Any] = {"interval": intervals.get(method), "scores": scores, "items": len(task.items), **about}
        results.append(Result(task.name, task.kind, method=method, metric=metric, score=scores[metric], **shown))
    return results, differences


def _keep(results: Sequence[Result], out: Path_ | None, figure: Path_ | None = None) -> None:
    if out is not None:
        check_writable(out, "out (--out)")
        lines = [json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in results]
        try:
            with open(out, "a", encoding="utf-8") as stream:
                stream.writelines(lines)
        except OSError as error:
            raise OSError(f"out (--out): {str(out)!r} cannot be written ({error.strerror}).") from None
    if figure is not None:
        save_figure(draw_results(results), figure) if results else check_figure(figure)


def _tasks(tasks: Any, seed: int, reading: Mapping[str, Any]) -> Iterator[tuple[Any, str | None]]:
    for each in tasks if isinstance(tasks, (list, tuple)) else [tasks]:
        word = str(each) if isinstance(each, (str, os.PathLike)) else ""
        kind, equals, rest = word.partition("=")
        if word.partition(":")[0] == "toy":
            yield from ((task, None) for task in toy_tasks_named(word, reading.get("limit"), seed))
        elif equals and kind.casefold() in map(str.casefold, KINDS):
            yield read_task(rest, **{**reading, "kind": kind, "seed": seed}), None
        elif hasattr(each, "metadata") or (word and not Path(word).exists() and Path(word).name == word):
            yield from mteb_tasks.find_tasks(each)
        else:
            yield read_task(each, **{**reading, "seed": seed}), None
