"""Documents and vectors of encoded corpora, as an index takes them: in order, without those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...corpus.folder import Corpus
from ..vectors.scaling import ready_vectors

# Rows that are held in memory at once, in float64 on the way.
BLOCK_BYTES = 2**25


@dataclass(frozen=True)
class _Shard:
    corpus: Corpus
    number: int
    start: int
    rows: int
    left_out: NDArray[np.int64]

    @property
    def count(self) -> int:
        return self.rows - len(self.left_out)


class Shards:
    """The usable rows of one or more complete corpora, numbered from 0; only a block of them is ever in memory.

    Args:
        paths: The corpora, in order.
        dim: The dimension of their vectors.
        metric: "cosine" scales them to length one.

    Raises:
        FileNotFoundError: One is no corpus.
        ValueError: One is not complete.
    """

    def __init__(self, paths: Sequence[Path], dim: int, metric: str) -> None:
        self.dim = dim
        self._metric = metric
        self._shards: list[_Shard] = []
        self.count = 0
        for corpus in map(Corpus, paths):
            for number in range(corpus.shard_count()):
                documents, vectors = corpus.documents(number), corpus.vectors(number)
                if documents is None or vectors is None:
                    raise ValueError(
                        f"{corpus.path}: shard {number} is not encoded; run the same command again to go on"
                    )
                left_out = np.array(sorted(vectors.unusable), np.int64)
                shard = _Shard(corpus, number, self.count, documents.count, left_out)
                self._shards.append(shard)
                self.count += shard.count

    def records(self) -> Iterator[tuple[str, str, str]]:
        """Id, text, and metadata as JSON, of each document."""
        for shard in self._shards:
            left_out = set(shard.left_out.tolist())
            with shard.corpus.open_documents(shard.number) as store:
                for row, record in enumerate(store.records()):
                    if row not in left_out:
                        yield record

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """All vectors in order, some rows [n, dim] at a time."""
        for shard in self._shards:
            mapped = self._mapped(shard)
            size = self.block_rows
            for start in range(0, shard.rows, size):
                stop = min(start + size, shard.rows)
                block = mapped[start:stop]
                inside = shard.left_out[(shard.left_out >= start) & (shard.left_out < stop)]
                yield self._ready(shard, np.delete(block, inside - start, axis=0) if len(inside) else block)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some vectors.

        Args:
            rows: Their numbers, ascending.

        Returns:
            Vectors [rows, dim].
        """
        taken = np.empty((len(rows), self.dim), np.float32)
        for shard in self._shards:
            first, last = np.searchsorted(rows, [shard.start, shard.start + shard.count]).tolist()
            if first == last:
                continue
            mapped, usable = self._mapped(shard), None
            if len(shard.left_out):
                usable = np.setdiff1d(np.arange(shard.rows), shard.left_out, assume_unique=True)
            for begin in range(first, last, self.block_rows):
                end = min(begin + self.block_rows, last)
                places = rows[begin:end] - shard.start
                taken[begin:end] = self._ready(shard, mapped[places if usable is None else usable[places]])
        return taken

    @property
    def block_rows(self) -> int:
        """How many rows a block has at most."""
        return max(64, BLOCK_BYTES // (8 * self.dim))

    def _mapped(self, shard: _Shard) -> NDArray[Any]:
        path = shard.corpus.vectors_path(shard.number)
        try:
            mapped = shard.corpus.open_vectors(shard.number)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path}: not a NumPy array ({error}); it is damaged: encode the corpus again") from None
        if mapped.shape != (shard.rows, self.dim):
            raise ValueError(
                f"{path}: vectors of shape {mapped.shape}, not {(shard.rows, self.dim)}; encode the corpus again"
            )
        return mapped

    def _ready(self, shard: _Shard, rows: NDArray[Any]) -> NDArray[np.float32]:
        ready, bad, zero = ready_vectors(rows, self._metric)
        if (bad | zero).any():
            path = shard.corpus.vectors_path(shard.number)
            raise ValueError(f"{path}: a vector is NaN, infinite or zero; it is damaged: encode the corpus again")
        return ready
