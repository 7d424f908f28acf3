"""One generation of an index in memory, and the search for the nearest documents."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..corpus.records import clean_text
from .ann import import_faiss
from .changes import open_file
from .store import Keys, Matrix, State, Store, damaged, documents, owners, read_dead, read_pending, vector_keys
from .vectors import VectorFile, best, rescored
from .where import Where, conditions, unknown_field

logger = logging.getLogger(__name__)

# Fetched beyond k, so that equal scores at the cut are told apart by their order.
_TIES = 32
_KEPT_CONDITIONS = 8


@dataclass(frozen=True)
class SearchResult:
    """One document that was found."""

    rank: int  # 1 for the best document of a query
    score: float  # the cosine or the inner product with the query
    id: str
    text: str
    metadata: dict[str, Any]
    passage: str | None = None  # the passage of the text that was found, if the index cuts texts


class Found(NamedTuple):
    """A document that was found: its key, the key of its vector, and the score."""

    document: int
    vector: int
    score: float


@dataclass
class Snapshot:
    """One generation in memory."""

    store: Store
    state: State
    file: VectorFile | None
    alive: NDArray[np.bool_]  # by key: False if dead
    keys: Keys  # of pending vectors
    pending: Matrix
    conditions: dict[str, NDArray[np.bool_]] = field(default_factory=dict)  # by condition and key: met or not

    @classmethod
    def read(cls, tx: sqlite3.Connection, store: Store, state: State, old: Snapshot | None) -> Snapshot:
        """The snapshot of a state; the FAISS file of an old one is kept if it is the same."""
        same = old is not None and old.state.file == state.file and old.state.parameters == state.parameters
        file = old.file if old is not None and same else open_file(store.folder, state)
        keys, pending = read_pending(tx, state, store.path)
        alive = np.zeros(state.next_key, bool)
        alive[: state.stop] = True
        alive[keys] = True
        alive[read_dead(tx)] = False
        return cls(store, state, file, alive, keys, pending)

    def allowed(self, tx: sqlite3.Connection, where: Where) -> NDArray[np.bool_]:
        """By key: which vectors belong to documents that meet conditions."""
        sql, parameters = conditions(where)
        name = repr((sql, parameters))
        if name not in self.conditions:
            found = np.zeros(len(self.alive), bool)
            found[vector_keys(tx, sql, parameters)] = True
            if not found.any() and (unknown := unknown_field(tx, where)) is not None:
                logger.warning("where: %s", unknown)
            if len(self.conditions) >= _KEPT_CONDITIONS:
                self.conditions.clear()
            self.conditions[name] = found
        return self.conditions[name] & self.alive

    def search(self, tx: sqlite3.Connection, queries: Matrix, k: int, where: Where | None) -> list[list[SearchResult]]:
        """The k best documents of queries [q, d]; ``tx`` is the transaction that the snapshot was read in."""
        found = self.nearest(tx, queries, k, None if where is None else self.allowed(tx, where))
        rows = {row.key: row for row in documents(tx, "key", {one.document for listed in found for one in listed})}

        def result(rank: int, one: Found) -> SearchResult:
            if (row := rows.get(one.document)) is None:
                raise ValueError(damaged(self.store.path, f"there is no document {one.document}"))
            passage = None if self.state.passages is None else row.passage(one.vector)
            return SearchResult(rank, one.score, row.id, row.text, row.document(self.store.path).metadata, passage)

        return [[result(rank, one) for rank, one in enumerate(listed, 1)] for listed in found]

    def nearest(
        self, tx: sqlite3.Connection, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None
    ) -> list[list[Found]]:
        """The k nearest documents of queries, best first, equal scores in the order of their keys.

        ``allowed`` tells by key which vectors may be found.
        """
        keys, vectors = self.keys, self.pending
        if allowed is not None:
            keys, vectors = keys[allowed[keys]], vectors[allowed[keys]]
        elif self.state.dead:
            allowed = self.alive
        cut, total = self.state.passages is not None, len(self.alive) if allowed is None else int(allowed.sum())
        mask = None if allowed is None else allowed[: self.state.stop]
        fetch = k + _TIES
        while True:
            scores, found = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
            if len(keys):
                inner, most = import_faiss().METRIC_INNER_PRODUCT, min(fetch, len(keys))
                found = keys[import_faiss().knn(queries, vectors, most, metric=inner)[1]]
                scores = rescored(queries, found, lambda wanted: vectors[np.searchsorted(keys, wanted)])
            if self.file is not None:
                more, filed = self.file.search(queries, fetch, mask)
                scores, found = np.hstack([more, scores]), np.hstack([filed, found])
            scores, found = best(scores, found, fetch)
            owner = owners(tx, {int(key) for key in found.ravel() if key >= 0}) if cut else {}
            results = [_documents(*row, owner, k) for row in zip(found.tolist(), scores.tolist(), strict=True)]
            if not cut or fetch >= total or all(len(one) >= k for one in results):
                return results
            # Several passages of one document are one result.
            fetch = min(4 * fetch, total)


def _documents(keys: list[int], scores: list[float], owner: Mapping[int, int], k: int) -> list[Found]:
    """The k best documents of vectors in order."""
    found: dict[int, Found] = {}
    for key, score in zip(keys, scores, strict=True):
        if key >= 0 and len(found) < k:
            document = owner.get(key, key)
            found.setdefault(document, Found(document, key, score))
    return list(found.values())


def query_texts(queries: Any) -> list[str]:
    """Queries as the model takes them."""
    if not isinstance(queries, Sequence) or not all(isinstance(query, str) for query in queries):
        raise TypeError(
            f"cannot search for {type(queries).__name__}; give a text, a list of texts, or a NumPy array of floats"
        )
    if empty := [number for number, query in enumerate(queries) if not query.strip()]:
        raise ValueError(f"query {empty[0]} is empty; give it a text, or leave it out")
    return [clean_text(query) for query in queries]
