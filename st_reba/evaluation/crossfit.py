"""Readings scored behind filters, each of which is fitted on other items than those it is scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..filters import MOST_GAIN, least_texts
from .items import Items, Rows
from .passes import Encoded
from .statistics import Evidence
from .trials import NO_FILTER, Filter, Read

Array = NDArray[np.float64]

# As PostFilter.fit refuses variances that are mostly rounding, but twice as strict: a model that is built anew gives
# vectors that differ in their last digits, and must not be refused what was chosen.
_OF_LARGEST = 2e-8
_OF_LENGTH = 2e-10
# A recipe's filter is fitted on all items. Fitted on half of them, a wide filter would look worse than it is.
FOLDS = 5


@dataclass(frozen=True)
class Fold:
    """Items that are scored, and what is learnt from for them.

    Args:
        items: Those that are scored, and those that a classifier learns from.
        rows: Which of them are scored.
        learn: Which teach.
        places: Of these items' vectors among those of all.
        fit: Places of the texts that a filter is fitted on: the other items', none of which stands in a scored one.
    """

    items: Items
    rows: Rows
    learn: Rows
    places: Any
    fit: Rows

    def evidence(self, vectors: NDArray[Any]) -> Evidence:
        """What vectors of the places say about the items that are scored."""
        return self.items.evidence(vectors, self.rows, self.learn if self.items.learns else None)

    def metric(self, evidence: Evidence) -> float:
        """The main metric."""
        return self.items.metrics[self.items.main](evidence)

    def score(self, vectors: NDArray[Any]) -> float:
        """The main metric, by vectors of the places."""
        return self.metric(self.evidence(vectors))


def folds_of(items: Items, scored: int | None = None, parts: int = FOLDS) -> list[Fold]:
    """Items in folds, each of which is scored by what the others teach.

    The first ``scored`` items are scored (None: all); those behind are what classifiers learn from.
    """
    count = len(items) if scored is None else scored
    found = []
    for rows in items.subset(range(count)).folds(parts):
        others = np.setdiff1d(np.arange(count), rows)
        learn = others if count == len(items) else np.arange(count, len(items))
        own = {items.texts[place] for place in items.needed(rows)}
        different = {items.texts[place]: place for place in items.needed(others) if items.texts[place] not in own}
        fit = np.asarray(list(different.values()), np.intp)
        if items.kind in ("NER", "WordSense"):
            # Their vectors are those of words.
            found.append(Fold(items, rows, learn, slice(None), fit))
            continue
        both = np.concatenate([rows, learn if items.learns else rows[:0]])
        ends = np.arange(len(both))
        places = np.asarray(items.needed(both), np.intp)
        found.append(Fold(items.subset(both), ends[: len(rows)], ends[len(rows) :], places, fit))
    return found


class Sample:
    """Vectors [N, d] that filters are fitted on, taken apart once for all filters, and vectors [M, d] to be filtered.

    All are of length 1.
    """

    def __init__(self, sample: Array, vectors: Array) -> None:
        self.count, self.width = sample.shape
        mean = sample.mean(axis=0)
        self._sample, self._vectors = sample - mean, vectors - mean
        self._variance = np.einsum("nd,nd->d", self._sample, self._sample) / self.count
        length = float(self._variance.sum() + mean @ mean)
        self._least = max(_OF_LARGEST * float(self._variance.max()), _OF_LENGTH * length)
        # As PostFilter.fit: nothing is divided by less.
        self._floor = length / MOST_GAIN**2

    @cached_property
    def _principal(self) -> tuple[Array, Array, Array]:
        """Variances, the largest first; their directions, [up to d, d]; the vectors' coordinates along them."""
        if self.count > self.width:
            variances, columns = np.linalg.eigh(self._sample.T @ self._sample / self.count)
            variances, directions = variances[::-1], columns.T[::-1]
        else:
            # Of few vectors a decomposition of their covariance would be the larger one.
            _, values, directions = np.linalg.svd(self._sample, full_matrices=False)
            variances = values**2 / self.count
        return variances, directions, self._vectors @ directions.T

    def filtered(self, wanted: Filter) -> Array | None:
        """What the filter that :meth:`PostFilter.fit` gives makes of the vectors, whiten but for a rotation.

        None: the sample is too small for the filter, or too flat.
        """
        if not enough(wanted, self.count, self.width):
            return None
        if wanted.kind == "center":
            return np.asarray(self._vectors)
        if wanted.kind == "standardize":
            if (self._variance <= self._least).any():
                return None
            return np.asarray(self._vectors / np.sqrt(np.maximum(self._variance, self._floor)))
        values, directions, coordinates = self._principal
        first = 0 if wanted.kind == "abtt" else wanted.r
        last = wanted.r if wanted.kind == "abtt" else wanted.r + wanted.dimensions(self.width)
        if last > len(values) or values[last - 1] <= max(self._least, _OF_LARGEST * float(values[0])):
            return None
        if wanted.kind == "abtt":
            return np.asarray(self._vectors - coordinates[:, :last] @ directions[:last])
        scale = np.maximum(values[first:last], self._floor) ** (wanted.power / 2)
        return np.asarray(coordinates[:, first:last] / scale)


