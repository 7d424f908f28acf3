"""SQLite file of an index. Its transactions are the only commit."""

from __future__ import annotations

import errno
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Literal

import numpy as np

from .. import files
from .schema import DamagedError, create_tables, has_tables
from .scoring import Keys, PendingVectors
from .state import IndexState, absent_index, damaged, read_state

DATABASE_FILE = "index.sqlite"

# The system's error numbers for SQLite's.
_SYSTEM_ERRORS = {
    sqlite3.SQLITE_BUSY: errno.EAGAIN,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}
_WRITER_SETTINGS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",  # deleted texts are overwritten
)
_CHECKPOINT_PATIENCE = 1000  # milliseconds


class Store:
    """The SQLite file of an index folder.

    Every transaction has a connection of its own: threads and forks are safe.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / DATABASE_FILE

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One unchanging state of the file inside the ``with`` block, whatever writers do.

        Raises:
            BlockingIOError: This user may not write into the folder, and so cannot lock the file
                against a change that somebody else made inside the ``with`` block.
        """
        can_lock = self._can_lock()
        # If the file is called immutable, SQLite needs neither a lock nor a log.
        open_mode = "rw" if can_lock else "ro&immutable=1"
        version = self._file_version()
        problem: Exception | None = None
        try:
            with self._translated_errors(), closing(self._connect(open_mode)) as connection:
                connection.execute("BEGIN")
                yield connection
        except Exception as error:
            problem = error
        if not can_lock and self._file_version() != version:
            raise BlockingIOError(
                f"{self.folder}: another user changed the index meanwhile; run the same again"
            ) from problem
        if problem is not None:
            raise problem

    @contextmanager
    def writing(self, *, create: bool) -> Iterator[Connection]:
        """The sole writer; changes take effect at the end of the ``with`` block, or not at all."""
        open_mode = "rwc" if create else "rw"
        with (
            self._translated_errors(create=create),
            closing(self._connect_writer(open_mode)) as connection,
        ):
            connection.execute("BEGIN IMMEDIATE")
            if not has_tables(connection):
                create_tables(connection)
            yield connection
            connection.execute("COMMIT")

    def clear_log(self) -> bool:
        """Move the content of SQLite's log into the file; False: another process is reading it."""
        with self._translated_errors(), closing(self._connect_writer("rw")) as connection:
            connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_PATIENCE}")
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not is_busy

    def state(self) -> IndexState:
        with self.reading() as connection:
            return read_state(connection, self.path)

    def _connect_writer(self, open_mode: str) -> Connection:
        connection = self._connect(open_mode)
        for setting in _WRITER_SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        return connection

    def _can_lock(self) -> bool:
        """True if a reader can use SQLite's log, which is there, or can be made."""
        return self._has_log() or os.access(self.folder, os.W_OK)

    def _has_log(self) -> bool:
        return self.path.with_name(f"{DATABASE_FILE}-wal").exists()

    def _file_version(self) -> tuple[int, ...]:
        """Numbers of which some differ after any change; empty: there is no file."""
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns, self._has_log()

    def _connect(self, open_mode: str) -> Connection:
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={open_mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=files.WRITER_PATIENCE,
        )
        # The file may be a stranger's: its schema calls no function.
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    @contextmanager
    def _translated_errors(self, *, create: bool = False) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._translate(error, create) from error

    def _translate(self, error: sqlite3.DatabaseError, create: bool) -> Exception:
        sqlite_code = getattr(error, "sqlite_errorcode", 0)
        error_number = _SYSTEM_ERRORS.get(sqlite_code & 0xFF)
        is_cut_short = sqlite_code == sqlite3.SQLITE_IOERR_SHORT_READ
        if error_number is None or is_cut_short:
            return damaged(self.path, error)
        if not create and not self.path.exists():
            return FileNotFoundError(absent_index(self.folder))
        if error_number == errno.EAGAIN:
            event = "another process is changing the index"
            return BlockingIOError(files.waited_for(event, self.folder))
        if error_number == errno.EACCES and self._may_write():
            error_number = errno.EIO  # a file that could not be made, for lack of room
        message = str(error)
        if error_number in (errno.ENOSPC, errno.EIO):
            message += f": if the disk is full, {files.MAKE_ROOM}; nothing in the index is lost"
        return OSError(error_number, message, str(self.path))

    def _may_write(self) -> bool:
        """True if this user may write into the folder and, where it is there, into the file."""
        is_file_writable = os.access(self.path, os.W_OK) or not self.path.exists()
        return is_file_writable and os.access(self.folder, os.W_OK)


