"""Samples of an index's documents, which its whitening is fitted on."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from ..corpus.folder import Corpus
from .schema import documents_with
from .scoring import Keys, Matrix, prepare_vectors

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


def sample_corpus(
    corpus: Corpus,
    metric: str,
) -> Sample:
    """Draw vectors and texts of an encoded corpus, the same ones each time."""
    vector_counts = [part_info.vector_count for part_info in corpus.part_infos()]
    drawn_rows = _draw_rows(sum(vector_counts))
    sampled_vectors: list[Matrix] = []
    sampled_texts: list[str] = []
    first_row = 0
    for part_number, vector_count in enumerate(vector_counts):
        next_row = first_row + vector_count
        first_drawn, next_drawn = np.searchsorted(drawn_rows, [first_row, next_row])
        part_rows = drawn_rows[first_drawn:next_drawn] - first_row
        first_row = next_row
        stored_vectors = corpus.vectors(part_number)
        part_vectors = prepare_vectors(stored_vectors[part_rows], metric)
        is_finite = np.isfinite(part_vectors).all(axis=1)
        is_usable = is_finite & part_vectors.any(axis=1)
        sampled_vectors.append(part_vectors[is_usable])
        usable_rows = part_rows[is_usable]
        sampled_texts += _texts_of_part(corpus, part_number, usable_rows)
    return Sample(np.concatenate(sampled_vectors), sampled_texts)


def _texts_of_part(
    corpus: Corpus,
    part_number: int,
    vector_rows: NDArray[np.int64],
) -> list[str]:
    encoded_texts = corpus.part(part_number).passages
    return [_beginning(encoded_texts[row]) for row in vector_rows]


def draw_keys(vector_keys: Keys) -> Keys:
    """Draw from all keys of an index, the same ones each time, ascending."""
    return vector_keys[_draw_rows(len(vector_keys))]


def read_beginnings(connection: sqlite3.Connection, vector_keys: Keys) -> list[str]:
    """Read the beginnings of the texts, or passages, of vectors, whose keys are ascending."""
    return list(map(_beginning, read_texts(connection, vector_keys)))


def read_texts(
    connection: sqlite3.Connection,
    vector_keys: Keys,
) -> list[str]:
    """Read the texts, or passages, of vectors, whose keys are ascending."""
    key_rows = connection.execute("SELECT key FROM documents ORDER BY key").fetchall()
    document_keys = np.array(key_rows, np.int64).ravel()
    next_rows = np.searchsorted(
        document_keys,
        vector_keys,
        side="right",
    )
    drawn_keys = defaultdict[int, list[int]](list)
    for next_row, vector_key in zip(
        next_rows.tolist(),
        vector_keys.tolist(),
        strict=True,
    ):
        owner_key = int(document_keys[next_row - 1])
        drawn_keys[owner_key].append(vector_key)
    texts: list[str] = []
    for document in documents_with(connection, "key", drawn_keys):
        for vector_key in drawn_keys[document.key]:
            texts.append(document.passage(vector_key))
    return texts


def _beginning(text: str) -> str:
    return text[:_MOST_CHARACTERS]


def _draw_rows(row_count: int) -> NDArray[np.int64]:
    sample_size = min(row_count, _SAMPLE_SIZE)
    drawn_rows = Random(0).sample(range(row_count), sample_size)
    return np.array(sorted(drawn_rows), np.int64)
