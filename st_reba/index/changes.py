"""What changes an index: documents are taken in, deleted, and folded into the FAISS file; one transaction each."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ..corpus.folder import Corpus, Part, sha256, unusable
from ..corpus.records import Reject, beginning, to_json
from ..fingerprint import ModelFingerprint, check
from .ann import Recipe, fill, save_faiss, write_flat, write_index
from .searcher import Searcher, without
from .store import (
    State,
    Store,
    Stored,
    Sums,
    by_ids,
    damaged,
    live_keys,
    read_dead,
    read_pending,
    read_state,
    write_rejects,
    write_state,
)  # fmt: skip
from .vectors import Keys, Matrix, Segment, Vectors, scaled
from .work import already_there, refuse_links

logger = logging.getLogger(__name__)

# Vectors outside of the FAISS file: so many, or this share of it, before they are folded in.
FEWEST_PENDING, PENDING_SHARE = 1_000, 0.1
_AT_A_TIME = 500

Kind = Literal["build", "add", "upsert", "delete", "compact"]


@dataclass(frozen=True)
class Change:
    """What a change of an index came to.

    Args:
        kind: "build", "add", "upsert", "delete" or "compact".
        count: Documents in the index, afterwards.
        added: New documents.
        replaced: Documents that took the place of another with the same id.
        deleted: Documents that are no longer there; of "compact": vectors that are no longer on the disk.
        unchanged: Documents that were there already with the same text and metadata: they were left as they are.
        rejected: Records that were set aside, by kind of reason; `Index.rejects` has them.
        repeated: The same addition had taken effect already, so nothing was done.
        why: Why the factory was chosen, if it was.
    """

    kind: Kind
    count: int
    added: int = 0
    replaced: int = 0
    deleted: int = 0
    unchanged: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    repeated: bool = False
    why: str | None = None


class Writer:
    """One change of an index, within its transaction.

    Args:
        store: The store.
        tx: The transaction.
        state: The state before.
    """

    def __init__(self, store: Store, tx: sqlite3.Connection, state: State) -> None:
        self.folder, self.tx = store.folder, tx
        self.state = state
        self.sums = Sums(state.sums)
        self.old_file = None if state.file is None else str(state.file["name"])
        # Documents from this key on are of this change.
        self._first_key = state.next_key
        self.sweep()

    def sweep(self) -> None:
        """Remove FAISS files that are not the index's: a writer was killed, or failed."""
        for path in [*self.folder.glob("vectors-*.faiss"), *self.folder.glob(".vectors-*.tmp")]:
            if path.name != self.old_file:
                path.unlink()

    def clear(self) -> None:
        """Forget all documents."""
        for table in ("documents", "pending", "dead", "rejects", "additions"):
            self.tx.execute(f"DELETE FROM {table}")
        for table in ("documents", "pending", "dead"):
            self.sums.clear(table)
        self.state.file = None

    # Documents

    def insert(self, part: Part, first_number: int, bad: dict[int, Reject], *, upsert: bool, strict: bool) -> Taken:
        """Take in the documents of a part, but for those whose vector is bad."""
        taken = Taken(list(part.rejects))
        vector, first_key = 0, self.state.next_key
        for start in range(0, len(part.rows), _AT_A_TIME):
            rows = part.rows[start : start + _AT_A_TIME]
            ids = [str(first_number + row.record) if row.id is None else row.id for row in rows]
            there, new = by_ids(self.tx, ids), list[Stored]()
            for number, (row, identity) in enumerate(zip(rows, ids, strict=True), start):
                old, reject = there.get(identity), bad.get(number)
                if row.id is None and old is not None:
                    old = None
                    if reject is None:
                        self._write(new)
                        identity = self._free_id()
                if old is not None and old.key >= self._first_key:
                    reason = f"id used twice: {old.id!r} is another document's of the same input; give each its own id"
                    reject = Reject(f"record {row.record}", reason, old.id, beginning(row.text))
                same = old is not None and (old.text, old.metadata) == (row.text, row.metadata)
                if reject is None and old is not None and not same and not upsert:
                    reject = Reject(f"record {row.record}", already_there(old.id), old.id, beginning(row.text))
                if reject is not None:
                    if strict:
                        raise ValueError(str(reject))
                    taken.rejects.append(reject)
                elif same:
                    taken.unchanged += 1
                else:
                    if old is not None:
                        self.remove(old)
                    taken.replaced += old is not None
                    taken.added += old is None
                    spans = to_json(row.spans) if row.spans else None
                    there[identity] = one = Stored(self.state.next_key, identity, row.metadata, spans, row.text)
                    new.append(one)
                    taken.rows += range(vector, vector + row.vectors)
                    self.state.next_key += row.vectors
                vector += row.vectors
            self._write(new)
        taken.keys = np.arange(first_key, self.state.next_key)
        self.state.count += taken.added
        return taken

    def _write(self, new: list[Stored]) -> None:
        """Insert documents, and forget that they were to be."""
        self.tx.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", new)
        self.sums.change("documents", new)
        new.clear()

    def _free_id(self) -> str:
        """For a document whose number was given to another as its id: the next number that is free."""
        while True:
            self.state.next_number += 1
            identity = str(self.state.next_number - 1)
            if not self.tx.execute("SELECT 1 FROM documents WHERE id = ?", (identity,)).fetchone():
                return identity

    def remove(self, document: Stored) -> None:
        """Delete a document; its vectors are dead, or no longer pending."""
        self.tx.execute("DELETE FROM documents WHERE key = ?", (document.key,))
        self.sums.change("documents", [document], -1)
        for key in document.keys:
            if key >= self.state.stop:
                # Those who have it in memory are told as well.
                (vector,) = self.tx.execute("SELECT vector FROM pending WHERE key = ?", (key,)).fetchone()
                self.tx.execute("DELETE FROM pending WHERE key = ?", (key,))
                self.sums.change("pending", [(key, vector)], -1)
                self.state.pending -= 1
        self._bury(document.keys)
        self.state.dead += len(document.keys)

    def _bury(self, keys: Iterable[int]) -> None:
        rows = [(key,) for key in keys]
        self.tx.executemany("INSERT INTO dead VALUES (?)", rows)
        self.sums.change("dead", rows)

    # Vectors

    def place(self, new: Vectors, *, show: bool | None) -> None:
        """Put new vectors among the pending, or where those would be too many, all of them into a new FAISS file."""
        filed = 0 if self.state.file is None else self.state.file["vectors"]
        if self.state.pending + new.count > max(FEWEST_PENDING, PENDING_SHARE * filed):
            self.fold(new, show=show)
            return
        start = 0
        for block in new.blocks():
            rows = [
                (int(key), vector.astype("<f4").tobytes())
                for key, vector in zip(new.keys[start : start + len(block)], block, strict=True)
            ]
            self.tx.executemany("INSERT INTO pending VALUES (?, ?)", rows)
            self.sums.change("pending", rows)
            start += len(block)
        self.state.pending += new.count

    def fold(self, new: Vectors | None = None, recipe: Recipe | None = None, *, show: bool | None = None) -> str | None:
        """Write a FAISS file of all that is alive: what the old one holds, the pending vectors, and new ones.

        Args:
            new: Vectors whose documents were just inserted.
            recipe: Another FAISS index; None: the same, with its training and its codes.
            show: Show a bar; None: on a terminal.

        Returns:
            Why the factory was chosen, if it was.
        """
        state, why = self.state, None
        old = open_file(self.folder, state)
        dead, _ = read_dead(self.tx)
        dead = np.sort(dead[dead < state.stop])
        keys, pending = read_pending(self.tx, state.dim)
        more = [Segment(keys, lambda rows: pending[rows]), *(() if new is None else new.segments)]
        path = self.folder / f"vectors-{state.generation + 1}.faiss"
        kept: Keys = np.zeros(0, np.int64)
        if recipe is None and old is not None and not old.is_flat:
            added = Vectors(more, state.dim)
            count = old.count - len(dead) + added.count
            if count:
                index, kept = self._without(dead)
                index = fill(index, added.blocks(), added.keys)
                save_faiss(path, index)
                count = int(index.ntotal)
        else:
            vectors = Vectors([*filed(self.tx, old, state.stop, dead), *more], state.dim)
            count = vectors.count
            if count and recipe is None:
                write_flat(path, vectors.blocks(), vectors.keys, state.dim)
            elif count:
                found, why, recall = write_index(path, vectors, recipe or Recipe(), show=show)
                state.factory, state.parameters = found.factory, found.parameters
                state.recall = None if recall is None else recall.to_json()
        for table in ("pending", "dead"):
            self.tx.execute(f"DELETE FROM {table}")
            self.sums.clear(table)
        self._bury(kept.tolist())
        state.pending, state.dead, state.file = 0, len(kept), None
        state.folds += 1
        if count:
            about = {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}
            state.file = {**about, "vectors": count, "stop": state.next_key}
        else:  # nothing is left that another index could be trained on
            state.factory, state.parameters, state.recall = "Flat", None, None
        return why

    def _without(self, dead: Keys) -> tuple[Any, Keys]:
        """The index of the file, in memory, without dead keys; and those that had to stay in it."""
        loaded = open_file(self.folder, self.state, mmap=False)
        assert loaded is not None
        index = without(loaded, dead)
        if index is not None:
            return index, np.zeros(0, np.int64)
        try:
            (segment,) = filed(self.tx, loaded, self.state.stop, dead)
            vectors = segment.load(np.arange(len(segment.keys)))
        except ValueError:
            logger.warning("%s: an index of this kind cannot lose vectors, so deleted ones stay in it", self.folder)
            return loaded.whole, dead
        loaded.whole.reset()
        return fill(loaded.whole, [vectors], segment.keys), np.zeros(0, np.int64)


