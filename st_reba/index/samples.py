"""Samples of an index's documents, which its whitening is fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from sqlite3 import Connection

import numpy as np
from numpy.typing import NDArray

from ..corpus.folder import Corpus
from .schema import documents_with, read_owners
from .scoring import Keys, Matrix, prepare_vectors

# More vectors than this do not improve the map.
_SAMPLE_SIZE = 10_000
# How much of a long text is enough to draw sentences from.
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
    vector_counts = [part_info.vector_count for part_info in corpus.part_infos()]
    first_rows = np.cumsum(vector_counts) - vector_counts
    drawn_rows = draw(np.arange(sum(vector_counts)))
    rows_by_part = np.split(drawn_rows, np.searchsorted(drawn_rows, first_rows[1:]))
    sampled_vectors: list[Matrix] = []
    sampled_texts: list[str] = []
    for part_number, first_row in enumerate(first_rows):
        part_rows = rows_by_part[part_number] - first_row
        stored_vectors = corpus.vectors(part_number)
        part_vectors = prepare_vectors(stored_vectors[part_rows], metric)
        is_finite = np.isfinite(part_vectors).all(axis=1)
        is_usable = is_finite & part_vectors.any(axis=1)
        sampled_vectors.append(part_vectors[is_usable])
        encoded_texts = corpus.part(part_number).passages
        for row in part_rows[is_usable]:
            sampled_texts.append(_beginning(encoded_texts[row]))
    return Sample(np.concatenate(sampled_vectors), sampled_texts)


def read_beginnings(connection: Connection, vector_keys: Keys) -> list[str]:
    """Read the beginnings of the texts, or passages, of vectors, whose keys are ascending."""
    return list(map(_beginning, read_texts(connection, vector_keys)))


def read_texts(connection: Connection, vector_keys: Keys) -> list[str]:
    """Read the texts, or passages, of vectors, whose keys are ascending."""
    owners = read_owners(connection, vector_keys.tolist())
    texts: list[str] = []
    for document in documents_with(connection, "key", set(owners.values())):
        texts_by_key = zip(document.keys, document.passages, strict=True)
        texts += [text for key, text in texts_by_key if key in owners]
    return texts


def _beginning(text: str) -> str:
    return text[:_MOST_CHARACTERS]


def draw(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw from numbers, the same ones each time, in their order."""
    sample_size = min(len(numbers), _SAMPLE_SIZE)
    drawn_places = Random(0).sample(range(len(numbers)), sample_size)
    return numbers[sorted(drawn_places)]
