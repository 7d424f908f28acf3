"""Rows of .csv and .tsv, read strictly."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

_REMEDY = (
    "a field that holds a quote, a line break or the separator must be in quotes, with each quote inside doubled "
    '(""), or use .jsonl'
)


class LineError(csv.Error):
    """What stands in place of a line that cannot be given, among the lines of a table."""


def csv_rows(lines: Iterable[str], path: Path, delimiter: str) -> Iterator[tuple[int, list[str], list[str]]]:
    """Rows that are not blank, each with its first line's number and the header; the header comes first, as a row too.

    Args:
        lines: The file's lines, their ends kept.
        path: The file, for messages.
        delimiter: What stands between two fields.

    Raises:
        ValueError: A stray quote, or a header that names a column twice.

    Example:
        >>> list(csv_rows(["a,b\\n", "\\n", '1,"2\\n', '3"\\n'], Path("x.csv"), ","))
        [(1, ['a', 'b'], ['a', 'b']), (3, ['a', 'b'], ['1', '2\\n3'])]
    """
    header: list[str] | None = None
    for first, row, _ in csv_records(lines, delimiter):
        if isinstance(row, str):
            raise ValueError(f"{path}, line {first}: {row}")
        if header is None:
            header = row
            if twice := named_twice(header):
                raise ValueError(f"{path}, line {first}: {twice}")
        yield first, header, row


def csv_records(lines: Iterable[str | LineError], delimiter: str) -> Iterator[tuple[int, list[str] | str, str]]:
    """Rows that are not blank, the header too, or what is wrong with one; each between its first line's number and it.

    After a bad row reading goes on with the line after the first of its lines, so that a quote that is never closed
    takes no other row with it.

    Args:
        lines: The file's lines, their ends kept, or what is wrong with one.
        delimiter: What stands between two fields.

    Example:
        >>> list(csv_records(["a,b\\n", '1,"2"3\\n', "4,5\\n"], ","))
        [(1, ['a', 'b'], 'a,b\\n'), (2, ..., '1,"2"3\\n'), (3, ['4', '5'], '4,5\\n')]
    """
    source = iter(lines)
    taken: list[str | LineError] = []
    again: list[str | LineError] = []

    def feed() -> Iterator[str]:
        while True:
            line = again.pop() if again else next(source, None)
            if line is None:
                return
            taken.append(line)
            if isinstance(line, LineError):
                raise line
            yield line

    first = 1
    # strict: a stray quote is an error, not a silent join of lines.
    rows = csv.reader(feed(), delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            again.extend(reversed(taken[1:]))
            del taken[1:]
            yield first, str(error) if isinstance(error, LineError) else f"{error}; {_REMEDY}", _text(taken)
            rows = csv.reader(feed(), delimiter=delimiter, strict=True)
        else:
            if row is None:
                return
            if row:
                yield first, row, _text(taken)
        first += len(taken)
        taken.clear()


def _text(lines: list[str | LineError]) -> str:
    return lines[0] if lines and isinstance(lines[0], str) else ""


def named_twice(header: list[str]) -> str | None:
    """What is wrong with a header that names a column twice."""
    twice = sorted({name for name in header if header.count(name) > 1})
    if not twice:
        return None
    return f"the header names {twice[0]!r} twice; give each column its own name, or the file a header if it has none"
