"""Where documents are encoded on their way into an index: ``.building``, a corpus for each input.

A corpus is named by what is in it, so the same input goes on where it was killed, and another one cannot disturb it.
When its documents are in the index, its token is among the index's additions: it is of no more use, and is removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..corpus.encode import Engine, Run, Settings, encode_pending, new_header, told
from ..corpus.folder import Corpus, is_corpus
from ..corpus.gather import PART_CHARS, Gathered, gather
from ..corpus.passages import cutter
from ..corpus.records import Document, Reject, beginning, to_json
from ..corpus.source import Source
from ..files import make_folder, sync
from ..lock import writers_lock
from .store import Store, by_ids

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BUILDING = ".building"
_AT_A_TIME = 500


@dataclass(frozen=True)
class Options:
    """How an input becomes a corpus.

    Args:
        settings: What decides the vectors.
        engine: Where they are encoded.
        strict: Stop at the first record that cannot be taken.
        show: Show bars; None: on a terminal.
    """

    settings: Settings = field(default_factory=Settings)
    engine: Engine = field(default_factory=Engine)
    strict: bool = True
    show: bool | None = None


class New:
    """What an input holds that the index does not.

    Args:
        source: The input.
        store: The index; None: there is none yet.
        upsert: Ids that are there with another text are replaced; else they are an error, or with ``strict`` off set
            aside.
        strict: Stop at the first.
    """

    def __init__(self, source: Source, store: Store | None, *, upsert: bool, strict: bool) -> None:
        self.source = replace(source, read=self._read)
        self.unchanged = 0
        self._input, self._store, self._upsert, self._strict = source, store, upsert, strict
        self._digest = hashlib.sha256(b"upsert" if upsert else b"add")

    @property
    def digest(self) -> str:
        """SHA-256 of the whole input, once it is read."""
        return self._digest.hexdigest()

    def _read(self) -> Iterator[Document | Reject]:
        records = self._input.read()
        while chunk := _some(records):
            ids = [one.id for one in chunk if isinstance(one, Document) and one.id is not None]
            there = {}
            if ids and self._store is not None:
                with self._store.reading() as tx:
                    there = by_ids(tx, ids)
            self._digest.update(to_json([vars(record) for record in chunk]).encode())
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


def _some(records: Iterator[Document | Reject]) -> list[Document | Reject]:
    """A few records: fewer of long ones."""
    chunk, chars = [], 0
    for record in islice(records, _AT_A_TIME):
        chunk.append(record)
        chars += len(record.text or "")
        if chars > PART_CHARS:
            break
    return chunk


def already_there(identity: str) -> str:
    """Why a document cannot be added."""
    return (
        f"id in the index: {identity!r} is there already, with another text or metadata; replace that document with "
        "upsert, or give this one another id"
    )


@contextmanager
def encoded(
    folder: Path, model: SentenceTransformer, new: New, options: Options, first: int = 0
) -> Iterator[tuple[Corpus, Gathered]]:
    """The corpus of an input, encoded in an index folder; held until the ``with`` block ends.

    Args:
        folder: The index folder.
        model: The model.
        new: The input.
        options: How it is encoded.
        first: The number of the next document that has no id.

    Raises:
        BlockingIOError: Another process is encoding the same input.
        ValueError: A record cannot be taken, or a vector cannot be used (``strict``).
    """
    building = folder / BUILDING
    refuse_links(folder)
    make_folder(building)
    temporary = Corpus(building / f".{uuid.uuid4().hex[:12]}.tmp")
    header = {**new_header(model, options.settings), "token": uuid.uuid4().hex}
    with told(folder), ExitStack() as stack:
        try:
            make_folder(temporary.path)
            stack.enter_context(writers_lock(temporary.path))
            for part in ("documents", "vectors"):
                (temporary.path / part).mkdir()
            cut = cutter(model, options.settings.passages)
            found = gather(new.source, temporary, header, cut, strict=options.strict, first=first, show=options.show)
            header["digest"] = new.digest
            temporary.write_header(header)
            settings = {**header["settings"], "part_size": None}
            about = to_json([found.digest.hexdigest(), header["model"], header["model_dtype"], settings])
            corpus = Corpus(building / hashlib.sha256(about.encode()).hexdigest()[:24])
            if is_corpus(corpus.path):
                stack.enter_context(writers_lock(corpus.path))
            else:
                os.replace(temporary.path, corpus.path)
                sync(building)
        finally:
            shutil.rmtree(temporary.path, ignore_errors=True)
            with suppress(OSError):
                building.rmdir()
        encode_pending(corpus, model, options.engine, options.show, Run())
        yield corpus, found


def unfinished(folder: Path) -> list[Corpus]:
    """The corpora in an index folder that are not in the index yet, as far as anybody knows."""
    building = folder / BUILDING
    return [Corpus(path) for path in sorted(building.glob("[!.]*")) if is_corpus(path)] if building.is_dir() else []


def sweep(folder: Path, tokens: Collection[str] | None) -> None:
    """Remove corpora that nobody holds and that are of no more use: those with one of the tokens; None: all.

    The change before has looked for links.
    """
    building = folder / BUILDING
    if not building.is_dir():
        return
    for path in building.iterdir():
        with suppress(OSError):
            # Without a lock: whoever has just made an empty one makes another.
            path.rmdir()
            continue
        with suppress(BlockingIOError, FileNotFoundError, ValueError), writers_lock(path):
            begun = is_corpus(path) and not path.name.startswith(".")
            if tokens is None or not begun or Corpus(path).header().get("token") in tokens:
                # By another name at first: what is half removed must not be taken for the whole.
                gone = building / f".{uuid.uuid4().hex[:12]}.tmp"
                os.replace(path, gone)
                shutil.rmtree(gone)
    with suppress(OSError):
        building.rmdir()


def refuse_links(folder: Path) -> None:
    """Raise where a link stands in a folder of ours: what is written or removed through it would be somebody else's.

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
