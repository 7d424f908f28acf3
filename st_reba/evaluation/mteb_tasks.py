"""mteb's tasks by name or as the papers' sets, scored by mteb itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from .encoding import has_field
from .instructions import Instructions


@dataclass(frozen=True)
class Suite:
    """A set of mteb's tasks that a paper scores.

    Args:
        source: The paper, and where it names the tasks.
        scores: Whose metric the paper's tables hold: ``"mteb"``: its main score; ``"reba"``: ReBA's, by kind.
        tasks: mteb's names, by kind.
        prompts: Name of the instructions that the paper puts in front; None: none.
        splits, subsets: Of tasks for which they are not mteb's default.
    """

    source: str
    scores: str
    tasks: Mapping[str, Sequence[str]]
    prompts: str | None = None
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All tasks, kind by kind."""
        return [name for names in self.tasks.values() for name in names]


@cache
def suites() -> dict[str, Suite]:
    """The papers' sets of tasks, by name.

    Example:
        >>> {name: len(suite.names) for name, suite in suites().items()}
        {'C-MTEB': 31, 'MTEB-15': 15, 'MTEB-MINI': 26, 'MTEB-56': 56}
    """
    values = yaml.safe_load(Path(__file__).with_name("suites.yaml").read_text(encoding="utf-8"))
    return {name: Suite(**suite) for name, suite in values.items()}


def find_tasks(word: Any) -> list[tuple[Any, str | None]]:
    """mteb's task objects of a name, each with the name of the instructions that its set puts in front.

    Args:
        word: One of the papers' sets, of mteb's tasks or benchmarks; or mteb's own object.

    Raises:
        ValueError: The name is not known.
        ImportError: mteb is not installed.
    """
    if not isinstance(word, str):
        return [(word, None)]
    mteb: Any = import_module("mteb")
    for suite in (each for name, each in suites().items() if name.lower() == word.lower()):
        options = [
            {"eval_splits": suite.splits.get(name), "hf_subsets": suite.subsets.get(name)} for name in suite.names
        ]
        return [(mteb.get_task(name, **how), suite.prompts) for name, how in zip(suite.names, options, strict=True)]
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
    model: Any, task: Any, instructions: Instructions | None = None, *, show_progress_bar: bool = False, **options: Any
) -> dict[str, float]:
    """Run one task by ``mteb.evaluate`` and average its metrics over splits and subsets.

    Args:
        model: The SentenceTransformer, given to mteb as it is.
        task: mteb's object.
        instructions: Set as the model's prompts, by mteb's names, while the task runs.
        show_progress_bar: Show mteb's.
        **options: Of ``mteb.evaluate``.

    Raises:
        ValueError: mteb could not score the task.
    """
    import mteb

    with _prompted(model, task, instructions or Instructions()):
        answer = mteb.evaluate(
            model, task, cache=None, co2_tracker=False, show_progress_bar=show_progress_bar,
            encode_kwargs={"show_progress_bar": show_progress_bar}, **options,
        )  # fmt: skip
    if not answer.task_results:
        raise ValueError("; ".join(each.exception for each in answer.exceptions or ()) or "mteb gave no result.")
    rows = [row for split in answer.task_results[0].scores.values() for row in split]
    scores = {}
    for name in rows[0]:
        values: list[Any] = [row.get(name) for row in rows]
        if all(isinstance(each, (int, float)) and math.isfinite(each) for each in values):
            scores[name] = math.fsum(values) / len(values)
    if task.metadata.main_score not in scores:
        raise ValueError(f"{task.metadata.name}: its main score {task.metadata.main_score!r} is not finite.")
    return scores


@contextmanager
def _prompted(model: Any, task: Any, instructions: Instructions) -> Iterator[None]:
    """Make the instructions of the task (and of its parts, where it averages several) the model's prompts."""

    def names(each: Any) -> list[str]:
        parts = each.metadata.tasks if each.is_aggregate else ()
        return [one for part in parts for one in names(part)] or [each.metadata.name]

    prompts = {}
    for name in names(task):
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
