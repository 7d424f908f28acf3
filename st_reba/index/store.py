"""The SQLite file of an index: documents, what is not yet in the FAISS file, and the one commit protocol.

    documents   key, id, metadata (JSON), spans (JSON: bounds of passages; NULL: the text is one), text
    pending     key, vector: vectors (float32, scaled) that are searched by brute force until they are folded in
    dead        keys that the FAISS file has and the documents no longer
    rejects     what was set aside, by the generation that did
    additions   what has taken effect: the digest of its input, and the token of its work folder
    meta        one row: the `State` as JSON, and its SHA-256

A document of n passages takes n keys, its own and the n − 1 after it. Keys are never used twice.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..corpus.records import Document, Reject, clean_text, to_json
from .vectors import Keys, Matrix

FILE = "index.sqlite"
FORMAT = 1
_WAIT_SECONDS = 30
_MODULUS = 1 << 256
_SCHEMA = """
CREATE TABLE documents (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, spans TEXT, text TEXT NOT NULL
);
CREATE TABLE pending (key INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE dead (key INTEGER NOT NULL);
CREATE TABLE rejects (
    generation INTEGER NOT NULL, place TEXT NOT NULL, reason TEXT NOT NULL, id TEXT, text TEXT
);
CREATE TABLE additions (digest TEXT PRIMARY KEY, token TEXT NOT NULL);
CREATE TABLE meta (state TEXT NOT NULL, sha256 TEXT NOT NULL);
"""


@dataclass
class State:
    """All that an index knows of itself besides its documents.

    Args:
        model: The fingerprint of the model, as JSON.
        metric: "cosine" or "dot".
        dim: Dimension of the vectors.
        factory: The FAISS factory string.
        parameters: FAISS search parameters.
        recall: What was measured when the FAISS index was trained; None: the search is exact.
        model_source: A Hub id, or a folder relative to the index.
        reading: The columns of the text and the id, and passages, to be used again.
        generation: Grows by one with each change.
        count: Documents.
        next_key: The key of the next document.
        next_number: The id of the next document that has none.
        file: The FAISS file: name, bytes, sha256, vectors, and stop, the key behind its last.
        pending: Vectors in ``pending``.
        dead: Keys in ``dead``.
        folds: How often pending vectors were folded in: ``pending`` and ``dead`` then begin anew.
        last_addition: The digest of the input of the last change, if that added documents.
        sums: Of each table, the sum of its rows' SHA-256: it changes with a row, whatever their order.
    """

    model: dict[str, Any]
    metric: str
    dim: int
    factory: str = "Flat"
    parameters: str | None = None
    recall: dict[str, Any] | None = None
    model_source: str | None = None
    reading: dict[str, str | None] = field(default_factory=dict)
    generation: int = 0
    count: int = 0
    next_key: int = 0
    next_number: int = 0
    file: dict[str, Any] | None = None
    pending: int = 0
    dead: int = 0
    folds: int = 0
    last_addition: str | None = None
    sums: dict[str, str] = field(default_factory=lambda: {"documents": "0", "pending": "0", "dead": "0"})

    @property
    def stop(self) -> int:
        """The key behind the last one of the FAISS file."""
        return 0 if self.file is None else int(self.file["stop"])

    @property
    def passages(self) -> str | None:
        """How texts are cut; None: they are not."""
        return self.reading.get("passages")


class Store:
    """The SQLite file of an index folder; safe from several threads, and after a fork.

    Args:
        folder: The index folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        self._local = threading.local()
        self._open: list[tuple[int, threading.Thread, sqlite3.Connection]] = []
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file for the time of the ``with`` block, whatever writers do."""
        connection = self._connection()
        if connection.in_transaction:
            yield connection
            return
        with self._errors():
            connection.execute("BEGIN")
        try:
            with self._errors():
                yield connection
        finally:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The one writer; what is done within the ``with`` block takes effect at its end, or not at all.

        Raises:
            BlockingIOError: Another process is writing.
            OSError: The disk is full, or the folder may not be written.
        """
        with self._errors():
            connection = self.connect(write=True)
        try:
            with self._errors():
                connection.execute("BEGIN IMMEDIATE")
                if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                    for statement in _SCHEMA.split(";"):
                        connection.execute(statement)
                yield connection
                connection.execute("COMMIT")
        finally:
            connection.close()

    def connect(self, *, write: bool = False) -> sqlite3.Connection:
        """A new connection, which the caller closes."""
        uri = self.path.absolute().as_uri()
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "timeout": _WAIT_SECONDS}
        if write:
            writer: sqlite3.Connection = sqlite3.connect(f"{uri}?mode=rwc", uri=True, **options)
            # Deleted texts are overwritten, and pages that are free given back by `compact`.
            for setting in ("journal_mode = WAL", "synchronous = FULL", "trusted_schema = OFF", "secure_delete = ON"):
                writer.execute(f"PRAGMA {setting}")
            return writer
        connection: sqlite3.Connection = sqlite3.connect(f"{uri}?mode=rw", uri=True, **options)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            log = self.path.with_name(f"{FILE}-wal")
            if not self.path.is_file() or (log.exists() and log.stat().st_size):
                raise
            # A folder that cannot be written to, with no writer: the file is all there is.
            connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, **options)
        return connection

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise ValueError("the index is closed; open it again")
        mine = getattr(self._local, "mine", None)
        if mine is None or mine[0] != os.getpid():  # a connection must not be carried across a fork
            with self._errors():
                mine = self._local.mine = (os.getpid(), self.connect())
            self._close_if(lambda owner, thread: owner == os.getpid() and not thread.is_alive())
            self._open.append((os.getpid(), threading.current_thread(), mine[1]))
        connection: sqlite3.Connection = mine[1]
        return connection

    def close(self) -> None:
        """Close the connections of all threads."""
        self._closed = True
        self._close_if(lambda owner, thread: owner == os.getpid())

    def _close_if(self, unused: Callable[[int, threading.Thread], bool]) -> None:
        for one in list(self._open):
            if unused(*one[:2]):
                with suppress(ValueError):  # another thread was quicker
                    self._open.remove(one)
                    one[2].close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors in the words of an index."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.OperationalError as error:
            said = str(error)
            if "locked" in said:
                raise BlockingIOError(
                    f"{self.folder}: another process is writing here, and there may be only one; run the same again "
                    "when it has ended: what was encoded is kept"
                ) from None
            if "full" in said:
                raise OSError(errno.ENOSPC, f"{said}; free space, then run the same again", str(self.path)) from error
            if "readonly" in said or "unable to open" in said:
                if not self.path.exists():
                    raise FileNotFoundError(f"{self.path}: no such file") from None
                raise PermissionError(
                    errno.EACCES, f"{said}; make the folder readable and writable, or copy it", str(self.path)
                ) from error
            if "disk I/O" in said:
                raise OSError(errno.EIO, f"{said}; look after the disk", str(self.path)) from error
            raise ValueError(damaged(self.path, error)) from error
        except sqlite3.DatabaseError as error:
            raise ValueError(damaged(self.path, error)) from error


