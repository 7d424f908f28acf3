"""Standard input, output and error: closed, full, interrupted, and in any encoding."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TextIO, cast

from .. import progress

# The shell's status of a program that a closed pipe ended.
CLOSED_PIPE = 141
# The step in which a command imports torch and its other packages.
STARTING = "Starting"
STANDARD_INPUT = "standard input"


class ClosedOutput(io.TextIOBase):
    """Takes the place of a closed standard output: writing to it is an error."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


class WatchedOutput:
    """Standard output that remembers why it could not be written to.

    An OSError at the end of a command may concern any file, and typer turns the one from a closed
    pipe into an exit.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.fault: OSError | None = None

    def write(self, text: str) -> int:
        with self._watching():
            return self.stream.write(text)

    def flush(self) -> None:
        with self._watching():
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = error
            raise

    def finish(self) -> OSError | None:
        """Write what is buffered; returns the error if standard output could not be written to.

        Then the rest is dropped: Python would write it at exit, and print a traceback.
        """
        with suppress(OSError):
            self.flush()
        if self.fault is not None:
            _drop(self.stream)
        sys.stdout = self.stream
        return self.fault


def prepare() -> WatchedOutput:
    """Make the standard streams safe to use, and watch standard output."""
    for descriptor in range(3):
        _occupy(descriptor)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show Chinese must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    output = WatchedOutput(sys.stdout or cast(TextIO, ClosedOutput()))
    sys.stdout = cast(TextIO, output)
    return output


def _occupy(descriptor: int) -> None:
    """Occupy the descriptor of a closed stream, which the next opened file would otherwise get."""
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)


def standard_input() -> BinaryIO:
    """The bytes of standard input."""
    if sys.stdin is None or sys.stdin.closed:
        raise ValueError("standard input is closed; name a file, or give lines on standard input")
    return sys.stdin.buffer


def is_utf8(stream: TextIO) -> bool:
    """Whether a stream can hold every letter."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def print_error(message: str) -> None:
    """Print to standard error, if it can be."""
    if sys.stderr is None:
        return
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


@contextmanager
def announced_step(description: str, *, is_announced: bool = True) -> Iterator[None]:
    """Print to standard error what the ``with`` block does, and while it runs, for how long."""
    if is_announced:
        print_error(f"{description} ...")
    with progress.step(description):
        yield


@contextmanager
def printing_progress() -> Iterator[None]:
    """Inside the ``with`` block, a pipe or a log file gets lines where a terminal gets bars."""
    if progress.is_terminal():
        yield
        return
    with progress.printing_lines(print_error):
        yield


def _drop(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        null_descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_descriptor, stream.fileno())
        os.close(null_descriptor)
        stream.flush()
