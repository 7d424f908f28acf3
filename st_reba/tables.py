"""Rows of .csv and .tsv, read strictly."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path


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
    # strict: a stray quote is an error, not a silent join of lines.
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        first = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {first}: {error}; a field that holds a quote, a line break or the separator must be in "
                'quotes, with each quote inside doubled (""), or use .jsonl'
            ) from None
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = row
            if twice := sorted({name for name in header if header.count(name) > 1}):
                raise ValueError(
                    f"{path}, line {first}: the header names {twice[0]!r} twice; give each column its own name"
                )
        yield first, header, row
