"""Sources of documents: files, folders, tables and iterables, read as one stream."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from ..encode import python_values
from .folder import is_corpus
from .records import (
    MAX_INTEGER_BITS,
    Document,
    Reject,
    clean_text,
    describe_rejects,
    is_missing,
    preview,
    validate,
)
from .tables import (
    ONLY_BY_NAME,
    SUPPORTED,
    WHOLE_SUFFIXES,
    holds_bytes,
    is_dataset,
    read_rows,
    suffix_of,
    table_rows,
    warn_of_byte_columns,
)
from .text_files import Cells, check_encoding, decode_stream, named_errors, read_text_lines

logger = logging.getLogger(__name__)
Input = Any
"""See `open_source`."""

# Usual names of the text and of the id, the most usual first.
TEXT_NAMES = ("text", "content", "body", "document", "sentence", "passage", "contents")
ID_NAMES = ("id", "_id", "doc_id", "docid", "document_id", "pid", "uuid")

_EMPTY = "{}: no documents: it is empty"
# The end of a row's place. A JSON value of several lines is located by its first.
_POSITION = re.compile(r"\b(line|row) (\d+)\)?$")
_PLACE_COLUMNS = frozenset({"file", "line", "row"})
_SHOWN_COLUMNS = 20
_SHOWN_SUFFIXES = 8

Record = Document | Reject
Columns = dict[str, str | None]
"""Names of columns, by ``"text_column"`` and ``"id_column"``."""
PlacedRow = tuple[str, Any]
"""The place of a row, and a record, its cells by column, or the reason why it cannot be read."""


@dataclass(frozen=True)
class _Table:
    """Rows of one table; ``file_name``: its name within a folder."""

    rows: Iterable[PlacedRow]
    file_name: str | None = None


@dataclass(frozen=True)
class Source:
    """Records to be read.

    Args:
        name: The name of the input in messages.
        read: Reads the records.
        columns: ``text_column`` and ``id_column``, as they were found; those of a folder as given.

    Example:
        >>> [record.text for record in open_source(["Cats sleep.", "Ships sail."]).read()]
        ['Cats sleep.', 'Ships sail.']
    """

    name: str
    read: Callable[[], Iterator[Record]]
    columns: Columns

    def strict(self) -> Source:
        """The same records, but a reject is a ValueError."""
        return replace(self, read=self._read_strictly)

    def _read_strictly(self) -> Iterator[Record]:
        for record in self.read():
            if isinstance(record, Reject):
                raise ValueError(str(record))
            yield record

    def reject_repeated_ids(self, *, number_is_id: bool = True) -> Source:
        """The same records, except that a record whose id occurred before is rejected.

        Args:
            number_is_id: A record without an id has its number as id; False: such records are not
                compared.
        """

        def read() -> Iterator[Record]:
            with _used_ids() as id_database:
                for record_number, record in enumerate(self.read()):
                    record_id = record.id
                    if record_id is None and number_is_id:
                        record_id = str(record_number)
                    if isinstance(record, Reject) or record_id is None:
                        yield record
                        continue
                    yield _reject_if_used(id_database, record_number, record, record_id)

        return replace(self, read=read)


def _used_ids() -> closing[sqlite3.Connection]:
    # A database without a name is a temporary file: memory does not grow with the number of ids.
    id_database = sqlite3.connect("", isolation_level=None)
    id_database.execute("CREATE TABLE used (id TEXT PRIMARY KEY, record INTEGER) WITHOUT ROWID")
    id_database.execute("BEGIN")
    return closing(id_database)


def _reject_if_used(
    id_database: sqlite3.Connection,
    record_number: int,
    document: Document,
    document_id: str,
) -> Record:
    """The document, whose id is entered as used; or a reject if an earlier one has that id."""
    id_row = (document_id, record_number)
    if id_database.execute("INSERT OR IGNORE INTO used VALUES (?, ?)", id_row).rowcount:
        return document
    query = "SELECT record FROM used WHERE id = ?"
    (owner,) = id_database.execute(query, (document_id,)).fetchone()
    reason = f"id used twice: {document_id!r} is that of record {owner} too; give each its own"
    return Reject(f"record {record_number}", reason, document_id, preview(document.text))


def open_source(
    input: Input,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    remembered_columns: Mapping[str, str | None] | None = None,
) -> Source:
    """Open an input and read its first record: a wrong path or column is reported at once.

    Args:
        input: A file: a .txt, with a text on each line; a .jsonl, .ndjson, .json, .csv, .tsv or
            .parquet, with a document in each row; or a .md, .markdown, .rst, .adoc or .org, which
            is one document, its name the id (all but .parquet also with .gz). Or a folder that
            ``datasets.save_to_disk`` wrote; any other folder: all such files in it and below except
            .json, by name; a table of pandas, polars, Arrow or datasets; or an iterable of texts,
            Documents or dicts. A string is a path. Values of bytes, such as images, are left out of
            tables, with a warning; the levels of a pandas index that have a name are columns.
        text_column: Column or key of the text in tables; None: "text", or another usual name.
        id_column: Column or key of the id in tables; None: "id", another usual name, or none; "":
            none.
        encoding: Of text files; None: UTF-8.
        remembered_columns: Names to look for before the usual ones, such as those of an earlier
            input; an id column "" means none.
    """
    columns: Columns = {"text_column": text_column, "id_column": id_column}
    name, tables = _open_tables(input, encoding)
    records = _read_tables(tables, columns, remembered_columns or {})
    first_record = next(records, None)
    if first_record is None:
        raise ValueError(_EMPTY.format(name))
    unread = [chain([first_record], records)]

    def read() -> Iterator[Record]:
        if not unread:
            raise ValueError(
                f"{name}: it has been read already, and can be read only once; open it again"
            )
        return unread.pop()

    return Source(name, read, columns)


def _open_tables(input: Input, encoding: str | None) -> tuple[str, Iterator[_Table]]:
    """The name of an input in messages, and its tables."""
    if isinstance(input, (str, PathLike)):
        _check_path(input)
        return str(input), _file_tables(Path(input), encoding)
    type_name = type(input).__name__
    if isinstance(input, Mapping):  # iterating over it gives its keys
        raise TypeError(f"the input is one {type_name}; give one of its values, or a list of dicts")
    # Neither is there on a query of polars that has not run, for instance.
    if not hasattr(input, "__iter__") and not hasattr(input, "__len__"):
        raise TypeError(f"the input is a {type_name}; give a file, a table, or a list of texts")
    rows = table_rows(input) or _item_rows(input)
    return f"the {type_name}", iter([_Table(rows)])


def _check_path(path: str | PathLike[str]) -> None:
    if not str(path).strip():
        raise ValueError(
            f"input={str(path)!r} names no file or folder; give one, or a list of texts"
        )
    if is_corpus(path):
        raise ValueError(
            f"{path}: an encoded corpus, not texts; an index can be built from it, see st-reba index"
        )


def read_texts(path: str | PathLike[str], column: str | None = None) -> list[str]:
    """The texts of a file or folder; a warning names rejects."""
    texts = []
    rejects = []
    for record in open_source(path, text_column=column).read():
        if isinstance(record, Reject):
            rejects.append(record)
        else:
            texts.append(record.text)
    if not texts:
        raise ValueError(f"{path}: {describe_rejects(rejects)}")
    if rejects:
        reject_count = len(rejects)
        logger.warning("%s: %d records are set aside; first %s", path, reject_count, rejects[0])
    return texts


def read_stream(stream: BinaryIO, name: str, encoding: str | None = None) -> Iterator[Record]:
    """The lines of a stream of bytes, as of a .txt file; ``name`` is its name in places."""
    check_encoding(encoding)
    is_empty = True
    with named_errors(name):
        for row_place, row in read_text_lines(decode_stream(stream, name, encoding)):
            is_empty = False
            if isinstance(row, str):
                yield Reject(f"{name}, {row_place}", row)
            else:
                yield Document(row["text"])
    if is_empty:
        raise ValueError(_EMPTY.format(name))


def _file_tables(path: Path, encoding: str | None) -> Iterator[_Table]:
    if path.is_dir() and not is_dataset(path):
        for file in _files_in(path):
            file_name = os.fsencode(file.relative_to(path).as_posix())
            name = file_name.decode("utf-8", "backslashreplace")
            rows = read_rows(file, name=name, encoding=encoding)
            rows = _reject_unreadable_file(rows, name)
            suffix = suffix_of(file)
            if suffix == ".txt":
                rows = _line_documents(rows, name)
            elif suffix in WHOLE_SUFFIXES:
                rows = _whole_documents(rows, name)
            yield _Table(rows, name)
    else:
        name = clean_text(path.name)
        rows = read_rows(path, name=name, encoding=encoding)
        if suffix_of(path) in WHOLE_SUFFIXES:
            rows = _whole_documents(rows, name)
        yield _Table(rows)


def _reject_unreadable_file(rows: Iterator[PlacedRow], name: str) -> Iterator[PlacedRow]:
    """Rows of one file in a folder; if it is unreadable, it becomes one reject."""
    try:
        yield from rows
    except ValueError as error:
        yield name, f"not readable: {error}"


def _whole_documents(rows: Iterator[PlacedRow], name: str) -> Iterator[PlacedRow]:
    """The text of a file that is one document."""
    for row_place, row in rows:
        if isinstance(row, dict):
            row = Document(row["text"], name, {"file": name})
        yield row_place, row


def _line_documents(rows: Iterator[PlacedRow], name: str) -> Iterator[PlacedRow]:
    """Lines with their file and number: a search in many files should show where a text is."""
    for row_place, row in rows:
        if isinstance(row, dict):
            row = _with_place(Document(row["text"]), name, row_place)
        yield row_place, row


def _with_place(document: Document, file_name: str, row_place: str) -> Document:
    """Add a document's file and line, as its record number says little among many files."""
    position = _position_of(row_place)
    metadata = {"file": file_name, **document.metadata, **position}
    return replace(document, metadata=metadata, position_keys=tuple(position))


