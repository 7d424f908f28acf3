"""Rows of segments and of a corpus as one run: what a new segment is written from, a block at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..building.shards import Shards
from ..folder.segments import OpenSegment


@dataclass(frozen=True)
class Piece:
    """Those rows of a segment, or of a corpus, that stay.

    Args:
        source: Where they are.
        keep: Which rows of the source stay, [rows] bool.
    """

    source: OpenSegment | Shards
    keep: NDArray[np.bool_]

    @classmethod
    def live(cls, segment: OpenSegment, gone: NDArray[np.int64] | None = None) -> Piece:
        """The rows of a segment that are not deleted, without those that are gone from now on."""
        keep = np.ones(segment.record.count, dtype=bool)
        keep[segment.deleted_rows] = False
        if gone is not None:
            keep[gone] = False
        return cls(segment, keep)

    @property
    def count(self) -> int:
        """How many stay."""
        return int(np.count_nonzero(self.keep))

    def records(self) -> Iterator[tuple[str, str, str]]:
        """Id, text, and metadata as JSON, of each row that stays."""
        source = self.source
        return compress(source.records() if isinstance(source, Shards) else source.store.records(), self.keep)

    def blocks(self, size: int) -> Iterator[NDArray[np.float32]]:
        """The vectors of the rows that stay, [at most size, dim] at a time."""
        start = 0
        for block in _blocks(self.source, size):
            keep = self.keep[start : start + len(block)]
            start += len(block)
            if keep.any():
                yield block if keep.all() else block[keep]

    def check(self, folder: Path) -> None:
        """Read a segment's files whole: what is copied gets new digests, so damage must be found before.

        Raises:
            ValueError: A file is altered or damaged.
        """
        if isinstance(self.source, OpenSegment):
            for file in self.source.record.files:
                try:
                    file.check(folder)
                except ValueError as error:
                    raise ValueError(f"{error}; build the index again") from None


class Rows(Shards):
    """Pieces one after another, with their rows numbered from 0: taken as a corpus is.

    Args:
        pieces: In order.
        dim: The dimension of the vectors.
    """

    def __init__(self, pieces: Sequence[Piece], dim: int) -> None:
        self.pieces = pieces
        self.dim = dim
        self.count = sum(piece.count for piece in pieces)

    def records(self) -> Iterator[tuple[str, str, str]]:
        """Id, text, and metadata as JSON, of each row."""
        return chain.from_iterable(piece.records() for piece in self.pieces)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """All vectors in order, some rows [n, dim] at a time."""
        return chain.from_iterable(piece.blocks(self.block_rows) for piece in self.pieces)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors [rows, dim] of some rows, given in ascending order."""
        taken = [np.zeros((0, self.dim), np.float32)]
        start = 0
        for block in self.blocks():
            first, last = np.searchsorted(rows, [start, start + len(block)])
            taken.append(block[rows[first:last] - start])
            start += len(block)
        return np.concatenate(taken)


def _blocks(source: OpenSegment | Shards, size: int) -> Iterable[NDArray[np.float32]]:
    if isinstance(source, Shards):
        return source.blocks()
    count = source.record.count
    return (source.vectors(start, min(start + size, count)) for start in range(0, count, size))
