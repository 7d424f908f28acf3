"""Export of an index for other tools, and its verification."""

from __future__ import annotations

import glob
import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from ..corpus.folder import sha256
from ..storage.files import whole_path
from .search import Snapshot
from .store import State, crc_of, create_tables, damaged, documents, read_dead, read_pending, vector_keys
from .vectors import Segment, add, save, trained
from .words import create_words, verify_words


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
    """Read every file; errors as for ``Index.verify``."""
    store, state, file = snapshot.store, snapshot.state, snapshot.file
    # At once, for a writer may remove it as soon as there is another.
    if state.file is not None and sha256(store.folder / state.file) != state.sha256:
        raise ValueError(damaged(store.folder / state.file, "its SHA-256 is not that of what was written"))
    if (said := tx.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        raise ValueError(damaged(store.path, said))
    if not _has_all_tables(tx, state):
        raise ValueError(damaged(store.path, "a table or an index of it is missing"))
    count, keys = 0, list[int]()
    for one in documents(tx):
        if one.crc != crc_of(one[:-1]):
            raise ValueError(damaged(store.path, f"document {one.id!r} is not what was written"))
        count += 1
        keys += one.keys
    later, _ = read_pending(tx, state, store.path)
    dead, there = read_dead(tx), np.array(keys, np.int64)
    # Of inverted lists, the SHA-256 stands for the keys.
    filed = np.sort(np.concatenate([there[there < state.stop], dead]))
    fits = (count, len(dead), len(filed)) == (state.documents, state.deleted, state.filed)
    fits = fits and np.array_equal(there[there >= state.stop], later) and len(np.unique(filed)) == len(filed)
    if not fits or (file is not None and file.keys is not None and not np.array_equal(file.keys, filed)):
        raise ValueError(damaged(store.folder, "its documents and its vectors do not belong together"))
    if state.words is not None:
        verify_words(tx, state.words, store.path)


def _has_all_tables(tx: sqlite3.Connection, state: State) -> bool:
    # Beside virtual tables, SQLite's own check may not see that one is missing.
    query = "SELECT type, name FROM sqlite_master ORDER BY name"
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as expected:
        create_tables(expected)
        if state.words is not None:
            create_words(expected, state.words)
        return tx.execute(query).fetchall() == expected.execute(query).fetchall()
