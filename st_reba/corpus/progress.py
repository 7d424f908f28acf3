"""What one run has done so far, and the bars that show it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tqdm.auto import tqdm

from .folder import ShardVectors


class RunProgress:
    """Counts of this run alone, whatever earlier runs have done; shown as bars.

    Args:
        show: Show the bars; None: on a terminal.

    Example:
        >>> progress = RunProgress(show=False)
        >>> with progress.encoding(total=10, done=4):
        ...     progress(3, 60)
        >>> progress.texts, progress.positions, progress.done, progress.total
        (3, 60, 7, 10)
    """

    def __init__(self, show: bool | None = None) -> None:
        self._disable = None if show is None else not show
        self._bar: tqdm[NoReturn] | None = None
        self._counted = self._reported = 0
        self._began = 0.0
        self.records = 0
        """Records that were read."""
        self.texts = 0
        """Texts that were encoded."""
        self.seconds = 0.0
        """What encoding took, writing included."""
        self.total: int | None = None
        """Documents of the corpus, once the input is read."""
        self.done = 0
        """Those that are encoded, by earlier runs too; of a shard that is not finished, all will be done again."""
        self.kept = 0
        """Those of finished shards."""

    @contextmanager
    def gathering(self, total: int | None) -> Iterator[None]:
        """Show how the input is read; `read` counts."""
        with tqdm(total=total, desc="Reading", unit=" texts", disable=self._disable) as self._bar:
            yield

    def read(self, records: int) -> None:
        """Count records that have just been read."""
        self.records += records
        if self._bar is not None:
            self._bar.update(records)

    @contextmanager
    def encoding(self, total: int, done: int) -> Iterator[None]:
        """Show how the documents are encoded; calls count.

        Args:
            total: Documents of the corpus.
            done: Those that earlier runs have encoded.
        """
        self.total, self.done, self.kept = total, done, done
        self._began = time.perf_counter()
        try:
            # The rate is that of this run, as is the time that is left.
            with tqdm(total=total, initial=done, desc="Encoding", unit=" texts", disable=self._disable) as self._bar:
                yield
        finally:
            self._tick()
            self._bar = None

    def __call__(self, texts: int, positions: int = 0, /) -> None:
        """Count texts that have just been encoded, and their positions (0: not counted)."""
        self.texts += texts
        self.done += texts
        self._counted += positions
        self._tick()
        if self._bar is not None:
            if self.positions:
                self._bar.set_postfix_str(f"{self.positions / max(self.seconds, 1e-9):,.0f} tokens/s", refresh=False)
            self._bar.update(texts)

    def report(self, documents: int, record: ShardVectors) -> None:
        """Count a finished shard."""
        self.kept += documents
        self._reported += record.positions or 0
        self._tick()

    @property
    def positions(self) -> int:
        """Positions that the model ran for the texts, all copies, without padding."""
        # An engine that does not count them as they come tells them by the shard.
        return max(self._counted, self._reported)

    def _tick(self) -> None:
        self.seconds = time.perf_counter() - self._began
