"""Samples of an index's documents, which its whitening is fitted on."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from ..corpus.folder import Corpus
from .store import Keys, Matrix, documents_with
from .vectors import scaled

# Of more vectors, the map becomes no better.
_SAMPLE_SIZE = 10_000
# The beginning of a longer text is enough to draw sentences from.
_MOST_CHARACTERS = 10_000


@dataclass(frozen=True)
class Sample:
    """Vectors of some documents, before any whitening, and the texts that they are of.

    Args:
        vectors: [n, d], of length one for cosines.
        texts: The beginnings of the n texts, or passages.
    """

    vectors: Matrix
    texts: list[str]

    def without_repetitions(self) -> Sample:
        """The sample with each text once."""
        row_of_text: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            row_of_text.setdefault(text, row)
        distinct_rows = list(row_of_text.values())
        return Sample(self.vectors[distinct_rows], list(row_of_text))


def sample_corpus(corpus: Corpus, metric: str) -> Sample:
    """Draw vectors and texts of an encoded corpus, the same ones each time."""
    vector_counts = [corpus.about(number)["vectors"] for number in range(corpus.parts())]
    drawn_rows = _draw_rows(sum(vector_counts))
    vectors: list[Matrix] = []
    texts: list[str] = []
    first_row = 0
    for number, vector_count in enumerate(vector_counts):
        is_of_part = (drawn_rows >= first_row) & (drawn_rows < first_row + vector_count)
        rows_of_part = drawn_rows[is_of_part] - first_row
        first_row += vector_count
        part_vectors = scaled(corpus.vectors(number)[rows_of_part], metric)
        is_usable = np.isfinite(part_vectors).all(axis=1) & part_vectors.any(axis=1)
        vectors.append(part_vectors[is_usable])
        texts.extend(_texts_of_part(corpus, number, rows_of_part[is_usable]))
    return Sample(np.concatenate(vectors), texts)


def _texts_of_part(
    corpus: Corpus,
    number: int,
    vector_rows: NDArray[np.int64],
) -> list[str]:
    encoded_texts: list[str] = []
    for document in corpus.part(number).rows:
        encoded_texts.extend(document.passages)
    return [encoded_texts[row][:_MOST_CHARACTERS] for row in vector_rows.tolist()]


def draw_keys(vector_keys: Keys) -> Keys:
    """Draw from all keys of an index, the same ones each time, ascending."""
    return vector_keys[_draw_rows(len(vector_keys))]


def read_texts(tx: sqlite3.Connection, vector_keys: Keys) -> list[str]:
    """Read the beginnings of the texts, or passages, of vectors, whose keys are ascending."""
    document_keys = np.array(tx.execute("SELECT key FROM documents ORDER BY key").fetchall(), np.int64).ravel()
    owner_rows = np.searchsorted(document_keys, vector_keys, side="right") - 1
    vectors_of_document: dict[int, list[int]] = {}
    for owner_row, vector_key in zip(owner_rows.tolist(), vector_keys.tolist(), strict=True):
        document_key = int(document_keys[owner_row])
        vectors_of_document.setdefault(document_key, []).append(vector_key)
    texts: list[str] = []
    for document in documents_with(tx, "key", vectors_of_document):
        for vector_key in vectors_of_document[document.key]:
            texts.append(document.passage(vector_key)[:_MOST_CHARACTERS])
    return texts


def _draw_rows(row_count: int) -> NDArray[np.int64]:
    sample_size = min(row_count, _SAMPLE_SIZE)
    drawn_rows = Random(0).sample(range(row_count), sample_size)
    return np.array(sorted(drawn_rows), np.int64)
