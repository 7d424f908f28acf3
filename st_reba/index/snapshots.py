"""The last snapshot of an index, which searches and exports share."""

from __future__ import annotations

import threading
from sqlite3 import Connection

from .search import Snapshot
from .state import read_state
from .store import Store


class Snapshots:
    """Gives the snapshot of a transaction; unchanged parts of the last one are used again."""

    def __init__(self, store: Store) -> None:
        self.latest: Snapshot | None = None
        self._store = store
        self._lock = threading.Lock()

    def read(self, connection: Connection, *, check_digest: bool = False) -> Snapshot:
        """The index as a transaction sees it; ``check_digest``: of its FAISS file."""
        with self._lock:
            current_state = read_state(connection, self._store.path)
            while True:
                try:
                    if self.latest is None or self.latest.state != current_state:
                        self.latest = Snapshot(connection, self._store, current_state, self.latest)
                    vector_file = self.latest.vectors.vector_file
                    if check_digest and vector_file is not None:
                        vector_file.check_digest()
                    return self.latest
                except FileNotFoundError:
                    # A writer may have replaced the file since this transaction began, so it is
                    # begun again.
                    connection.execute("ROLLBACK")
                    connection.execute("BEGIN")
                    changes_before = current_state.changes
                    current_state = read_state(connection, self._store.path)
                    if current_state.changes == changes_before:
                        raise
