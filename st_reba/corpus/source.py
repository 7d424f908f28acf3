"""Sources of documents: files, folders, tables, and anything to iterate over, read as one stream."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from ..tables import SUPPORTED, Row, dataset_splits, read_rows, suffix_of, table_rows
from .folder import is_corpus
from .records import MAX_CHARS, Columns, Document, Reject, beginning, checked

logger = logging.getLogger(__name__)
Input = Any
"""See `open_source`."""


@dataclass(frozen=True)
class Source:
    """Records to be read.

    Example:
        >>> [record.text for record in open_source(["Cats sleep.", "Ships sail."]).read()]
        ['Cats sleep.', 'Ships sail.']
    """

    name: str
    total: int | None  # number of records, if it is known beforehand
    read: Callable[[], Iterator[Document | Reject]]
    columns: dict[str, str | None]  # text_column and id_column, as they were found


def open_source(
    input: Input,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    ids: Iterable[str] | None = None,
    encoding: str = "utf-8-sig",
    split: str | None = None,
    max_chars: int = MAX_CHARS,
) -> Source:
    """Open an input and read its first record, so that a wrong path or column is reported at once.

    Args:
        input: A file (.txt, .jsonl, .json, .csv, .tsv, each also with .gz; .parquet); a folder that
            ``datasets.save_to_disk`` wrote; any other folder: all such files in it and below, by name; a list of Path
            objects of these; a table of pandas, polars, Arrow or datasets; or an iterable of texts, Documents or dicts.
            A string is a path.
        text_column: Column or key of the text; None: "text", or another usual name.
        id_column: Column or key of the id; None: "id", another usual name, or none; "": none.
        ids: One id for each text of an iterable.
        encoding: Of text files.
        split: Of a folder of several datasets.
        max_chars: Longest text; a longer one is set aside.
    """
    if isinstance(input, Source):
        return input
    columns: dict[str, str | None] = {"text_column": text_column, "id_column": id_column}
    paths, total = _paths(input), len(input) if isinstance(input, Sized) else None
    rows = table_rows(input) if paths is None else _file_rows(paths, encoding, split)
    if rows is not None:
        if ids is not None:
            raise ValueError("ids belong to an iterable of texts; in files and tables, id_column names the ids")
        name = f"the {type(input).__name__}" if paths is None else ", ".join(map(str, paths[:3]))
        records = _of_rows(rows, columns, max_chars)
        total = None if paths is not None else total
    else:
        if split is not None:
            raise ValueError(f"split={split!r} belongs to a folder of several datasets; drop it")
        _check_iterable(input, ids)
        name, records = f"the {type(input).__name__}", _of_rows(_item_rows(input), columns, max_chars)
        records = records if ids is None else _with_ids(records, iter(ids), max_chars)
    first = next(records, None)
    if first is None:
        raise ValueError(f"{name}: no documents: it is empty")
    return Source(name, total, lambda: chain([first], records), columns)


def unique(source: Source, first: int = 0) -> Source:
    """The same source, but records whose id another has are set aside.

    Args:
        source: The source.
        first: Added to the number of a record to make its id, if it has none.
    """

    def read() -> Iterator[Document | Reject]:
        # A database without a name is a temporary file: memory does not grow with the number of ids.
        with closing(sqlite3.connect("", isolation_level=None)) as used:
            used.execute("CREATE TABLE used (id TEXT PRIMARY KEY, record INTEGER NOT NULL) WITHOUT ROWID")
            used.execute("BEGIN")
            for number, record in enumerate(source.read()):
                if isinstance(record, Document):
                    identity = str(first + number) if record.id is None else record.id
                    if not used.execute("INSERT OR IGNORE INTO used VALUES (?, ?)", (identity, number)).rowcount:
                        (owner,) = used.execute("SELECT record FROM used WHERE id = ?", (identity,)).fetchone()
                        reason = (
                            f"id used twice: {identity!r} is that of record {owner} too; give every document its own"
                        )
                        record = Reject(f"record {number}", reason, identity, beginning(record.text))
                yield record

    return replace(source, read=read)


def _paths(input: Input) -> list[Path] | None:
    if isinstance(input, (str, PathLike)):
        return [Path(input)]
    if isinstance(input, Sequence) and input and all(isinstance(item, PathLike) for item in input):
        return [Path(os.fspath(item)) for item in input]
    return None


def _file_rows(paths: list[Path], encoding: str, split: str | None) -> Iterator[Row | None]:
    """The rows of files; None before each: its columns may have other names."""
    files: list[tuple[Path, str]] = []
    for path in paths:
        if path.is_dir() and dataset_splits(path) is None:
            files += [(file, file.relative_to(path).as_posix()) for file in _files_in(path)]
        else:
            files.append((path, path.name if len(paths) == 1 else str(path)))
    opened = [(read_rows(path, name=name, encoding=encoding, split=split), path, name) for path, name in files]

    def read() -> Iterator[Row | None]:
        for rows, path, name in opened:
            yield None
            several = len(files) > 1 and suffix_of(path) == ".txt"
            for place, row in rows:
                # A search in many files is for the place that a text comes from.
                if several and isinstance(row, dict):
                    row |= {"file": name, "line": int(place.rpartition(" ")[2])}
                yield place, row

    return read()


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder that can be read, by name, without hidden ones and encoded corpora."""
    found, others = [], Counter[str]()
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if not name.startswith(".") and not is_corpus(here / name)]
        for name in files:
            if not name.startswith("."):
                found += [here / name] if suffix_of(here / name) else []
                others.update([] if suffix_of(here / name) else [Path(name).suffix or "without a suffix"])
    listed = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(8))
    if not found or is_corpus(folder):
        there = f" (there are: {listed})" if others else ""
        raise ValueError(f"{folder}: no folder of texts{there}; give one with files of {SUPPORTED}")
    if others:
        logger.warning("%s: files of other types are not read: %s", folder, listed)
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def _of_rows(
    rows: Iterable[tuple[str, Any] | None], columns: dict[str, str | None], max_chars: int
) -> Iterator[Document | Reject]:
    """Documents of rows, mappings or why there is none; the columns that were found are kept."""
    asked = Columns(columns["text_column"], columns["id_column"])
    known: Columns | None = None
    for item in rows:
        if item is None:
            known = None
            continue
        place, row = item
        if isinstance(row, (str, Document)):
            yield Reject(place, row) if isinstance(row, str) else checked(row, place, max_chars)
            continue
        if known is None:
            try:
                known = asked.resolved(row)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            columns.update(text_column=known.text, id_column=known.id if known.id in row else columns["id_column"])
        yield known.document(row, place, max_chars)


