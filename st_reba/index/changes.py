"""Changes of an index: documents are taken in, deleted, and folded into the FAISS file; one transaction each."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..corpus.folder import Corpus, Part, sha256, unusable
from ..corpus.records import Reject, beginning, to_json
from ..probe import Probe, check
from . import ann
from .ann import Segment
from .store import (
    Keys,
    Matrix,
    State,
    Store,
    Stored,
    content_of,
    damaged,
    documents,
    read_dead,
    read_pending,
    read_state,
    state_or_none,
    vector_keys,
    write_pending,
    write_state,
)
from .vectors import VectorFile, scaled

# Vectors beside the FAISS file, before they are folded in: so many, or this share of it, but not more than the last.
FEWEST_PENDING, PENDING_SHARE, MOST_PENDING = 1_000, 0.1, 20_000
_AT_A_TIME = 500

Kind = Literal["build", "add", "upsert", "delete", "compact"]


@dataclass(frozen=True)
class Change:
    """Outcome of a change."""

    kind: Kind
    count: int  # documents in the index, afterwards
    added: int = 0
    replaced: int = 0
    deleted: int = 0  # of "compact": vectors that are no longer on the disk
    unchanged: int = 0  # documents that were there already with the same text and metadata
    rejected: dict[str, int] = field(default_factory=dict)  # records that were set aside, by kind of reason


class Writer:
    """One change of an index, within its transaction; ``fresh``: a build, documents that were there go."""

    def __init__(self, store: Store, tx: sqlite3.Connection, state: State, *, fresh: bool) -> None:
        self.folder, self.path, self.tx, self.state = store.folder, store.path, tx, state
        self._old_name = None if state.file is None else str(state.file["name"])
        self._fresh = fresh
        self._first_key = state.next_key  # documents from this key on are of this change
        self.sweep()
        if fresh:
            for table in ("documents", "pending", "dead", "rejects"):
                tx.execute(f"DELETE FROM {table}")
            state.file = None

    def sweep(self) -> None:
        """Remove FAISS files that are not the index's: a writer was killed, or failed."""
        for path in [*self.folder.glob("vectors-*.faiss"), *self.folder.glob(".vectors-*.tmp")]:
            if path.name != self._old_name:
                path.unlink()

    def remove_old_file(self) -> None:
        """Remove the FAISS file that was replaced; readers keep what they have mapped."""
        if self._old_name is not None and self._old_name != (self.state.file or {}).get("name"):
            with suppress(OSError):  # where a mapped file cannot be removed, the next writer does it
                (self.folder / self._old_name).unlink()

    def insert(self, part: Part, first: int, bad: dict[int, Reject], *, upsert: bool, strict: bool) -> Taken:
        """Take in the documents of a part, but for those whose vector is bad; records are numbered from ``first``."""
        taken, vector, state = Taken(list(part.rejects)), 0, self.state
        first_key = state.next_key
        for start in range(0, len(part.rows), _AT_A_TIME):
            rows, new = part.rows[start : start + _AT_A_TIME], list[Stored]()
            ids = [str(first + row.record) if row.id is None else row.id for row in rows]
            there = {} if self._fresh else {one.id: one for one in documents(self.tx, "id", ids)}
            for number, (row, identity) in enumerate(zip(rows, ids, strict=True), start):
                if row.id is None and identity in there:
                    identity = self._free_id()
                old, vectors, vector = there.get(identity), range(vector, vector + row.vectors), vector + row.vectors
                same = old is not None and (old.text, old.metadata) == (row.text, row.metadata)
                replaces = old is not None and upsert and old.key < self._first_key
                if number in bad or (old is not None and not (same or replaces)):
                    reason = bad[number].reason if number in bad else already_there(identity)
                    taken.rejects.append(Reject(f"record {row.record}", reason, identity, beginning(row.text)))
                    if strict:
                        raise ValueError(str(taken.rejects[-1]))
                    continue
                if same:
                    taken.unchanged += 1
                    continue
                if old is not None:
                    self.remove(old)
                taken.replaced += old is not None
                taken.added += old is None
                spans = to_json(row.spans) if row.spans else None
                content = content_of(row.text, row.metadata) if row.id is None else None
                there[identity] = Stored.new(state.next_key, identity, row.metadata, spans, row.text, content)
                new.append(there[identity])
                taken.rows += vectors
                state.next_key += row.vectors
            self.tx.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)", new)
        taken.keys = np.arange(first_key, state.next_key)
        state.count += taken.added
        return taken

    def _free_id(self) -> str:
        """For a document whose number is another's id: the next number that is free."""
        while True:
            self.state.next_number += 1
            identity = str(self.state.next_number - 1)
            if not self.tx.execute("SELECT 1 FROM documents WHERE id = ?", (identity,)).fetchone():
                return identity

    def remove(self, document: Stored) -> None:
        """Delete a document; its vectors are dead, or no longer pending."""
        self.tx.execute("DELETE FROM documents WHERE key = ?", (document.key,))
        keys = [(key,) for key in document.keys]
        if document.key >= self.state.stop:
            self.tx.executemany("DELETE FROM pending WHERE key = ?", keys)
            self.state.pending -= len(keys)
        else:
            self.tx.executemany("INSERT INTO dead VALUES (?)", keys)
            self.state.dead += len(keys)

    def place(self, new: Sequence[Segment]) -> None:
        """Put new vectors among the pending, or if those would be too many, all of them into a new FAISS file."""
        count = sum(len(keys) for keys, _ in new)
        most = max(FEWEST_PENDING, min(PENDING_SHARE * (self.state.file or {"vectors": 0})["vectors"], MOST_PENDING))
        if self.state.pending + count > most:
            self.fold(new)
            return
        for keys, vectors in new:
            write_pending(self.tx, keys, vectors())
        self.state.pending += count

    def fold(self, new: Sequence[Segment] = (), factory: str | None = None, parameters: str | None = None) -> None:
        """Write a FAISS file of all that is alive: the old one's vectors, the pending, and those of new documents.

        It is the same index, with its training, unless a factory is named ("auto": by the number of vectors).
        """
        state, old, dead = self.state, open_file(self.folder, self.state, mmap=False), read_dead(self.tx)
        keys, pending = read_pending(self.tx, state, self.path)
        alive = vector_keys(self.tx, "key < ?", [state.stop])
        segments: list[Segment] = [(keys, lambda: pending), *new]
        index = None
        if old is not None and factory is None:
            index = ann.add(old.without(dead, alive), segments)
        else:
            segments = [*filed(old, alive), *segments]
            if count := sum(len(keys) for keys, _ in segments):
                state.factory = ann.choose_factory(count) if factory in (None, "auto") else str(factory)
                made = ann.make_index(state.factory, state.dim, parameters)
                state.parameters = parameters or ann.default_parameters(made)
                ann.train(made, segments, state.factory)
                index = ann.add(made, segments)
        for table in ("pending", "dead"):
            self.tx.execute(f"DELETE FROM {table}")
        state.pending, state.dead, state.file = 0, 0, None
        if index is not None and index.ntotal:
            path = self.folder / f"vectors-{state.generation + 1}.faiss"
            ann.save(path, index)
            about = {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}
            state.file = {**about, "vectors": int(index.ntotal), "stop": state.next_key}
        else:  # nothing is left that another index could be trained on
            state.factory, state.parameters = "Flat", None


