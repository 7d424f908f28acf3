"""Standard input, output and errors: closed, full, interrupted, and in whatever encoding."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from typing import BinaryIO, TextIO

# As the shell says of a program that a closed pipe ended.
CLOSED_PIPE = 141


class ClosedOutput(io.TextIOBase):
    """Stands for a standard output that is closed: to write to it is an error."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, f"standard output is closed, but there are {len(text)} characters to write")


def prepare() -> TextIO:
    """Make the standard streams safe to use, and give standard output."""
    for descriptor in range(3):
        _occupy(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show Chinese must not end the command
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    return sys.stdout


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


def fault_of_output(output: TextIO) -> OSError | None:
    """Write what is left to standard output; the error, if it cannot be written: then it is dropped.

    Python would write it at its own end, and print a traceback.
    """
    sys.stdout = output  # typer may have replaced it
    try:
        output.flush()
    except OSError as error:
        _drop(output)
        return error
    return None


def print_error(message: str) -> None:
    """Print to standard error, if it can be."""
    if sys.stderr is None:
        return
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
        stream.flush()
