"""SQLite file of an index: documents, pending vectors, and the state. Its transactions are the only commit.

An index folder holds ``index.sqlite`` and one file ``vectors-N.faiss``, whose ids are keys of documents. Vectors that
were added since it was written are pending; keys that were deleted since are dead. Both are folded into a new file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..corpus.records import Document, to_json

FILE = "index.sqlite"
FORMAT = 3
_WAIT_SECONDS = 30
_SCHEMA = """
CREATE TABLE documents (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, spans TEXT, text TEXT NOT NULL,
    content INTEGER, crc INTEGER NOT NULL
);
CREATE INDEX documents_content ON documents (content) WHERE content IS NOT NULL;
CREATE TABLE pending (key INTEGER PRIMARY KEY, crc INTEGER NOT NULL, vector BLOB NOT NULL);
CREATE TABLE dead (key INTEGER PRIMARY KEY);
CREATE TABLE rejects (generation INTEGER NOT NULL, place TEXT NOT NULL, reason TEXT NOT NULL, id TEXT, text TEXT);
CREATE TABLE meta (state TEXT NOT NULL, sha256 TEXT NOT NULL)
"""

# SQLite's errors, the kinds of OSError that they become, and remedies.
_WRITABLE = "make the folder readable and writable, or copy it"
_ERRORS = {
    sqlite3.SQLITE_BUSY: (errno.EAGAIN, "another process is writing here; run the same again when it has ended"),
    sqlite3.SQLITE_FULL: (errno.ENOSPC, "free space, then run the same again"),
    sqlite3.SQLITE_READONLY: (errno.EACCES, _WRITABLE),
    sqlite3.SQLITE_CANTOPEN: (errno.EACCES, _WRITABLE),
    sqlite3.SQLITE_IOERR: (errno.EIO, "check the disk, and the space on it"),
}
# Lines move when a file is edited: a text without an id is known by its file.
_LINE = re.compile(r'^(\{"file": .*), "line": \d+\}$')

Matrix = NDArray[np.float32]
Keys = NDArray[np.int64]


@dataclass
class State:
    """State of an index besides its documents."""

    model: dict[str, Any]  # probe of the model, as JSON
    metric: str
    dim: int
    factory: str = "Flat"
    parameters: str | None = None
    columns: dict[str, str | None] = field(default_factory=dict)  # of the text and the id, to be used again
    passages: str | None = None
    generation: int = 0  # grows by one with each change
    count: int = 0  # of documents
    next_key: int = 0
    next_number: int = 0  # the id of the next document that has none
    file: dict[str, Any] | None = None  # name, bytes, sha256, vectors, and stop: the key behind its last
    pending: int = 0
    dead: int = 0

    @property
    def stop(self) -> int:
        """The key behind the last one of the FAISS file."""
        return 0 if self.file is None else int(self.file["stop"])


class Store:
    """The SQLite file of an index folder. Every transaction has a connection of its own: threads and forks are safe."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE
        # It does nothing: while one connection is open, others do not clear SQLite's log away when they are closed.
        self._idle: sqlite3.Connection | None = None
        self._owner = os.getpid()

    def close(self) -> None:
        """Let go of the file."""
        if self._idle is not None and self._owner == os.getpid():  # a connection must not be used after a fork
            self._idle.close()
        self._idle = None

    def __del__(self) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file for the time of the ``with`` block, whatever writers do."""
        with self._errors(), closing(self._reader()) as connection:
            if self._idle is None:
                self._idle = self._reader()
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The one writer; the ``with`` block takes effect at its end, or not at all."""
        with self._errors(), closing(self.writer()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
            yield connection
            connection.execute("COMMIT")

    def writer(self) -> sqlite3.Connection:
        """A new connection that may write, which the caller closes."""
        connection = self._connect("rwc")
        # Deleted texts are overwritten.
        for setting in ("journal_mode = WAL", "synchronous = FULL", "trusted_schema = OFF", "secure_delete = ON"):
            connection.execute(f"PRAGMA {setting}")
        return connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_WAIT_SECONDS)

    def _reader(self) -> sqlite3.Connection:
        connection = self._connect("rw")
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            log = self.path.with_name(f"{FILE}-wal")
            if not self.path.is_file() or (log.exists() and log.stat().st_size):
                raise
            # A folder that cannot be written to, with no writer: the file is all there is.
            connection = self._connect("ro&immutable=1")
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors as those of an index."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0)
            number, remedy = _ERRORS.get(code & 0xFF, (0, ""))
            if not number or code == sqlite3.SQLITE_IOERR_SHORT_READ:  # the file is shorter than it says
                raise ValueError(damaged(self.path, error)) from error
            raise OSError(
                number if self.path.exists() else errno.ENOENT, f"{error}; {remedy}", str(self.path)
            ) from error


def damaged(path: Path, why: object) -> str:
    """Message about a file that is not what was written."""
    return f"{path}: damaged, or not of an index ({why}); build the index again"


def state_or_none(tx: sqlite3.Connection, path: Path) -> State | None:
    """The state; None: nothing was committed yet. A ValueError: it is not what was written."""
    tables = [name for (name,) in tx.execute("SELECT name FROM sqlite_master")]
    if not tables:
        return None
    if "meta" not in tables:
        raise ValueError(damaged(path, "it has other tables"))
    if (row := tx.execute("SELECT state, sha256 FROM meta").fetchone()) is None:
        return None
    try:
        if hashlib.sha256(str(row[0]).encode()).hexdigest() != row[1]:
            raise ValueError("its state is not what was written")
        value = json.loads(row[0])
        if value.pop("format", None) != FORMAT:
            raise ValueError("its format is of another version of st_reba")
        state = State(**value)
        if state.file is not None and Path(state.file["name"]).name != state.file["name"]:
            raise ValueError("its FAISS file is not in the folder")
        return state
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(damaged(path, error)) from None