def _item_rows(input: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for number, item in enumerate(input):
        row: Any = Document(item) if isinstance(item, str) else item
        if not isinstance(row, (Document, Mapping)):
            row = f"wrong type: {beginning(item)} is a {type(item).__name__}; give strings, Documents or dicts"
        yield f"record {number}", row


def _with_ids(records: Iterator[Document | Reject], ids: Iterator[str], max_chars: int) -> Iterator[Document | Reject]:
    number = -1
    for number, record in enumerate(records):
        if (name := next(ids, None)) is None:
            raise ValueError(f"there are more texts than the {number} ids; give one id for each text")
        if isinstance(record, Document):
            if record.id is not None:
                raise ValueError(f"record {number} has the id {record.id!r}, and ids gives another; give one of both")
            record = checked(replace(record, id=name), f"record {number}", max_chars)
        yield record
    if next(ids, None) is not None:
        raise ValueError(f"there are more ids than the {number + 1} texts; give one id for each text")


def _check_iterable(input: Any, ids: Iterable[str] | None) -> None:
    kind = type(input).__name__
    if isinstance(input, Mapping):
        keys = ", ".join(repr(beginning(key)) for key in list(input)[:20])
        raise TypeError(f"the input is one {kind} with the keys {keys}; give one of its values, or a list of mappings")
    if isinstance(input, (Document, bytes)) or not isinstance(input, Iterable):
        raise TypeError(f"the input is one {kind}; give a path, or a list or another iterable of texts or Documents")
    if isinstance(ids, str):
        raise TypeError("ids is one string; give a list with one id for each text")