def enough(wanted: Filter, count: int, width: int) -> bool:
    """Whether a filter of vectors of d dimensions (``width``) can be fitted on so many texts."""
    if wanted.kind == "none":
        return True
    return wanted.r < width and count >= least_texts(wanted.kind, width, wanted.dimensions(width))


@dataclass(frozen=True)
class Scored:
    """One reading behind one filter, and its score, a fraction."""

    read: Read
    filter: Filter
    score: float


def score_reads(
    folds: Sequence[Fold],
    encoded: Encoded,
    filters: Sequence[Filter],
    *,
    looked_at: int | None = None,
    kept: dict[tuple[Read, Filter], Evidence] | None = None,
) -> list[Scored]:
    """Score readings one at a time, each behind every filter: the mean of the folds' scores.

    Args:
        folds: See :func:`folds_of`.
        encoded: The readings' vectors.
        filters: The filters, one of which may be none.
        looked_at: Try all filters on so many readings only: by turns the best without a filter, and the best behind the
            last of ``filters`` that there are texts enough for. None: on all.
        kept: Gets what each says about each item, fold after fold.

    Returns:
        In no order; a reading with vectors that are not finite is left out, and so is a filter that not every fold
        allows.
    """
    count = min(len(fold.fit) for fold in folds)
    found: dict[tuple[Read, Filter], float] = {}

    def score(read: Read, vectors: Array, tried: Sequence[Filter]) -> None:
        for each, evidence in _behind(folds, vectors, tried).items():
            scores = [fold.metric(part) for fold, part in zip(folds, evidence, strict=True)]
            found[read, each] = sum(scores) / len(scores)
            if kept is not None:
                kept[read, each] = np.concatenate(evidence)

    every = looked_at is None or looked_at >= len(encoded.reads)
    for read in encoded.reads:
        vectors = encoded[read]
        if np.isfinite(vectors).all():
            behind = next((each for each in reversed(filters) if enough(each, count, vectors.shape[1])), NO_FILTER)
            score(read, vectors, filters if every else list(dict.fromkeys([NO_FILTER, behind])))
    if not every:
        best = sorted(found, key=lambda each: -found[each])
        orders = [[read for read, each in best if (each == NO_FILTER) is plain] for plain in (True, False)]
        mixed = dict.fromkeys(read for pair in zip_longest(*orders) for read in pair if read is not None)
        for read in list(mixed)[:looked_at]:
            score(read, encoded[read], [each for each in filters if (read, each) not in found])
    return [Scored(*each, value) for each, value in found.items()]


def _behind(folds: Sequence[Fold], vectors: Array, filters: Sequence[Filter]) -> dict[Filter, list[Evidence]]:
    """What a reading says, fold by fold, behind each of the filters that every fold allows."""
    found: dict[Filter, list[Evidence]] = {each: [] for each in filters}
    for fold in folds:
        asked = vectors[fold.places]
        sample = Sample(vectors[fold.fit], asked) if set(filters) - {NO_FILTER} and len(fold.fit) else None
        for each in filters:
            if each == NO_FILTER:
                found[each].append(fold.evidence(asked))
            elif sample is not None and (filtered := sample.filtered(each)) is not None:
                found[each].append(fold.evidence(_units(filtered)))
    return {each: parts for each, parts in found.items() if len(parts) == len(folds)}


def _units(vectors: Array) -> Array:
    """Scaled to length 1, as the model does behind its filter; zero stays zero."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny))