@dataclass
class Taken:
    """What came of a part: what was set aside, and of what was taken the keys and the rows of the vectors."""

    rejects: list[Reject]
    keys: Keys = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: list[int] = field(default_factory=list)
    added: int = 0
    replaced: int = 0
    unchanged: int = 0


def filed(tx: sqlite3.Connection, searcher: Searcher | None, stop: int, dead: Keys) -> list[Segment]:
    """What a FAISS file, of keys below ``stop``, holds and is alive."""
    if searcher is None:
        return []
    keys = live_keys(tx) if searcher.keys is None else searcher.keys
    keys = np.setdiff1d(keys[keys < stop], dead, assume_unique=True)
    return [Segment(keys, lambda rows: searcher.vectors(keys[rows]))]


def open_file(folder: Path, state: State, *, mmap: bool = True) -> Searcher | None:
    """The FAISS file of a state; None: there is none.

    Raises:
        FileNotFoundError: It is missing.
        ValueError: It is damaged.
    """
    if state.file is None:
        return None
    path = folder / state.file["name"]
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file; build the index again") from None
    if not path.is_file() or size != state.file["bytes"]:
        raise ValueError(damaged(path, f"{size} bytes, but {state.file['bytes']} were written"))
    found = Searcher(path, state.dim, state.parameters, mmap=mmap)
    if found.count != state.file["vectors"]:
        raise ValueError(damaged(path, f"{found.count} vectors, but {state.file['vectors']} were written"))
    return found


