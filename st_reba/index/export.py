"""Export of an index for other tools, and its verification."""

from __future__ import annotations

import glob
import json
import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path

from ..files import whole_file, whole_path
from .search import Snapshot
from .store import State, check_keys, create_tables, damaged, documents, read_pending, vector_keys
from .vectors import Segment, add, save, trained
from .whitening import read_content
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
    whitening_path = out.with_name(f"{out.name}.whitening.safetensors")
    for path in (out, whitening_path):
        for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}.tmp"):  # of one that was killed
            left.unlink(missing_ok=True)
    keys = vector_keys(tx)
    if not len(keys):
        raise ValueError(f"{store.folder}: the index is empty, so there is nothing to export")
    check_keys(tx, state, store.folder, None if file is None else file.keys)
    filed = file.segments(keys[keys < state.stop]) if file else ()
    segments = [*filed, (snapshot.keys, lambda: snapshot.pending)]
    _write_whitening(whitening_path, tx, state, store.path)
    if out.suffix == ".parquet":
        _write_parquet(out, tx, segments, state)
    else:
        save(out, add(trained("Flat", state.dimension, None, segments)[0], segments))
    return len(keys)


def _write_whitening(whitening_path: Path, tx: sqlite3.Connection, state: State, index_path: Path) -> None:
    """Write what exported vectors are whitened by; of raw ones, remove that of an earlier export."""
    if state.whitening is None:
        whitening_path.unlink(missing_ok=True)
        return
    content = read_content(tx, state, index_path)
    with whole_file(whitening_path) as stream:
        stream.write(content)


def _write_parquet(out: Path, tx: sqlite3.Connection, segments: list[Segment], state: State) -> None:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

    types = {"key": pa.int64(), "id": pa.string(), "text": pa.string(), "metadata": pa.string(), "passage": pa.string()}
    facts = {"similarity": state.metric, "whitening": state.whitening, "whitening_sha256": state.whitening_sha256}
    columns = [*types.items(), ("vector", pa.list_(pa.float32(), state.dimension))]
    schema = pa.schema(columns, {"st_reba": json.dumps(facts)})
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
    if state.whitening is not None:
        read_content(tx, state, store.path)
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
    # An index of an earlier version has no such tables until it is changed.
    if not state.truncated:
        expected_tables.discard(("table", "truncated"))
    if state.whitening is None:
        expected_tables.discard(("table", "whitening"))
    return expected_tables <= set(tx.execute(query))
