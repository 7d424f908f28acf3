"""One generation of an index in memory, and the search for the nearest documents."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .store import Keys, Matrix, State, Store, damaged, documents_with, read_dead, read_pending, vector_keys
from .vectors import VectorFile, best, compared, rescored
from .where import Where, conditions

logger = logging.getLogger(__name__)

# Fetched beyond k, so that equal scores at the cut are told apart by their order.
_TIES = 32
_KEPT_CONDITIONS = 8
# The document that a vector's key belongs to.
_OWNERS = "SELECT value, (SELECT MAX(key) FROM documents WHERE key <= value) FROM json_each(?)"


@dataclass(frozen=True)
class SearchResult:
    """One document that was found."""

    rank: int  # 1 for the best document of a query
    score: float  # the cosine or the inner product with the query
    id: str
    text: str
    metadata: dict[str, Any]
    passage: str | None = None  # the passage of the text that was found, if the index cuts texts


@dataclass
class Snapshot:
    """One generation in memory."""

    store: Store
    state: State
    file: VectorFile | None
    alive: NDArray[np.bool_]  # by key: False if dead (of pending ones, `keys` says it)
    keys: Keys  # of pending vectors
    pending: Matrix
    conditions: dict[str, NDArray[np.bool_]] = field(default_factory=dict)  # by condition and key: met or not

    @classmethod
    def read(cls, tx: sqlite3.Connection, store: Store, state: State, old: Snapshot | None) -> Snapshot:
        """The snapshot of a state; the FAISS file of an old one is kept if it is the same."""
        same = old is not None and (old.state.sha256, old.state.file) == (state.sha256, state.file)
        file = old.file if old is not None and same else VectorFile(store.folder, state) if state.file else None
        keys, pending = read_pending(tx, state, store.path)
        alive = np.ones(state.next_key, bool)
        alive[read_dead(tx)] = False
        return cls(store, state, file, alive, keys, pending)

    def allowed(self, tx: sqlite3.Connection, where: Where) -> NDArray[np.bool_]:
        """By key: which vectors belong to documents that meet conditions."""
        sql, parameters = conditions(where)
        name = repr((sql, parameters))
        found = self.conditions.get(name)  # other threads may clear them
        if found is None:
            found = np.zeros(len(self.alive), bool)
            found[vector_keys(tx, sql, *parameters)] = True
            if not found.any():
                names = tx.execute("SELECT DISTINCT each.key FROM documents, json_each(metadata) AS each ORDER BY 1")
                logger.warning("where: no document meets %s; there are: %s", where, ", ".join(one for (one,) in names))
            if len(self.conditions) >= _KEPT_CONDITIONS:
                self.conditions.clear()
            self.conditions[name] = found
        return found

    def search(self, tx: sqlite3.Connection, queries: Matrix, k: int, where: Where | None) -> list[list[SearchResult]]:
        """The k best documents of queries [q, d]; ``tx`` is the transaction that the snapshot was read in."""
        found = self._nearest(tx, queries, k, None if where is None else self.allowed(tx, where))
        wanted = {key for listed in found for key in listed}
        rows = {row.key: row for row in documents_with(tx, "key", wanted)}
        if rows.keys() != wanted:
            raise ValueError(damaged(self.store.path, "documents are missing"))
        cut, results = self.state.passages is not None, []
        for listed in found:
            results.append(list[SearchResult]())
            for rank, (key, (vector, score)) in enumerate(listed.items(), 1):
                one, passage = rows[key].document(), rows[key].passage(vector) if cut else None
                results[-1].append(SearchResult(rank, score, rows[key].id, one.text, one.metadata, passage))
        return results

    def _nearest(
        self, tx: sqlite3.Connection, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None
    ) -> list[dict[int, tuple[int, float]]]:
        """Keys of the k nearest documents of queries, best first, each with the key of its vector and the score."""
        keys, vectors = self.keys, self.pending
        if allowed is not None:
            keys, vectors = keys[allowed[keys]], vectors[allowed[keys]]
        elif self.state.deleted:
            allowed = self.alive
        cut, total = self.state.passages is not None, len(self.alive) if allowed is None else int(allowed.sum())
        fetch = k + _TIES
        while True:
            scores, found = compared(queries, fetch, [(keys, lambda: vectors)])
            if len(keys):
                scores = rescored(queries, found, lambda wanted: vectors[np.searchsorted(keys, wanted)])
            if self.file is not None:
                mask = None if allowed is None else allowed[: self.state.stop]
                more, filed = self.file.search(queries, fetch, mask)
                scores, found = np.hstack([more, scores]), np.hstack([filed, found])
            scores, found = best(scores, found, fetch)
            wanted = json.dumps(np.unique(found[found >= 0]).tolist())
            owner = dict(tx.execute(_OWNERS, (wanted,)).fetchall()) if cut else {}
            results = [dict[int, tuple[int, float]]() for _ in queries]
            for query, rank in zip(*np.nonzero(found >= 0), strict=True):
                key = int(found[query, rank])
                if len(results[query]) < k:
                    results[query].setdefault(owner.get(key, key), (key, float(scores[query, rank])))
            if not cut or fetch >= total or all(len(one) >= k for one in results):
                return results
            # Several passages of one document are one result.
            fetch = min(4 * fetch, total)
