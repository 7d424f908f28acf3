"""Readers that stream records from files: text, JSON lines, CSV and TSV, also gzipped, and what Arrow reads."""

from __future__ import annotations

import csv
import gzip
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, TextIO, cast

from ..optional import required
from ..tables import LineError, csv_records, named_twice
from .records import Document, Reading, Reject, beginning, checked, strictly

TEXT_SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv")
SUPPORTED = f"{', '.join(TEXT_SUFFIXES)} (.txt holds one text a line), each also with .gz, or .parquet"

# Characters a line or a field of a table may have: a quote that is never closed does not pull a file into memory.
MAX_LINE = 2**24
_ROWS = 256
_UNDECODED = re.compile("[\udc80-\udcff]")


def read_documents(
    path: str | PathLike[str],
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str = "utf-8-sig",
) -> Iterator[Document]:
    """Read the documents of a file one by one, without loading it whole; the first bad record stops it.

    Args:
        path: A file: .txt holds one text a line (blank lines are skipped), .jsonl one JSON object or one JSON string a
            line, .csv and .tsv a header and then one row a document, each perhaps with .gz; or .parquet. All but the
            text and the id becomes metadata.
        text_column: The column or key that holds the text; None: "text", or another usual name.
        id_column: The column or key that holds the id; None: "id", another usual name, or none.
        encoding: Of text files.

    Returns:
        An iterator of documents in the order of the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The suffix is not supported, or a record cannot be read; the message has its place.

    Example:
        >>> with open("corpus.txt", "w", encoding="utf-8") as file:
        ...     _ = file.write("The first text\\nThe second text\\n")
        >>> [document.text for document in read_documents("corpus.txt")]
        ['The first text', 'The second text']
    """
    path, reading = Path(path), Reading(text_column, id_column, encoding)
    check_file(path, reading)
    return strictly(read_file(path, str(path), reading))


def suffix_of(path: Path) -> str | None:
    """The suffix by which a file is read; None: it is not."""
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    return suffix if suffix in TEXT_SUFFIXES or name.endswith(".parquet") else None