def read_state(tx: sqlite3.Connection, path: Path) -> State:
    """The state; a FileNotFoundError where nothing was committed yet."""
    if (state := state_or_none(tx, path)) is None:
        raise FileNotFoundError(f"{path.parent}: no index is there; st-reba index makes one")
    return state


def write_state(tx: sqlite3.Connection, state: State) -> None:
    """Replace the state."""
    text = to_json({"format": FORMAT, **asdict(state)})
    tx.execute("DELETE FROM meta")
    tx.execute("INSERT INTO meta VALUES (?, ?)", (text, hashlib.sha256(text.encode()).hexdigest()))


class Stored(NamedTuple):
    """A document with its key; the columns of the table in their order."""

    key: int
    id: str
    metadata: str
    spans: str | None
    text: str
    content: int | None  # `content_of` a document that was given without an id
    crc: int

    @classmethod
    def new(cls, key: int, *values: Any) -> Stored:
        """A document that is to be inserted, of all columns but the checksum."""
        return cls._make((key, *values, _crc(values)))

    @property
    def is_intact(self) -> bool:
        """False: the row is not what was written."""
        return self.crc == _crc(self[1:-1])

    @property
    def keys(self) -> range:
        """Keys of its vectors."""
        return keys_of(self.key, self.spans)

    def passage(self, key: int) -> str:
        """The passage with one of these keys."""
        bounds = [0, len(self.text)] if self.spans is None else json.loads(self.spans)
        start, stop = bounds[2 * (key - self.key) :][:2]
        return self.text[start:stop]

    def document(self, path: Path) -> Document:
        """The document."""
        try:
            return Document(self.text, self.id, json.loads(self.metadata))
        except ValueError as error:
            raise ValueError(damaged(path, error)) from None


COLUMNS = ", ".join(Stored._fields)


def _crc(values: Iterable[Any]) -> int:
    return zlib.crc32("\0".join(map(str, values)).encode())


def content_of(text: str, metadata: str) -> int:
    """A number by which a document without an id is found again, of its text and its metadata as JSON."""
    content = (text, _LINE.sub(r"\1}", metadata))
    return int.from_bytes(hashlib.blake2b("\0".join(content).encode(), digest_size=8).digest(), "big", signed=True)


def documents(tx: sqlite3.Connection, column: str, values: Iterable[Any]) -> Iterator[Stored]:
    """Documents whose id, key or content is among some values."""
    # As ASCII, for an id that no file can hold is not there.
    wanted = json.dumps(list(values))
    rows = tx.execute(f"SELECT {COLUMNS} FROM documents WHERE {column} IN (SELECT value FROM json_each(?))", (wanted,))
    return (Stored(*row) for row in rows)


def all_documents(tx: sqlite3.Connection) -> Iterator[Stored]:
    """All documents in the order they were added."""
    return (Stored(*row) for row in tx.execute(f"SELECT {COLUMNS} FROM documents ORDER BY key"))


def owners(tx: sqlite3.Connection, keys: Iterable[int]) -> dict[int, int]:
    """Key of the document that each vector's key belongs to."""
    query = "SELECT value, (SELECT MAX(key) FROM documents WHERE key <= value) FROM json_each(?)"
    return dict(tx.execute(query, (to_json(list(keys)),)).fetchall())


def keys_of(key: int, spans: str | None) -> range:
    """Keys of the vectors of a document."""
    return range(key, key + (1 if spans is None else len(json.loads(spans)) // 2))


def vector_keys(tx: sqlite3.Connection, where: str = "1", parameters: Iterable[Any] = ()) -> Keys:
    """Keys of the vectors of documents that meet conditions in SQL, ascending."""
    found: list[int] = []
    for key, spans in tx.execute(f"SELECT key, spans FROM documents WHERE {where} ORDER BY key", tuple(parameters)):
        found += (key,) if spans is None else keys_of(key, spans)
    return np.array(found, np.int64)


def write_pending(tx: sqlite3.Connection, keys: Keys, vectors: Matrix) -> None:
    """Insert pending vectors."""
    blobs = [vector.astype("<f4").tobytes() for vector in vectors]
    rows = zip(keys.tolist(), map(zlib.crc32, blobs), blobs, strict=True)
    tx.executemany("INSERT INTO pending VALUES (?, ?, ?)", rows)


def read_pending(tx: sqlite3.Connection, state: State, path: Path) -> tuple[Keys, Matrix]:
    """Pending vectors: keys [n] and vectors [n, dim]."""
    rows = tx.execute("SELECT key, crc, vector FROM pending ORDER BY key").fetchall()
    intact = len(rows) == state.pending
    for _, crc, vector in rows:
        intact = intact and type(vector) is bytes and len(vector) == 4 * state.dim and zlib.crc32(vector) == crc
    if not intact:
        raise ValueError(damaged(path, "its pending vectors are not what was written"))
    vectors = np.frombuffer(b"".join(one[2] for one in rows), "<f4").reshape(len(rows), state.dim)
    return np.array([one[0] for one in rows], np.int64), np.asarray(vectors, np.float32)


def read_dead(tx: sqlite3.Connection) -> Keys:
    """Dead keys, ascending."""
    return np.array([key for (key,) in tx.execute("SELECT key FROM dead ORDER BY key")], np.int64)
