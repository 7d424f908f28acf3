"""BM25: the scores that the documents of an index have for the words of a query."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .store import Keys
from .words import QueryTerms

# The usual values: how soon a repeated word stops counting, and how much the length of a document does.
SATURATION = 1.2
LENGTH_SHARE = 0.75
# Words that more documents have than this share tell nothing, and cost most.
COMMON_SHARE = 0.5
# Weights that are kept in memory for further queries; 16 bytes each.
MAX_CACHED_WEIGHTS = 4_000_000

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Postings:
    """The documents that have a term, and what each gains by one occurrence of it in the query."""

    keys: Keys
    weights: Scores


class WordScores:
    """Scores of documents in one state of an index.

    Args:
        tx: A transaction that reads that state; `score` needs it again.
        key_count: All keys are smaller.
    """

    def __init__(self, tx: sqlite3.Connection, key_count: int) -> None:
        keys, lengths = read_lengths(tx)
        self.document_count = len(keys)
        self.key_count = key_count
        # By key: what a document's length adds to the number of occurrences in the denominator.
        self._length_terms = np.zeros(key_count)
        relative_lengths = lengths / max(1.0, float(lengths.mean())) if len(keys) else lengths
        self._length_terms[keys] = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * relative_lengths)
        self._frequencies: dict[str, int] = {}
        self._postings: dict[str, Postings] = {}
        self._cached_weights = 0

    def score(self, tx: sqlite3.Connection, terms: QueryTerms) -> Scores:
        """Scores by key, [keys]: 0 for documents without any word of a query, and for keys of no document.

        Words that more than half of the documents have are left out, unless the query has no other.
        """
        decisive = self._sum(tx, terms.decisive, self._telling(tx, terms.decisive))
        if not terms.supporting:
            return decisive
        supporting = self._sum(tx, terms.supporting, self._rare(tx, terms.supporting))
        return np.where(decisive > 0, decisive + supporting, 0.0)

    def _telling(self, tx: sqlite3.Connection, terms: Iterable[str]) -> list[str]:
        return self._rare(tx, terms) or list(terms)

    def _rare(self, tx: sqlite3.Connection, terms: Iterable[str]) -> list[str]:
        most = COMMON_SHARE * self.document_count
        return [term for term in terms if 0 < self._frequency(tx, term) <= most]

    def _sum(self, tx: sqlite3.Connection, counts: dict[str, int], terms: Iterable[str]) -> Scores:
        scores = np.zeros(self.key_count)
        for term in terms:
            postings = self._read_postings(tx, term)
            scores[postings.keys] += counts[term] * postings.weights
        return scores

    def _frequency(self, tx: sqlite3.Connection, term: str) -> int:
        frequency = self._frequencies.get(term)
        if frequency is None:
            row = tx.execute("SELECT doc FROM frequencies WHERE term = ?", (term,)).fetchone()
            frequency = 0 if row is None else int(row[0])
            self._frequencies[term] = frequency
        return frequency

    def _read_postings(self, tx: sqlite3.Connection, term: str) -> Postings:
        postings = self._postings.get(term)
        if postings is not None:
            return postings
        query = "SELECT group_concat(doc) FROM occurrences WHERE term = ?"
        occurrences = parse_integers(tx.execute(query, (term,)).fetchone()[0])
        first_occurrences = np.flatnonzero(np.diff(occurrences, prepend=-1))
        keys = occurrences[first_occurrences]
        counts = np.diff(first_occurrences, append=len(occurrences))
        weights = counts * (SATURATION + 1) / (counts + self._length_terms[keys])
        postings = Postings(keys, self._rarity(len(keys)) * weights)
        self._keep(term, postings)
        return postings

    def _rarity(self, frequency: int) -> float:
        """The inverse document frequency, as Lucene has it: it is never negative."""
        return math.log(1 + (self.document_count - frequency + 0.5) / (frequency + 0.5))

    def _keep(self, term: str, postings: Postings) -> None:
        if self._cached_weights + len(postings.keys) > MAX_CACHED_WEIGHTS:
            self._postings.clear()
            self._cached_weights = 0
        self._postings[term] = postings
        self._cached_weights += len(postings.keys)


def read_lengths(tx: sqlite3.Connection) -> tuple[Keys, Scores]:
    """Keys of the documents, ascending, and their numbers of terms.

    FTS5 keeps them as variable-length integers: seven bits a byte, the highest first, with the eighth bit set in all
    bytes but the last.
    """
    query = "SELECT group_concat(id), group_concat(hex(sz), '') FROM (SELECT id, sz FROM words_docsize ORDER BY id)"
    identities, digits = tx.execute(query).fetchone()
    keys = parse_integers(identities)
    data = np.frombuffer(bytes.fromhex(digits or ""), np.uint8)
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    lengths = np.zeros(len(ends))
    for offset in range(int((ends - starts).max(initial=-1)) + 1):
        is_inside = starts + offset <= ends
        digit = data[np.minimum(starts + offset, ends)] & 127
        lengths = np.where(is_inside, 128 * lengths + digit, lengths)
    return keys, lengths


def parse_integers(text: str | None) -> Keys:
    """Integers that are separated by commas; None: none."""
    if text is None:
        return np.zeros(0, np.int64)
    return np.fromstring(text, np.int64, sep=",")
