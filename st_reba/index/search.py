"""One state of an index in memory, and the search for the best documents."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from ..corpus.records import Document
from .bm25 import Scores, WordScores, best_keys
from .fusion import LIST_LENGTH, fused_scores
from .nearest import Hit, StateVectors
from .queries import Mode, Queries
from .query_terms import QueryTerms, read_terms
from .schema import DamagedError, StoredDocument, documents_with
from .scoring import Mask, Matrix, prepare_queries
from .state import IndexState
from .store import Store, check_keys, vector_keys
from .where import Condition, Where, parse_where
from .whitening import Whitening, read_whitening
from .words import damaged_words

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

_CACHED_CONDITIONS = 8
_METADATA_NAMES = """
SELECT DISTINCT each.key FROM documents, json_each(metadata) AS each ORDER BY 1
"""


@dataclass(frozen=True)
class SearchResult:
    """One document that was found."""

    rank: int  # 1 for the best document of a query
    # For vectors, the cosine or inner product with the query; for words, BM25; for hybrid, both in
    # one, from 0 to 1.
    score: float
    document: Document
    # The passage whose vector is nearest, if the index cuts texts and searched its vectors.
    passage: str | None = None
    # If explained: the cosine or inner product, and BM25 (0.0 without any word of the query).
    vector_score: float | None = None
    word_score: float | None = None

    @property
    def id(self) -> str:
        """The document's id: in an index, each has one."""
        return str(self.document.id)

    @property
    def text(self) -> str:
        """The document's text."""
        return self.document.text

    @property
    def metadata(self) -> dict[str, Any]:
        """The document's metadata."""
        return self.document.metadata

    def to_json(self) -> dict[str, Any]:
        """Its fields and the document's as JSON values, without explanations where there are none."""
        values = {"rank": self.rank, "score": self.score, **self.document.to_json()}
        values["passage"] = self.passage
        for name in ("vector_score", "word_score"):
            explanation = getattr(self, name)
            if explanation is not None:
                values[name] = explanation
        return values


class Snapshot:
    """One state of an index in memory.

    Args:
        connection: A transaction that reads the state.
        store: The store of the index.
        state: The state.
        old_snapshot: An earlier one, whose parts are used again where they are the same.
    """

    def __init__(
        self,
        connection: Connection,
        store: Store,
        state: IndexState,
        old_snapshot: Snapshot | None,
    ) -> None:
        self.store = store
        self.state = state
        old_vectors: StateVectors | None = None
        self._whitening: Whitening | None = None  # read when vectors are first searched
        if old_snapshot is not None:
            old_vectors = old_snapshot.vectors
            if old_snapshot.state.whitening_sha256 == state.whitening_sha256:
                self._whitening = old_snapshot._whitening
        self.vectors: StateVectors = StateVectors(connection, store, state, old_vectors)
        self.masks: dict[Condition, Mask] = {}  # by key: whether a condition is met
        self._words: WordScores | None = None  # read when words are first searched

    def whitening(self, connection: Connection) -> Whitening | None:
        """The whitening of the vectors; None: they are raw."""
        if self._whitening is None:
            self._whitening = read_whitening(connection, self.state)
        return self._whitening

    def reads_tokens(self, mode: Mode, queries: Queries) -> bool:
        """Whether the token part of vectors is compared, which needs the queries' texts.

        Hybrid searches leave it out, because the words already cover it.
        """
        has_part = self.state.token_dimension > 0
        return has_part and mode == "vectors" and queries.texts is not None

    def check_keys(self, connection: Connection) -> None:
        """Raise a ValueError unless documents and vectors belong together."""
        file_keys = None
        if self.vectors.vector_file is not None:
            file_keys = self.vectors.vector_file.keys
        check_keys(connection, self.state, file_keys)

    def search(
        self,
        connection: Connection,
        mode: Mode,
        queries: Queries,
        model: SentenceTransformer | None,
        k: int,
        where: Where | None,
        *,
        explain: bool,
    ) -> list[list[SearchResult]]:
        """The k best documents of each query, in the transaction that the snapshot was read in.

        Args:
            connection: The transaction.
            mode: What is searched.
            queries: What the user has given; with vectors, if they are searched.
            model: The model, if `reads_tokens` says that its token embeddings are needed.
            k, where, explain: As for ``Index.search``.
        """
        vectors = self._query_vectors(connection, queries, model)
        query_terms = None
        if mode != "vectors":
            query_terms = read_terms(self.state.words, queries.texts or [])
        is_allowed = None
        if where is not None:
            is_allowed = self._mask(connection, where)
        search = _DocumentSearch(self, connection, k, is_allowed)
        try:
            hits_by_query = search.find(vectors, query_terms)
        except IndexError:  # a key among the words that no document has
            raise damaged_words(self.store.path) from None
        keys = {hit.key for hits in hits_by_query for hit in hits}
        found_documents = documents_with(connection, "key", keys)
        documents = {document.key: document for document in found_documents}
        if documents.keys() != keys:
            raise DamagedError("documents are missing")
        results = []
        for hits in hits_by_query:
            ranked_hits = enumerate(hits, 1)
            results.append(
                [self._result(rank, hit, documents[hit.key], explain) for rank, hit in ranked_hits]
            )
        return results

    def _query_vectors(
        self,
        connection: Connection,
        queries: Queries,
        model: SentenceTransformer | None,
    ) -> Matrix | None:
        """Query vectors in the same form as the index's own; None: vectors are not searched."""
        if queries.vectors is None:
            return None
        vectors = prepare_queries(queries.vectors, self.state.dimension, self.state.metric)
        whitening = self.whitening(connection)
        if whitening is None:
            return vectors
        return whitening.convert(vectors, "query", model, queries.texts)

    def _mask(self, connection: Connection, where: Where) -> Mask:
        """Which vectors belong to documents that meet conditions."""
        condition = parse_where(where)
        mask = self.masks.get(condition)  # other threads may clear them
        if mask is not None:
            return mask
        mask = np.zeros(self.state.next_key, bool)
        mask[vector_keys(connection, self.state, condition.sql, *condition.parameters)] = True
        if not mask.any():
            names = ", ".join(name for (name,) in connection.execute(_METADATA_NAMES))
            present_names = f"there are: {names}" if names else "no document has metadata"
            logger.warning("where: no document meets %.200s; %s", where, present_names)
        if len(self.masks) >= _CACHED_CONDITIONS:
            self.masks.clear()
        self.masks[condition] = mask
        return mask

    def _result(self, rank: int, hit: Hit, stored: StoredDocument, explain: bool) -> SearchResult:
        passage = None
        if self.state.passages is not None and hit.vector_key is not None:
            passage = stored.passages[hit.vector_key - stored.key]
        result = SearchResult(rank, hit.score, stored.document(), passage)
        if explain:
            return replace(result, vector_score=hit.vector_score, word_score=hit.word_score)
        return result

    def word_scores(self, connection: Connection, terms: QueryTerms) -> Scores:
        """BM25 by key, [keys]."""
        if self._words is None:
            self._words = WordScores(connection, self.state.next_key)
        return self._words.score(connection, terms)


