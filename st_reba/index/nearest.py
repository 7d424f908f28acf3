"""The documents whose vectors are nearest to queries: of the FAISS file and of pending vectors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from sqlite3 import Connection

import numpy as np

from .schema import IN_JSON_ARRAY, DamagedError, read_owners
from .scoring import (
    Keys,
    Mask,
    Matrix,
    Neighbors,
    PendingVectors,
    Segment,
    merge_neighbors,
    no_neighbors,
    rescore,
    top_k,
)
from .state import IndexState
from .store import Store, read_keys, read_pending, vector_keys
from .vector_file import VectorFile

# How many more than k are fetched, so that equal scores at the cut are in the order of keys.
_TIES = 32


@dataclass(frozen=True)
class Hit:
    """A document that was found.

    Args:
        key: Of the document.
        score: What it is ranked by.
        vector_key: Key of its vector that is nearest to the query; None: vectors were not searched.
        vector_score: The cosine or inner product of that vector.
        word_score: Its BM25; None: words were not searched.
    """

    key: int
    score: float
    vector_key: int | None = None
    vector_score: float | None = None
    word_score: float | None = None


class StateVectors:
    """The vectors of one state of an index.

    Args:
        connection: A transaction that reads the state.
        store: The store of the index.
        state: The state.
        old_vectors: Of an earlier state, whose FAISS file is used again if it is the same.
    """

    def __init__(
        self,
        connection: Connection,
        store: Store,
        state: IndexState,
        old_vectors: StateVectors | None,
    ) -> None:
        self._state = state
        self._file_identity = (state.vector_file, state.vector_file_sha256)
        self.vector_file: VectorFile | None = None
        if old_vectors is not None and old_vectors._file_identity == self._file_identity:
            self.vector_file = old_vectors.vector_file
        elif state.vector_file is not None:
            self.vector_file = VectorFile(store.folder, state)
        self.pending = read_pending(connection, state)
        # Deleted documents have no pending vectors; their vectors in the file are not alive.
        self._is_alive = np.ones(state.next_key, bool)
        self._is_alive[read_keys(connection, state, "tombstones")] = False

    def segments(self, keys: Keys) -> list[Segment]:
        """Vectors of all ascending keys of the index."""
        segments: list[Segment] = []
        if self.vector_file is not None:
            is_in_file = keys < self._state.first_pending_key
            segments += self.vector_file.segments(keys[is_in_file])
        segments.append(self.pending.segment)
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
        connection: Connection,
        queries: Matrix,
        k: int,
        is_allowed: Mask | None,
    ) -> list[list[Hit]]:
        """The k documents nearest to each of some queries [q, d], the nearest first."""
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
            if self._state.passages is None or fetched_count >= total_count:
                return nearest
            if min(map(len, nearest), default=k) == k:
                return nearest
            # Several passages of one document are one result, so more must be fetched.
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

    def _read_owners(self, connection: Connection, keys: Keys) -> dict[int, int]:
        """Keys of documents by keys of vectors; empty if texts are not cut, as the two are equal then."""
        if self._state.passages is None:
            return {}
        distinct_keys = np.unique(keys[keys >= 0]).tolist()
        owners = read_owners(connection, distinct_keys)
        if len(owners) != len(distinct_keys):
            raise DamagedError("documents of its vectors are missing")
        return owners

    def score_documents(
        self,
        connection: Connection,
        query: Matrix,
        document_keys: list[int],
    ) -> list[Hit]:
        """Some documents, each with the score of its vector nearest to a query [d]; the best first."""
        if not document_keys:
            return []
        keys = vector_keys(
            connection, self._state, f"key {IN_JSON_ARRAY}", json.dumps(document_keys)
        )[None]
        neighbors = top_k(rescore(query[None], keys, self.load), keys, keys.size)
        owners = self._read_owners(connection, keys)
        nearest = _group_by_document(neighbors.scores[0], neighbors.keys[0], owners, keys.size)
        if len(nearest) != len(document_keys):
            raise DamagedError("documents are missing")
        return nearest


def _group_by_document(
    scores: Matrix,
    keys: Keys,
    owners: dict[int, int],
    k: int,
) -> list[Hit]:
    """The k best documents of one query, by its neighbors [n], the best first."""
    hits: dict[int, Hit] = {}
    for score, key in zip(scores.tolist(), keys.tolist(), strict=True):
        if key < 0 or len(hits) == k:
            break
        document_key = owners.get(key, key)
        hits.setdefault(document_key, Hit(document_key, score, key, vector_score=score))
    return list(hits.values())
