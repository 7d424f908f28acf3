"""BM25 scores of documents for queries, a baseline for vectors."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing

import numpy as np

from ..index.bm25 import Scores, WordScores
from ..index.query_terms import read_terms
from ..index.terms import language_of, separated
from ..index.words import create_words, insert_separated


def word_scores(queries: Sequence[str], documents: Sequence[str]) -> Scores:
    """BM25 as an index computes it, [queries, documents].

    Example:
        >>> word_scores(["cats"], ["A cat sleeps.", "It rains."]).round(2).tolist()
        [[0.64, 0.0]]
    """
    language = language_of(documents)
    scores = np.zeros((len(queries), len(documents)))
    database = sqlite3.connect(":memory:", isolation_level=None)
    with closing(database) as connection:
        create_words(connection, language)
        insert_separated(connection, enumerate(map(separated, documents)))
        document_words = WordScores(connection, len(documents))
        for query_index, query_terms in enumerate(read_terms(language, queries)):
            scores[query_index] = document_words.score(connection, query_terms)
    return scores