def _position_of(row_place: str) -> dict[str, int]:
    """The number of a line, or of a row of a Parquet file, as metadata.

    Example:
        >>> [_position_of(place) for place in ("a.jsonl, line 3", "b.jsonl, item 2 (line 9)")]
        [{'line': 3}, {'line': 9}]
        >>> _position_of("b.parquet, row 0")
        {'row': 0}
    """
    match = _POSITION.search(row_place)
    if match is None:
        return {}
    return {match[1]: int(match[2])}


def _files_in(folder: Path) -> list[Path]:
    """The readable files of a folder, by name, without hidden ones, corpora and saved models."""
    readable_files = []
    other_suffixes = Counter[str]()
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or _is_hidden(file, folder) or _is_of_st_reba(file):
            continue
        if suffix_of(file) in (None, ONLY_BY_NAME):
            other_suffixes[file.suffix or "without a suffix"] += 1
        else:
            readable_files.append(file)
    counts = [
        f"{count:,} {suffix}" for suffix, count in other_suffixes.most_common(_SHOWN_SUFFIXES)
    ]
    shown_counts = ", ".join(counts) or "no files"
    if not readable_files:
        raise ValueError(
            f"{folder}: no texts (there are: {shown_counts}); give files of {SUPPORTED}"
        )
    if other_suffixes:
        remedy = "convert them to"
        if ONLY_BY_NAME in other_suffixes:
            remedy = "name each by itself, or convert it to another of"
        logger.warning("%s: not read: %s; %s %s", folder, shown_counts, remedy, SUPPORTED)
    return readable_files


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(name.startswith(".") for name in file.relative_to(folder).parts)