@dataclass
class Taken:
    """Outcome of a part: what was set aside, and of what was taken the keys and the rows of the vectors."""

    rejects: list[Reject]
    keys: Keys = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: list[int] = field(default_factory=list)
    added: int = 0
    replaced: int = 0
    unchanged: int = 0


def already_there(identity: str) -> str:
    """Reason why a document cannot be added."""
    return (
        f"id in the index: {identity!r} is there already, with another text or metadata; replace that document with "
        "upsert, or give this one another id"
    )


def filed(file: VectorFile | None, alive: Keys) -> Iterator[Segment]:
    """Vectors of a FAISS file, a block at a time."""
    size = 2**16
    for start in range(0, len(alive) if file is not None else 0, size):
        keys = alive[start : start + size]
        yield keys, lambda keys=keys: file.vectors(keys)  # type: ignore[misc, union-attr]


def open_file(folder: Path, state: State, *, mmap: bool = True) -> VectorFile | None:
    """The FAISS file of a state; None: there is none."""
    if state.file is None:
        return None
    path = folder / state.file["name"]
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; build the index again")
    if (size := path.stat().st_size) != state.file["bytes"]:
        raise ValueError(damaged(path, f"{size} bytes, but {state.file['bytes']} were written"))
    found = VectorFile(path, state.dim, state.parameters, mmap=mmap)
    if found.count != state.file["vectors"]:
        raise ValueError(damaged(path, f"{found.count} vectors, but {state.file['vectors']} were written"))
    return found


def refuse_links(folder: Path) -> None:
    """Raise if a link is in a folder of ours: what is written or removed through it would be somebody else's."""
    for place, folders, files in os.walk(folder):
        if links := [path for name in (*folders, *files) if os.path.islink(path := os.path.join(place, name))]:
            raise ValueError(f"{links[0]}: a link, through which nothing is written; remove it, or put the file there")


