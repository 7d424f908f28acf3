"""One generation of an index in memory, and the search for the nearest documents."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bm25 import Scores, WordScores
from .fusion import LIST_LENGTH, Hit, best_keys, fused_scores
from .queries import Mode, Queries, Question, Vectors
from .query_terms import QueryTerms, read_terms
from .samples import Sample, draw_keys, read_texts
from .store import Keys, Matrix, State, Store, Stored, damaged, documents_with, read_dead, read_pending, vector_keys
from .vectors import VectorFile, best, compared, rescored, scaled_queries
from .where import Where, conditions
from .whitening import Whitening, read_whitening
from .words import damaged_words

logger = logging.getLogger(__name__)

# Fetched beyond k, so that equal scores at the cut are told apart by their order.
_TIES = 32
_KEPT_CONDITIONS = 8
_VECTOR_COUNTS = "SELECT key, vectors FROM documents WHERE key IN (SELECT value FROM json_each(?))"
# The document that a vector's key belongs to.
_OWNERS = "SELECT value, (SELECT MAX(key) FROM documents WHERE key <= value) FROM json_each(?)"


@dataclass(frozen=True)
class SearchResult:
    """One document that was found."""

    rank: int  # 1 for the best document of a query
    score: float  # of vectors: the cosine or inner product with the query; of words: BM25; hybrid: both, from 0 to 1
    id: str
    text: str
    metadata: dict[str, Any]
    passage: str | None = None  # the passage whose vector is nearest, if the index cuts texts and searched its vectors
    vector_score: float | None = None  # the cosine or inner product, if the search explains its scores
    word_score: float | None = None  # BM25, likewise; 0.0: the document has no word of the query

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values, without those of an explanation where there is none."""
        values = asdict(self)
        for name in ("vector_score", "word_score"):
            if values[name] is None:
                del values[name]
        return values


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
    words: WordScores | None = None  # made when words are first searched
    _whitening: Whitening | None = None  # read when vectors are first searched

    @classmethod
    def read(cls, tx: sqlite3.Connection, store: Store, state: State, old: Snapshot | None) -> Snapshot:
        """The snapshot of a state; the FAISS file of an old one is kept if it is the same."""
        same = old is not None and (old.state.sha256, old.state.file) == (state.sha256, state.file)
        file = old.file if old is not None and same else VectorFile(store.folder, state) if state.file else None
        keys, pending = read_pending(tx, state, store.path)
        alive = np.ones(state.next_key, bool)
        alive[read_dead(tx)] = False
        snapshot = cls(store, state, file, alive, keys, pending)
        if old is not None and old.state.whitening_sha256 == state.whitening_sha256:
            snapshot._whitening = old._whitening
        return snapshot

    def whitening(self, tx: sqlite3.Connection) -> Whitening | None:
        """What the vectors are whitened by; None: they are raw."""
        if self._whitening is None:
            self._whitening = read_whitening(tx, self.state, self.store.path)
        return self._whitening

    def question(self, tx: sqlite3.Connection, mode: Mode, queries: Queries, vectors: Vectors | None) -> Question:
        """Queries, whose vectors are those that the model gives, as the sides of a search need them."""
        query_vectors = None
        if mode != "words" and vectors is not None:
            query_vectors = scaled_queries(vectors, self.state.dimension, self.state.metric)
            whitening = self.whitening(tx)
            if whitening is not None:
                query_vectors = whitening.apply(query_vectors, "query")
        terms = None
        if mode != "vectors" and self.state.words is not None:
            terms = read_terms(self.state.words, queries.texts or [])
        return Question(query_vectors, terms)

    def raw_sample(self, tx: sqlite3.Connection) -> Sample:
        """Vectors of some documents, before any whitening, and their texts."""
        drawn_keys = draw_keys(vector_keys(tx))
        vectors = self._vectors(drawn_keys)
        whitening = self.whitening(tx)
        if whitening is not None:
            vectors = whitening.invert(vectors)
        return Sample(vectors, read_texts(tx, drawn_keys))

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
                logger.warning(
                    "where: no document meets %.200s; there are: %s", where, ", ".join(one for (one,) in names)
                )
            if len(self.conditions) >= _KEPT_CONDITIONS:
                self.conditions.clear()
            self.conditions[name] = found
        return found

    def search(
        self, tx: sqlite3.Connection, question: Question, k: int, where: Where | None, *, explain: bool
    ) -> list[list[SearchResult]]:
        """The k best documents of each query; ``tx`` is the transaction that the snapshot was read in."""
        allowed = None if where is None else self.allowed(tx, where)
        try:
            hits = self._hits(tx, question, k, allowed)
        except IndexError:  # a key among the words that no document has
            raise ValueError(damaged_words(self.store.path)) from None
        wanted = {hit.key for listed in hits for hit in listed}
        rows = {row.key: row for row in documents_with(tx, "key", wanted)}
        if rows.keys() != wanted:
            raise ValueError(damaged(self.store.path, "documents are missing"))
        return [
            [self._result(rank, hit, rows[hit.key], explain) for rank, hit in enumerate(listed, 1)] for listed in hits
        ]

    def _result(self, rank: int, hit: Hit, row: Stored, explain: bool) -> SearchResult:
        document = row.document()
        passage = None
        if self.state.passages is not None and hit.vector_key is not None:
            passage = row.passage(hit.vector_key)
        result = SearchResult(rank, hit.score, row.id, document.text, document.metadata, passage)
        if explain:
            return replace(result, vector_score=hit.vector_score, word_score=hit.word_score)
        return result

    def _hits(
        self, tx: sqlite3.Connection, question: Question, k: int, allowed: NDArray[np.bool_] | None
    ) -> list[list[Hit]]:
        """The k best documents of each query, best first."""
        if question.vectors is None:
            return [self._hits_by_words(tx, terms, k, allowed) for terms in question.query_terms or ()]
        if question.query_terms is None:
            return [_hits_by_vectors(listed) for listed in self._nearest(tx, question.vectors, k, allowed)]
        list_length = max(k, LIST_LENGTH)
        nearest = self._nearest(tx, question.vectors, list_length, allowed)
        hits = []
        for query, terms, listed in zip(question.vectors, question.query_terms, nearest, strict=True):
            word_scores = self._word_scores(tx, terms, allowed)
            hits.append(self._fused_hits(tx, query, word_scores, listed, list_length)[:k])
        return hits

    def _hits_by_words(
        self, tx: sqlite3.Connection, terms: QueryTerms, k: int, allowed: NDArray[np.bool_] | None
    ) -> list[Hit]:
        scores = self._word_scores(tx, terms, allowed)
        keys = best_keys(scores, k)
        return [
            Hit(key, score, word_score=score) for key, score in zip(keys.tolist(), scores[keys].tolist(), strict=True)
        ]

    def _word_scores(self, tx: sqlite3.Connection, terms: QueryTerms, allowed: NDArray[np.bool_] | None) -> Scores:
        """BM25 by key, [keys]; 0 for documents that are not allowed."""
        if self.words is None:
            self.words = WordScores(tx, len(self.alive))
        scores = self.words.score(tx, terms)
        if allowed is None:
            return scores
        return np.where(allowed, scores, 0.0)

    def _fused_hits(
        self,
        tx: sqlite3.Connection,
        query: Matrix,
        word_scores: Scores,
        nearest: dict[int, tuple[int, float]],
        list_length: int,
    ) -> list[Hit]:
        """All documents of both lists, best first; arguments: a query [d], BM25 by key, and the list of the vectors."""
        absent = [key for key in best_keys(word_scores, list_length).tolist() if key not in nearest]
        scored = nearest | self._nearest_of(tx, query, absent)
        keys = np.array(list(scored), np.int64)
        vector_scores = np.array([score for _, score in scored.values()])
        fused = fused_scores(word_scores[keys], vector_scores)
        hits = []
        for row in np.lexsort((keys, -vector_scores, -fused)).tolist():
            key = int(keys[row])
            vector_key, vector_score = scored[key]
            hits.append(Hit(key, float(fused[row]), vector_key, vector_score, float(word_scores[key])))
        return hits

    def _nearest_of(self, tx: sqlite3.Connection, query: Matrix, keys: list[int]) -> dict[int, tuple[int, float]]:
        """Of some documents, each with the key and the score of its vector that is nearest to a query [d]."""
        if not keys:
            return {}
        counts = self._vector_counts(tx, keys)
        vector_keys = np.array([key + offset for key in sorted(keys) for offset in range(counts[key])], np.int64)
        scores = rescored(query[None], vector_keys[None], self._vectors)[0].tolist()
        by_vector = dict(zip(vector_keys.tolist(), scores, strict=True))
        nearest = {key: max(range(key, key + counts[key]), key=by_vector.__getitem__) for key in keys}
        return {key: (vector_key, by_vector[vector_key]) for key, vector_key in nearest.items()}

    def _vector_counts(self, tx: sqlite3.Connection, keys: list[int]) -> dict[int, int]:
        if self.state.passages is None:
            return dict.fromkeys(keys, 1)
        counts = dict(tx.execute(_VECTOR_COUNTS, (json.dumps(keys),)).fetchall())
        if counts.keys() != set(keys):
            raise ValueError(damaged(self.store.path, "documents are missing"))
        return counts

    def _vectors(self, keys: Keys) -> Matrix:
        """Vectors [keys, d] of ascending keys of documents that are there."""
        filed_count = int(np.searchsorted(keys, self.state.stop))
        pending = self.pending[np.searchsorted(self.keys, keys[filed_count:])]
        if self.file is None or not filed_count:
            return pending
        return np.concatenate([self.file.vectors(keys[:filed_count]), pending])

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


def _hits_by_vectors(nearest: dict[int, tuple[int, float]]) -> list[Hit]:
    hits = []
    for key, (vector_key, score) in nearest.items():
        hits.append(Hit(key, score, vector_key, vector_score=score))
    return hits
