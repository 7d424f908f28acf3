"""mteb's tasks by name or as the papers' sets, scored by mteb itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from sentence_transformers import SentenceTransformer

from ..optional import required
from .encoding import has_instruction_field
from .instructions import Instructions


@cache
def suites() -> dict[str, dict[str, Any]]:
    """The papers' sets of tasks, by name; ``suites.yaml`` says what each holds."""
    text = Path(__file__).with_name("suites.yaml").read_text("utf-8")
    suite_of_name: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return suite_of_name


def find_tasks(name: Any) -> list[tuple[Any, str | None]]:
    """The task objects of mteb that a name means, each with the name of its set's instructions.

    Args:
        name: One of the papers' sets, of mteb's tasks or benchmarks; or mteb's own object.

    Raises:
        ValueError: The name is not known.
    """
    if not isinstance(name, str):
        return [(name, None)]
    mteb = required("mteb", "mteb", f"{name!r} is not a file, and as a task needs mteb")
    for suite_name, suite in suites().items():
        if suite_name.casefold() == name.casefold():
            return _open_suite(mteb, suite)
    try:
        return [(mteb.get_task(name), None)]
    except KeyError:
        pass
    try:
        return [(task, None) for task in mteb.get_benchmark(name).tasks]
    except KeyError:
        choices = f"a file, nor one of {', '.join(suites())}, nor a task or benchmark of mteb"
        remedy = "A file: its path, or KIND=PATH, such as STS=pairs.tsv."
        raise ValueError(f"tasks: {name!r} is neither {choices}. {remedy}") from None


def _open_suite(mteb: Any, suite: dict[str, Any]) -> list[tuple[Any, str | None]]:
    splits = suite.get("splits", {})
    subsets = suite.get("subsets", {})
    tasks: list[tuple[Any, str | None]] = []
    for task_names in suite["tasks"].values():
        for name in task_names:
            task = mteb.get_task(
                name,
                eval_splits=splits.get(name),
                hf_subsets=subsets.get(name),
            )
            tasks.append((task, suite.get("prompts")))
    return tasks


def scores_of(
    model: SentenceTransformer,
    task: Any,
    instructions: Instructions | None = None,
    *,
    show_progress_bar: bool = False,
) -> dict[str, float]:
    """Run one task by ``mteb.evaluate`` and average its metrics over splits and subsets.

    Args:
        model: The SentenceTransformer, given to mteb as it is.
        task: mteb's object.
        instructions: Set as the model's prompts, by mteb's names, while the task runs.
        show_progress_bar: Show mteb's progress bar.

    Raises:
        ValueError: mteb could not score the task.
    """
    import mteb

    with _task_prompts(model, task, instructions or Instructions()):
        results = mteb.evaluate(
            model,
            task,
            cache=None,
            co2_tracker=False,
            encode_kwargs={"show_progress_bar": show_progress_bar},
            show_progress_bar=show_progress_bar,
        )
    if not results.task_results:
        problems = [error.exception for error in results.exceptions or ()]
        raise ValueError("; ".join(problems) or "mteb gave no result.")
    score_rows: list[Mapping[str, Any]] = []
    for split_rows in results.task_results[0].scores.values():
        score_rows += split_rows
    means = pd.DataFrame(score_rows).select_dtypes("number").mean(skipna=False)
    scores: dict[str, float] = means.dropna().to_dict()
    main_score = task.metadata.main_score
    if main_score not in scores:
        raise ValueError(f"{task.metadata.name}: its main score {main_score!r} is not finite.")
    return scores


@contextmanager
def _task_prompts(
    model: SentenceTransformer,
    task: Any,
    instructions: Instructions,
) -> Iterator[None]:
    """Set the model's prompts to the instructions of a task, or of those that it averages."""
    prompts: dict[str, str] = {}
    for subtask in (
        task,
        *getattr(task.metadata, "tasks", ()),
    ):
        name = subtask.metadata.name
        for role, prompt_name in (
            (None, name),
            ("query", f"{name}-query"),
            ("document", f"{name}-document"),
        ):
            instruction = instructions.before(name, role, has_instruction_field(model, role))
            if instruction is not None:
                prompts[prompt_name] = instruction
            elif role is not None and name in prompts:
                # A document without an instruction must not get that of its query.
                prompts[prompt_name] = ""
    model_prompts = model.prompts
    model.prompts = {**model_prompts, **prompts}
    try:
        yield
    finally:
        model.prompts = model_prompts
