"""Verification of an index: every file is read, and compared with what was written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from sqlite3 import Connection

from .schema import DamagedError, create_tables, read_documents
from .search import Snapshot
from .state import IndexState
from .store import read_pending, vector_keys
from .whitening import read_whitening_bytes
from .words import create_words, verify_words

_SEARCHED_VECTORS = 8


def verify(snapshot: Snapshot, connection: Connection) -> None:
    """Read every file, and search; errors as for ``Index.verify``.

    The FAISS file's digest was compared already.
    """
    state = snapshot.state
    (integrity,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if integrity != "ok":
        raise DamagedError(integrity)
    if not _has_all_tables(connection, state):
        raise DamagedError("a table or an index of it is missing")
    for _ in read_documents(connection):  # checksums are compared
        pass
    read_pending(connection, state)
    snapshot.check_keys(connection)
    vector_file = snapshot.vectors.vector_file
    if vector_file is not None:
        file_keys = vector_keys(connection, state, "key < ?", state.first_pending_key)
        vector_file.search(vector_file.vectors(file_keys[:_SEARCHED_VECTORS]), 1)
    if state.whitening is not None:
        read_whitening_bytes(connection, state)
    verify_words(connection, state.words, snapshot.store.path)


def _has_all_tables(connection: Connection, state: IndexState) -> bool:
    # With virtual tables in the file, SQLite's own check may not see that a table is missing.
    query = "SELECT type, name FROM sqlite_master"
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty_index:
        create_tables(empty_index)
        create_words(empty_index, state.words)
        expected_tables = set(empty_index.execute(query))
    return expected_tables <= set(connection.execute(query))