class _DocumentSearch:
    """A search by vectors, by words or by both.

    Args:
        snapshot: The state.
        connection: The transaction that it was read in.
        k: Documents of each query.
        is_allowed: Vectors that may be found, by key; None: all.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        connection: Connection,
        k: int,
        is_allowed: Mask | None,
    ) -> None:
        self._snapshot = snapshot
        self._vectors = snapshot.vectors
        self._connection = connection
        self._k = k
        self._list_length = max(k, LIST_LENGTH)
        self._is_allowed = is_allowed

    def find(self, vectors: Matrix | None, query_terms: list[QueryTerms] | None) -> list[list[Hit]]:
        """The best documents of each query, best first.

        Args:
            vectors: [queries, d] if vectors are searched.
            query_terms: The words of each query if words are searched.
        """
        if vectors is None:
            return [self._hits_by_words(terms) for terms in query_terms or ()]
        list_length = self._k if query_terms is None else self._list_length
        nearest = self._vectors.nearest_documents(
            self._connection, vectors, list_length, self._is_allowed
        )
        if query_terms is None:
            return nearest
        fused_hits = map(self._fuse, vectors, query_terms, nearest)
        return [hits[: self._k] for hits in fused_hits]

    def _word_scores(self, terms: QueryTerms) -> Scores:
        """BM25 by key, [keys]; 0 for documents that are not allowed."""
        scores = self._snapshot.word_scores(self._connection, terms)
        if self._is_allowed is None:
            return scores
        return np.where(self._is_allowed, scores, 0.0)

    def _hits_by_words(self, terms: QueryTerms) -> list[Hit]:
        scores = self._word_scores(terms)
        hits = []
        for key in best_keys(scores, self._k).tolist():
            score = float(scores[key])
            hits.append(Hit(key, score, word_score=score))
        return hits

    def _fuse(
        self,
        query_vector: Matrix,
        terms: QueryTerms,
        nearest_hits: list[Hit],
    ) -> list[Hit]:
        """All documents on the lists of both sides, best first."""
        word_scores = self._word_scores(terms)
        nearest_keys = {hit.key for hit in nearest_hits}
        listed_keys = best_keys(word_scores, self._list_length).tolist()
        other_keys = [key for key in listed_keys if key not in nearest_keys]
        other_hits = self._vectors.score_documents(self._connection, query_vector, other_keys)
        hits = nearest_hits + other_hits
        keys = np.array([hit.key for hit in hits], np.int64)
        vector_scores = np.array([hit.score for hit in hits])
        scores = fused_scores(word_scores[keys], vector_scores)
        fused_hits = []
        for row in np.lexsort((keys, -scores)).tolist():
            word_score = float(word_scores[keys[row]])
            fused_hits.append(replace(hits[row], score=float(scores[row]), word_score=word_score))
        return fused_hits
