"""The methods that are reported, and their scores on items that chose nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from ... import build
from ...filters import PostFilter, postfilter_of, with_postfilter
from ..resampling import DRAWS
from ..vectors import sentence_vectors
from .costs import Costs
from .halving import best_of, of_paper
from .parts import Part
from .reading import Parted
from .results import Result
from .scoring import units
from .trial import NO_FILTER, PAPERS, Trial


@dataclass(frozen=True)
class Row:
    """A method that is reported.

    Args:
        name: A single paper's, ``"fast"`` or ``"composed"``.
        trial: The method.
        cost: Its work as a share of the unconverted base's over the text once.
        tokens: Positions a text, on average.
        validation: Score by which it was chosen, a fraction.
        heldout: Score on items that chose nothing.
        interval: 95 % interval of that, by the bootstrap.
        gain: 95 % interval of the difference to the best single paper's method; None: none was searched.
        single: Whether it is that one, the best by validation.
    """

    name: str
    trial: Trial
    cost: float
    tokens: float
    validation: float
    heldout: float
    interval: tuple[float, float]
    gain: tuple[float, float] | None
    single: bool


def reported(results: Sequence[Result], costs: Costs, speed: float) -> dict[str, tuple[Trial, float]]:
    """What is told of: the best single papers' methods, the best fast method, the best of all, by the last rung.

    Args:
        results: All of a search.
        costs: Of methods.
        speed: The share of the base's work that a fast method may take.

    Returns:
        Methods and their scores, by name.
    """
    last = max(each.rung for each in results)
    on_all = [result for result in results if result.rung == last]
    found: dict[str, tuple[Trial, float]] = {}
    for paper in PAPERS:
        best = best_of(on_all, of_paper(paper, costs.depth), costs)
        if best is not None:
            found[paper] = best
    fast = best_of(on_all, lambda trial: costs.of(trial) <= speed, costs)
    if fast is not None:
        found["fast"] = fast
    every = best_of(on_all, lambda trial: True, costs)
    assert every is not None
    return {**found, "composed": every}


def tested(
    chosen: Mapping[str, tuple[Trial, float]],
    parted: Parted,
    base: str | os.PathLike[str],
    loading: Mapping[str, Any],
    costs: Costs,
    *,
    seed: int,
    files: Mapping[str, Path],
    show_progress_bar: bool | None,
) -> list[Row]:
    """Each method's score on the held-out items, by the very model that its recipe builds.

    Args:
        chosen: Methods and their validation scores, by name.
        parted: The items.
        base: As for ``build``.
        loading: Further arguments of ``build``.
        costs: Of methods.
        seed: Of the bootstrap.
        files: Where post-filters are saved, by the method's name.
        show_progress_bar: Show one; None: on a terminal.
    """
    evidence: dict[Trial, NDArray[np.float64]] = {}
    fitted: dict[Trial, PostFilter | None] = {}
    disable = None if show_progress_bar is None else not show_progress_bar
    for trial in tqdm(dict.fromkeys(trial for trial, _ in chosen.values()), desc="Held-out", disable=disable):
        try:
            evidence[trial], fitted[trial] = _tested(trial, parted, base, loading, costs, seed)
        except ValueError as error:
            raise ValueError(f"held-out, {trial}: {error}") from error
    for name, path in files.items():
        if name in chosen and (postfilter := fitted[chosen[name][0]]) is not None:
            postfilter.save(path)
    papers = [name for name in chosen if name in PAPERS]
    single = max(papers, key=lambda name: chosen[name][1], default=None)
    score_of, count = parted.heldout.score_of, len(parted.heldout)
    # The same items of all methods are drawn: what two share does not blur what parts them.
    draws = np.random.default_rng(seed).integers(count, size=(DRAWS, count))
    sampled = {trial: np.asarray([score_of(each[draw]) for draw in draws]) for trial, each in evidence.items()}
    rows = []
    for name, (trial, score) in chosen.items():
        gain = None if single is None else _middle(sampled[trial] - sampled[chosen[single][0]])
        rows.append(
            Row(
                name=name,
                trial=trial,
                cost=costs.of(trial),
                tokens=costs.tokens(trial.arm),
                validation=score,
                heldout=score_of(evidence[trial]),
                interval=_middle(sampled[trial]),
                gain=gain,
                single=name == single,
            )
        )
    return rows


def _tested(
    trial: Trial,
    parted: Parted,
    base: str | os.PathLike[str],
    loading: Mapping[str, Any],
    costs: Costs,
    seed: int,
) -> tuple[NDArray[np.float64], PostFilter | None]:
    """What a method's model says on the held-out items, and its post-filter."""
    model = build(base, **trial.arguments(costs.depth), **loading)
    fitted = None
    if trial.filter != NO_FILTER:
        width = model.get_embedding_dimension()
        assert width is not None
        options = trial.filter.options(width)
        fitted = postfilter_of(model, parted.validation.texts, **options, seed=seed, show_progress_bar=False)
        model = with_postfilter(model, fitted)
    part: Part = parted.heldout
    items = learn = np.arange(len(part))
    if part.learns:
        part, learn, items = parted.joined()
    vectors = units(sentence_vectors(model, part.texts, batch_size=None).astype(np.float64))
    return part.evidence(vectors, items, learn), fitted


def _middle(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)