def check_file(path: Path, reading: Reading) -> None:
    """Refuse what cannot be opened at all.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The suffix is not supported, or there is no such encoding.
    """
    if suffix_of(path) is None:
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
        ValueError: The file cannot be read on: its decoder stops, its data is damaged, there is no column of texts.
    """
    suffix = suffix_of(path)
    if suffix == ".parquet":
        return _read_parquet(path, name, reading)
    if suffix == ".txt":
        return _read_txt(path, name, reading)
    if suffix == ".jsonl":
        return read_jsonl(path, name, reading)
    return _read_csv(path, name, reading, "," if suffix == ".csv" else "\t")


def _lines(path: Path, reading: Reading, newline: str | None = None) -> Iterator[str | LineError]:
    """The lines of a file; bytes that are not of the encoding become lone surrogates, a line too long an error."""
    # A text of twelve characters a character (two escapes \uXXXX) still fits.
    limit = max(MAX_LINE, 12 * reading.max_chars)
    number = 0
    settings: dict[str, Any] = {"encoding": reading.encoding, "errors": "surrogateescape", "newline": newline}
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with cast(TextIO, opened(path, "rt", **settings)) as file:
            while line := file.readline(limit):
                if len(line) == limit and line[-1] not in "\r\n" and (more := _skip_line(file, limit)):
                    yield LineError(
                        f"too long: the line has {limit + more:,} characters, more than {limit:,}; split its text, or "
                        "raise max_chars (--max-chars)"
                    )
                else:
                    yield line
                number += 1
    except UnicodeError as error:
        # Encodings of several bytes a character may stop somewhere in the block that was being read.
        raise ValueError(f"{path}, after line {number}: {_not_decoded(str(error), reading.encoding)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}, after line {number}: damaged or truncated gzip data ({error}); write the file again"
        ) from None
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


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
    return f"not {name}: {found}; save the file as UTF-8 or give its encoding, such as 'gb18030' (--encoding)"


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


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def read_jsonl(path: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    named = False
    for place, line in _numbered(path, name, reading):
        if isinstance(line, Reject):
            yield line
            continue
        try:
            value = json.loads(line, parse_constant=_not_a_number)
        except (ValueError, RecursionError) as error:
            reason = f"wrong type: not JSON ({error}); write one JSON object or one JSON string on each line"
            yield Reject(place, reason, text=beginning(line))
            continue
        if isinstance(value, dict):
            if not named:
                reading, named = _resolved(reading, value, place), True
            yield reading.document(value, place)
        elif isinstance(value, str):
            yield checked(Document(value), place, max_chars=reading.max_chars)
        else:
            reason = "wrong type: neither a JSON object nor a JSON string; write an object with the text, or a string"
            yield Reject(place, reason, text=beginning(line))


def _resolved(reading: Reading, names: Iterable[str], place: str) -> Reading:
    try:
        return reading.resolved(names)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _read_csv(path: Path, name: str, reading: Reading, delimiter: str) -> Iterator[Document | Reject]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE, reading.max_chars + 1))
    header: list[str] | None = None
    for first, row, line in csv_records(_lines(path, reading, newline=""), delimiter):
        place = f"{name}, line {first}"
        wrong = row if isinstance(row, str) else _undecoded("".join(row), reading.encoding)
        if wrong and ":" not in wrong.partition(";")[0]:
            wrong = f"wrong type: {wrong}"
        if header is None:
            if wrong is None and not isinstance(row, str):
                header = row
                wrong = named_twice(header)
            if wrong:
                raise ValueError(f"{path}, line {first}: {wrong}")
            reading = _resolved(reading, row, f"{path}, line {first}")
        elif wrong or isinstance(row, str):
            yield Reject(place, wrong or "", text=beginning(line))
        elif len(row) != len(header):
            reason = (
                f"wrong type: {len(row)} fields, but the header has {len(header)} columns; "
                "put a field that holds the separator in quotes"
            )
            yield Reject(place, reason, text=beginning(line))
        else:
            fields: dict[str, str | None] = dict(zip(header, row, strict=True))
            if reading.id_column not in (None, "", reading.text_column) and fields[str(reading.id_column)] == "":
                fields[str(reading.id_column)] = None  # a table has no other way to leave an id out
            yield reading.document(fields, place)
    if header is None:
        raise ValueError(f"{path}, line 1: the file is empty; the first line must name the columns")


# What Arrow reads


def _read_parquet(path: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    parquet = required("pyarrow.parquet", "corpus")
    try:
        file = parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: not a Parquet file, or damaged ({error}); write it again") from None
    with file:
        reading, columns = arrow_columns(file.schema_arrow, str(path), reading)
        batches = file.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False)
        yield from arrow_records(_whole(batches, path), name, reading)


def _whole(batches: Iterator[Any], path: Path) -> Iterator[Any]:
    row = 0
    while True:
        try:
            batch = next(batches, None)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path}, after row {row - 1}: damaged ({error}); write the file again") from None
        if batch is None:
            return
        row += batch.num_rows
        yield batch


def dataset_splits(folder: Path) -> list[str] | None:
    """The splits of a folder that ``DatasetDict.save_to_disk`` wrote, [] of one that ``Dataset.save_to_disk`` wrote;
    None of any other.

    Raises:
        ValueError: The file that lists them is damaged.
    """
    path = folder / "dataset_dict.json"
    try:
        return [str(split) for split in json.loads(path.read_bytes())["splits"]]
    except (FileNotFoundError, NotADirectoryError):
        return [] if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file() else None
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: not a list of splits ({error}); save the dataset again") from None


def read_dataset(folder: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    """Every row of a folder that ``Dataset.save_to_disk`` wrote.

    Raises:
        ValueError: The folder is damaged, or there is no column of texts.
    """
    try:
        dataset = required("datasets", "corpus").load_from_disk(str(folder))
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(f"{folder}: not a dataset, or damaged ({error}); save it again") from None
    return dataset_records(dataset, name, reading)


def dataset_records(dataset: Any, name: str, reading: Reading) -> Iterator[Document | Reject]:
    """Every row of a ``datasets.Dataset``."""
    reading, columns = arrow_columns(dataset.features.arrow_schema, name, reading)
    return arrow_records(dataset.select_columns(columns).with_format("arrow").iter(batch_size=_ROWS), name, reading)


def arrow_columns(schema: Any, what: str, reading: Reading) -> tuple[Reading, list[str]]:
    """How a table is read: its columns of texts and ids, and all that are wanted.

    Raises:
        ValueError: The text's or the id's is missing, or cannot hold one.
    """
    types = required("pyarrow", "corpus").types
    if twice := named_twice(schema.names):
        raise ValueError(f"{what}: {twice}")
    reading = _resolved(reading, schema.names, what)
    named = {field.name: _storage(field.type) for field in schema}
    for role, name, whole in (("text", reading.text_column, False), ("id", reading.id_column, True)):
        if name and not (_is_text(named[name]) or (whole and types.is_integer(named[name]))):
            raise ValueError(
                f"{what}: the column {name!r} holds {named[name]}, not strings{' or whole numbers' * whole}; name "
                f"another with {role}_column (--{role}-column)"
            )
    if left := [f"{name!r} ({kind})" for name, kind in named.items() if not _fits(kind)]:
        warnings.warn(f"left out of the metadata, as JSON cannot hold it: {', '.join(left)}", stacklevel=2)
    return reading, [name for name, kind in named.items() if _fits(kind) and not name.startswith("__index_level_")]


def arrow_records(batches: Iterable[Any], name: str, reading: Reading) -> Iterator[Document | Reject]:
    """Every row of batches or tables of Arrow."""
    row = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):  # a table in memory is one batch
            for fields in _rows(batch.slice(start, _ROWS)):
                place = f"{name}, row {row}"
                yield Reject(place, fields) if isinstance(fields, str) else reading.document(fields, place)
                row += 1


def _storage(kind: Any) -> Any:
    """The type behind a dictionary's or an extension's."""
    while (inner := getattr(kind, "value_type" if hasattr(kind, "index_type") else "storage_type", None)) is not None:
        kind = inner
    return kind


def _is_text(kind: Any) -> bool:
    types = required("pyarrow", "corpus").types
    view = getattr(types, "is_string_view", None)
    return bool(types.is_string(kind) or types.is_large_string(kind) or (view is not None and view(kind)))


def _fits(kind: Any) -> bool:
    """Whether a type's values can be given as JSON."""
    types, kind = required("pyarrow", "corpus").types, _storage(kind)
    if types.is_nested(kind):
        return all(_fits(kind.field(number).type) for number in range(kind.num_fields))
    return _is_text(kind) or any(
        getattr(types, f"is_{name}")(kind) for name in ("null", "boolean", "integer", "floating", "decimal", "temporal")
    )


def _rows(batch: Any) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch or table; in place of one that Python cannot hold, why."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError) as error:  # bad UTF-8, a year beyond 9999, part of a microsecond
        if batch.num_rows == 1:
            yield f"wrong type: a value cannot be read ({beginning(str(error))}); correct it, or leave the record out"
            return
        for number in range(batch.num_rows):
            yield from _rows(batch.slice(number, 1))
