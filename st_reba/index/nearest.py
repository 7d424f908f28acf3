"""The documents whose vectors are nearest to queries: of the FAISS file and of pending vectors."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .scoring import (
    Keys,
    Matrix,
    Neighbors,
    Segment,
    merge_neighbors,
    no_neighbors,
    rescore,
    search_exactly,
)
from .state import IndexState, damaged
from .store import Store, read_pending, read_tombstones
from .vectors import VectorFile

# Fetched beyond k, so that the order of equal scores at the cut is theirs.
_TIES = 32
_VECTOR_COUNTS = """
SELECT key, vector_count FROM documents WHERE key IN (SELECT value FROM json_each(?))
"""
# The document that a vector's key belongs to.
_OWNERS = """
SELECT value, documents.key FROM json_each(?)
JOIN documents ON documents.key = (SELECT MAX(key) FROM documents WHERE key <= value)
WHERE value < documents.key + vector_count
"""

Mask = NDArray[np.bool_]
"""Whether the vector of each key is allowed, [keys]."""


class NearestVector(NamedTuple):
    """The vector of a document that is nearest to a query."""

    key: int
    score: float


NearestDocuments = dict[int, NearestVector]
"""Documents by key, the nearest first."""


@dataclass(frozen=True)
class PendingVectors:
    """Vectors beside the FAISS file, [n, d], and their ascending keys, [n]."""

    keys: Keys
    vectors: Matrix

    def select(self, is_allowed: Mask) -> PendingVectors:
        is_selected = is_allowed[self.keys]
        return PendingVectors(self.keys[is_selected], self.vectors[is_selected])

    def load(self, keys: Keys) -> Matrix:
        return self.vectors[np.searchsorted(self.keys, keys)]

    def search(self, queries: Matrix, k: int) -> Neighbors:
        segment = Segment(self.keys, lambda: self.vectors)
        keys = search_exactly(queries, k, [segment]).keys
        return Neighbors(rescore(queries, keys, self.load), keys)


class VectorSearch:
    """The vectors of one state of an index.

    Args:
        connection: A transaction that reads the state.
        store: The store of the index.
        state: The state.
        old_search: Of an earlier state, whose FAISS file is used again if it is the same.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        store: Store,
        state: IndexState,
        old_search: VectorSearch | None = None,
    ) -> None:
        self._state = state
        self._path = store.path
        self.vector_file: VectorFile | None = None
        if old_search is not None and old_search.has_file_of(state):
            self.vector_file = old_search.vector_file
        elif state.vector_file is not None:
            self.vector_file = VectorFile(store.folder, state)
        self.pending = PendingVectors(*read_pending(connection, state, store.path))
        # Of deleted documents, pending vectors are gone, and those in the file are not alive.
        self._is_alive = np.ones(state.next_key, bool)
        self._is_alive[read_tombstones(connection, state)] = False

    def has_file_of(self, state: IndexState) -> bool:
        file_facts = (self._state.vector_file, self._state.vector_file_sha256)
        return file_facts == (state.vector_file, state.vector_file_sha256)

    def segments(self, keys: Keys) -> list[Segment]:
        """Vectors of all ascending keys of the index."""
        segments: list[Segment] = []
        if self.vector_file is not None:
            is_in_file = keys < self._state.first_pending_key
            segments += self.vector_file.segments(keys[is_in_file])
        segments.append(Segment(self.pending.keys, lambda: self.pending.vectors))
        return segments

    def load(self, keys: Keys) -> Matrix:
        """Vectors [keys, d] of ascending keys of documents that are there."""
        file_count = int(np.searchsorted(keys, self._state.first_pending_key))
        pending_vectors = self.pending.load(keys[file_count:])
        if self.vector_file is None or file_count == 0:
            return pending_vectors
        file_vectors = self.vector_file.vectors(keys[:file_count])
        return np.concatenate([file_vectors, pending_vectors])

    def nearest_documents(
        self,
        connection: sqlite3.Connection,
        queries: Matrix,
        k: int,
        is_allowed: Mask | None,
    ) -> list[NearestDocuments]:
        """The k documents nearest to each of some queries [q, d]."""
        pending = self.pending
        if is_allowed is not None:
            pending = pending.select(is_allowed)
        elif self._state.deleted:
            is_allowed = self._is_alive
        total_count = self._state.next_key
        if is_allowed is not None:
            total_count = int(is_allowed.sum())
        fetched_count = k + _TIES
        while True:
            neighbors = self._fetch(queries, fetched_count, pending, is_allowed)
            owners = self._read_owners(connection, neighbors.keys)
            nearest = []
            for scores, keys in zip(neighbors.scores, neighbors.keys, strict=True):
                nearest.append(_group_by_document(scores, keys, owners, k))
            fewest_documents = min(map(len, nearest), default=k)
            # Several passages of one document are one result, so more must be fetched.
            is_cut = self._state.passages is not None
            if not is_cut or fewest_documents == k or fetched_count >= total_count:
                return nearest
            fetched_count = min(4 * fetched_count, total_count)

    def _fetch(
        self,
        queries: Matrix,
        k: int,
        pending: PendingVectors,
        is_allowed: Mask | None,
    ) -> Neighbors:
        from_file = no_neighbors(len(queries))
        if self.vector_file is not None:
            if is_allowed is not None:
                is_allowed = is_allowed[: self._state.first_pending_key]
            from_file = self.vector_file.search(queries, k, is_allowed)
        return merge_neighbors(from_file, pending.search(queries, k), k)

    def _read_owners(self, connection: sqlite3.Connection, keys: Keys) -> dict[int, int]:
        """Keys of documents by keys of vectors; of an index that is not cut, they are equal."""
        if self._state.passages is None:
            return {}
        distinct_keys = np.unique(keys[keys >= 0]).tolist()
        owners = dict(connection.execute(_OWNERS, (json.dumps(distinct_keys),)).fetchall())
        if len(owners) != len(distinct_keys):
            raise damaged(self._path.parent, "documents of its vectors are missing")
        return owners

    def nearest_vectors(
        self,
        connection: sqlite3.Connection,
        query: Matrix,
        document_keys: list[int],
    ) -> NearestDocuments:
        """The vectors of given documents that are nearest to a query [d]."""
        if not document_keys:
            return {}
        vector_counts = self._read_vector_counts(connection, document_keys)
        key_ranges = {key: range(key, key + vector_counts[key]) for key in sorted(document_keys)}
        vector_keys = np.concatenate([np.array(keys, np.int64) for keys in key_ranges.values()])
        scores = rescore(query[None], vector_keys[None], self.load)[0].tolist()
        score_by_key = dict(zip(vector_keys.tolist(), scores, strict=True))
        nearest = {}
        for document_key, keys in key_ranges.items():
            nearest_key = max(keys, key=score_by_key.__getitem__)
            nearest[document_key] = NearestVector(nearest_key, score_by_key[nearest_key])
        return nearest

    def _read_vector_counts(
        self,
        connection: sqlite3.Connection,
        document_keys: list[int],
    ) -> dict[int, int]:
        if self._state.passages is None:
            return dict.fromkeys(document_keys, 1)
        rows = connection.execute(_VECTOR_COUNTS, (json.dumps(document_keys),))
        vector_counts = dict(rows.fetchall())
        if vector_counts.keys() != set(document_keys):
            raise damaged(self._path, "documents are missing")
        return vector_counts


def _group_by_document(
    scores: Matrix,
    keys: Keys,
    owners: dict[int, int],
    k: int,
) -> NearestDocuments:
    """The k best documents of one query, by its neighbors [n], the best first."""
    nearest: NearestDocuments = {}
    for score, key in zip(scores.tolist(), keys.tolist(), strict=True):
        if key < 0 or len(nearest) == k:
            break
        document_key = owners.get(key, key)
        nearest.setdefault(document_key, NearestVector(key, score))
    return nearest
