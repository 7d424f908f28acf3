"""How long each stage of a piece of work takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds by stage. A stage within another counts for itself alone, so that all of them add up to the whole.

    Args:
        *stages: Their names.

    Example:
        >>> clock = Clock("read", "write")
        >>> with clock.stage("read"):
        ...     pass
        >>> sorted(clock.seconds), clock.seconds["write"]
        (['read', 'write'], 0.0)
    """

    def __init__(self, *stages: str) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(stages, 0.0)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the ``with`` block."""
        self._turn()
        self._running.append(name)
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now
