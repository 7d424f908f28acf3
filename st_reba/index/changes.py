"""Changes of an index: documents are encoded, taken in, deleted, and folded into the FAISS file; one transaction each.

What is encoded for a change lies in ``.building``, a corpus, until the change took effect.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..corpus.encode import encode_parts, longest_input, warn_of_truncation
from ..corpus.folder import Corpus, Progress, Row, is_corpus, read_progress
from ..corpus.records import Document, Reject, beginning, describe_rejects, to_json
from ..corpus.source import Source
from ..files import LOCK_FILE, refuse_links, sole_writer
from ..probe import Probe
from . import store as tables
from . import vectors as ann
from .samples import sample_corpus
from .store import FILE, Matrix, State, Store, Stored, content_of, crc_of, damaged, documents, documents_with
from .vectors import Segment
from .whitening import (
    Whitening,
    converted,
    is_to_be_whitened,
    read_whitening,
    rewhiten,
    tell_what_was_fitted,
    write_whitening,
)
from .words import drop_words, insert_words, remove_words, write_words

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BUILDING = ".building"
_NO_ID = "no id: upsert replaces by id; name the column of the ids, or add the texts instead"
_ASKED_TOGETHER = 64  # records that SQLite is asked for in one query
_TWICE = "id used twice: {!r} is the number of another record too; give each its own"
_THERE = "id in the index: {!r} is there already, with other content; replace it with upsert, or give another id"
# Vectors beside the FAISS file, before they are folded in: so many, or this share of it, but not more than the last.
FEWEST_PENDING, PENDING_SHARE, MOST_PENDING = 1_000, 0.1, 20_000


@dataclass(frozen=True)
class Change:
    """Outcome of a change."""

    count: int  # documents in the index, afterwards
    added: int = 0
    replaced: int = 0
    deleted: int = 0  # of "compact": vectors that are no longer on the disk
    unchanged: int = 0  # documents that were there already with the same text and metadata
    rejected: dict[str, int] = field(default_factory=dict)  # records that were set aside, by kind of reason
    truncated: int = 0  # of the added and replaced documents, those longer than the model reads


def check_target(store: Store, *, overwrite: bool) -> None:
    """Refuse to build where something else is than an index, or what a build leaves that was killed."""
    folder = store.folder
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if folder.is_file() or not (FILE in names or names <= {BUILDING, LOCK_FILE}):
        raise FileExistsError(f"{folder}: not an index, so nothing is written there; give another path")
    with suppress(FileNotFoundError):
        store.state()
        if not overwrite:
            raise FileExistsError(f"{folder}: already there; give another path, or overwrite=True to replace the index")


def stopped_progress(folder: Path) -> Progress | None:
    """What a build or an addition that was stopped left in an index folder, for the same call to go on with.

    Returns:
        How many documents are encoded, and how many there are; None if no document is encoded.

    Example:
        >>> stopped_progress(Path("no_such_index")) is None
        True
    """
    return read_progress(folder / BUILDING)


@contextmanager
def one_writer(folder: Path, *, patience: float | None = None) -> Iterator[Path]:
    """Keep other builds and additions out of an index folder, and give the folder of the corpus to be encoded."""
    building, encoded, kept = folder / BUILDING, "vectors/*.npy", False
    with sole_writer(folder, f"{BUILDING}/{encoded}", patience=patience):
        if not is_corpus(building):  # a writer was killed while it removed it
            shutil.rmtree(building, ignore_errors=True)
        try:
            yield building
        except BaseException as error:
            kept = any(building.glob(encoded))
            progress = stopped_progress(folder)
            if progress is not None:
                error.add_note(f"{folder}: {progress}; the same call goes on")
            raise
        finally:
            if not kept:
                shutil.rmtree(building, ignore_errors=True)


class Writer:
    """One change of an index, within its transaction."""

    def __init__(self, store: Store, tx: sqlite3.Connection, state: State) -> None:
        self.folder, self.path, self.tx, self.state = store.folder, store.path, tx, state
        self.counts, self.rejected = Counter[str](), Counter[str]()
        self._first_key = state.next_key  # documents from this key on are of this change
        self._convert: Callable[[Matrix], Matrix] | None = None  # vectors that were in the index, for a new whitening

    def insert(self, row: Row, identity: str) -> Literal["added", "replaced"] | None:
        """Insert a document, or replace the one with its id; None: its id is the number of another of this change."""
        # The first documents of an index have ids of their own.
        old = next(documents(self.tx, "id = ?", identity), None) if self._first_key else None
        while old is not None and row.id is None:  # its number is another's id
            identity, self.state.next_number = str(self.state.next_number), self.state.next_number + 1
            old = next(documents(self.tx, "id = ?", identity), None)
        if old is not None:
            if old.key >= self._first_key:
                return None
            self.remove(old)
        content = content_of(row.text, row.metadata) if row.id is None else None
        spans = to_json(row.spans) if row.spans else None
        new = (self.state.next_key, identity, row.metadata, row.vectors, spans, row.text, content)
        insert = "INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        if not self.tx.execute(insert, (*new, crc_of(new))).rowcount:  # of a corpus with an id twice
            return None
        if self.state.words is not None:
            insert_words(self.tx, self.state.next_key, row.text)
        self.state.next_key += row.vectors
        self.state.documents += 1
        return "added" if old is None else "replaced"

    def remove(self, document: Stored) -> None:
        """Delete a document; its vectors are dead, or no longer pending."""
        self.tx.execute("DELETE FROM documents WHERE key = ?", (document.key,))
        if self.state.words is not None:
            remove_words(self.tx, document.key, document.text)
        self.state.documents -= 1
        self.state.truncated -= self.tx.execute("DELETE FROM truncated WHERE key = ?", (document.key,)).rowcount
        keys = [(key,) for key in document.keys]
        if document.key >= self.state.stop:
            self.tx.executemany("DELETE FROM pending WHERE key = ?", keys)
            self.state.pending -= len(keys)
        else:
            self.tx.executemany("INSERT INTO dead VALUES (?)", keys)
            self.state.deleted += len(keys)

    def write_words(self) -> None:
        """Write the words of all documents anew."""
        self.state.words = write_words(self.tx)

    def whiten(self, whitening: Whitening | None) -> None:
        """Change the whitening: of what is taken from now on, and, when it is folded, of what is there."""
        if self._first_key:
            replaced_whitening = read_whitening(self.tx, self.state, self.path)
            self._convert = partial(rewhiten, old_whitening=replaced_whitening, new_whitening=whitening)
        write_whitening(self.tx, self.state, whitening)

    def take(self, corpus: Corpus, *, strict: bool) -> list[Segment]:
        """Insert the documents of a corpus, or set them aside; the vectors of those that were inserted.

        Of an addition, the corpus holds what is new, and ids that are in the index only where they are replaced.
        """
        # Another model's index may have taken the place of this one meanwhile.
        corpus_probe = Probe.from_json(corpus.header()["model"])
        corpus_probe.check_same(Probe.from_json(self.state.model), f"the corpus {corpus.path}")
        whitening = read_whitening(self.tx, self.state, self.path)
        self.tx.execute("DELETE FROM rejects")
        first, segments, parts = self.state.next_number, list[Segment](), corpus.parts()
        counted = "new record" if self._first_key else "record"
        self.state.next_number += corpus.about(parts - 1)["stop"] if parts else 0
        for number in range(parts):
            part, vectors = corpus.part(number), corpus.vectors(number)
            counts = part.counts
            if vectors.shape != (sum(counts), self.state.dimension):
                raise ValueError(damaged(corpus.vectors_path(number), f"{vectors.shape} for {sum(counts)} texts"))
            bad, rejects = corpus.unusable(number), [*part.rejects]
            taken, first_key = np.zeros(len(counts), bool), self.state.next_key
            truncated = set(corpus.truncated(number))
            for index, row in enumerate(part.rows):
                identity = str(first + row.record) if row.id is None else row.id
                place = f"{counted} {row.record}"
                key = self.state.next_key
                if index in bad:
                    rejects.append(replace(bad[index], place=place, id=identity))
                elif (outcome := self.insert(row, identity)) is None:
                    rejects.append(Reject(place, _TWICE.format(identity), identity, beginning(row.text)))
                else:
                    self.counts[outcome] += 1
                    taken[index] = True
                    if index in truncated:
                        self._mark_truncated(key)
            if strict and rejects:
                raise ValueError(str(rejects[0]))
            values = [(one.place, one.reason, one.id, one.text) for one in rejects]
            self.tx.executemany("INSERT INTO rejects VALUES (?, ?, ?, ?)", values)
            self.rejected.update(reject.kind for reject in rejects)
            mask = np.repeat(taken, counts)
            load = partial(_loaded, corpus, number, mask, self.state.metric, whitening)
            segments.append((np.arange(first_key, self.state.next_key), load))
        return segments

    def _mark_truncated(self, key: int) -> None:
        """Remember that a document, which was just inserted, is longer than the model reads."""
        self.tx.execute("INSERT INTO truncated VALUES (?)", (key,))
        self.state.truncated += 1
        self.counts["truncated"] += 1

    def place(self, new: list[Segment]) -> None:
        """Put new vectors among the pending, or if those would be too many, all of them into a new FAISS file."""
        most = max(FEWEST_PENDING, min(PENDING_SHARE * self.state.filed, MOST_PENDING))
        if self.state.pending + sum(len(keys) for keys, _ in new) > most:
            self.fold(new)
            return
        for keys, vectors in new:
            blobs = [vector.astype("<f4").tobytes() for vector in vectors()]
            rows = zip(keys.tolist(), map(zlib.crc32, blobs), blobs, strict=True)
            self.tx.executemany("INSERT INTO pending VALUES (?, ?, ?)", rows)
            self.state.pending += len(keys)

    def fold(self, new: list[Segment], factory: str | None = None, parameters: str | None = None) -> None:
        """Write a FAISS file of all that is alive: the old one's vectors, the pending, and those of new documents.

        It is the same index, with its training, unless a factory is named ("auto": by the number of vectors).
        """
        state = self.state
        if factory is not None and factory != "auto":
            ann.try_factory(factory, state.dimension, parameters)
        old = None if state.file is None else ann.VectorFile(self.folder, state, mmap=False)
        tables.check_keys(self.tx, state, self.folder, None if old is None else old.keys, before=self._first_key)
        pending_keys, pending = tables.read_pending(self.tx, state, self.path)
        segments: list[Segment] = [(pending_keys, lambda: pending), *new]
        index = None
        if old is not None and factory is None and self._convert is None:
            index = ann.add(old.without(tables.read_dead(self.tx)), segments)
        else:
            alive = tables.vector_keys(self.tx, "key < ?", state.stop)
            segments = [*(old.segments(alive) if old else ()), *segments]
            if self._convert is not None:
                segments = converted(segments, self._convert)
            if old is not None and factory is None:
                factory, parameters = state.factory, state.parameters
            if any(len(keys) for keys, _ in segments):
                chosen = (factory or "auto", state.dimension, parameters, segments)
                made, state.factory, state.parameters = ann.trained(*chosen)
                index = ann.add(made, segments)
                ann.check_search(made, state.parameters, segments)
        expected = len(tables.vector_keys(self.tx))
        if index is not None and index.ntotal != expected:
            raise ValueError(f"the FAISS index holds {index.ntotal:,} of {expected:,} vectors; name another factory")
        self.tx.execute("DELETE FROM pending")
        self.tx.execute("DELETE FROM dead")
        state.pending, state.deleted, state.filed, state.stop, state.file = 0, 0, 0, 0, None
        if index is not None and index.ntotal:
            path = self.folder / f"vectors-{state.changes + 1}.faiss"
            state.bytes, state.sha256 = ann.save(path, index)
            state.file = path.name
            state.filed, state.stop = int(index.ntotal), state.next_key
        else:  # nothing is left that another index could be trained on
            state.factory, state.parameters = "Flat", None


def _loaded(corpus: Corpus, number: int, mask: NDArray[np.bool_], metric: str, whitening: Whitening | None) -> Matrix:
    vectors = corpus.vectors(number)
    used = vectors if mask.all() else vectors[mask]
    return ann.scaled(used, metric) if whitening is None else whitening.apply(used)


def _sweep(folder: Path, name: str | None) -> None:
    """Remove FAISS files of another name, of writers that were killed or failed; to be called by the one writer."""
    for path in folder.iterdir():
        if path.name != name and re.fullmatch(r"vectors-\d+\.faiss|\.vectors-.*\.tmp", path.name):
            with suppress(OSError):  # a mapped file, where those cannot be removed
                path.unlink()


@contextmanager
def changing(store: Store, fresh: State | None = None) -> Iterator[Writer]:
    """A change, which takes effect at the end of the ``with`` block; ``fresh``: the state of an index that is built."""
    refuse_links(store.folder)
    with store.writing(create=fresh is not None) as tx:
        try:
            before = tables.read_state(tx, store.path)
        except FileNotFoundError:
            if fresh is None:
                raise
            before = fresh
        # The numbers of files go on, and the old file stays until the new one counts.
        state, name = replace(fresh or before, changes=before.changes), before.file
        _sweep(store.folder, name)
        for table in () if fresh is None else ("documents", "pending", "dead", "truncated", "whitening"):
            tx.execute(f"DELETE FROM {table}")
        if fresh is not None:
            drop_words(tx)
        try:
            yield Writer(store, tx, state)
            state.changes, state.stamp = state.changes + 1, uuid.uuid4().hex
            tables.write_state(tx, state)
        except BaseException:
            _sweep(store.folder, name)
            raise
    if name is not None and name != state.file:
        # This one alone: what else is there may be of the writer that has the lock by now.
        with suppress(OSError):  # where a mapped file cannot be removed, the next writer does it
            (store.folder / name).unlink()


def _only_new(source: Source, store: Store, counts: Counter[str], *, upsert: bool) -> Source:
    """The records of a source that an index does not have; the others are counted as "unchanged"."""

    def read() -> Iterator[Document | Reject]:
        numbered = enumerate(source.read())
        while group := list(islice(numbered, _ASKED_TOGETHER)):
            given = {n: (one.text, to_json(one.metadata)) for n, one in group if isinstance(one, Document)}
            ids = [one.id for n, one in group if n in given and one.id is not None]
            hashes = {n: content_of(*given[n]) for n, one in group if n in given and one.id is None and not upsert}
            with store.reading() as tx:
                there = {one.id: (one.text, one.metadata) for one in documents_with(tx, "id", ids)}
                unnamed = {(one.content, one.text) for one in documents_with(tx, "content", hashes.values())}
            for number, record in group:
                same, reason = False, None
                if isinstance(record, Document):
                    if record.id is None:
                        same, reason = (hashes.get(number), record.text) in unnamed, _NO_ID if upsert else None
                    elif record.id in there:
                        same = there[record.id] == given[number]
                        reason = None if upsert else _THERE.format(record.id)
                    if reason is not None:
                        record = Reject(f"record {number}", reason, record.id, beginning(record.text))
                counts["unchanged"] += same
                if not same:
                    yield record

    return replace(source, read=read)


def take_in(
    store: Store,
    model: SentenceTransformer,
    source: Source | Corpus,
    *,
    strict: bool,
    upsert: bool = False,
    fresh: State | None = None,
    overwrite: bool = False,
    factory: str = "auto",
    parameters: str | None = None,
    whiten: bool | None = False,
    **running: Any,
) -> Change:
    """Take in documents, or what is new of them, or an encoded corpus; ``fresh`` is the state of an index to build."""
    counts, length = Counter[str](), longest_input(model)
    with one_writer(store.folder) as building:
        if fresh is not None:
            check_target(store, overwrite=overwrite)  # again: another build may have ended meanwhile
        state = fresh or store.state()
        if isinstance(source, Corpus):
            corpus, strict = source, False
            length = corpus.header()["settings"]["max_seq_length"]
        if length != (before := state.max_seq_length):
            raise ValueError(f"max_seq_length is {length}, but {before} in the index; set the model's to that")
        if not isinstance(source, Corpus):
            if fresh is None:
                source = _only_new(source.unique(numbers=False), store, counts, upsert=upsert)
            running |= {"passages": state.passages, "overwrite": True}
            encode_parts(model, source.strict() if strict else source, corpus := Corpus(building), **running)
        whitening = None
        if fresh is not None and is_to_be_whitened(model, whiten):
            whitening = Whitening.fit(model, sample_corpus(corpus, state.metric), state.metric)
            tell_what_was_fitted(whitening, store.folder, is_asked_for=whiten is True)
        with changing(store, fresh) as writer:
            if fresh is not None:
                writer.whiten(whitening)
            segments = writer.take(corpus, strict=strict)
            if fresh is None:
                writer.place(segments)
            elif not writer.state.documents:
                raise ValueError(describe_rejects(corpus.rejects()))
            else:
                writer.write_words()
                writer.fold(segments, factory, parameters)
    taken = writer.counts["added"] + writer.counts["replaced"]
    warn_of_truncation(store.folder, writer.counts["truncated"], taken, writer.state.max_seq_length)
    return Change(writer.state.documents, rejected=dict(writer.rejected), **counts, **writer.counts)
