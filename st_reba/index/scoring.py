"""Vectors as FAISS takes them, and exact scores of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
Keys = NDArray[np.int64]
Mask = NDArray[np.bool_]
"""Which of some vectors count, [vectors]; in a search, by key, [keys]."""


@dataclass(frozen=True)
class Segment:
    """Some vectors.

    Args:
        keys: Their keys, ascending, [n].
        load: Loads them, [n, d].
    """

    keys: Keys
    load: Callable[[], Matrix]

    def converted(self, convert: Callable[[Keys, Matrix], Matrix]) -> Segment:
        """The same keys, with vectors that are converted when they are loaded."""
        return Segment(self.keys, lambda: convert(self.keys, self.load()))


class Neighbors(NamedTuple):
    """The vectors nearest to some queries, best first; a key of −1 is nothing."""

    scores: Matrix  # [q, ≤ k]
    keys: Keys  # [q, ≤ k]


def no_neighbors(query_count: int) -> Neighbors:
    shape = (query_count, 0)
    return Neighbors(np.zeros(shape, np.float32), np.zeros(shape, np.int64))


@dataclass(frozen=True)
class PendingVectors:
    """Vectors that the FAISS file does not hold yet, [n, d], and their ascending keys, [n]."""

    keys: Keys
    vectors: Matrix

    @property
    def segment(self) -> Segment:
        return Segment(self.keys, lambda: self.vectors)

    def select(self, is_allowed: Mask) -> PendingVectors:
        is_selected = is_allowed[self.keys]
        return PendingVectors(self.keys[is_selected], self.vectors[is_selected])

    def load(self, keys: Keys) -> Matrix:
        return self.vectors[np.searchsorted(self.keys, keys)]

    def search(self, queries: Matrix, k: int) -> Neighbors:
        keys = search_exactly(queries, k, [self.segment]).keys
        return Neighbors(rescore(queries, keys, self.load), keys)


def prepare_vectors(vectors: NDArray[Any], metric: str) -> Matrix:
    """Vectors [n, d] as FAISS takes them: float32, and of length one for cosines.

    Vectors that are zero or not finite stay as they are.
    """
    with np.errstate(over="ignore"):
        float_vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if metric != "cosine":
        return float_vectors
    # In float64, squares neither overflow nor vanish.
    squares = np.einsum("nd,nd->n", float_vectors, float_vectors, dtype=np.float64)
    lengths = np.sqrt(squares)
    lengths[~np.isfinite(lengths) | (lengths == 0)] = 1
    return np.asarray(float_vectors / lengths[:, None].astype(np.float32))


def prepare_queries(vectors: NDArray[Any], dimension: int, metric: str) -> Matrix:
    """Query vectors [queries, d] as FAISS takes them; a ValueError for one that cannot be used."""
    is_matrix = vectors.ndim == 2 and vectors.shape[1] == dimension
    if vectors.dtype.kind != "f" or not is_matrix:
        raise ValueError(
            f"the query vectors are {vectors.dtype} {vectors.shape}; give floats [queries, {dimension}]"
        )
    query_vectors = prepare_vectors(vectors, metric)
    is_usable = np.isfinite(query_vectors).all(axis=1)
    if metric == "cosine":
        is_usable &= query_vectors.any(axis=1)
    if not is_usable.all():
        query_number = int(np.argmin(is_usable))
        raise ValueError(f"query {query_number}: its vector is zero, NaN or infinite; leave it out")
    return query_vectors


def search_exactly(queries: Matrix, k: int, segments: Iterable[Segment]) -> Neighbors:
    """The k vectors nearest to queries [q, d]."""
    neighbors = no_neighbors(len(queries))
    for segment in segments:
        keys = segment.keys
        if not len(keys):
            continue
        # With a partition, several times faster than faiss.knn.
        scores = queries @ segment.load().T
        if neighbors.scores.shape[1] == k:
            # Few of a segment's vectors can be among the k best.
            lowest_scores = neighbors.scores[:, -1:]
            is_candidate = (scores >= lowest_scores).any(axis=0)
            keys = keys[is_candidate]
            scores = scores[:, is_candidate]
        candidate_count = min(k, len(keys))
        if candidate_count == 0:
            continue
        columns = np.argpartition(scores, -candidate_count, axis=1)[:, -candidate_count:]
        candidate_scores = np.take_along_axis(scores, columns, axis=1)
        candidates = Neighbors(candidate_scores, keys[columns])
        neighbors = merge_neighbors(neighbors, candidates, k)
    return neighbors


def merge_neighbors(left: Neighbors, right: Neighbors, k: int) -> Neighbors:
    """The k best of both for each query."""
    scores = np.hstack([left.scores, right.scores])
    keys = np.hstack([left.keys, right.keys])
    return top_k(scores, keys, k)


def rescore(queries: Matrix, keys: Keys, load: Callable[[Keys], Matrix]) -> Matrix:
    """Products of queries [q, d] with the vectors of keys [q, k].

    They are the same bit for bit, whatever other queries and keys there are.
    """
    distinct_keys = np.unique(keys)
    vectors = load(distinct_keys).astype(np.float64)
    scores = np.zeros(keys.shape, np.float32)
    for query_number, query in enumerate(queries):
        rows = np.searchsorted(distinct_keys, keys[query_number])
        scores[query_number] = np.einsum("kd,d->k", vectors[rows], query)
    return scores


def top_k(scores: Matrix, keys: Keys, k: int) -> Neighbors:
    """The k best of each row, equal scores by key; a key of −1 is nothing, and comes last."""
    scores = np.where(keys < 0, -np.inf, scores).astype(np.float32)
    order = np.lexsort((keys, -scores))[:, :k]
    sorted_scores = np.take_along_axis(scores, order, axis=1)
    return Neighbors(sorted_scores, np.take_along_axis(keys, order, axis=1))