def vector_keys(
    connection: Connection,
    state: IndexState,
    where: str = "1",
    *parameters: object,
) -> Keys:
    """Keys of the vectors of documents that meet a condition in SQL, ascending."""
    query = f"SELECT key, vector_count FROM documents WHERE {where} ORDER BY key"
    rows = connection.execute(query, parameters)
    try:
        key_table = np.fromiter(rows, [("key", np.int64), ("vector_count", np.int64)])
    except (ValueError, TypeError, OverflowError):
        raise _wrong_keys("documents") from None
    vector_counts = key_table["vector_count"]
    if not ((vector_counts > 0) & (vector_counts <= state.next_key)).all():
        raise _wrong_keys("documents")
    vectors_before = np.cumsum(vector_counts) - vector_counts
    shifts = np.repeat(key_table["key"] - vectors_before, vector_counts)
    keys = np.asarray(np.arange(len(shifts)) + shifts, np.int64)
    _check_range(keys, state, "documents")
    return keys


def read_pending(connection: Connection, state: IndexState) -> PendingVectors:
    """Pending vectors of a state, compared with their checksums."""
    damage = DamagedError("its pending vectors are not what was written")
    keys: list[int] = []
    vectors: list[bytes] = []
    rows = connection.execute("SELECT key, checksum, vector FROM pending ORDER BY key")
    for key, checksum, vector in rows:
        is_whole = type(vector) is bytes and len(vector) == 4 * state.vector_dimension
        if not is_whole or zlib.crc32(vector) != checksum:
            raise damage
        keys.append(key)
        vectors.append(vector)
    if len(keys) != state.pending:
        raise damage
    key_array = np.array(keys, np.int64)
    _check_range(key_array, state, "pending")
    values = np.frombuffer(b"".join(vectors), "<f4").reshape(len(keys), state.vector_dimension)
    return PendingVectors(key_array, np.asarray(values, np.float32))


def check_keys(
    connection: Connection,
    state: IndexState,
    file_keys: Keys | None,
    *,
    before: int | None = None,
) -> None:
    """Raise an error unless documents, tombstones and vectors belong together.

    Args:
        connection: The transaction.
        state: Its state.
        file_keys: Keys of the FAISS file, ascending; None: not known (the SHA-256 of a file of
            inverted lists stands for them).
        before: Documents from this key on have no vectors yet; None: all have.
    """
    if before is None:
        before = state.next_key
    keys = vector_keys(connection, state, "key < ?", before)
    tombstones = read_keys(connection, state, "tombstones")
    is_pending = keys >= state.first_pending_key
    expected_file_keys = np.sort(np.concatenate([keys[~is_pending], tombstones]))
    (document_count,) = connection.execute("SELECT COUNT(*) FROM documents").fetchone()
    belong_together = (
        state.documents == document_count
        and state.deleted == len(tombstones)
        and state.indexed_count == len(expected_file_keys)
        and len(np.unique(expected_file_keys)) == len(expected_file_keys)
        and np.array_equal(keys[is_pending], read_keys(connection, state, "pending"))
        and (file_keys is None or np.array_equal(file_keys, expected_file_keys))
    )
    if not belong_together:
        raise DamagedError("its documents and its vectors do not belong together")


def read_keys(
    connection: Connection,
    state: IndexState,
    table_name: Literal["pending", "tombstones"],
) -> Keys:
    """Keys of pending vectors, or of deleted ones that the FAISS file still has, ascending."""
    rows = connection.execute(f"SELECT key FROM {table_name} ORDER BY key").fetchall()
    keys = np.array(rows, np.int64).ravel()
    _check_range(keys, state, table_name)
    return keys


def _check_range(keys: Keys, state: IndexState, table_name: str) -> None:
    """Raise an error unless keys ascend, and are keys that the state has given to vectors."""
    is_ascending = (keys[1:] > keys[:-1]).all()
    is_in_range = (keys[:1] >= 0).all() and (keys[-1:] < state.next_key).all()
    if not is_ascending or not is_in_range:
        raise _wrong_keys(table_name)


def _wrong_keys(table_name: str) -> DamagedError:
    return DamagedError(f"keys of the table {table_name} are not what was written")
