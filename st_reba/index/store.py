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
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import files
from ..corpus.records import Document, to_json
from .terms import TOKENIZERS

FILE = "index.sqlite"
FORMAT = 6
# Of the fifth, which has no words, states are read too.
_READ_FORMATS = (5, FORMAT)
_SCHEMA = """
CREATE TABLE documents (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, vectors INTEGER NOT NULL, spans TEXT,
    text TEXT NOT NULL, content INTEGER, crc INTEGER NOT NULL
);
CREATE INDEX documents_content ON documents (content) WHERE content IS NOT NULL;
CREATE TABLE pending (key INTEGER PRIMARY KEY, crc INTEGER NOT NULL, vector BLOB NOT NULL);
CREATE TABLE dead (key INTEGER PRIMARY KEY);
CREATE TABLE truncated (key INTEGER PRIMARY KEY);
CREATE TABLE whitening (content BLOB NOT NULL);
CREATE TABLE rejects (place TEXT NOT NULL, reason TEXT NOT NULL, id TEXT, text TEXT);
CREATE TABLE meta (state TEXT NOT NULL, sha256 TEXT NOT NULL)
"""

# What a stranger's file could run in place of our tables, for ever.
_FOREIGN = "SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger') LIMIT 1"

# SQLite's errors, as those of the system.
_ERRORS = {sqlite3.SQLITE_BUSY: errno.EAGAIN, sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EACCES}
_ERRORS |= {sqlite3.SQLITE_CANTOPEN: errno.EACCES, sqlite3.SQLITE_IOERR: errno.EIO}
_ABSENT = "{}: no index is there; st-reba index makes one"
# Lines and rows move when a file is edited: a text without an id is known by its file.
_POSITION = re.compile(r'^(\{"file": .*), "(?:line|row)": \d+\}$')

Matrix = NDArray[np.float32]
Keys = NDArray[np.int64]


@dataclass
class State:
    """State of an index besides its documents."""

    model: dict[str, Any]  # probe of the model, as JSON
    metric: str
    dimension: int
    columns: dict[str, str | None]  # of the text and the id, to be used again
    passages: str | None
    max_seq_length: int | None  # of the model, when it encoded documents
    factory: str = "Flat"
    parameters: str | None = None
    changes: int = 0
    stamp: str = ""  # random, of the last change: no two states are alike
    documents: int = 0
    next_key: int = 0
    next_number: int = 0  # the id of the next document that has none
    file: str | None = None  # the FAISS file, its size, its SHA-256, its number of vectors, the key behind its last
    bytes: int = 0
    sha256: str = ""
    filed: int = 0
    stop: int = 0
    pending: int = 0
    deleted: int = 0
    truncated: int = 0  # documents that are longer than the model reads
    words: str | None = None  # language of the documents' words, as `words.write_words` found it; None: no words
    whitening: str | None = None  # what the vectors are whitened by, as `Whitening.description`; None: they are raw
    whitening_sha256: str = ""  # of the content of the table


