"""Documents on their way into an index: what is new of an input, and the corpus in ``.building`` that is encoded."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ..corpus.records import Document, Reject, beginning, to_json
from ..corpus.source import Source
from ..files import LOCK_FILE, disk_errors, make_folder, writers_lock
from .changes import already_there
from .store import FILE, Store, by_ids, read_state

BUILDING = ".building"
_AT_A_TIME, _MOST_CHARS = 500, 2**22


class New:
    """The records of an input that the index does not have.

    Args:
        source: The input.
        store: The index.
        upsert: Ids that are there with another text are replaced; else they are an error, or without ``strict`` set
            aside.
        strict: Stop at the first.
    """

    def __init__(self, source: Source, store: Store, *, upsert: bool, strict: bool) -> None:
        self.source = replace(source, read=self._read)
        self.unchanged = 0
        self._input, self._store, self._upsert, self._strict = source, store, upsert, strict
        self._digest = hashlib.sha256(b"upsert" if upsert else b"add")

    @property
    def digest(self) -> str:
        """SHA-256 of the whole input, once it is read."""
        return self._digest.hexdigest()

    def _read(self) -> Iterator[Document | Reject]:
        for chunk in _chunks(self._input.read()):
            self._digest.update(to_json([vars(record) for record in chunk]).encode())
            with self._store.reading() as tx:
                there = by_ids(tx, [one.id for one in chunk if one.id is not None])
            for record in chunk:
                old = there.get(record.id or "") if isinstance(record, Document) else None
                if old is None or isinstance(record, Reject):
                    yield record
                elif (old.text, old.metadata) == (record.text, to_json(record.metadata)):
                    self.unchanged += 1
                elif self._upsert:
                    yield record
                elif self._strict:
                    raise ValueError(already_there(old.id))
                else:
                    yield Reject("in the index", already_there(old.id), old.id, beginning(record.text))


def _chunks(records: Iterator[Document | Reject]) -> Iterator[list[Document | Reject]]:
    """Some records at a time: fewer of long ones."""
    while chunk := list(islice(records, 1)):
        chars = len(chunk[0].text or "")
        while len(chunk) < _AT_A_TIME and chars < _MOST_CHARS and (one := next(records, None)) is not None:
            chunk.append(one)
            chars += len(one.text or "")
        yield chunk


def is_index(folder: Path) -> bool:
    """True if a folder holds an index."""
    store = Store(folder)
    if not store.path.is_file():
        return False
    with store.reading() as tx:
        return read_state(tx, store.path) is not None


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Refuse to build where something else is than an index, or what a build leaves that was killed."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder}: a file is there; name a folder")
    # Without the SQLite file, FAISS files are somebody else's.
    ours = rf"{FILE}(-wal|-shm|-journal)?|{re.escape(BUILDING)}|{re.escape(LOCK_FILE)}"
    ours += r"|vectors-\d+\.faiss|\.vectors-.*\.tmp" if (folder / FILE).is_file() else ""
    if any(not re.fullmatch(ours, path.name) for path in folder.iterdir()):
        raise FileExistsError(f"{folder}: not an index, so nothing is written there; give another path")
    try:
        there = is_index(folder)
    except ValueError:
        there = True  # a damaged one can be replaced
    if there and not overwrite:
        raise FileExistsError(f"{folder}: already there; give another path, or overwrite=True to replace an index")


@contextmanager
def one_writer(folder: Path) -> Iterator[Path]:
    """Keep other builds and additions out of an index folder, and give the folder of the corpus to be encoded.

    A folder that is made for it goes if nothing was encoded in it.
    """
    with disk_errors(folder):
        made = make_folder(folder)
        refuse_links(folder)
        building = folder / BUILDING
        try:
            with writers_lock(folder):
                try:
                    yield building
                    shutil.rmtree(building, ignore_errors=True)
                except BaseException:
                    if not any(building.glob("vectors/*.npy")):
                        shutil.rmtree(building, ignore_errors=True)
                    raise
        except BaseException:
            with suppress(OSError, ValueError):
                if made and not is_index(folder) and not building.exists():
                    shutil.rmtree(folder)
            raise


def refuse_links(folder: Path) -> None:
    """Raise if a link is in a folder of ours: what is written or removed through it would be somebody else's.

    Raises:
        ValueError: There is one.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(place, name)):
                raise ValueError(
                    f"{os.path.join(place, name)}: a link, through which nothing is written; put the file or folder "
                    "itself there, or remove it"
                )
