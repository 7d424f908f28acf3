"""BM25: scores of an index's documents for the words of a query."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from sqlite3 import Connection

import numpy as np
from numpy.typing import NDArray

from .query_terms import QueryTerms
from .scoring import Keys

# BM25's k1 and b, at their usual values: how soon a repeated word stops counting, and how much a
# document's length counts.
SATURATION = 1.2
LENGTH_SHARE = 0.75
# Words in more than this share of the documents say nothing, and cost the most time.
COMMON_SHARE = 0.5
# Weights that are kept in memory for further queries; 16 bytes each.
MAX_CACHED_WEIGHTS = 4_000_000

_FREQUENCY = "SELECT COALESCE(SUM(doc), 0) FROM frequencies WHERE term = ?"
_OCCURRENCES = "SELECT group_concat(doc) FROM occurrences WHERE term = ?"
_LENGTHS = """
SELECT group_concat(id), group_concat(hex(sz), '')
FROM (SELECT id, sz FROM words_docsize ORDER BY id)
"""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Postings:
    """The documents that have a term, and what each gains by one occurrence of it in the query.

    Args:
        keys: Of the documents, [documents].
        weights: [documents].
    """

    keys: Keys
    weights: Scores


class WordScores:
    """Scores of documents in one state of an index.

    Args:
        connection: A transaction that reads that state; `score` needs it again.
        key_count: A number above all keys.
    """

    def __init__(self, connection: Connection, key_count: int) -> None:
        document_keys, document_lengths = read_lengths(connection)
        self.key_count = key_count
        self.document_count = len(document_keys)
        # By key: what a document's length adds to the number of occurrences in the denominator.
        self._length_penalties = np.zeros(key_count)
        if self.document_count:
            relative_lengths = document_lengths / max(1.0, float(document_lengths.mean()))
            length_factors = 1 - LENGTH_SHARE + LENGTH_SHARE * relative_lengths
            self._length_penalties[document_keys] = SATURATION * length_factors
        self._frequencies: dict[str, int] = {}
        self._postings: dict[str, Postings] = {}
        self._cached_weights = 0

    def score(self, connection: Connection, query_terms: QueryTerms) -> Scores:
        """Scores by key, [keys]: 0 for documents without any word of a query, and for other keys.

        Words that more than half of the documents have are left out, unless the query has no other.
        """
        decisive_terms = self._rare_terms(connection, query_terms.decisive)
        if not decisive_terms:
            decisive_terms = list(query_terms.decisive)
        scores = self._sum_weights(connection, query_terms.decisive, decisive_terms)
        supporting_terms = self._rare_terms(connection, query_terms.supporting)
        if not supporting_terms:
            return scores
        is_found = scores > 0
        scores += self._sum_weights(connection, query_terms.supporting, supporting_terms)
        scores[~is_found] = 0
        return scores

    def _rare_terms(self, connection: Connection, terms: Iterable[str]) -> list[str]:
        """Terms that occur in some document, but not in too many."""
        max_frequency = COMMON_SHARE * self.document_count
        rare_terms = []
        for term in terms:
            document_frequency = self._frequency(connection, term)
            if 0 < document_frequency <= max_frequency:
                rare_terms.append(term)
        return rare_terms

    def _sum_weights(
        self,
        connection: Connection,
        term_counts: Counter[str],
        chosen_terms: list[str],
    ) -> Scores:
        scores = np.zeros(self.key_count)
        for term in chosen_terms:
            postings = self._read_postings(connection, term)
            scores[postings.keys] += term_counts[term] * postings.weights
        return scores

    def _frequency(self, connection: Connection, term: str) -> int:
        """Number of documents that have a term."""
        if term not in self._frequencies:
            (self._frequencies[term],) = connection.execute(_FREQUENCY, (term,)).fetchone()
        return self._frequencies[term]

    def _read_postings(self, connection: Connection, term: str) -> Postings:
        cached_postings = self._postings.get(term)  # another thread may clear them
        if cached_postings is not None:
            return cached_postings
        (joined_keys,) = connection.execute(_OCCURRENCES, (term,)).fetchone()
        occurrence_keys = parse_integers(joined_keys)
        document_keys, term_counts = np.unique(occurrence_keys, return_counts=True)
        saturated_counts = term_counts / (term_counts + self._length_penalties[document_keys])
        rarity = self._rarity(len(document_keys))
        postings = Postings(document_keys, rarity * (SATURATION + 1) * saturated_counts)
        weight_count = len(postings.weights)
        if self._cached_weights + weight_count > MAX_CACHED_WEIGHTS:
            self._postings.clear()
            self._cached_weights = 0
        self._postings[term] = postings
        self._cached_weights += weight_count
        return postings

    def _rarity(self, document_frequency: int) -> float:
        """The inverse document frequency, as Lucene has it: it is never negative."""
        absent_count = self.document_count - document_frequency
        return math.log(1 + (absent_count + 0.5) / (document_frequency + 0.5))


def best_keys(scores: Scores, max_keys: int) -> Keys:
    """Keys of the best documents with a score above 0, best first, equal scores by key.

    Args:
        scores: By key, [keys].
        max_keys: How many at most.
    """
    found_keys = np.flatnonzero(scores > 0)
    if len(found_keys) > max_keys:
        lowest_score = np.partition(scores[found_keys], -max_keys)[-max_keys]
        is_among_best = scores[found_keys] >= lowest_score
        found_keys = found_keys[is_among_best]
    ranking = np.lexsort((found_keys, -scores[found_keys]))
    return found_keys[ranking][:max_keys]


def read_lengths(connection: Connection) -> tuple[Keys, Scores]:
    """Keys of the documents, ascending, and the number of terms of each."""
    joined_keys, joined_lengths = connection.execute(_LENGTHS).fetchone()
    document_keys = parse_integers(joined_keys)
    document_lengths = decode_varints(bytes.fromhex(joined_lengths or ""))
    if len(document_keys) != len(document_lengths):
        raise IndexError("not one length for each document")
    return document_keys, document_lengths


def decode_varints(encoded_numbers: bytes) -> Scores:
    """Numbers as SQLite writes them: seven bits per byte, the highest first; only the last byte is below 128.

    Example:
        >>> decode_varints(bytes([5, 129, 128, 0])).tolist()
        [5.0, 16384.0]
    """
    all_bytes = np.frombuffer(encoded_numbers, np.uint8)
    last_places = np.flatnonzero(all_bytes < 128)
    first_places = np.zeros_like(last_places)
    first_places[1:] = last_places[:-1] + 1
    byte_counts = last_places - first_places + 1
    numbers = np.zeros(len(last_places))
    for byte_offset in range(int(byte_counts.max(initial=0))):
        has_byte = byte_offset < byte_counts
        byte_places = np.minimum(first_places + byte_offset, last_places)
        seven_bits = all_bytes[byte_places] & 127
        numbers = np.where(has_byte, 128 * numbers + seven_bits, numbers)
    return numbers


def parse_integers(joined_integers: str | None) -> Keys:
    """Integers that are separated by commas; None: none."""
    if joined_integers is None:
        return np.zeros(0, np.int64)
    return np.fromstring(joined_integers, np.int64, sep=",")
