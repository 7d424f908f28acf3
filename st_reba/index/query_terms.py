"""The terms of a query, read as those of documents are."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from .terms import separated_query
from .words import create_words, insert_separated

MAX_QUERY_TERMS = 256
_TERMS_IN_ORDER = "SELECT doc, term FROM occurrences ORDER BY doc, offset"


@dataclass
class QueryTerms:
    """The terms of a query, each with its number of occurrences there.

    Args:
        decisive: Words and pairs of characters; a document is found if it has one of them.
        supporting: Single characters of longer runs. They add to the scores of found documents.
    """

    decisive: Counter[str]
    supporting: Counter[str]


def read_terms(language: str, queries: Sequence[str]) -> list[QueryTerms]:
    """The terms of queries; of one query at most 256 different ones of each kind.

    Nothing in a query is an operator: it never gets to FTS5's MATCH.

    Args:
        language: That of the index's words.
        queries: Any texts.

    Example:
        >>> from st_reba.index.terms import ENGLISH
        >>> (terms,) = read_terms(ENGLISH, ['"cats" OR dog* 睡觉'])
        >>> list(terms.decisive), list(terms.supporting)
        (['cat', 'or', 'dog', '睡觉'], ['睡', '觉'])
    """
    # Of each query two texts: its words, then its single characters.
    separated_texts: list[str] = []
    for query in queries:
        words, characters = separated_query(query)
        separated_texts += [words, characters]
    term_counts = [Counter[str]() for _ in separated_texts]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_words(connection, language)
        insert_separated(connection, enumerate(separated_texts))
        for text_number, term in connection.execute(_TERMS_IN_ORDER):
            term_counts[text_number][term] += 1
    first_counts = list(map(_first_terms, term_counts))
    return list(map(QueryTerms, first_counts[::2], first_counts[1::2]))


def _first_terms(term_counts: Counter[str]) -> Counter[str]:
    return Counter(dict(islice(term_counts.items(), MAX_QUERY_TERMS)))
