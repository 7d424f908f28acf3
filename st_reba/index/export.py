"""Export of an index for other tools, and its verification."""

from __future__ import annotations

import glob
import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path

from ..storage.files import whole_path
from .search import Snapshot
from .store import State, check_keys, create_tables, damaged, documents, read_pending, vector_keys
from .vectors import Segment, add, save, trained
from .words import create_words, verify_words

_SEARCHED = 8  # vectors that verify searches for


def export(snapshot: Snapshot, tx: sqlite3.Connection, out: Path, *, overwrite: bool) -> int:
    """Write an index's vectors and documents; arguments as for ``Index.export``."""
    store, state, file = snapshot.store, snapshot.state, snapshot.file
    if out.suffix not in (".parquet", ".faiss"):
        raise ValueError(f"{out}: export writes X.parquet or X.faiss; give it such a name")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder")
    if out.exists() and (not overwrite or out.is_dir()):
        raise FileExistsError(f"{out}: already there; give another path, or overwrite=True to replace a file")
    if out.resolve().is_relative_to(store.folder):
        raise ValueError(f"{out}: in the folder of the index; give a path outside of it")
    for left in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 12}.tmp"):  # of one that was killed
        left.unlink(missing_ok=True)
    keys = vector_keys(tx)
    if not len(keys):
        raise ValueError(f"{store.folder}: the index is empty, so there is nothing to export")
    check_keys(tx, state, store.folder, None if file is None else file.keys)
    filed = file.segments(keys[keys < state.stop]) if file else ()
    segments = [*filed, (snapshot.keys, lambda: snapshot.pending)]
    if out.suffix == ".parquet":
        _write_parquet(out, tx, segments, state)
    else:
        save(out, add(trained("Flat", state.dimension, None, segments)[0], segments))
    return len(keys)


def _write_parquet(out: Path, tx: sqlite3.Connection, segments: list[Segment], state: State) -> None:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

    types = {"key": pa.int64(), "id": pa.string(), "text": pa.string(), "metadata": pa.string(), "passage": pa.string()}
    schema = pa.schema([*types.items(), ("vector", pa.list_(pa.float32(), state.dimension))])
    rows = (
        (key, one.id, one.text, one.metadata, None if one.spans is None else one.passage(key))
        for one in documents(tx)
        for key in one.keys
    )
    with whole_path(out) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for keys, load in segments:
            if len(keys):
                cells = zip(*islice(rows, len(keys)), strict=True)
                arrays = [pa.array(values, kind) for values, kind in zip(cells, types.values(), strict=True)]
                arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(load().ravel()), state.dimension))
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def verify(snapshot: Snapshot, tx: sqlite3.Connection) -> None:
    """Read every file, and search; errors as for ``Index.verify``. The FAISS file's digest was compared already."""
    store, state, file = snapshot.store, snapshot.state, snapshot.file
    integrity = tx.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if integrity != "ok":
        raise ValueError(damaged(store.path, integrity))
    if not _has_all_tables(tx, state):
        raise ValueError(damaged(store.path, "a table or an index of it is missing"))
    for _ in documents(tx):  # each is compared with its checksum
        pass
    read_pending(tx, state, store.path)
    if state.truncated and tx.execute("SELECT COUNT(*) FROM truncated").fetchone()[0] != state.truncated:
        raise ValueError(damaged(store.path, "another number of documents is marked as too long"))
    check_keys(tx, state, store.folder, None if file is None else file.keys)
    if file is not None:
        keys = vector_keys(tx, "key < ?", state.stop)
        file.check_search(keys[:_SEARCHED])
    if state.words is not None:
        verify_words(tx, state.words, store.path)


def _has_all_tables(tx: sqlite3.Connection, state: State) -> bool:
    # Beside virtual tables, SQLite's own check may not see that one is missing.
    query = "SELECT type, name FROM sqlite_master"
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty_index:
        create_tables(empty_index)
        if state.words is not None:
            create_words(empty_index, state.words)
        expected_tables = set(empty_index.execute(query))
    if not state.truncated:
        # An index of an earlier version has no such table until it is changed.
        expected_tables.discard(("table", "truncated"))
    return expected_tables <= set(tx.execute(query))
