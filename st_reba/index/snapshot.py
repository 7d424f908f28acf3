"""One generation of an index as a search needs it: what is in memory, and how the nearest documents are found."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .changes import open_file
from .searcher import Searcher
from .store import State, Stored, owners, read_dead, read_pending
from .vectors import Keys, Matrix, best, exact
from .where import Where, conditions

# Fetched beyond k, so that equal scores at the cut are told apart by their order.
_TIES = 32
_KEPT_CONDITIONS = 8


@dataclass(frozen=True)
class Found:
    """A document that was found.

    Args:
        document: Its key.
        vector: The key of the vector: of the passage that was found.
        score: The inner product with the query.
    """

    document: int
    vector: int
    score: float


@dataclass
class Snapshot:
    """What is in memory of one generation.

    Args:
        state: The state.
        searcher: The FAISS file; None: there is none.
        alive: By key: which vectors belong to documents.
        pending_keys: Keys of vectors that are not in the FAISS file.
        pending: Those vectors.
        last_dead: The last row of ``dead`` that was read.
        conditions: By condition: which vectors meet it.
    """

    state: State
    searcher: Searcher | None
    alive: NDArray[np.bool_]
    pending_keys: Keys
    pending: Matrix
    last_dead: int
    conditions: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def read(cls, tx: sqlite3.Connection, folder: Path, state: State, old: Snapshot | None) -> Snapshot:
        """The snapshot of a state; only what has changed since an old one is read, where the FAISS file is the same."""
        if old is not None and (
            (old.state.file, old.state.folds) != (state.file, state.folds) or old.state.generation > state.generation
        ):
            old = None
        alive = np.zeros(state.next_key, bool)
        if old is None:
            alive[: state.stop] = True
            keys, vectors = read_pending(tx, state.dim)
            dead, last = read_dead(tx)
            searcher = open_file(folder, state)
        else:
            alive[: len(old.alive)] = old.alive
            keys, vectors = read_pending(tx, state.dim, after=len(old.alive) - 1)
            keys, vectors = np.concatenate([old.pending_keys, keys]), np.concatenate([old.pending, vectors])
            dead, last = read_dead(tx, old.last_dead)
            searcher = old.searcher
        alive[keys] = True
        alive[dead] = False
        if not alive[keys].all():
            keys, vectors = keys[alive[keys]], vectors[alive[keys]]
        return cls(state, searcher, alive, keys, vectors, last, {} if old is None else old.conditions)

    def allowed(self, tx: sqlite3.Connection, where: Where) -> NDArray[np.bool_]:
        """By key: which vectors belong to documents that meet conditions."""
        sql, parameters = conditions(where)
        name = repr((sql, parameters))
        known = self.conditions.get(name, np.zeros(0, bool))
        if len(known) < len(self.alive):
            # Keys are never used again, so only documents that are new since then are asked for.
            found = np.zeros(len(self.alive), bool)
            found[: len(known)] = known
            rows = tx.execute(f"SELECT key, spans FROM documents WHERE key >= ? AND {sql}", (len(known), *parameters))
            for key, spans in rows:
                found[Stored(key, "", "", spans, "").keys if spans else key] = True
            if name not in self.conditions and len(self.conditions) >= _KEPT_CONDITIONS:
                self.conditions.clear()
            known = self.conditions[name] = found
        return known[: len(self.alive)] & self.alive

    def nearest(
        self, tx: sqlite3.Connection, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None = None
    ) -> list[list[Found]]:
        """The k nearest documents of each query, best first, equal scores in the order of their keys.

        Args:
            tx: The transaction that the snapshot was read in.
            queries: [q, d], scaled as the index's vectors are.
            k: How many documents.
            allowed: By key: which vectors may be found; None: all.
        """
        keys, vectors = self.pending_keys, self.pending
        if allowed is not None:
            keys, vectors = keys[allowed[keys]], vectors[allowed[keys]]
        elif self.state.dead:
            allowed = self.alive
        cut, total = self.state.passages is not None, len(self.alive) if allowed is None else int(allowed.sum())
        products = queries @ vectors.T
        fetch = k + _TIES
        while True:
            scores, found = best(products, np.broadcast_to(keys, products.shape), fetch)
            scores = exact(queries, found, lambda wanted: vectors[np.searchsorted(keys, wanted)])
            if self.searcher is not None:
                more, filed = self.searcher.search(
                    queries, fetch, None if allowed is None else allowed[: self.state.stop]
                )
                scores, found = np.concatenate([more, scores], axis=1), np.concatenate([filed, found], axis=1)
            scores, found = best(scores, found, fetch)
            owner = owners(tx, {int(key) for key in found.ravel() if key >= 0}) if cut else {}
            results = [
                _documents(row, values, owner, k) for row, values in zip(found.tolist(), scores.tolist(), strict=True)
            ]
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
