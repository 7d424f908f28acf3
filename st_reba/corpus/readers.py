"""Readers that stream records from text, JSON lines, CSV and TSV files, also gzipped, and from Parquet."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, TextIO, cast

from ..tables import LineError, csv_records, named_twice
from .documents import Document, Reject, beginning, checked, strictly
from .fields import Reading, from_fields, json_type, missing

TEXT_SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv")
PARQUET_SUFFIX = ".parquet"
SUPPORTED = f"{', '.join(TEXT_SUFFIXES)} (.txt holds one text a line), each also with .gz, or {PARQUET_SUFFIX}"

# Characters a line may have; what is beyond is never in memory. A text of twelve characters a character (two escapes
# \uXXXX) still fits.
MAX_LINE = 2**24
# The csv module stops at 131,072 characters a field, fewer than a long document has. A bound stays,
# so that a quote that is never closed does not pull the rest of a large file into memory.
MAX_CSV_FIELD = 2**24

_UNDECODED = re.compile("[\udc80-\udcff]")


def read_documents(
    path: str | PathLike[str],
    *,
    text_column: str = "text",
    id_column: str = "id",
    encoding: str = "utf-8-sig",
) -> Iterator[Document]:
    """Read the documents of a file one by one, without loading it whole; the first bad record stops it.

    The suffix says what the file holds: .txt one text a line (blank lines are skipped), .jsonl one JSON
    object or one bare JSON string a line, .csv and .tsv a header and then one row for each document; each may be
    gzipped (.jsonl.gz). .parquet needs pyarrow. Columns and keys other than the text and the id become the metadata.

    Args:
        path: The file to read.
        text_column: The column or key that holds the text.
        id_column: The column or key that holds the id. The default may be missing, then ids are None;
            a name given here must be there.
        encoding: The encoding of the file.

    Returns:
        An iterator of documents in the order of the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The suffix is not supported, or a record cannot be read; the message has the line number.
        ImportError: Parquet, and pyarrow is not installed.

    Example:
        >>> with open("corpus.txt", "w", encoding="utf-8") as file:
        ...     _ = file.write("The first text\\nThe second text\\n")
        >>> [document.text for document in read_documents("corpus.txt")]
        ['The first text', 'The second text']
    """
    if str(path) == "-":
        raise ValueError('"-" (standard input) is not supported here: save the texts in a file and give its path')
    path = Path(path)
    reading = Reading(text_column, id_column, encoding)
    check_file(path, reading)
    return strictly(read_file(path, str(path), reading))


def is_supported(path: Path) -> bool:
    """Whether the suffix is one that is read."""
    return _kind(path) is not None


def check_file(path: Path, reading: Reading) -> None:
    """Refuse what cannot be opened at all.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The suffix is not supported, or there is no such encoding.
    """
    if not is_supported(path):
        raise ValueError(f"{path}: the suffix {path.suffix!r} is not supported; use one of {SUPPORTED}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        "".encode(reading.encoding)
    except LookupError:
        raise ValueError(
            f"{path}: unknown encoding {reading.encoding!r}; use for example 'utf-8' or 'gb18030'"
        ) from None


def read_file(path: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    """Every record of a file in its order: a document, or why it is none.

    Args:
        path: A file that `check_file` passed.
        name: What places call it.
        reading: How it is read.

    Raises:
        ValueError: The file cannot be read on: its decoder stops, gzip's data is damaged, a table has no text column.
    """
    kind = _kind(path)
    if kind == PARQUET_SUFFIX:
        from .arrow import read_parquet

        return read_parquet(path, name, reading)
    if kind == ".txt":
        return _read_txt(path, name, reading)
    if kind == ".jsonl":
        return _read_jsonl(path, name, reading)
    return _read_csv(path, name, reading, "," if kind == ".csv" else "\t")


def _kind(path: Path) -> str | None:
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix in TEXT_SUFFIXES:
        return suffix
    return PARQUET_SUFFIX if name.endswith(PARQUET_SUFFIX) else None


def _lines(path: Path, reading: Reading, newline: str | None = None) -> Iterator[str | LineError]:
    """The lines of a file; bytes that are not of the encoding become lone surrogates, a line too long an error."""
    limit = max(MAX_LINE, 12 * reading.max_chars)
    number = 0
    try:
        with _open(path, reading.encoding, newline) as file:
            while line := file.readline(limit):
                if len(line) == limit and line[-1] not in "\r\n" and (more := _skip_line(file, limit)):
                    line = ""
                    yield LineError(
                        f"the line has {limit + more:,} characters, more than {limit:,}; split its text, or raise "
                        "max_chars (--max-chars)"
                    )
                else:
                    yield line
                number += 1
    except UnicodeError as error:
        # Encodings of more than one byte a character cannot always carry a bad byte along; they stop somewhere
        # in the block that was being read.
        raise ValueError(f"{path}, after line {number}: {_not_decoded(str(error), reading.encoding)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}, after line {number}: damaged or truncated gzip data ({error}); write the file again"
        ) from None
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _open(path: Path, encoding: str, newline: str | None) -> TextIO:
    settings: dict[str, Any] = {"encoding": encoding, "errors": "surrogateescape", "newline": newline}
    if path.name.lower().endswith(".gz"):
        return cast(TextIO, gzip.open(path, "rt", **settings))
    return cast(TextIO, path.open(**settings))


def _skip_line(file: TextIO, limit: int) -> int:
    """Characters up to the end of the line."""
    skipped = 0
    while piece := file.readline(limit):
        skipped += len(piece)
        if piece[-1] in "\r\n":
            break
    return skipped


def _undecoded(text: str, encoding: str) -> str | None:
    bad = None if text.isascii() else _UNDECODED.search(text)
    return None if bad is None else _not_decoded(f"byte 0x{ord(bad.group()) - 0xDC00:02x}", encoding)


def _not_decoded(found: str, encoding: str) -> str:
    name = "UTF-8" if encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig") else encoding
    return f"not {name} ({found}); save the file as UTF-8 or give its encoding, such as 'gb18030'"


def _numbered(path: Path, name: str, reading: Reading) -> Iterator[tuple[str, str | Reject]]:
    """Lines that are not blank, with their places; in place of one that cannot be read, why."""
    for number, line in enumerate(_lines(path, reading), 1):
        place = f"{name}, line {number}"
        if isinstance(line, LineError):
            yield place, Reject(place, str(line))
        elif reason := _undecoded(line, reading.encoding):
            yield place, Reject(place, reason, text=beginning(line))
        elif not line.isspace():
            yield place, line


def _read_txt(path: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    for place, line in _numbered(path, name, reading):
        if isinstance(line, Reject):
            yield line
        else:
            yield checked(Document(line.rstrip("\n")), place, max_chars=reading.max_chars)


def _read_jsonl(path: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    for place, line in _numbered(path, name, reading):
        if isinstance(line, Reject):
            yield line
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"not JSON ({error}); write one JSON object or one JSON string on each line"
            yield Reject(place, reason, text=beginning(line))
            continue
        if isinstance(value, dict):
            yield from_fields(value, place, reading)
        elif isinstance(value, str):
            yield checked(Document(value), place, max_chars=reading.max_chars)
        else:
            reason = f"a JSON {json_type(value)}; write an object with the key {reading.text_column!r}, or a string"
            yield Reject(place, reason, text=beginning(line))


def _read_csv(path: Path, name: str, reading: Reading, delimiter: str) -> Iterator[Document | Reject]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CSV_FIELD, reading.max_chars + 1))
    header: list[str] | None = None
    for first, row, line in csv_records(_lines(path, reading, newline=""), delimiter):
        place = f"{name}, line {first}"
        if isinstance(row, str):
            wrong: str | None = row
        else:
            wrong = _undecoded("".join(row), reading.encoding)
        if header is None:
            if wrong is None and not isinstance(row, str):
                header = row
                wrong = named_twice(header) or missing(header, reading, "column")
            if wrong:
                raise ValueError(f"{path}, line {first}: {wrong}")
        elif wrong or isinstance(row, str):
            yield Reject(place, wrong or "", text=beginning(line))
        elif len(row) != len(header):
            wrong = (
                f"{len(row)} fields, but the header has {len(header)} columns; "
                "put a field that holds the separator in quotes"
            )
            yield Reject(place, wrong, text=beginning(line))
        else:
            fields: dict[str, str | None] = dict(zip(header, row, strict=True))
            if fields.get(reading.id_column) == "" and reading.id_column != reading.text_column:
                fields[reading.id_column] = None  # a table has no other way to leave an id out
            yield from_fields(fields, place, reading, "column")
    if header is None:
        raise ValueError(f"{path}, line 1: the file is empty; the first line must name the columns")