def damaged(path: Path, why: object) -> str:
    """What is said of a file that is not what it should be."""
    return f"{path}: damaged, or not of an index ({why}); build the index again"


# The state


def read_state(tx: sqlite3.Connection, path: Path) -> State | None:
    """The state; None: nothing was committed yet.

    Raises:
        ValueError: It is not what was written.
    """
    if not tx.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        if tx.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise ValueError(damaged(path, "it has other tables"))
        return None
    row = tx.execute("SELECT state, sha256 FROM meta").fetchone()
    if row is None:
        return None
    try:
        text, digest = str(row[0]), row[1]
        if hashlib.sha256(text.encode()).hexdigest() != digest:
            raise ValueError("its state is not what was written")
        value = json.loads(text)
        if value.pop("format", None) != FORMAT:
            raise ValueError("its format is of another version of st_reba")
        state = State(**value)
        name = "x" if state.file is None else state.file["name"]
        if Path(name).name != name:
            raise ValueError(f"the file {name!r} is not in the folder")
        return state
    except (ValueError, TypeError, KeyError, UnicodeError) as error:
        raise ValueError(damaged(path, error)) from None


def write_state(tx: sqlite3.Connection, state: State) -> None:
    """Replace the state."""
    text = to_json({"format": FORMAT, **asdict(state)})
    tx.execute("DELETE FROM meta")
    tx.execute("INSERT INTO meta VALUES (?, ?)", (text, hashlib.sha256(text.encode()).hexdigest()))


class Sums:
    """The sums of tables while rows come and go."""

    def __init__(self, sums: Mapping[str, str]) -> None:
        self._sums = {name: int(value, 16) for name, value in sums.items()}

    def change(self, table: str, rows: Iterable[Sequence[Any]], sign: int = 1) -> None:
        """Count rows that are inserted (1) or deleted (−1)."""
        self._sums[table] = (self._sums[table] + sign * sum(map(row_digest, rows))) % _MODULUS

    def clear(self, table: str) -> None:
        """Forget the rows of a table."""
        self._sums[table] = 0

    def to_json(self) -> dict[str, str]:
        """What the state keeps."""
        return {name: f"{value:x}" for name, value in self._sums.items()}


