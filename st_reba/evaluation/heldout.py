"""Items that choose and items that only report; and what the few reported methods score on the latter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..files import whole_file
from ..filters import SUFFIX, PostFilter, postfilter_of, with_postfilter
from .data import Task, in_parts
from .items import Items
from .ledger import Result
from .methods import Base, Method
from .passes import Costs
from .statistics import Difference, Evidence, differences, interval
from .trials import NO_FILTER, Trial

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
    """The part of a task that chooses (a share, ``validation``), and the part that reports: the rest, or ``test``.

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
class Found:
    """What a search ends with.

    Args:
        results: All arms on all rungs.
        chosen: The methods that are reported and their validation scores, by name.
        against: The one that all are compared with.
        recipes: The recipe's file, by the name of a method that has one; the best method's first.
        depth: The base's number of layers L.
        costs: Of methods.
        notes: What else the report says, in Markdown.
    """

    results: Sequence[Result]
    chosen: Mapping[str, tuple[Trial, float]]
    against: str
    recipes: Mapping[str, str]
    depth: int
    costs: Costs
    notes: tuple[str, ...] = ()


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
    found: Found,
    parts: Parts,
    base: Base,
    loading: Mapping[str, Any],
    folder: Path,
    *,
    seed: int,
    disable: bool | None,
) -> tuple[tuple[Row, ...], tuple[Difference, ...]]:
    """Score what was chosen on the held-out items, each method by the very model that its recipe builds.

    Args:
        found: What was chosen.
        parts: The items.
        base: The base.
        loading: Further arguments of ``build``.
        folder: Where evidence and filters are kept, so that a stopped run goes on.
        seed: Of the filters' record.
        disable: Show no bar; None: on a terminal.

    Returns:
        The methods, and the differences to the one that all are compared with, all on the same draws.
    """
    folder.mkdir(exist_ok=True)
    evidence: dict[Trial, Evidence] = {}
    for trial in tqdm(dict.fromkeys(trial for trial, _ in found.chosen.values()), desc="Held-out", disable=disable):
        path = folder / f"{digest(trial)}.npy"
        if not path.exists():
            try:
                model = Method(trial.arguments(found.depth)).build(base, **loading)
                made, fitted = _tested(trial, parts, model, seed)
            except ValueError as error:
                raise ValueError(f"held-out, {trial}: {error}") from error
            if fitted is not None:
                fitted.save(path.with_suffix(SUFFIX))
            with whole_file(path) as stream:
                np.save(stream, made)
        evidence[trial] = np.load(path)
    items, costs = parts.heldout, found.costs
    scores = {name: items.metrics[items.main](evidence[trial]) for name, (trial, _) in found.chosen.items()}
    samples = {name: items.draws(evidence[trial], items.main) for name, (trial, _) in found.chosen.items()}
    rows = tuple(
        Row(name, trial, costs.of(trial), costs.tokens(trial.arm), score, scores[name], interval(samples[name]))
        for name, (trial, score) in found.chosen.items()
    )
    return rows, tuple(differences(scores, samples, found.against))


def digest(trial: Trial) -> str:
    """What files call a method."""
    return hashlib.sha256(repr(trial).encode()).hexdigest()[:16]


def _tested(trial: Trial, parts: Parts, model: SentenceTransformer, seed: int) -> tuple[Evidence, PostFilter | None]:
    fitted = None
    if trial.filter != NO_FILTER:
        options = trial.filter.options(cast(int, model.get_embedding_dimension()))
        fitted = postfilter_of(model, parts.validation.fitted_on, **options, seed=seed, show_progress_bar=False)
        model = with_postfilter(model, fitted)
    items = parts.heldout
    if not items.learns:
        return items.evidence(items.vectors(model)), fitted
    teaching = parts.validation if parts.task.train is None else parts.task.train
    both, count = items.joined(teaching), len(items)
    return both.evidence(both.vectors(model), np.arange(count), np.arange(count, len(both))), fitted
