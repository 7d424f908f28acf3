"""Vectors as an index takes them: scaled, by key, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
Keys = NDArray[np.int64]
METRICS = ("cosine", "dot")
# Of a processor's cache rather than of memory: then scaling takes a third of the time.
_BLOCK_BYTES = 2**22


@dataclass(frozen=True)
class Segment:
    """Some vectors that lie somewhere.

    Args:
        keys: Their keys, ascending.
        load: Gives the vectors [rows, d] of row numbers, which ascend.
    """

    keys: Keys
    load: Callable[[Keys], Matrix]


class Vectors:
    """Vectors of several segments, which are read when they are asked for.

    Args:
        segments: Each one's keys lie behind those of the one before.
        dim: The dimension d.

    Example:
        >>> values = np.eye(3, dtype=np.float32)
        >>> vectors = Vectors([Segment(np.array([4, 7, 9]), lambda rows: values[rows])], 3)
        >>> vectors.count, vectors.take(np.array([2])).tolist()
        (3, [[0.0, 0.0, 1.0]])
    """

    def __init__(self, segments: Sequence[Segment], dim: int) -> None:
        self.segments = [segment for segment in segments if len(segment.keys)]
        self.dim = dim
        self.keys: Keys = np.concatenate([np.zeros(0, np.int64), *(segment.keys for segment in self.segments)])
        self.count = len(self.keys)

    def blocks(self) -> Iterator[Matrix]:
        """All vectors in order, [some, d] at a time."""
        size = max(1, _BLOCK_BYTES // (4 * self.dim))
        for segment in self.segments:
            for start in range(0, len(segment.keys), size):
                yield segment.load(np.arange(start, min(start + size, len(segment.keys))))

    def take(self, rows: Keys) -> Matrix:
        """The vectors [rows, d] of ascending row numbers."""
        parts, start = [np.zeros((0, self.dim), np.float32)], 0
        for segment in self.segments:
            stop = start + len(segment.keys)
            first, last = np.searchsorted(rows, (start, stop))
            if last > first:
                parts.append(segment.load(rows[first:last] - start))
            start = stop
        return np.concatenate(parts)


def scaled(vectors: NDArray[Any], metric: str) -> Matrix:
    """Vectors [n, d] of any floats as FAISS takes them: float32, and for cosines of length one.

    A vector that is zero or not finite stays as it is.

    Example:
        >>> scaled(np.array([[3.0, 4.0], [0.0, 0.0]]), "cosine").tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(vectors, dtype=np.float32)
    if metric != "cosine":
        return single
    # float64, so that the squares of large and of small values neither overflow nor vanish.
    lengths: NDArray[np.float64] = np.linalg.norm(single.astype(np.float64), axis=1)
    lengths[~np.isfinite(lengths) | (lengths == 0)] = 1
    return (single / lengths[:, None]).astype(np.float32)


def scaled_queries(vectors: NDArray[Any], dim: int, metric: str) -> Matrix:
    """Query vectors [queries, dim] as FAISS takes them.

    Raises:
        ValueError: They are no floats, have another dimension, or one is NaN, infinite, or zero for cosines.
    """
    if vectors.dtype.kind != "f":
        raise ValueError(f"the query vectors are {vectors.dtype}; give floats, as model.encode_query does")
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(f"the query vectors have the shape {vectors.shape}; the index needs [queries, {dim}]")
    found = scaled(vectors, metric)
    for wrong, what in (
        (~np.isfinite(found).all(axis=1), "NaN or infinite"),
        (~found.any(axis=1) if metric == "cosine" else np.zeros(len(found), bool), "zero"),
    ):
        if wrong.any():
            raise ValueError(f"query {int(np.flatnonzero(wrong)[0])}: its vector is {what}; leave it out")
    return found


def exact(queries: Matrix, keys: Keys, load: Callable[[Keys], Matrix]) -> Matrix:
    """The products of queries [q, d] with single vectors, the same bit for bit whatever else is asked.

    Args:
        queries: The queries.
        keys: Those of each query's vectors [q, k]; −1: none.
        load: Gives the vectors [n, d] of ascending keys.
    """
    there = np.unique(keys[keys >= 0])
    vectors = load(there).astype(np.float64)
    scores = np.full(keys.shape, -np.inf, np.float32)
    for query, wanted, row in zip(queries, keys, scores, strict=True):
        real = wanted >= 0
        row[real] = np.einsum("nd,d->n", vectors[np.searchsorted(there, wanted[real])], query)
    return scores


def best(scores: Matrix, keys: Keys, k: int) -> tuple[Matrix, Keys]:
    """The k best of each row, [q, ≤ k], equal scores by key; a key of −1 is nothing, and comes last."""
    scores = np.where(keys < 0, -np.inf, scores).astype(np.float32)
    if scores.shape[1] > 8 * k:
        # Sorting all of many takes long: what is worse than the k-th is left out.
        least = -np.partition(-scores, k - 1, axis=1)[:, k - 1]
        some = [np.flatnonzero(row >= cut) for row, cut in zip(scores, least, strict=True)]
        order = np.zeros((len(scores), k), np.int64)
        for chosen, one, row, own in zip(order, some, scores, keys, strict=True):
            chosen[:] = one[np.lexsort((own[one], -row[one]))[:k]]
    else:
        order = np.lexsort((keys, -scores))[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(keys, order, axis=1)
