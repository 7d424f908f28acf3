"""Samples of an index's documents, which its whitening is fitted on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from sqlite3 import Connection

import numpy as np

from .schema import documents_with, read_owners
from .scoring import Keys, Matrix, Segment

# More vectors than this do not improve the map.
_SAMPLE_SIZE = 10_000
# How much of a long text is enough to draw sentences from.
_MAX_CHARACTERS = 10_000


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


def draw_segment(segments: Sequence[Segment]) -> Segment:
    """Draw some vectors of segments whose keys ascend; the same ones each time."""
    keys = np.concatenate([segment.keys for segment in segments])
    sample_size = min(len(keys), _SAMPLE_SIZE)
    drawn_places = Random(0).sample(range(len(keys)), sample_size)
    drawn_keys = keys[sorted(drawn_places)]

    def load() -> Matrix:
        drawn_vectors = []
        for segment in segments:
            is_drawn = np.isin(segment.keys, drawn_keys)
            drawn_vectors.append(segment.load()[is_drawn])
        return np.concatenate(drawn_vectors)

    return Segment(drawn_keys, load)


def read_sample(connection: Connection, segment: Segment) -> Sample:
    """Load a segment of raw vectors, and read the beginnings of their texts."""
    texts = read_texts(connection, segment.keys)
    return Sample(segment.load(), [text[:_MAX_CHARACTERS] for text in texts])


def read_texts(connection: Connection, vector_keys: Keys) -> Iterator[str]:
    """Read the texts, or passages, of vectors, whose keys are ascending."""
    owners = read_owners(connection, vector_keys.tolist())
    for document in documents_with(connection, "key", set(owners.values())):
        for key, text in zip(document.keys, document.passages, strict=True):
            if key in owners:
                yield text
