"""mteb's tasks by name or as the papers' sets, scored by mteb itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ..optional import required
from .encoding import has_field
from .instructions import Instructions


@cache
def suites() -> dict[str, dict[str, Any]]:
    """The papers' sets of tasks, by name; ``suites.yaml`` says what each holds."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("suites.yaml").read_text("utf-8"))
    return found


def find_tasks(word: Any) -> list[tuple[Any, str | None]]:
    """mteb's task objects of a name, each with the name of the instructions that its set puts in front.

    Args:
        word: One of the papers' sets, of mteb's tasks or benchmarks; or mteb's own object.

    Raises:
        ValueError: The name is not known.
    """
    if not isinstance(word, str):
        return [(word, None)]
    mteb: Any = required("mteb", "mteb", f"{word!r} is no file, and as a task needs mteb")
    if suite := {name.casefold(): each for name, each in suites().items()}.get(word.casefold()):
        splits, subsets = suite.get("splits", {}), suite.get("subsets", {})
        return [
            (mteb.get_task(name, eval_splits=splits.get(name), hf_subsets=subsets.get(name)), suite.get("prompts"))
            for names in suite["tasks"].values()
            for name in names
        ]
    for find in (lambda: [mteb.get_task(word)], lambda: mteb.get_benchmark(word).tasks):
        try:
            return [(task, None) for task in find()]
        except KeyError:
            continue
    raise ValueError(
        f"tasks: {word!r} is neither a file, nor one of {', '.join(suites())}, nor a task or benchmark of mteb. "
        "A file: its path, or KIND=PATH, as STS=pairs.tsv."
    )


def scores_of(
    model: Any, task: Any, instructions: Instructions | None = None, *, show_progress_bar: bool = False
) -> dict[str, float]:
    """Run one task by ``mteb.evaluate`` and average its metrics over splits and subsets.

    Args:
        model: The SentenceTransformer, given to mteb as it is.
        task: mteb's object.
        instructions: Set as the model's prompts, by mteb's names, while the task runs.
        show_progress_bar: Show mteb's.

    Raises:
        ValueError: mteb could not score the task.
    """
    import mteb

    with _prompted(model, task, instructions or Instructions()):
        shown: Any = {"show_progress_bar": show_progress_bar}
        answer = mteb.evaluate(model, task, cache=None, co2_tracker=False, encode_kwargs=shown, **shown)
    if not answer.task_results:
        raise ValueError("; ".join(each.exception for each in answer.exceptions or ()) or "mteb gave no result.")
    rows = pd.DataFrame([row for split in answer.task_results[0].scores.values() for row in split])
    scores: dict[str, float] = rows.select_dtypes("number").mean(skipna=False).dropna().to_dict()
    if task.metadata.main_score not in scores:
        raise ValueError(f"{task.metadata.name}: its main score {task.metadata.main_score!r} is not finite.")
    return scores


@contextmanager
def _prompted(model: Any, task: Any, instructions: Instructions) -> Iterator[None]:
    """Make the instructions of the task (and of its parts, where it averages several) the model's prompts."""
    prompts = {}
    for name in [each.metadata.name for each in (task, *getattr(task.metadata, "tasks", ()))]:
        for role, ending in ((None, ""), ("query", "-query"), ("document", "-document")):
            found = instructions.before(name, role, has_field(model, role))
            # A document without an instruction must not get that of its query.
            if found is not None or (role and name in prompts):
                prompts[name + ending] = found or ""
    before, model.prompts = model.prompts, {**model.prompts, **prompts}
    try:
        yield
    finally:
        model.prompts = before
