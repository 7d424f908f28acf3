"""Rows of .csv and .tsv: the separator is recognized, and an unclosed quote costs one line.

Spaces around the names of columns do not belong to them. If a space stands after each separator of
the first line, it belongs to none of the cells either.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from typing import Any, TextIO

from . import text_files
from .text_files import TableRow, decoding_fault, read_lines

DEFAULT_SEPARATORS = {".csv": ",", ".tsv": "\t"}
SEPARATORS = (",", ";", "\t", "|")
# An optional first line, "sep=;", that tells Excel the separator.
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*')
_MAX_DIGITS = 18  # of a number that counts rows; Python converts none of more than 4,300
_SAMPLE_LINES = 50
# Lines of a record times the separators in each. From this number on, they rarely match the first
# line by chance.
_MAX_CHANCE_AGREEMENT = 12
_QUOTE_REMEDY = "close it, and write quotes inside quotes twice"


class _LineFeed:
    """Lines that can be put back; those of the record that is being read are remembered."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._returned = deque[str]()
        self.record_lines: list[str] = []
        self.next_number = 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._returned.popleft() if self._returned else next(self._lines)
        self.record_lines.append(line)
        self.next_number += 1
        return line

    def put_back(self, kept_count: int) -> None:
        """Put back all but the first ``kept_count`` lines of the record, to be read again."""
        returned = self.record_lines[kept_count:]
        self._returned.extendleft(reversed(returned))
        self.next_number -= len(returned)
        del self.record_lines[kept_count:]


class DelimitedRows:
    """The rows of one file.

    Args:
        stream: The file.
        suffix: ".csv", or ".tsv".
        has_quotes: Quotes enclose fields; else they are text as any other character.
    """

    def __init__(self, stream: TextIO, suffix: str, *, has_quotes: bool = True) -> None:
        csv.field_size_limit(text_files.MAX_CHARS)
        self._feed = _LineFeed(read_lines(stream))
        self._encoding = stream.encoding
        self._has_quotes = has_quotes
        self._skips_spaces = False  # that stand after separators
        self.separator = self._recognize_separator(DEFAULT_SEPARATORS[suffix])
        self._reader = self._parse(self._feed)

    def read(self) -> Iterator[TableRow]:
        header = self._read_header()
        header_fault = decoding_fault("".join(header), self._encoding)
        while True:
            line_number = self._feed.next_number
            row_place = f"line {line_number}"
            self._feed.record_lines.clear()
            try:
                fields = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield row_place, self._give_up_first_line(str(error))
                continue
            if not fields:
                continue
            fault = header_fault or decoding_fault("".join(fields), self._encoding)
            fault = fault or self._fault_of(fields, header, line_number)
            yield row_place, fault or dict(zip(header, fields, strict=True))

    def field_counts(self) -> list[int]:
        """Number of fields of the header and of each row; a csv.Error for a stray quote."""
        return [len(fields) for fields in self._reader if fields]

    def _parse(self, lines: Iterator[str], separator: str | None = None) -> Iterator[list[str]]:
        # strict: a stray quote is an error, not a silent join of lines.
        quoting: Any = csv.QUOTE_MINIMAL if self._has_quotes else csv.QUOTE_NONE
        return csv.reader(
            lines,
            delimiter=separator or self.separator,
            strict=True,
            quoting=quoting,
            skipinitialspace=self._skips_spaces,
        )

    def _read_header(self) -> list[str]:
        self._feed.record_lines.clear()
        try:
            header = next(self._reader, [])
            if len(header) > 1 and all(name.startswith(" ") for name in header[1:]):
                self._skips_spaces = True
                self._feed.put_back(0)
                self._reader = self._parse(self._feed)
                header = next(self._reader, [])
        except csv.Error as error:
            raise ValueError(
                f"line 1: a quote opens and is not closed ({error}); {_QUOTE_REMEDY}"
            ) from None
        if not header:
            raise ValueError(
                "it is empty, or begins with an empty line; its first line must name the columns"
            )
        header = [name.strip() for name in header]
        if len(set(header)) < len(header):
            raise ValueError("the first line must name the columns, each once")
        return header

    def _fault_of(self, fields: list[str], header: list[str], line_number: int) -> str | None:
        """Why a record is not a row; None: it is. Lines of it that are rows are put back."""
        record_lines = self._feed.record_lines
        column_count = len(header)
        is_whole = len(fields) == column_count
        if self._joins_rows(record_lines, column_count, is_whole=is_whole):
            last_line_number = line_number + len(record_lines) - 1
            return self._give_up_first_line(
                f"it would swallow lines {line_number + 1} to {last_line_number}, which are rows by themselves"
            )
        if is_whole:
            return None
        columns = "1 column"
        if column_count > 1:
            columns = f"{column_count} columns"
        return (
            f"wrong type: {len(fields)} fields, but {columns} in the first line; "
            f"quote fields that hold {self.separator!r}, or remove lines above the names of the "
            "columns"
        )

    def _joins_rows(self, lines: list[str], column_count: int, *, is_whole: bool) -> bool:
        """True if a quote joins lines that appear to be rows by themselves."""
        if len(lines) == 1 or column_count == 1:
            return False
        # If the record is a valid row, its first line must look like a row by itself too.
        joined_lines = lines if is_whole else lines[1:]
        rows = list(map(self._split_without_quotes, joined_lines))
        if any(len(row) != column_count for row in rows):
            return False
        if is_whole and _has_spaced_cells(rows):
            return False  # commas of a text
        agreement = len(rows) * (column_count - 1)
        if not is_whole or agreement >= _MAX_CHANCE_AGREEMENT:
            return True
        first_cells, *_, last_cells = zip(*rows, strict=True)
        return _are_alike(first_cells) or _are_alike(last_cells)

    def _split_without_quotes(self, line: str) -> list[str]:
        """The cells of a line if its quotes were letters like any other."""
        cells = line.rstrip("\r\n").split(self.separator)
        if self._skips_spaces:
            return [cell.lstrip(" ") for cell in cells]
        return cells

    def _give_up_first_line(self, detail: str) -> str:
        is_joined = len(self._feed.record_lines) > 1 or detail.startswith("unexpected end")
        self._feed.put_back(1)
        if is_joined:
            return f"wrong type: a quote opens in this line and is not closed ({detail}); {_QUOTE_REMEDY}"
        return f"wrong type: {detail}; close every quote, and write quotes inside quotes twice"

    def _recognize_separator(self, default: str) -> str:
        """The separator that splits the first line and most others into equally many fields."""
        sample = list(islice(self._feed, _SAMPLE_LINES))
        separator_line = _SEPARATOR_LINE.fullmatch("".join(sample[:1]).lstrip("\ufeff"))
        if separator_line is not None:
            self._feed.put_back(1)
            return separator_line[1]
        self._feed.put_back(0)
        likeliest_separator = default
        largest_share = 0.0
        for separator in (default, *SEPARATORS):
            share = self._agreement(sample, separator)
            if share > largest_share:
                likeliest_separator = separator
                largest_share = share
        if largest_share < 0.5:
            return default
        return likeliest_separator

    def _agreement(self, sample: list[str], separator: str) -> float:
        """Share of later lines with as many fields as the first; 0 if the first is not split."""
        counts = list[int]()
        with suppress(csv.Error):  # a stray quote: the rows before it suffice
            counts.extend(len(fields) for fields in self._parse(iter(sample), separator) if fields)
        if not counts or counts[0] < 2:
            return 0.0
        header_count, *row_counts = counts
        if not row_counts:
            return 1.0
        return row_counts.count(header_count) / len(row_counts)


