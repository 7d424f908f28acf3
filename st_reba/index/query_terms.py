"""The terms of a query, read as those of documents are."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from .terms import separated_query
from .words import create_words, insert_rows

MAX_QUERY_TERMS = 256
_TERMS_IN_ORDER = "SELECT doc, term FROM occurrences ORDER BY doc, offset"


@dataclass
class QueryTerms:
    """The terms of a query, each with its number of occurrences there.

    Args:
        decisive: Words and pairs of characters; a document is found if it has one of them.
        supporting: Single characters of longer runs. They add to the scores of found documents.
    """

    decisive: Counter[str] = field(default_factory=Counter)
    supporting: Counter[str] = field(default_factory=Counter)


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
    query_terms = []
    decisive_texts = []
    supporting_texts = []
    for query in queries:
        words, single_characters = separated_query(query)
        decisive_texts.append(words)
        supporting_texts.append(single_characters)
        query_terms.append(QueryTerms())
    for query_number, term in _tokenized(language, decisive_texts):
        _count(query_terms[query_number].decisive, term)
    for query_number, term in _tokenized(language, supporting_texts):
        _count(query_terms[query_number].supporting, term)
    return query_terms


def _count(term_counts: Counter[str], term: str) -> None:
    is_full = len(term_counts) == MAX_QUERY_TERMS
    if is_full and term not in term_counts:
        return
    term_counts[term] += 1


def _tokenized(language: str, separated_texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Number of a text and a term of it, for each term, in the order of the texts."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_words(connection, language)
        insert_rows(connection, enumerate(separated_texts))
        yield from connection.execute(_TERMS_IN_ORDER)
