"""Hybrid rankings by plain loops, which the index is compared with."""

from __future__ import annotations

import json
import math
import re
from collections import Counter

import numpy as np
from indexes import encoded, texts_of
from numpy.typing import NDArray

from st_reba.index import Document, Index, fusion


def all_documents(index: Index) -> dict[str, Document]:
    """The documents of an index by their ids."""
    documents_by_id = {}
    for document in index:
        assert document.id is not None
        documents_by_id[document.id] = document
    return documents_by_id


def words_in(text: str) -> list[str]:
    """The words of a text in Latin letters."""
    return re.findall(r"\w+", text)


def expected_word_scores(
    texts: list[str],
    query: str,
) -> NDArray[np.float64]:
    """BM25 of texts whose words are their own stems."""
    documents = list(map(words_in, texts))
    document_count = len(documents)
    mean_length = sum(map(len, documents)) / document_count
    scores = np.zeros(document_count)
    for term, query_count in Counter(words_in(query)).items():
        frequency = 0
        for document in documents:
            frequency += term in document
        if frequency > document_count / 2:
            continue
        rarity = math.log(1 + (document_count - frequency + 0.5) / (frequency + 0.5))
        for row, document in enumerate(documents):
            term_count = document.count(term)
            length_factor = 0.25 + 0.75 * len(document) / mean_length
            weight = term_count * 2.2 / (term_count + 1.2 * length_factor)
            scores[row] += query_count * rarity * weight
    return scores


def expected_hybrid_scores(
    index: Index,
    query: str,
    allowed_ids: set[str],
) -> dict[str, float]:
    """Hybrid scores of all documents that are allowed, by id."""
    documents = all_documents(index)
    texts = texts_of(documents.values())
    word_scores = expected_word_scores(texts, query)
    vector_scores = encoded(texts) @ encoded([query], "encode_query")[0]
    is_allowed = np.array([document_id in allowed_ids for document_id in documents])
    word_scores = word_scores[is_allowed]
    vector_scores = vector_scores[is_allowed]
    scaled_words = word_scores / (word_scores.max() or 1)
    lowest_score = vector_scores.min()
    scaled_vectors = (vector_scores - lowest_score) / (vector_scores.max() - lowest_score)
    vectors_part = fusion.VECTORS_SHARE * scaled_vectors
    words_part = (1 - fusion.VECTORS_SHARE) * scaled_words
    ids = np.array(list(documents))[is_allowed].tolist()
    return dict(zip(ids, (vectors_part + words_part).tolist(), strict=True))


def word_occurrences(index: Index) -> list[tuple[str, int, int]]:
    """All occurrences of terms; documents count from 0."""
    occurrences = []
    with index._store.reading() as connection:
        joined_keys = "SELECT json_group_array(key) FROM (SELECT key FROM documents ORDER BY key)"
        document_keys = json.loads(connection.execute(joined_keys).fetchone()[0])
        stored_occurrences = "SELECT term, doc, offset FROM occurrences"
        for term, document_key, offset in connection.execute(stored_occurrences):
            occurrences.append((term, document_keys.index(document_key), offset))
    return sorted(occurrences)
