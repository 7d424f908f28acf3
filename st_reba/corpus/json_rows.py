"""Rows of JSON: one value per line, one array, or values one after another.

A file is never in memory as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from . import text_files
from .text_files import Cells, TableRow, decoding_fault, read_lines

_CHUNK = 2**16
# Stands for an integer with more digits than Python converts; `to_json_value` refuses its record.
_TOO_LARGE = 10**4300


def _parse_integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        return _TOO_LARGE


_DECODER = json.JSONDecoder(parse_int=_parse_integer)


def has_value_per_line(stream: TextIO, suffix: str) -> bool:
    """True if each line of a file is a value.

    Judged by the first line: it does not begin an array and, in a .json, is a complete value.
    """
    first_line = _first_filled_line(stream)
    if first_line.lstrip().startswith("["):
        return False
    if suffix != ".json":
        return True
    try:
        _DECODER.decode(first_line.strip())
    except (ValueError, RecursionError):
        return False
    return True


def _first_filled_line(stream: TextIO) -> str:
    """The beginning of the first line that is not blank; "": there is none."""
    line = stream.readline(text_files.MAX_CHARS)
    while line.isspace():
        line = stream.readline(text_files.MAX_CHARS)
    return line


def read_json_lines(stream: TextIO) -> Iterator[TableRow]:
    for line_number, line in enumerate(read_lines(stream), 1):
        if line.isspace():
            continue
        row_place = f"line {line_number}"
        fault = decoding_fault(line, stream.encoding)
        if fault is not None:
            yield row_place, fault
            continue
        try:
            yield row_place, _row_of(_DECODER.decode(line.strip().lstrip("\ufeff")))
        except (ValueError, RecursionError) as error:
            yield (
                row_place,
                f"wrong type: no JSON row ({error}); write one object or one string per line",
            )


def read_json_values(stream: TextIO) -> Iterator[TableRow]:
    """The items of an array, or values that follow one another.

    Raises:
        ValueError: From some line on it is not JSON, so later values cannot be separated.
    """
    scanner = _Scanner(stream)
    is_array = scanner.next_character() == "["
    if is_array:
        scanner.skip()
    item_number = 0
    while scanner.next_character() not in ("", "]"):
        item_number += 1
        row_place = f"item {item_number} (line {scanner.line})"
        value_source, json_value = scanner.take_value()
        fault = decoding_fault(value_source, stream.encoding)
        yield row_place, fault or _row_or_reason(json_value)
        if is_array and scanner.next_character() == ",":
            scanner.skip()
        elif is_array and scanner.next_character() != "]":
            raise scanner.error("neither a comma nor the end of the array")
    if not is_array:
        if scanner.next_character():
            raise scanner.error("a closing bracket without an opening one")
        return
    if not scanner.next_character():
        raise scanner.error("the array does not end")
    scanner.skip()
    if scanner.next_character():
        raise scanner.error("something follows the end of the array")


def _row_of(json_value: Any) -> Cells:
    if isinstance(json_value, str):
        return {"text": json_value}
    if not isinstance(json_value, dict):
        raise ValueError(f"it is a {type(json_value).__name__}")
    return json_value


def _row_or_reason(json_value: Any) -> Cells | str:
    try:
        return _row_of(json_value)
    except ValueError as error:
        return f"wrong type: no JSON row ({error}); give one object or one string per document"


class _Scanner:
    """Reads a stream of JSON value by value."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._buffer = ""
        self._position = 0
        self._is_complete = False
        self.line = 1

    def error(self, reason: str) -> ValueError:
        return ValueError(
            f"line {self.line}: no JSON: {reason}; mend the file, or write one object per line"
        )

    def next_character(self) -> str:
        """The next character that is not white space, not consumed; "": there is none."""
        while True:
            while self._position < len(self._buffer):
                character = self._buffer[self._position]
                if character not in " \t\r\n\ufeff":
                    return character
                self.skip()
            if self._is_complete:
                return ""
            self._refill()

    def skip(self, count: int = 1) -> None:
        value_end = self._position + count
        self.line += self._buffer.count("\n", self._position, value_end)
        self._position = value_end

    def take_value(self) -> tuple[str, Any]:
        """Read the next value; returns its source text and the value."""
        while True:
            try:
                json_value, value_end = _DECODER.raw_decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                self._refuse_unless_more_comes(error.msg)
            except RecursionError:
                raise self.error("too deeply nested") from None
            else:
                if value_end < len(self._buffer) or self._is_complete:
                    value_source = self._buffer[self._position : value_end]
                    self.skip(value_end - self._position)
                    return value_source, json_value
            # The buffer doubles each time, so that a long value is decoded only a few times.
            self._refill(len(self._buffer))

    def _refuse_unless_more_comes(self, reason: str) -> None:
        if self._is_complete:
            raise self.error(reason)
        if len(self._buffer) - self._position > text_files.MAX_CHARS:
            raise self.error(
                f"{reason}, or a value of more than {text_files.MAX_CHARS:,} characters"
            )

    def _refill(self, chunk_size: int = 0) -> None:
        next_chunk = self._stream.read(max(_CHUNK, chunk_size))
        self._is_complete = not next_chunk
        self._buffer = self._buffer[self._position :] + next_chunk
        self._position = 0