@contextmanager
def changing(store: Store, fresh: State | None = None) -> Iterator[Writer]:
    """A change, which takes effect at the end of the ``with`` block; ``fresh``: the state of an index that is built."""
    refuse_links(store.folder)
    if fresh is None and not store.path.is_file():
        raise FileNotFoundError(f"{store.folder}: no index is there; st-reba index makes one")
    with store.writing() as tx:
        if fresh is None:
            state = read_state(tx, store.path)
        else:
            before = None
            with suppress(ValueError):  # a damaged one can be replaced
                before = state_or_none(tx, store.path)
            # The numbers of files go on, and the old file stays until the new one counts.
            state = replace(fresh, generation=before.generation, file=before.file) if before else fresh
        writer = Writer(store, tx, state, fresh=fresh is not None)
        try:
            yield writer
            state.generation += 1
            write_state(tx, state)
        except BaseException:
            writer.sweep()
            raise
    writer.remove_old_file()


def take_in(
    store: Store,
    corpus: Corpus,
    kind: Kind,
    *,
    strict: bool,
    fresh: State | None = None,
    factory: str | None = None,
    parameters: str | None = None,
) -> Change:
    """Take the documents of an encoded corpus into an index.

    Args:
        store, corpus, kind: Index, corpus, and kind of change: build, add or upsert.
        strict: Stop at the first document that cannot be taken.
        fresh, factory, parameters: State and FAISS index of an index that is built.
    """
    done, rejected, segments = Counter[str](), Counter[str](), list[Segment]()
    with changing(store, fresh) as writer:
        state = writer.state
        if fresh is None:  # another model's index may have taken the place of this one meanwhile
            check(Probe.from_json(state.model), Probe.from_json(corpus.header()["model"]), "the index")
        first, parts = state.next_number, corpus.parts()
        state.next_number += corpus.part(parts - 1).stop if parts else 0
        for number in range(parts):
            part, vectors = corpus.part(number), corpus.vectors(number)
            if len(vectors) != part.vectors or (part.vectors and vectors.shape[1] != state.dim):
                raise ValueError(damaged(corpus.vectors_path(number), f"{vectors.shape} for {part.vectors} texts"))
            taken = writer.insert(part, first, unusable(part, vectors), upsert=kind == "upsert", strict=strict)
            rows = [(state.generation + 1, one.place, one.reason, one.id, one.text) for one in taken.rejects]
            writer.tx.executemany("INSERT INTO rejects VALUES (?, ?, ?, ?, ?)", rows)
            rejected.update(reject.kind for reject in taken.rejects)
            done.update(added=taken.added, replaced=taken.replaced, unchanged=taken.unchanged)
            segments.append((taken.keys, _loader(corpus, number, taken.rows, state.metric)))
        if kind == "build":
            if not state.count:
                raise ValueError("there are no documents; an index needs at least one")
            writer.fold(segments, factory or "auto", parameters)
        elif done["added"] + done["replaced"]:
            writer.place(segments)
        count = state.count
    return Change(kind, count, done["added"], done["replaced"], 0, done["unchanged"], dict(rejected))


def _loader(corpus: Corpus, number: int, rows: list[int], metric: str) -> Callable[[], Matrix]:
    def load() -> Matrix:
        vectors: Any = corpus.vectors(number)
        return scaled(vectors if len(rows) == len(vectors) else vectors[rows], metric)

    return load


def delete(store: Store, ids: Iterable[str], missing: Literal["error", "ignore"]) -> Change:
    """Delete documents; arguments as for ``Index.delete``."""
    wanted = list(dict.fromkeys(ids))
    with changing(store) as writer:
        found = {one.id: one for one in documents(writer.tx, "id", wanted)}
        absent = [one for one in wanted if one not in found]
        if absent and missing == "error":
            shown = ", ".join(map(repr, absent[:5])) + (", …" if len(absent) > 5 else "")
            raise ValueError(
                f"{len(absent)} of {len(wanted)} ids are not in the index: {shown}; nothing was deleted. Leave them "
                "out, or ignore what is missing (--missing-ok)"
            )
        for document in found.values():
            writer.remove(document)
        writer.state.count -= len(found)
        count = writer.state.count
    return Change("delete", count, deleted=len(found))


def compact(store: Store, factory: str | None, parameters: str | None) -> tuple[Change, bool]:
    """Fold all vectors into one FAISS file; the change, and True if nobody was reading what was deleted."""
    with changing(store) as writer:
        dead, count = writer.state.dead, writer.state.count
        writer.fold((), factory, parameters)
    connection = store.writer()
    try:
        # What was deleted is then gone from the disk.
        connection.execute("VACUUM")
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        busy = 1
    finally:
        connection.close()
    return Change("compact", count, deleted=dead), not busy
