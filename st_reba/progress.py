"""Progress of long work: bars on a terminal; elsewhere, if wanted, a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

SECONDS_BETWEEN_LINES = 10.0


@dataclass(eq=False)
class Step:
    """A piece of work that is under way.

    Args:
        description: What is done.
        unit: What is counted; empty: nothing.
        total: How many there are; None: that is not known.
        count: How many are done already.
        start_time: When it began, by the clock of `time.monotonic`.
    """

    description: str
    unit: str = ""
    total: int | None = None
    count: int = 0
    start_time: float = field(default_factory=time.monotonic)

    def update(self, count: int) -> None:
        """Count what was done since the last call."""
        self.count += count

    def describe(self) -> str:
        """A line for the user."""
        seconds = f"{time.monotonic() - self.start_time:.0f} s"
        if not self.unit:
            return f"{self.description}: {seconds}"
        amount = f"{self.count:,}"
        if self.total is not None:
            amount += f" of {self.total:,}"
        return f"{self.description}: {amount} {self.unit} after {seconds}"


class _Lines:
    """Prints the progress of the innermost step every few seconds, until it is ended."""

    def __init__(self, print_line: Callable[[str], object]) -> None:
        self._print_line = print_line
        self._steps: list[Step] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print_lines, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def show(self, step: Step) -> Iterator[Step]:
        self._steps.append(step)
        try:
            yield step
        finally:
            self._steps.remove(step)

    def _print_lines(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            for step in self._steps[-1:]:
                self._print_line(step.describe())


_lines: _Lines | None = None


@contextmanager
def printing_lines(print_line: Callable[[str], object]) -> Iterator[None]:
    """Inside the ``with`` block, print a line every few seconds where no bar can be shown.

    Example:
        >>> with printing_lines(print), step("Waiting"):
        ...     pass
    """
    global _lines
    former_lines = _lines
    _lines = _Lines(print_line)
    try:
        yield
    finally:
        _lines.end()
        _lines = former_lines


def is_terminal() -> bool:
    """Whether standard error, where bars and lines go, is a terminal."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def step(description: str) -> AbstractContextManager[object]:
    """Inside the ``with`` block, lines tell what is being done and for how long."""
    return nullcontext() if _lines is None else _lines.show(Step(description))


def progress_bar(
    description: str | None,
    unit: str,
    total: int | None = None,
    *,
    is_shown: bool | None = None,
    initial: int = 0,
    **bar_options: Any,
) -> AbstractContextManager[Any]:
    """A bar, or lines, whose ``update`` counts what is done.

    Args:
        description: What is done.
        unit: What is counted.
        total: How many there are; None: that is not known.
        is_shown: Show a bar; None: on a terminal, else lines if they are asked for.
        initial: How many are done already.
        **bar_options: As tqdm has them.
    """
    if is_shown is None and _lines is not None and not is_terminal():
        return _lines.show(Step(description or "Encoding", unit, total, initial))
    from tqdm.auto import tqdm  # slow to import, and no command needs it for --help

    return tqdm(
        total=total,
        desc=description,
        unit=f" {unit}",
        initial=initial,
        disable=None if is_shown is None else not is_shown,
        **bar_options,
    )
