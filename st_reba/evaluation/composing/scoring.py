"""Readings of one pass scored, without a filter and behind every filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from ...filters import MOST_GAIN, PostFilter, least_texts
from .parts import Part, Vectors
from .trial import NO_FILTER, Filter, Read

# As PostFilter.fit refuses variances that are mostly rounding, but twice as strict: a model that is built anew gives
# vectors that differ in their last digits, and must not be refused what was chosen.
_OF_LARGEST = 2e-8
_OF_LENGTH = 2e-10


@dataclass(frozen=True)
class Scored:
    """One reading behind one filter.

    Args:
        read: The reading.
        filter: The filter.
        score: A fraction.
    """

    read: Read
    filter: Filter
    score: float


class Sample:
    """Vectors that filters are fitted on, taken apart once for all filters.

    Args:
        vectors: [N, d] of length 1.
    """

    def __init__(self, vectors: Vectors) -> None:
        self.count, self.width = vectors.shape
        self.mean = vectors.mean(axis=0)
        self._centred = vectors - self.mean
        self._variance = (self._centred**2).mean(axis=0)
        length = float(self._variance.sum() + self.mean @ self.mean)
        self._least = max(_OF_LARGEST * float(self._variance.max()), _OF_LENGTH * length)
        # As PostFilter.fit: nothing is divided by less.
        self._floor = length / MOST_GAIN**2

    @cached_property
    def _principal(self) -> tuple[Vectors, Vectors]:
        """Variances, the largest first, and their directions, [up to d, d]."""
        if self.count > self.width:
            variances, columns = np.linalg.eigh(self._centred.T @ self._centred / self.count)
            return variances[::-1], columns.T[::-1]
        # Of few vectors a decomposition of their covariance would be the larger one.
        _, values, directions = np.linalg.svd(self._centred, full_matrices=False)
        return values**2 / self.count, directions

    def fitted(self, wanted: Filter) -> PostFilter | None:
        """The filter that :meth:`PostFilter.fit` would give; None: the sample is too small for it, or too flat."""
        if wanted.kind == "none" or not enough(wanted, self.count, self.width):
            return None
        if wanted.kind == "center":
            return PostFilter("center", self.mean)
        if wanted.kind == "standardize":
            flat = (self._variance <= self._least).any()
            scale = np.sqrt(np.maximum(self._variance, self._floor))
            return None if flat else PostFilter("standardize", self.mean, scale=scale)
        values, directions = self._principal
        first = 0 if wanted.kind == "abtt" else wanted.r
        last = wanted.r if wanted.kind == "abtt" else wanted.r + wanted.dimensions(self.width)
        if last > len(values) or values[last - 1] <= max(self._least, _OF_LARGEST * float(values[0])):
            return None
        if wanted.kind == "abtt":
            return PostFilter("abtt", self.mean, directions[:last])
        scale = np.maximum(values[first:last], self._floor) ** (wanted.power / 2)
        return PostFilter(
            "whiten", self.mean, directions[first:last], scale, skipped=wanted.r, power=float(wanted.power)
        )


def enough(wanted: Filter, count: int, width: int) -> bool:
    """Whether a filter can be fitted on so many texts.

    Args:
        wanted: The filter.
        count: Of texts.
        width: Dimension d of the vectors.
    """
    if wanted.kind == "none":
        return True
    if wanted.r >= width:
        return False
    return count >= least_texts(wanted.kind, width, wanted.dimensions(width))


def score_reads(
    part: Part, vectors: Mapping[Read, NDArray[np.float32]], filters: Sequence[Filter], *, looked_at: int | None = None
) -> list[Scored]:
    """Score readings, each behind every filter.

    A filter sees texts and no labels, and is fitted on all texts of the part. A classifier learns from one half of the
    items and is scored on the other, by turns.

    Args:
        part: The items.
        vectors: [texts of the part, d] float32 of length 1, by reading.
        filters: The filters, one of which may be none.
        looked_at: Try all filters on so many readings only: the best without a filter, and the best behind the last of
            ``filters`` that there are texts enough for. None: on all.

    Returns:
        In no order; a reading with vectors that are not finite is left out.
    """
    usable = {read: array.astype(np.float64) for read, array in vectors.items() if np.isfinite(array).all()}
    if looked_at is None or looked_at >= len(usable):
        return [each for read, array in usable.items() for each in _scored(part, read, array, filters)]
    first: list[Scored] = []
    for read, array in usable.items():
        behind = next((each for each in reversed(filters) if enough(each, *array.shape)), NO_FILTER)
        probes = [NO_FILTER, behind]
        first += _scored(part, read, array, list(dict.fromkeys(probes)))
    best = sorted(first, key=lambda each: -each.score)
    orders = [[each.read for each in best if (each.filter == NO_FILTER) is plain] for plain in (True, False)]
    # By turns from both orders.
    mixed = dict.fromkeys(read for pair in zip_longest(*orders) for read in pair if read is not None)
    found = {(each.read, each.filter): each for each in first}
    for read in list(mixed)[:looked_at]:
        for each in _scored(part, read, usable[read], filters):
            found[each.read, each.filter] = each
    return list(found.values())


def _scored(part: Part, read: Read, vectors: Vectors, filters: Sequence[Filter]) -> list[Scored]:
    sample = Sample(vectors)
    found = []
    for each in filters:
        if each.kind == "none":
            found.append(Scored(read, each, score(part, vectors)))
        elif (fitted := sample.fitted(each)) is not None:
            found.append(Scored(read, each, score(part, units(fitted.apply(vectors)))))
    return found


def score(part: Part, vectors: Vectors) -> float:
    """The score of vectors of length 1 on all items of a part."""
    if not part.learns:
        every = np.arange(len(part))
        return part.score_of(part.evidence(vectors, every, every))
    one, other = part.folds()
    return sum(part.score_of(part.evidence(vectors, *each)) for each in ((one, other), (other, one))) / 2


def units(vectors: Vectors) -> Vectors:
    """Vectors scaled to length 1; zero stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float64).tiny))