@contextmanager
def changing(store: Store, fresh: State | None = None) -> Iterator[Writer]:
    """A change, which takes effect at the end of the ``with`` block.

    Args:
        store: The store.
        fresh: The state of an index that is built; None: the one that is there is changed.
    """
    if fresh is None and not store.path.is_file():
        raise FileNotFoundError(no_index(store.folder))
    refuse_links(store.folder)
    with store.writing() as tx:
        state = read_state(tx, store.path) if fresh is None else _readable(tx, store.path)
        if fresh is not None:
            # The numbers of files go on, and the old file stays until the new one counts.
            generation, file = (0, None) if state is None else (state.generation, state.file)
            state = replace(fresh, generation=generation, file=file)
        if state is None:
            raise FileNotFoundError(no_index(store.folder))
        writer = Writer(store, tx, state)
        try:
            if fresh is not None:
                writer.clear()
            yield writer
            state.generation += 1
            state.sums = writer.sums.to_json()
            write_state(tx, state)
        except BaseException:
            writer.sweep()
            raise
    # Readers keep what they have mapped; where the system does not allow that, the next writer removes it.
    if writer.old_file is not None and writer.old_file != (state.file or {}).get("name"):
        with suppress(OSError):
            (store.folder / writer.old_file).unlink()


def no_index(folder: Path) -> str:
    """What is said where there is none."""
    return f"{folder}: no index is there; st-reba index build makes one"


def _readable(tx: sqlite3.Connection, path: Path) -> State | None:
    """The state that is replaced; a damaged one is as none."""
    with suppress(ValueError):
        return read_state(tx, path)
    return None


