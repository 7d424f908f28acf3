"""Sources of documents: files, folders, tables, and anything to iterate over, read as one stream."""

from __future__ import annotations

import logging
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

from ..encode import python_values
from .folder import is_corpus
from .records import (
    MAX_INTEGER_BITS,
    Document,
    Reject,
    beginning,
    checked,
    clean_text,
    describe_rejects,
    is_missing,
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
from .text_files import check_encoding, decode_stream, named_errors, read_text_lines

logger = logging.getLogger(__name__)
Input = Any
"""See `open_source`."""

# Usual names of the text and of the id, the most usual first.
TEXT_NAMES = ("text", "content", "body", "document", "sentence", "passage", "contents")
ID_NAMES = ("id", "_id", "doc_id", "docid", "document_id", "pid", "uuid")

_EMPTY = "{}: no documents: it is empty"
# The end of a row's place. A value of JSON that takes several lines is found by its first.
_POSITION = re.compile(r"\b(line|row) (\d+)\)?$")
_PLACE_COLUMNS = frozenset({"file", "line", "row"})


@dataclass(frozen=True)
class _Rows:
    """Rows with their places, as `read_rows` gives them; ``file``: the file's name within a folder."""

    rows: Iterable[tuple[str, Any]]
    file: str | None = None


@dataclass(frozen=True)
class Source:
    """Records to be read.

    Example:
        >>> [record.text for record in open_source(["Cats sleep.", "Ships sail."]).read()]
        ['Cats sleep.', 'Ships sail.']
    """

    name: str
    read: Callable[[], Iterator[Document | Reject]]
    columns: dict[str, str | None]  # text_column and id_column, as they were found (of a folder: as they were given)

    def strict(self) -> Source:
        """The same records, but one that is set aside is a ValueError."""

        def read() -> Iterator[Document | Reject]:
            for record in self.read():
                if isinstance(record, Reject):
                    raise ValueError(str(record))
                yield record

        return replace(self, read=read)

    def unique(self, numbers: bool = True) -> Source:
        """The same records, but those whose id another has are set aside.

        Args:
            numbers: A record without an id has its number as id; False: only ids that are given are compared.
        """

        def read() -> Iterator[Document | Reject]:
            # A database without a name is a temporary file: memory does not grow with the number of ids.
            with closing(sqlite3.connect("", isolation_level=None)) as used:
                used.execute("CREATE TABLE used (id TEXT PRIMARY KEY, record INTEGER NOT NULL) WITHOUT ROWID")
                used.execute("BEGIN")
                for number, record in enumerate(self.read()):
                    if isinstance(record, Document) and (numbers or record.id is not None):
                        identity = str(number) if record.id is None else record.id
                        if not used.execute("INSERT OR IGNORE INTO used VALUES (?, ?)", (identity, number)).rowcount:
                            (owner,) = used.execute("SELECT record FROM used WHERE id = ?", (identity,)).fetchone()
                            reason = f"id used twice: {identity!r} is that of record {owner} too; give each its own"
                            record = Reject(f"record {number}", reason, identity, beginning(record.text))
                    yield record

        return replace(self, read=read)


def open_source(
    input: Input, *, text_column: str | None = None, id_column: str | None = None, encoding: str | None = None
) -> Source:
    """Open an input and read its first record, so that a wrong path or column is reported at once.

    Args:
        input: A file: a .txt, with a text on each line; a .jsonl, .ndjson, .json, .csv, .tsv or .parquet, with a
            document in each row; or a .md, .markdown, .rst, .adoc or .org, which is one document, its name the id (all
            but .parquet also with .gz). Or a folder that ``datasets.save_to_disk`` wrote; any other folder: all such
            files in it and below but .json, by name; a table of pandas, polars, Arrow or datasets; or an iterable of
            texts, Documents or dicts. A string is a path. Values of bytes, such as images, are left out of tables, as a
            warning tells; the levels of a pandas index that have a name are columns.
        text_column: Column or key of the text in tables; None: "text", or another usual name.
        id_column: Column or key of the id in tables; None: "id", another usual name, or none; "": none.
        encoding: Of text files; None: UTF-8.
    """
    found = columns = {"text_column": text_column, "id_column": id_column}
    name = f"the {type(input).__name__}"
    if isinstance(input, (str, PathLike)):
        if not str(input).strip():
            raise ValueError(f"input={str(input)!r} names no file or folder; give one, or a list of texts")
        if is_corpus(input):
            raise ValueError(f"{input}: an encoded corpus, not texts; an index can be built from it, see st-reba index")
        in_folder = Path(input).is_dir() and not is_dataset(Path(input))
        name, tables = str(input), _file_rows(Path(input), in_folder, encoding)
        found = columns.copy() if in_folder else columns  # tables in a folder may have different ones
    elif isinstance(input, Mapping):  # to iterate over it would give its keys
        raise TypeError(f"the input is one {type(input).__name__}; give one of its values, or a list of dicts")
    elif not (hasattr(input, "__iter__") or hasattr(input, "__len__")):  # as a query of polars that has not run
        raise TypeError(f"the input is a {type(input).__name__}; give a file, a table, or a list of texts")
    else:
        # What has a length and is no Iterable is read by its indices, as a Dataset of torch.
        items: Any = input
        tables = iter([_Rows(table_rows(input) or _item_rows(items))])
    records = chain.from_iterable(_documents(table, text_column, id_column, found) for table in tables)
    if (first := next(records, None)) is None:
        raise ValueError(_EMPTY.format(name))
    left = [chain([first], records)]

    def read() -> Iterator[Document | Reject]:
        if not left:
            raise ValueError(f"{name}: it was read already, and can be read once; open it again")
        return left.pop()

    return Source(name, read, columns)


def read_texts(path: str | PathLike[str], column: str | None = None) -> list[str]:
    """The texts of a file or folder; a warning tells what is set aside."""
    records = list(open_source(path, text_column=column).read())
    rejects = [record for record in records if isinstance(record, Reject)]
    if len(rejects) == len(records):
        raise ValueError(f"{path}: {describe_rejects(rejects)}")
    if rejects:
        logger.warning("%s: %d records are set aside; first %s", path, len(rejects), rejects[0])
    return [one.text for one in records if isinstance(one, Document)]


def read_stream(stream: BinaryIO, name: str, encoding: str | None = None) -> Iterator[Document | Reject]:
    """The lines of a stream of bytes, as of a .txt file; ``name`` is the stream's name in places."""
    check_encoding(encoding)
    is_empty = True
    with named_errors(name):
        for place, row in read_text_lines(decode_stream(stream, name, encoding)):
            is_empty = False
            yield Reject(f"{name}, {place}", row) if isinstance(row, str) else Document(row["text"])
    if is_empty:
        raise ValueError(_EMPTY.format(name))


def _file_rows(path: Path, in_folder: bool, encoding: str | None) -> Iterator[_Rows]:
    for file in _files_in(path) if in_folder else [path]:
        name = clean_text(file.relative_to(path).as_posix() if in_folder else path.name)
        rows, suffix = read_rows(file, name=name, encoding=encoding), suffix_of(file)
        if suffix in WHOLE_SUFFIXES or (suffix == ".txt" and in_folder):
            rows = _texts(rows, name, by_line=suffix == ".txt")
        yield _Rows(_without_errors(rows, name), name) if in_folder else _Rows(rows)


def _without_errors(rows: Iterator[tuple[str, Any]], name: str) -> Iterator[tuple[str, Any]]:
    """Rows of a file of a folder; one that cannot be read is set aside as a whole, and ends no lenient build."""
    try:
        yield from rows
    except ValueError as error:
        yield name, f"not readable: {error}"


def _texts(rows: Iterator[tuple[str, Any]], name: str, *, by_line: bool) -> Iterator[tuple[str, Any]]:
    """Texts with their file and line: a search in many files is for the place that a text comes from."""
    for place, row in rows:
        if isinstance(row, dict):
            position = _position_of(place) if by_line else {}
            row = Document(row["text"], None if by_line else name, {"file": name, **position})
        yield place, row


def _position_of(place: str) -> dict[str, int]:
    """The number of a line, or of a row of a Parquet file, as metadata.

    Example:
        >>> _position_of("a.jsonl, line 3"), _position_of("a.jsonl, item 2 (line 9)"), _position_of("b.parquet, row 0")
        ({'line': 3}, {'line': 9}, {'row': 0})
    """
    match = _POSITION.search(place)
    return {} if match is None else {match[1]: int(match[2])}


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder that can be read, by name, without hidden ones, encoded corpora and saved models."""
    found, others = list[Path](), Counter[str]()
    for file in sorted(folder.rglob("*")):
        ours = is_corpus(file.parent) or is_corpus(file.parent.parent) or (file.parent / "modules.json").is_file()
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if ours or hidden or not file.is_file():
            continue
        if suffix_of(file) not in (None, ONLY_BY_NAME):
            found.append(file)
        else:
            others[file.suffix or "without a suffix"] += 1
    listed = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(8))
    if not found:
        raise ValueError(f"{folder}: no texts (there are: {listed or 'no files'}); give files of {SUPPORTED}")
    if others:
        remedy = "name each by itself, or convert it to another of" if ONLY_BY_NAME in others else "convert them to"
        logger.warning("%s: not read: %s; %s %s", folder, listed, remedy, SUPPORTED)
    return found


def _item_rows(input: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for number, item in enumerate(python_values(input)):
        row: Any = Document(item) if isinstance(item, str) else item
        if not isinstance(row, (Document, Mapping, Reject)):
            row = f"wrong type: {beginning(item)} is a {type(item).__name__}; give strings, Documents or dicts"
        yield f"record {number}", row


def _documents(
    table: _Rows, text: str | None, identity: str | None, columns: dict[str, str | None]
) -> Iterator[Document | Reject]:
    names: tuple[str, str] | None = None
    byte_columns = set[str]()
    for place, row in table.rows:
        if isinstance(row, str):
            yield Reject(place, row)
        elif isinstance(row, Reject):
            yield row
        elif isinstance(row, Document):
            yield checked(row, place)
        else:
            if names is None:
                names = _names(row, place, text, identity)
                columns.update(text_column=names[0], id_column=names[1] if names[1] in row else identity)
            yield _document(_without_bytes(row, place, names, byte_columns), place, *names, table.file)


def _without_bytes(
    row: Mapping[str, Any], place: str, names: tuple[str, str], byte_columns: set[str]
) -> Mapping[str, Any]:
    """A row without its images and other bytes; ``byte_columns``: where they were found before, which is said once."""
    columns = [column for column, value in row.items() if column not in names and holds_bytes(value)]
    if not columns:
        return row
    if not byte_columns.issuperset(columns):
        warn_of_byte_columns(place, sorted({*columns} - byte_columns))
        byte_columns.update(columns)
    return {column: value for column, value in row.items() if column not in columns}


def _names(row: Mapping[str, Any], place: str, text: str | None, identity: str | None) -> tuple[str, str]:
    """Names of the text and of the id in a table, or in the first record; "": no id."""
    there = ", ".join(repr(beginning(name)) for name in list(row)[:20]) or "none"
    for option, column in (("text_column", text), ("id_column", identity)):
        if column and column not in row:
            raise ValueError(f"{option}={column!r} is no column; {place} has: {there}; name one of these")
    text = text or next((name for name in TEXT_NAMES if name in row), None)
    if text is None:
        hint = ""
        if len(row) == 1 and not re.fullmatch(r"[\w\s-]*", next(iter(row))):
            hint = "; columns are separated by ',', ';', '|' or tabs"
        raise ValueError(f"{place}: no column 'text'; there: {there}{hint}; name one with text_column")
    if identity == text:
        raise ValueError(f"{place}: {text!r} is named as the text and as the id; name another id_column")
    if identity is None:
        # Records need not all have the same keys: the first id may stand in a later one.
        late = "" if text == "id" else "id"
        identity = next((name for name in ID_NAMES if name in row and name != text), late)
    return text, identity


def _document(row: Mapping[str, Any], place: str, text: str, identity: str, file: str | None) -> Document | Reject:
    if text not in row:
        return Reject(place, f"no text: there is no {text!r}; give it one")
    given = {key: None if is_missing(value) else value for key, value in row.items()}
    content: Any = given.pop(text)
    name = given.pop(identity, None) if identity else None
    if isinstance(name, float) and name.is_integer():  # pandas, of whole numbers where some are missing
        name = int(name)
    if isinstance(name, Integral) and not isinstance(name, bool) and int(name).bit_length() <= MAX_INTEGER_BITS:
        name = str(int(name))
    document_id = None if name == "" else name
    metadata = {key: value for key, value in given.items() if value is not None}
    # Without an id, a search could name its number only, which nobody can look up in several files.
    if document_id is None and file is not None and _PLACE_COLUMNS.isdisjoint(row):
        metadata = {"file": file, **metadata, **_position_of(place)}
    return checked(Document(content, document_id, metadata), place)
