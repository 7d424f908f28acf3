"""Where documents come from: files, folders, datasets, tables, or anything to iterate over; one shape for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from ..optional import required
from .folder import is_corpus
from .readers import (
    SUPPORTED,
    arrow_columns,
    arrow_records,
    check_file,
    dataset_records,
    dataset_splits,
    read_dataset,
    read_file,
    suffix_of,
)
from .records import Document, Reading, Reject, beginning, checked

Input = str | PathLike[str] | Iterable[str | Document | Mapping[str, Any] | PathLike[str]] | Any


@dataclass(frozen=True)
class Source:
    """Records to be read.

    Args:
        name: What messages call it.
        total: Number of records, where it is known beforehand.
        read: Begins to read: every record in its order, a document or why it is none.
        reading: How; it knows the columns once a record was read.

    Example:
        >>> [record.text for record in open_source(["Cats sleep.", "Ships sail."]).read()]
        ['Cats sleep.', 'Ships sail.']
    """

    name: str
    total: int | None
    read: Callable[[], Iterator[Document | Reject]]
    reading: Reading = field(default_factory=Reading)

    def begun(self) -> Source:
        """The same, its first record already read: what is wrong with the columns is said now.

        Raises:
            ValueError: The first record cannot be read, or there is none.
        """
        records = self.read()
        first = next(records, None)
        if first is None:
            raise ValueError(f"{self.name}: no documents: it is empty")
        return replace(self, read=lambda: chain([first], records))


def open_source(input: Input, reading: Reading | None = None, ids: Iterable[str] | None = None) -> Source:
    """Find out what there is to read, and refuse at once what cannot be.

    Args:
        input: A file (.txt, .jsonl, .csv, .tsv, each also with .gz; .parquet); a folder that ``datasets.save_to_disk``
            wrote; any other folder: all such files in it and below, by name; a list of Path objects of these; a table
            of pandas, polars, Arrow or ``datasets``; or an iterable of texts, Documents or dicts. A string is a path.
        reading: How records are read.
        ids: One id for each text of an iterable.

    Returns:
        The source. Nothing of an iterable is consumed yet.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: A suffix, an encoding or a split that is not known, a folder without files, or ids that do not fit.
        TypeError: The input is one document, or nothing that can be iterated over.
    """
    reading = reading or Reading()
    if isinstance(input, Source):
        return input
    paths = _paths(input)
    if reading.split is not None and not (paths and len(paths) == 1 and paths[0].is_dir()):
        raise ValueError(f"split={reading.split!r} belongs to a folder of datasets; drop it (--split)")
    if paths is not None:
        if ids is not None:
            raise ValueError("ids belong to an iterable of texts; in files, id_column (--id-column) names the ids")
        return replace(_from_paths(paths, reading), reading=reading)
    if (table := _from_table(input, reading)) is not None:
        if ids is not None:
            raise ValueError("ids belong to an iterable of texts; in tables, id_column names the ids")
        return replace(table, reading=reading)
    return replace(_from_iterable(input, ids, reading), reading=reading)


def _paths(input: Input) -> list[Path] | None:
    """Files and folders, if the input names them."""
    if isinstance(input, (str, PathLike)):
        if str(input) == "-":
            raise ValueError('"-" (standard input) cannot be read twice: save the texts in a file and give its path')
        return [Path(input)]
    if isinstance(input, Sequence) and input and all(isinstance(item, PathLike) for item in input):
        return [Path(os.fspath(item)) for item in input]
    return None


def _with_file(records: Iterator[Document | Reject], name: str) -> Iterator[Document | Reject]:
    for record in records:
        yield replace(record, metadata={"file": name}) if isinstance(record, Document) else record


def _from_paths(paths: list[Path], reading: Reading) -> Source:
    split = reading.split
    if len(paths) == 1 and paths[0].is_dir() and ((splits := dataset_splits(paths[0])) is not None or split):
        folder = paths[0]
        if not splits and split is not None:
            raise ValueError(f"split={split!r}: {folder} does not hold several datasets; drop it (--split)")
        if splits and split not in splits:
            given = "holds several splits" if split is None else f"has no split {split!r}"
            raise ValueError(f"{folder} {given}: choose one of {', '.join(splits)} with split (--split)")
        part = folder / split if split else folder
        name = part.resolve().name
        return Source(str(part), None, lambda: read_dataset(part, name, reading))
    files = [file for path in paths for file in (_files(path) if path.is_dir() else [path])]
    for file in files:
        check_file(file, reading)
    base = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    whole = {path: path.name for path in paths} if len(paths) == 1 else {}
    names = [file.relative_to(base).as_posix() if base else whole.get(file, str(file)) for file in files]

    def read() -> Iterator[Document | Reject]:
        for file, name in zip(files, names, strict=True):
            records = read_file(file, name, reading)
            # A search in many small files is for the file that a text comes from.
            yield from _with_file(records, name) if base and suffix_of(file) == ".txt" else records

    return Source(", ".join(str(path) for path in paths[:3]) + ", …" * (len(paths) > 3), None, read)


def _files(folder: Path) -> list[Path]:
    """The files of a folder that can be read, by name; what is hidden, and encoded corpora, are passed over."""
    if is_corpus(folder):
        raise ValueError(f"{folder}: an encoded corpus, not a folder of texts; name the texts that it was made of")
    found = []
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if not name.startswith(".") and not is_corpus(here / name)]
        found += [here / name for name in files if not name.startswith(".") and suffix_of(here / name)]
    if not found:
        raise ValueError(f"{folder}: no file that can be read is in this folder or below; use {SUPPORTED}")
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def _from_table(input: Any, reading: Reading) -> Source | None:
    """The rows of a table of some library, by column; None: it is none."""
    kind = type(input)
    name = f"the {kind.__name__}"
    library = kind.__module__.partition(".")[0]
    if library == "datasets" and isinstance(input, Mapping):
        raise TypeError(f"{name} holds several datasets, {', '.join(map(repr, input))}; give one of them")
    if library == "datasets" and hasattr(input, "select_columns") and isinstance(input, Sized):
        return Source(name, len(input), lambda: dataset_records(input, name, reading))
    if library == "pandas":
        if not hasattr(input, "columns"):
            return None  # a Series is an iterable of texts
        try:
            input = required("pyarrow", "corpus").Table.from_pandas(input, preserve_index=None)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: a column cannot be read ({error}); give all its values one type") from None
    if not hasattr(input, "__arrow_c_stream__") or not (hasattr(input, "columns") or hasattr(input, "schema")):
        return None
    table = input

    def read() -> Iterator[Document | Reject]:
        reader = required("pyarrow", "corpus").RecordBatchReader.from_stream(table)
        resolved, columns = arrow_columns(reader.schema, name, reading)
        return arrow_records((batch.select(columns) for batch in reader), name, resolved)

    return Source(name, len(input) if isinstance(input, Sized) else None, read)


def _from_iterable(input: Any, ids: Iterable[str] | None, reading: Reading) -> Source:
    kind = type(input).__name__
    if isinstance(input, Mapping):
        keys = ", ".join(repr(beginning(key)) for key in list(input)[:20])
        raise TypeError(f"the input is one {kind} with the keys {keys}; give one of its values, or a list of mappings")
    if isinstance(input, (Document, bytes)) or not isinstance(input, Iterable):
        raise TypeError(f"the input is one {kind}; give a path, or a list or another iterable of texts or Documents")
    if isinstance(ids, str):
        raise TypeError("ids is one string; give a list with one id for each text")
    total = len(input) if isinstance(input, Sized) else None
    if total is not None and isinstance(ids, Sized) and total != len(ids):
        raise ValueError(f"there are {total} texts, but {len(ids)} ids; give one id for each text")
    return Source(f"the {kind}", total, lambda: _iterate(input, ids, reading))


def _iterate(input: Iterable[Any], ids: Iterable[str] | None, reading: Reading) -> Iterator[Document | Reject]:
    names = None if ids is None else iter(ids)
    number, named = -1, False
    for number, item in enumerate(input):
        place = f"record {number}"
        if isinstance(item, Mapping):
            if not named:
                reading, named = reading.resolved(item), True
            record = reading.document(item, place)
        elif isinstance(item, (str, Document)):
            document = Document(item) if isinstance(item, str) else item
            record = checked(document, place, max_chars=reading.max_chars)
        else:
            reason = f"wrong type: a {type(item).__name__}, not a text; give strings, Documents or dicts with a text"
            record = Reject(place, reason, text=beginning(item))
        if names is not None:
            try:
                name = next(names)
            except StopIteration:
                raise ValueError(f"there are more texts than the {number} ids; give one id for each text") from None
            if isinstance(record, Document):
                if record.id is not None:
                    raise ValueError(f"{place} has the id {record.id!r}, and ids gives another; give one of both")
                record = checked(replace(record, id=name), place, max_chars=reading.max_chars)
        yield record
    if names is not None and next(names, None) is not None:
        raise ValueError(f"there are more ids than the {number + 1} texts; give one id for each text")