def _is_of_st_reba(file: Path) -> bool:
    """True for files of encoded corpora and of saved models."""
    parent = file.parent
    is_of_corpus = is_corpus(parent) or is_corpus(parent.parent)
    return is_of_corpus or (parent / "modules.json").is_file()


def _item_rows(items: Input) -> Iterator[PlacedRow]:
    for record_number, item in enumerate(python_values(items)):
        row = item
        if isinstance(item, str):
            row = Document(item)
        elif not isinstance(item, (Document, Mapping, Reject)):
            type_name = type(item).__name__
            row = f"wrong type: {preview(item)} is a {type_name}; give strings, Documents or dicts"
        yield f"record {record_number}", row


def _read_tables(
    tables: Iterator[_Table], columns: Columns, remembered_columns: Mapping[str, str | None]
) -> Iterator[Record]:
    for table in tables:
        reader = _TableReader(table.file_name, columns, remembered_columns)
        for row_place, row in table.rows:
            yield reader.read(row_place, row)


class _TableReader:
    """Reads the rows of a table as records.

    Args:
        file_name: The name of the table within a folder.
        columns: The requested names; for a table that is not in a folder, the names found are
            entered here.
        remembered_columns: As for `open_source`.
    """

    def __init__(
        self,
        file_name: str | None,
        columns: Columns,
        remembered_columns: Mapping[str, str | None],
    ) -> None:
        self._file_name = file_name
        self._columns = columns
        self._remembered_text_column = remembered_columns.get("text_column")
        self._remembered_id_column = remembered_columns.get("id_column")
        self._reported_columns: set[str] = set()  # of bytes, after a warning
        self._text_column = ""  # "": not found yet
        self._id_column = ""  # "": none

    def read(self, row_place: str, row: Any) -> Record:
        if isinstance(row, str):
            return Reject(row_place, row)
        if isinstance(row, Reject):
            return row
        if isinstance(row, Document):
            return validate(row, row_place)
        if not self._text_column:
            self._find_columns(row, row_place)
        if self._text_column not in row:
            return Reject(row_place, f"no text: there is no {self._text_column!r}; give it one")
        document = self._document(self._without_bytes(row, row_place), row_place)
        return validate(document, row_place)

    def _find_columns(self, row: Cells, row_place: str) -> None:
        """Find the columns of a table by its first row."""
        first_columns = [repr(preview(name)) for name in list(row)[:_SHOWN_COLUMNS]]
        shown_columns = ", ".join(first_columns) or "none"
        for option, column in self._columns.items():
            if column and column not in row:
                raise ValueError(
                    f"{option}={column!r} is not a column; {row_place} has: {shown_columns}; name one of these"
                )
        text_column = self._columns["text_column"] or _first_column(
            (self._remembered_text_column, *TEXT_NAMES), row
        )
        if text_column is None:
            hint = ""
            if _is_unsplit(row):
                hint = (
                    "; columns are separated by ',', ';', '|' or tabs, and named in the first line"
                )
            raise ValueError(
                f"{row_place}: no column 'text'; there: {shown_columns}{hint}; name one with text_column"
            )
        self._text_column = text_column
        self._id_column = self._find_id_column(row, row_place)
        if self._file_name is not None:
            return  # tables in a folder may have different columns
        self._columns["text_column"] = text_column
        if self._id_column in row:
            self._columns["id_column"] = self._id_column

    def _find_id_column(self, row: Cells, row_place: str) -> str:
        id_column = self._columns["id_column"]
        if id_column == self._text_column:
            raise ValueError(
                f"{row_place}: {id_column!r} is named as the text and as the id; name another id_column"
            )
        if id_column is not None:
            return id_column
        if self._remembered_id_column == "":
            return ""
        usual_names = (self._remembered_id_column or "id", *ID_NAMES)
        id_names = [name for name in usual_names if name != self._text_column]
        # Records may have different keys: the first id may be in a later one.
        return _first_column(id_names, row) or id_names[0]

    def _without_bytes(self, row: Cells, row_place: str) -> Cells:
        """A row without images and other bytes; the first time for a column, a warning names it."""
        used_columns = (self._text_column, self._id_column)
        byte_columns = set()
        for column, value in row.items():
            if column not in used_columns and holds_bytes(value):
                byte_columns.add(column)
        if not byte_columns:
            return row
        new_columns = byte_columns - self._reported_columns
        if new_columns:
            warn_of_byte_columns(row_place, sorted(new_columns))
            self._reported_columns |= new_columns
        return {column: value for column, value in row.items() if column not in byte_columns}

    def _document(self, row: Cells, row_place: str) -> Document:
        row_cells = {column: value for column, value in row.items() if not is_missing(value)}
        text = row_cells.pop(self._text_column, None)
        document_id = None
        if self._id_column:
            document_id = _to_id(row_cells.pop(self._id_column, None))
        document = Document(text, document_id, row_cells)
        if document_id is None and self._file_name is not None and _PLACE_COLUMNS.isdisjoint(row):
            return _with_place(document, self._file_name, row_place)
        return document


def _is_unsplit(row: Cells) -> bool:
    """True if a row's only cell, or its name, looks unsplit: a title line, or another separator."""
    if len(row) != 1:
        return False
    ((column, value),) = row.items()
    has_plain_name = re.fullmatch(r"[\w\s-]*", f"{column}") is not None
    return not has_plain_name or (
        isinstance(value, str) and re.search(r"[;\t|]", value) is not None
    )


def _first_column(names: Iterable[str | None], row: Cells) -> str | None:
    """The first of some names that a row has."""
    return next((name for name in names if name is not None and name in row), None)


def _to_id(value: Any) -> Any:
    """An id, with whole numbers and UUIDs as strings; None for an empty string."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas has floats for whole numbers where some are missing
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    if is_number and int(value).bit_length() <= MAX_INTEGER_BITS:
        return str(int(value))
    return value