class Store:
    """The SQLite file of an index folder. Every transaction has a connection of its own: threads and forks are safe."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file for the time of the ``with`` block, whatever writers do."""
        with self._errors(), closing(self._reader()) as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self, *, create: bool) -> Iterator[sqlite3.Connection]:
        """The one writer; the ``with`` block takes effect at its end, or not at all."""
        with self._errors(), closing(self._writer("rwc" if create else "rw")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                create_tables(connection)
            # Older indexes lack them.
            connection.execute("CREATE TABLE IF NOT EXISTS truncated (key INTEGER PRIMARY KEY)")
            connection.execute("CREATE TABLE IF NOT EXISTS whitening (content BLOB NOT NULL)")
            yield connection
            connection.execute("COMMIT")

    def clear_log(self) -> bool:
        """Move what SQLite's log holds into the file; False: somebody is reading."""
        with self._errors(), closing(self._writer("rw")) as connection:
            connection.execute("PRAGMA busy_timeout = 1000")  # in milliseconds
            return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]

    def _writer(self, mode: str) -> sqlite3.Connection:
        connection = self._connect(mode)
        # Deleted texts are overwritten.
        for setting in ("journal_mode = WAL", "synchronous = FULL", "trusted_schema = OFF", "secure_delete = ON"):
            connection.execute(f"PRAGMA {setting}")
        return connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=files.WRITER_PATIENCE
        )

    def _reader(self) -> sqlite3.Connection:
        # In a folder that cannot be written to, with no writer, the file is all there is.
        alone = not os.access(self.folder, os.W_OK) and not self.path.with_name(f"{FILE}-wal").exists()
        connection = self._connect("ro&immutable=1" if alone else "rw")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0)
            number = _ERRORS.get(code & 0xFF)
            if number is None or code == sqlite3.SQLITE_IOERR_SHORT_READ:  # the file is shorter than it says
                raise ValueError(damaged(self.path, error)) from error
            if not self.path.exists():
                raise FileNotFoundError(_ABSENT.format(self.folder)) from error
            if number == errno.EAGAIN:
                raise BlockingIOError(files.waited_for("another process is changing the index", self.folder)) from error
            if number in (errno.ENOSPC, errno.EIO):
                why = f"{error}: if the disk is full, make room, then run the same again; the index is as it was"
                raise OSError(number, why, str(self.path)) from error
            raise OSError(number, str(error), str(self.path)) from error

    def state(self) -> State:
        with self.reading() as tx:
            return read_state(tx, self.path)


def create_tables(connection: sqlite3.Connection) -> None:
    """Create all tables but those of words."""
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)


def damaged(path: Path, why: object) -> str:
    """Message about a file that is not what was written."""
    remedy = "restore a copy of the folder, or remove it and build the index again"
    return f"{path}: damaged, or not of an index ({why}); {remedy}"


def read_state(tx: sqlite3.Connection, path: Path) -> State:
    """The state; a FileNotFoundError where nothing was committed yet, a ValueError where it is not what was written."""
    begun = tx.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    foreign = tx.execute(_FOREIGN).fetchone()
    if foreign is not None:
        raise ValueError(damaged(path, f"{foreign[0]!r:.80} is a view or a trigger, and an index has none"))
    row = tx.execute("SELECT state, sha256 FROM meta").fetchone() if begun else None
    if row is None:
        raise FileNotFoundError(_ABSENT.format(path.parent))
    try:
        return _state(*row)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(damaged(path, error)) from None


@lru_cache(4)  # every search reads the state
def _state(text: str, digest: str) -> State:
    value = json.loads(text)
    if hashlib.sha256(text.encode()).hexdigest() != digest or value.pop("format") not in _READ_FORMATS:
        raise ValueError("its state is of another version, or not what was written")
    state = State(**value)
    if state.file is not None and Path(state.file).name != state.file:
        raise ValueError("its FAISS file is not in the folder")
    if state.words is not None and state.words not in TOKENIZERS:
        raise ValueError(f"words={state.words!r:.80} is no language")
    return state


def write_state(tx: sqlite3.Connection, state: State) -> None:
    text = to_json({"format": FORMAT, **asdict(state)})
    tx.execute("DELETE FROM meta")
    tx.execute("INSERT INTO meta VALUES (?, ?)", (text, hashlib.sha256(text.encode()).hexdigest()))


class Stored(NamedTuple):
    """A document with its key; the columns of the table in their order."""

    key: int
    id: str
    metadata: str
    vectors: int
    spans: str | None  # bounds of its passages in characters, as JSON; None: it is not cut
    text: str
    content: int | None  # `content_of` a document that was given without an id
    crc: int

    @property
    def keys(self) -> range:
        return range(self.key, self.key + self.vectors)

    def passage(self, key: int) -> str:
        """The passage with one of these keys."""
        bounds = [0, len(self.text)] if self.spans is None else json.loads(self.spans)
        start, stop = bounds[2 * (key - self.key) :][:2]
        return self.text[start:stop]

    def document(self) -> Document:
        return Document(self.text, self.id, json.loads(self.metadata))


