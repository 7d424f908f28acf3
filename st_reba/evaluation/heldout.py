"""Items that choose and items that only report; and what the few reported methods score on the latter."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from tqdm.auto import tqdm

from .. import build
from ..files import whole_file
from ..filters import SUFFIX, PostFilter, postfilter_of, with_postfilter
from .data import Task, in_parts
from .items import Items
from .space import NO_FILTER, Trial
from .statistics import Difference, Evidence, differences, interval

# Below so many items a choice among many methods is one by chance.
FEWEST = 40


@dataclass(frozen=True)
class Parts:
    """A task in two parts.

    Args:
        task: The task.
        validation: What choices may look at.
        heldout: What they may not.
        again: How many items were left out of ``heldout``, as they ask for what ``validation`` has.
    """

    task: Task
    validation: Items
    heldout: Items
    again: int = 0

    @property
    def fingerprint(self) -> str:
        """Changes with the items and their parts."""
        parts = (self.validation, self.heldout, self.task.train)
        return "+".join(part.fingerprint for part in parts if part is not None)

    @property
    def choosing(self) -> Items:
        """The validation part, and behind it what classifiers learn from where that is kept apart."""
        return self.validation if self.task.train is None else self.validation.joined(self.task.train)

    def __str__(self) -> str:
        shared = len(set(self.validation.texts) & set(self.heldout.texts))
        notes = [f"{shared} of its {len(self.heldout.texts)} texts stand in validation too"] if shared else []
        notes += [f"{self.again} items that validation has are left out"] if self.again else []
        sizes = f"{len(self.validation)} choose, {len(self.heldout)} are held out"
        return f"{self.task}: {self.validation.main}; {sizes}" + (f" ({', '.join(notes)})" if notes else "")


def parts_of(task: Task, test: Task | None, validation: float, seed: int) -> Parts:
    """The part of a task that chooses, and the part that reports.

    Args:
        task: The task.
        test: Other items, which report; None: a part of the task's.
        validation: Share of the task's items that choose, without ``test``.
        seed: Of the draw.

    Raises:
        ValueError: The tasks are of two kinds, or there are too few items.
    """
    if test is None:
        if not 0 < validation < 1:
            raise ValueError(f"validation={validation!r} must be a fraction between 0 and 1.")
        parts = in_parts(task, {"validation": validation, "heldout": 1 - validation}, seed)
        made = Parts(task, parts["validation"], parts["heldout"])
    else:
        if test.kind != task.kind:
            raise ValueError(f"test: {test.name} holds {test.kind}, and {task.name} {task.kind}. Give two of one kind.")
        asked = {task.items.asked(item) for item in task.items.items}
        rows = [row for row, item in enumerate(test.items.items) if test.items.asked(item) not in asked]
        made = Parts(task, task.items, test.items.subset(rows), len(test.items) - len(rows))
    for name, part in (("to choose by", made.validation), ("held out", made.heldout)):
        if len(part) < FEWEST:
            raise ValueError(
                f"{task.name}: {len(part)} items {name}, but a choice among many methods needs {FEWEST} at the least. "
                "Use a larger file, or another share (--validation)."
            )
    return made


@dataclass(frozen=True)
class Row:
    """A method that is reported.

    Args:
        name: A single paper's or setting's, ``"fast"`` or ``"composed"``.
        trial: The method.
        cost: Its work as a share of the unconverted base's over the text once.
        tokens: Positions a text, on average.
        validation: Score by which it was chosen, a fraction.
        heldout: Score on items that chose nothing.
        interval: 95 % interval of that, by the bootstrap.
    """

    name: str
    trial: Trial
    cost: float
    tokens: float
    validation: float
    heldout: float
    interval: tuple[float, float]


def score_heldout(
    chosen: Mapping[str, tuple[Trial, float]],
    parts: Parts,
    base: str | os.PathLike[str],
    loading: Mapping[str, Any],
    depth: int,
    folder: Path,
    *,
    seed: int,
    disable: bool | None,
) -> dict[str, Evidence]:
    """What each method says on the held-out items, by the very model that its recipe builds.

    Args:
        chosen: Methods and their validation scores, by name.
        parts: The items.
        base: As for ``build``.
        loading: Further arguments of ``build``.
        depth: The base's number of layers L.
        folder: Where evidence and filters are kept, so that a stopped run goes on.
        seed: Of the filters' record.
        disable: Show no bar; None: on a terminal.
    """
    folder.mkdir(exist_ok=True)
    found: dict[Trial, Evidence] = {}
    for trial in tqdm(dict.fromkeys(trial for trial, _ in chosen.values()), desc="Held-out", disable=disable):
        path = folder / f"{digest(trial)}.npy"
        if not path.exists():
            try:
                evidence, fitted = _tested(trial, parts, base, loading, depth, seed)
            except ValueError as error:
                raise ValueError(f"held-out, {trial}: {error}") from error
            if fitted is not None:
                fitted.save(path.with_suffix(SUFFIX))
            with whole_file(path) as stream:
                np.save(stream, evidence)
        found[trial] = np.load(path)
    return {name: found[trial] for name, (trial, _) in chosen.items()}


def digest(trial: Trial) -> str:
    """What files call a method."""
    return hashlib.sha256(repr(trial).encode()).hexdigest()[:16]


def compared(
    evidence: Mapping[str, Evidence], items: Items, against: str
) -> tuple[dict[str, float], dict[str, tuple[float, float]], list[Difference]]:
    """Scores, their intervals, and the differences to one of the methods, all on the same draws.

    Args:
        evidence: By method.
        items: The held-out ones.
        against: The method that all are compared with.
    """
    metric = items.metrics[items.main]
    scores = {name: metric(each) for name, each in evidence.items()}
    samples = {name: items.draws(each, items.main) for name, each in evidence.items()}
    return scores, {name: interval(each) for name, each in samples.items()}, differences(scores, samples, against)


def _tested(
    trial: Trial, parts: Parts, base: str | os.PathLike[str], loading: Mapping[str, Any], depth: int, seed: int
) -> tuple[Evidence, PostFilter | None]:
    model = build(base, **trial.arguments(depth), **loading)
    fitted = None
    if trial.filter != NO_FILTER:
        options = trial.filter.options(cast(int, model.get_embedding_dimension()))
        fitted = postfilter_of(model, parts.validation.texts, **options, seed=seed, show_progress_bar=False)
        model = with_postfilter(model, fitted)
    items = parts.heldout
    if not items.learns:
        return items.evidence(items.vectors(model)), fitted
    teaching = parts.validation if parts.task.train is None else parts.task.train
    both, count = items.joined(teaching), len(items)
    return both.evidence(both.vectors(model), np.arange(count), np.arange(count, len(both))), fitted
