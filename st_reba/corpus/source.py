"""Where documents come from: files, folders, datasets, or anything to iterate over; one shape for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from .arrow import dataset_splits, is_dataset, read_dataset
from .documents import MAX_CHARS, Document, Reject, beginning, checked
from .fields import Reading, from_fields
from .folder import is_corpus
from .readers import SUPPORTED, check_file, is_supported, read_file

Input = str | PathLike[str] | Iterable[str | Document | Mapping[str, Any] | PathLike[str]]


@dataclass(frozen=True)
class Source:
    """Records to be read.

    Args:
        name: What messages call it.
        identity: Of files: their names, sizes and times of change, and how they are read, as JSON values. Two equal
            ones give the same records. None: nothing says so.
        total: Number of records, where it is known beforehand.
        read: Begins to read.

    Example:
        >>> [record.text for record in open_source(["Cats sleep.", "Ships sail."]).records()]
        ['Cats sleep.', 'Ships sail.']
    """

    name: str
    identity: dict[str, Any] | None
    total: int | None
    read: Callable[[], Iterator[Document | Reject]]

    def records(self) -> Iterator[Document | Reject]:
        """Every record in its order: a document, or why it is none. What can be iterated once, can be read once."""
        return self.read()


def open_source(
    input: Input | Source,
    *,
    text_column: str = "text",
    id_column: str = "id",
    encoding: str = "utf-8-sig",
    split: str | None = None,
    ids: Iterable[str] | None = None,
    max_chars: int = MAX_CHARS,
) -> Source:
    """Find out what there is to read, and refuse at once what cannot be.

    Args:
        input: A file (.txt, .jsonl, .csv, .tsv, each also with .gz; .parquet); a folder that `datasets.save_to_disk`
            wrote; any other folder: all such files in it and below, by name; a list of Path objects of these; or an
            iterable of texts, Documents or mappings. A string is a path.
        text_column: The column or key that holds the text.
        id_column: The column or key that holds the id. The default may be missing; a name given here must be there.
        encoding: Of text files.
        split: Of a DatasetDict.
        ids: One id for each text of an iterable.
        max_chars: The longest text, in characters; a longer one is set aside.

    Returns:
        The source. Nothing of an iterable is consumed yet.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: A suffix, an encoding or a split that is not known, a folder without files, or ids that do not fit.
        TypeError: The input is one document, or nothing that can be iterated over.
        ImportError: What reads it is not installed.
    """
    if isinstance(input, Source):
        return input
    if max_chars < 1:
        raise ValueError(f"max_chars={max_chars} is not a whole number from 1 on (--max-chars)")
    reading = Reading(text_column, id_column, encoding, max_chars)
    paths = _paths(input)
    if paths is None:
        if split is not None:
            raise ValueError(f"split={split!r} belongs to a folder of datasets, not to {type(input).__name__}; drop it")
        return _from_iterable(input, ids, reading)
    if ids is not None:
        raise ValueError("ids belong to an iterable of texts; in files, id_column (--id-column) names the ids")
    return _from_paths(paths, split, reading)


def _paths(input: Input) -> list[Path] | None:
    """Files and folders, if the input names them."""
    if isinstance(input, (str, PathLike)):
        return [Path(input)]
    if isinstance(input, Sequence) and input and all(isinstance(item, PathLike) for item in input):
        return [Path(os.fspath(item)) for item in input]
    return None


def _from_paths(paths: list[Path], split: str | None, reading: Reading) -> Source:
    if len(paths) == 1 and paths[0].is_dir():
        folder = paths[0]
        if (splits := dataset_splits(folder)) is not None:
            if split not in splits:
                given = "holds several splits" if split is None else f"has no split {split!r}"
                raise ValueError(f"{folder} {given}: choose one of {', '.join(splits)} with split (--split)")
            return _from_dataset(folder / split, split, reading)
        if is_dataset(folder) and split is None:
            return _from_dataset(folder, folder.resolve().name, reading)
    if split is not None:
        raise ValueError(f"split={split!r} belongs to a folder that DatasetDict.save_to_disk wrote; drop it")
    parts = [file for path in paths for file in (_files(path) if path.is_dir() else [path])]
    for file in parts:
        check_file(file, reading)
    base = Path(os.path.commonpath([_absolute(path if path.is_dir() else path.parent) for path in paths]))
    names = [_absolute(file).relative_to(base).as_posix() for file in parts]

    def records() -> Iterator[Document | Reject]:
        for file, name in zip(parts, names, strict=True):
            yield from read_file(file, name, reading)

    what = ", ".join(str(path) for path in paths[:3]) + (", …" if len(paths) > 3 else "")
    return Source(what, _identity(parts, names, split, reading), None, records)


def _from_dataset(folder: Path, name: str, reading: Reading) -> Source:
    parts = sorted(file for file in folder.rglob("*") if file.is_file())
    names = [file.relative_to(folder).as_posix() for file in parts]
    identity = _identity(parts, names, name, reading)
    return Source(str(folder), identity, None, lambda: read_dataset(folder, name, reading))


def _files(folder: Path) -> list[Path]:
    """All files of a folder that can be read, by name; what is hidden, and encoded corpora, are passed over."""
    if is_corpus(folder):
        raise ValueError(f"{folder}: an encoded corpus, not a folder of texts; name the texts that it was made of")
    found = []
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if not name.startswith(".") and not is_corpus(here / name)]
        found += [here / name for name in files if not name.startswith(".") and is_supported(here / name)]
    if not found:
        raise ValueError(f"{folder}: no file that can be read is in this folder or below; use {SUPPORTED}")
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _identity(files: list[Path], names: list[str], split: str | None, reading: Reading) -> dict[str, Any]:
    states = [file.stat() for file in files]
    return {
        "files": [
            {"name": name, "bytes": state.st_size, "mtime_ns": state.st_mtime_ns}
            for name, state in zip(names, states, strict=True)
        ],
        "text_column": reading.text_column,
        "id_column": reading.id_column,
        "encoding": reading.encoding,
        "split": split,
        "max_chars": reading.max_chars,
    }


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
    return Source(f"the {kind}", None, total, lambda: _iterate(input, ids, reading))


def _iterate(input: Iterable[Any], ids: Iterable[str] | None, reading: Reading) -> Iterator[Document | Reject]:
    names = None if ids is None else iter(ids)
    number = -1
    for number, item in enumerate(input):
        place = f"record {number}"
        if isinstance(item, str):
            record: Document | Reject = Document(item)
        elif isinstance(item, Document):
            record = item
        elif isinstance(item, Mapping):
            record = from_fields(item, place, reading)
        else:
            reason = f"a {type(item).__name__}, not a text; give strings, Documents or mappings with a text"
            record = Reject(place, reason, text=beginning(item))
        if names is not None:
            try:
                name = next(names)
            except StopIteration:
                raise ValueError(f"there are more texts than the {number} ids; give one id for each text") from None
            if isinstance(record, Document):
                if record.id is not None:
                    raise ValueError(f"{place} has the id {record.id!r}, and ids gives another; give one of both")
                record = Document(record.text, name, record.metadata)
        yield record if isinstance(record, Reject) else checked(record, place, max_chars=reading.max_chars)
    if names is not None and next(names, None) is not None:
        raise ValueError(f"there are more ids than the {number + 1} texts; give one id for each text")