def crc_of(values: Iterable[Any]) -> int:
    return zlib.crc32("\0".join(map(str, values)).encode())


def content_of(text: str, metadata: str) -> int:
    """A number by which a document without an id is found again, of its text and its metadata as JSON."""
    content = (text, _POSITION.sub(r"\1}", metadata))
    return int.from_bytes(hashlib.blake2b("\0".join(content).encode(), digest_size=8).digest(), "big", signed=True)


def documents(tx: sqlite3.Connection, where: str = "1", *parameters: Any) -> Iterator[Stored]:
    """Documents that meet a condition in SQL, in the order they were added, each compared with its checksum."""
    query = f"SELECT {', '.join(Stored._fields)} FROM documents WHERE {where} ORDER BY key"
    for row in tx.execute(query, parameters):
        document = Stored(*row)
        if document.crc != crc_of(document[:-1]):
            # As SQLite says it of a damaged page: the store adds its path and the remedy.
            raise sqlite3.DatabaseError(f"document {document.id!r:.80} is not what was written")
        yield document


def documents_with(tx: sqlite3.Connection, column: str, values: Iterable[Any]) -> Iterator[Stored]:
    """Documents whose value in a column is among some."""
    wanted = list(values)
    # As ASCII, for an id that no file can hold is not there.
    return documents(tx, f"{column} IN (SELECT value FROM json_each(?))", json.dumps(wanted)) if wanted else iter(())


def vector_keys(tx: sqlite3.Connection, where: str = "1", *parameters: Any) -> Keys:
    """Keys of the vectors of documents that meet a condition in SQL, ascending."""
    found: list[int] = []
    for key, vectors in tx.execute(f"SELECT key, vectors FROM documents WHERE {where} ORDER BY key", parameters):
        found += (key,) if vectors == 1 else range(key, key + vectors)
    return np.array(found, np.int64)


def read_pending(tx: sqlite3.Connection, state: State, path: Path) -> tuple[Keys, Matrix]:
    """Pending vectors: keys [n] and vectors [n, dim]."""
    rows = tx.execute("SELECT key, crc, vector FROM pending ORDER BY key").fetchall()
    intact = (type(one) is bytes and len(one) == 4 * state.dimension and zlib.crc32(one) == crc for _, crc, one in rows)
    if len(rows) != state.pending or not all(intact):
        raise ValueError(damaged(path, "its pending vectors are not what was written"))
    vectors = np.frombuffer(b"".join(one[2] for one in rows), "<f4").reshape(len(rows), state.dimension)
    return np.array([one[0] for one in rows], np.int64), np.asarray(vectors, np.float32)


def check_keys(
    tx: sqlite3.Connection, state: State, folder: Path, file_keys: Keys | None, *, before: int | None = None
) -> None:
    """Raise a ValueError unless documents, dead keys and vectors belong together.

    Args:
        tx: The transaction.
        state: Its state.
        folder: The folder of the index, to be named in an error.
        file_keys: Keys of the FAISS file, ascending; None: not known (of inverted lists the SHA-256 stands for them).
        before: Documents from this key on have no vectors yet; None: all have.
    """
    keys = vector_keys(tx, "key < ?", state.next_key if before is None else before)
    dead = read_dead(tx)
    pending = np.array([key for (key,) in tx.execute("SELECT key FROM pending ORDER BY key")], np.int64)
    in_file = np.sort(np.concatenate([keys[keys < state.stop], dead]))
    (document_count,) = tx.execute("SELECT COUNT(*) FROM documents").fetchone()
    counts = (document_count, len(dead), len(np.unique(in_file)), len(in_file))
    belong_together = (
        counts == (state.documents, state.deleted, state.filed, state.filed)
        and np.array_equal(keys[keys >= state.stop], pending)
        and (file_keys is None or np.array_equal(file_keys, in_file))
    )
    if not belong_together:
        raise ValueError(damaged(folder, "its documents and its vectors do not belong together"))


def read_dead(tx: sqlite3.Connection) -> Keys:
    return np.array([key for (key,) in tx.execute("SELECT key FROM dead ORDER BY key")], np.int64)
