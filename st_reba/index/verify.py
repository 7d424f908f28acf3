"""What an index folder holds, and whether it is what was written."""

from __future__ import annotations

import sqlite3
from typing import Any

from ..corpus.folder import sha256
from ..fingerprint import ModelFingerprint
from .changes import no_index, open_file
from .store import COLUMNS, State, Store, Stored, Sums, damaged, read_state
from .work import unfinished


def about(store: Store, tx: sqlite3.Connection) -> dict[str, Any]:
    """What ``Index.info`` gives."""
    state = read_state(tx, store.path)
    if state is None:
        raise FileNotFoundError(no_index(store.folder))
    tokens = {token for (token,) in tx.execute("SELECT token FROM additions")}
    begun = [one for one in unfinished(store.folder) if one.header().get("token") not in tokens]
    return {
        "path": str(store.folder),
        "documents": state.count,
        "vectors": _filed(tx, state) + state.pending,
        "dimension": state.dim,
        "metric": state.metric,
        "factory": state.factory,
        "parameters": state.parameters,
        "recall": state.recall,
        "model": str(ModelFingerprint.from_json(state.model)),
        "model_source": state.model_source,
        "reading": state.reading,
        "pending": state.pending,
        "deleted": state.dead,
        "changes": state.generation,
        "bytes": sum(file.stat().st_size for file in store.folder.iterdir() if file.is_file()),
        "unfinished": [{"path": str(one.path), "parts": one.parts(), "left": len(one.pending())} for one in begun],
    }


def _filed(tx: sqlite3.Connection, state: State) -> int:
    """Vectors of documents in the FAISS file."""
    (dead,) = tx.execute("SELECT COUNT(*) FROM dead WHERE key < ?", (state.stop,)).fetchone()
    return int((state.file or {"vectors": 0})["vectors"]) - int(dead)


def verify(store: Store, tx: sqlite3.Connection) -> dict[str, Any]:
    """Read every file; arguments and errors as for ``Index.verify``."""
    found = about(store, tx)
    state = read_state(tx, store.path)
    assert state is not None
    # At once, for a writer may remove it as soon as there is another.
    open_file(store.folder, state)
    digest = None if state.file is None else sha256(store.folder / state.file["name"])
    (said,) = tx.execute("PRAGMA integrity_check(1)").fetchone()
    if said != "ok":
        raise ValueError(damaged(store.path, said))
    sums, vectors = Sums(dict.fromkeys(state.sums, "0")), 0
    for table, columns, count in (
        ("documents", COLUMNS, state.count),
        ("pending", "key, vector", state.pending),
        ("dead", "key", state.dead),
    ):
        rows = 0
        for row in tx.execute(f"SELECT {columns} FROM {table}"):
            sums.change(table, [row])
            rows += 1
            vectors += len(Stored(*row).keys) if table == "documents" else 0
        if sums.to_json()[table] != state.sums[table] or rows != count:
            raise ValueError(damaged(store.path, f"its table of {table} is not what was written"))
    if state.file is not None and digest != state.file["sha256"]:
        raise ValueError(damaged(store.folder / state.file["name"], "its SHA-256 is not that of what was written"))
    if found["vectors"] != vectors:
        raise ValueError(damaged(store.folder, f"{found['vectors']} vectors, but its documents have {vectors}"))
    return found