def take_in(
    store: Store,
    corpora: Sequence[Corpus],
    kind: Kind,
    *,
    strict: bool = True,
    fresh: State | None = None,
    recipe: Recipe | None = None,
    show: bool | None = None,
) -> Change:
    """Take the documents of encoded corpora into an index.

    Args:
        store: The index.
        corpora: The corpora.
        kind: "build", "add" or "upsert".
        strict: Stop at the first document that cannot be taken.
        fresh: The state of an index that is built.
        recipe: Its FAISS index.
        show: Show a bar; None: on a terminal.

    Returns:
        What was done.
    """
    done, rejected, segments, why = Counter[str](), Counter[str](), [], None
    with changing(store, fresh) as writer:
        for corpus in corpora:
            header = corpus.header()
            if (token := header.get("token")) is not None:
                if writer.tx.execute("SELECT 1 FROM additions WHERE token = ?", (token,)).fetchone():
                    return Change(kind, writer.state.count, repeated=True)
                writer.tx.execute("INSERT OR REPLACE INTO additions VALUES (?, ?)", (header["digest"], token))
            if kind != "build":
                # Another model's index may have taken the place of this one meanwhile.
                made = ModelFingerprint.from_json(header["model"])
                check(ModelFingerprint.from_json(writer.state.model), made, "the index")
            first = writer.state.next_number
            for number in range(corpus.parts()):
                part, vectors = corpus.part(number), corpus.vectors(number)
                writer.state.next_number = max(writer.state.next_number, first + part.stop)
                if len(vectors) != (wanted := part.vectors) or (wanted and vectors.shape[1] != writer.state.dim):
                    raise ValueError(damaged(corpus.vectors_path(number), f"{vectors.shape} for {wanted} texts"))
                taken = writer.insert(
                    part, first, dict(unusable(part, vectors)), upsert=kind == "upsert", strict=strict
                )
                write_rejects(writer.tx, writer.state.generation + 1, taken.rejects)
                rejected.update(reject.kind for reject in taken.rejects)
                done.update(added=taken.added, replaced=taken.replaced, unchanged=taken.unchanged)
                segments.append(_segment(corpus, number, taken, writer.state.metric))
        new = Vectors(segments, writer.state.dim)
        if kind == "build":
            if not new.count:
                raise ValueError("there are no documents; an index needs at least one")
            why = writer.fold(new, recipe, show=show)
        elif new.count:
            writer.place(new, show=show)
        writer.state.last_addition = corpora[-1].header().get("digest")
        count = writer.state.count
    return Change(kind, count, rejected=dict(rejected), why=why, **cast(Any, done))


def _segment(corpus: Corpus, number: int, taken: Taken, metric: str) -> Segment:
    rows = np.array(taken.rows, np.int64)

    def load(wanted: Keys) -> Matrix:
        return scaled(corpus.vectors(number)[rows[wanted]], metric)

    return Segment(taken.keys, load)


def delete(store: Store, ids: Iterable[str], missing: Literal["error", "ignore"]) -> Change:
    """Delete documents; arguments as for ``Index.delete``."""
    wanted = list(dict.fromkeys(ids))
    with changing(store) as writer:
        found: dict[str, Stored] = {}
        for start in range(0, len(wanted), _AT_A_TIME):
            found |= by_ids(writer.tx, wanted[start : start + _AT_A_TIME])
        absent = [one for one in wanted if one not in found]
        if absent and missing == "error":
            shown = ", ".join(repr(one) for one in absent[:5]) + (", …" if len(absent) > 5 else "")
            raise ValueError(
                f"{len(absent)} of {len(wanted)} ids are not in the index: {shown}; nothing was deleted. Leave them "
                "out, or give missing='ignore' (--missing)"
            )
        for document in found.values():
            writer.remove(document)
        writer.state.count -= len(found)
        writer.state.last_addition = None
        count = writer.state.count
    return Change("delete", count, deleted=len(found))


def compact(store: Store, recipe: Recipe | None, show: bool | None) -> Change:
    """Fold all vectors into one FAISS file; arguments as for ``Index.compact``."""
    with changing(store) as writer:
        dead = writer.state.dead
        if recipe is not None:
            recipe.check(writer.state.dim, writer.state.count or None)
        why = writer.fold(recipe=recipe, show=show)
        count = writer.state.count
    connection = store.connect(write=True)
    try:
        # What was deleted is then gone from the disk.
        connection.execute("VACUUM")
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        busy = 1
    finally:
        connection.close()
    if busy:
        logger.warning(
            "%s: it is being read, so what was deleted stays on the disk until it is compacted again", store.folder
        )
    return Change("compact", count, deleted=dead, why=why)