def row_digest(row: Sequence[Any]) -> int:
    """SHA-256 of the columns of a row, as a number."""
    columns = [
        value if type(value) is bytes else b"" if value is None else str(value).encode("utf-8", "replace")
        for value in row
    ]
    lengths = ",".join(map(str, map(len, columns))).encode()
    return int.from_bytes(hashlib.sha256(b":".join([lengths, *columns])).digest(), "little")


# Documents


class Stored(NamedTuple):
    """A document with its key."""

    key: int
    id: str
    metadata: str
    spans: str | None
    text: str

    @property
    def keys(self) -> range:
        """The keys of its vectors."""
        return range(self.key, self.key + (1 if self.spans is None else len(json.loads(self.spans)) // 2))

    def bounds(self, key: int) -> tuple[int, int]:
        """Where the passage with one of these keys begins and ends, in characters."""
        bounds = [0, len(self.text)] if self.spans is None else json.loads(self.spans)
        start, stop = bounds[2 * (key - self.key) :][:2]
        return int(start), int(stop)

    def document(self, path: Path) -> Document:
        """For who asks."""
        try:
            return Document(self.text, self.id, json.loads(self.metadata))
        except ValueError as error:
            raise ValueError(damaged(path, error)) from None


COLUMNS = ", ".join(Stored._fields)


def by_ids(tx: sqlite3.Connection, ids: Iterable[str]) -> dict[str, Stored]:
    """Documents by id, those that are there."""
    # Ids that no file can hold are not there.
    wanted = [one for one in ids if isinstance(one, str) and clean_text(one) == one]
    rows = tx.execute(
        f"SELECT {COLUMNS} FROM documents WHERE id IN (SELECT value FROM json_each(?))", (to_json(wanted),)
    )
    return {row[1]: Stored(*row) for row in rows}


def by_keys(tx: sqlite3.Connection, keys: Iterable[int], columns: str = COLUMNS) -> dict[int, tuple[Any, ...]]:
    """Columns of documents, of which the first is the key, by that key."""
    rows = tx.execute(
        f"SELECT {columns} FROM documents WHERE key IN (SELECT value FROM json_each(?))", (to_json(list(keys)),)
    )
    return {row[0]: row for row in rows}


def owners(tx: sqlite3.Connection, keys: Iterable[int]) -> dict[int, int]:
    """The key of the document that each vector's key belongs to."""
    query = "SELECT value, (SELECT MAX(key) FROM documents WHERE key <= value) FROM json_each(?)"
    return dict(tx.execute(query, (to_json(list(keys)),)).fetchall())


def live_keys(tx: sqlite3.Connection) -> Keys:
    """The keys of the vectors of all documents, in order."""
    found: list[int] = []
    for key, spans in tx.execute("SELECT key, spans FROM documents ORDER BY key"):
        found += Stored(key, "", "", spans, "").keys if spans else (key,)
    return np.array(found, np.int64)


def write_rejects(tx: sqlite3.Connection, generation: int, rejects: Iterable[Reject]) -> None:
    """Keep what was set aside."""
    rows = ((generation, one.place, one.reason, one.id, one.text) for one in rejects)
    tx.executemany("INSERT INTO rejects VALUES (?, ?, ?, ?, ?)", rows)


def read_pending(tx: sqlite3.Connection, dim: int, after: int = -1) -> tuple[Keys, Matrix]:
    """The pending vectors with keys above one: keys [n] and vectors [n, dim]."""
    rows = tx.execute("SELECT key, vector FROM pending WHERE key > ? ORDER BY key", (after,)).fetchall()
    keys = np.array([key for key, _ in rows], np.int64)
    vectors = np.frombuffer(b"".join(blob for _, blob in rows), "<f4").reshape(len(rows), dim)
    return keys, np.asarray(vectors, np.float32)


def read_dead(tx: sqlite3.Connection, after: int = 0) -> tuple[Keys, int]:
    """Dead keys behind a row number, and the number of the last row."""
    rows = tx.execute("SELECT rowid, key FROM dead WHERE rowid > ? ORDER BY rowid", (after,)).fetchall()
    return np.array([key for _, key in rows], np.int64), rows[-1][0] if rows else after
