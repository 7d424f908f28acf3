"""Standard input, output and errors: closed, full, interrupted, and in whatever encoding."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TextIO, cast

# As the shell says of a program that a closed pipe ended.
CLOSED_PIPE = 141


class ClosedOutput(io.TextIOBase):
    """Stands for a standard output that is closed: to write to it is an error."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


class WatchedOutput:
    """Standard output that remembers why it could not be written to.

    An OSError that reaches the end of a command may be of any file; and typer turns that of a closed pipe into an exit.
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
        """Write what is left; the error, if standard output could not be written to: then the rest is dropped.

        Python would write the rest at its own end, and print a traceback.
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
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show Chinese must not end the command
            stream.reconfigure(errors="backslashreplace")
    output = WatchedOutput(cast(TextIO, ClosedOutput()) if sys.stdout is None else sys.stdout)
    sys.stdout = cast(TextIO, output)
    return output


def _occupy(descriptor: int) -> None:
    """Open nothing in the place of a closed stream, which the next file that is opened would take."""
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
    """True if every letter can be written to a stream."""
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


def print_progress(step: str) -> None:
    """Tell on standard error what takes the next seconds."""
    print_error(f"{step} ...")


def print_next(command: str) -> None:
    """Tell on standard error which command may follow."""
    print_error(f"Next: {command}")


def _drop(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
        stream.flush()