def encloses_fields(stream: TextIO, second_stream: TextIO) -> bool:
    """True if quotes in a .tsv enclose fields: read that way, all its rows have equally many.

    Args:
        stream, second_stream: The file, opened twice.
    """
    rows = DelimitedRows(stream, ".tsv")
    try:
        field_counts = rows.field_counts()
    except csv.Error:
        return False
    filled_lines = (line for line in read_lines(second_stream) if not line.isspace())
    separator_counts = [line.count(rows.separator) for line in filled_lines]
    if len(set(field_counts)) > 1:
        return False
    # Quotes that join lines which are complete rows by themselves belong to the texts.
    if len(separator_counts) == len(field_counts) or len(set(separator_counts)) > 1:
        return True
    return not any(separator_counts)


def _has_spaced_cells(rows: Iterable[Sequence[str]]) -> bool:
    """True if a space follows a separator, as it does after a comma in a text."""
    return any(cell.startswith(" ") for _, *later_cells in rows for cell in later_cells)


def _count_up(numbers: Sequence[str]) -> bool:
    """True if each number is the one before it plus one."""
    if max(map(len, numbers)) > _MAX_DIGITS:
        return False
    return all(int(number) + 1 == int(next_number) for number, next_number in pairwise(numbers))


def _are_alike(cells: Sequence[str]) -> bool:
    """True if cells look like keys of one kind, such as d5 and d6, or are equal, such as en and en.

    Numbers are alike if they count up by one.
    """
    if all(map(str.isdecimal, cells)):
        return len(set(cells)) == 1 or _count_up(cells)
    cell_kinds = set()
    for cell in cells:
        if not cell or re.search(r'[\s"]', cell):
            return False
        cell_kind = re.sub(r"\d", "9", cell)
        cell_kind = re.sub(r"[^\W\d_]", "a", cell_kind)
        cell_kinds.add(frozenset(cell_kind))
    if len(set(cells)) == 1:
        return True
    return len(cell_kinds) == 1 and "9" in cell_kinds.pop()
