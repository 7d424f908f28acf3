"""Export of an index for other tools, its verification, and the facts about it."""

from __future__ import annotations

import glob
import sqlite3
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..corpus.folder import sha256
from ..files import whole_path
from ..probe import Probe
from .store import State, Store, crc_of, damaged, documents, read_dead, read_pending, read_state, vector_keys
from .vectors import Segment, add, make_index, open_file, save


def export(store: Store, tx: sqlite3.Connection, out: Path, *, overwrite: bool) -> int:
    """Write an index's vectors and documents; arguments as for ``Index.export``."""
    if out.suffix not in (".parquet", ".faiss"):
        raise ValueError(f"{out}: export writes X.parquet or X.faiss; give it such a name")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: already there; give another path, or overwrite=True to replace a file")
    if out.resolve().is_relative_to(store.folder):
        raise ValueError(f"{out}: in the folder of the index; give a path outside of it")
    for left in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 12}.tmp"):  # of one that was killed
        left.unlink(missing_ok=True)
    state, keys = read_state(tx, store.path), vector_keys(tx)
    if not len(keys):
        raise ValueError(f"{store.folder}: the index is empty, so there is nothing to export")
    later, pending = read_pending(tx, state, store.path)
    file = open_file(store.folder, state)
    segments = [*(file.segments(keys[keys < state.stop]) if file else ()), (later, lambda: pending)]
    if out.suffix == ".parquet":
        _write_parquet(out, tx, segments, state)
    else:
        save(out, add(make_index("Flat", state.dimension), segments))
    return len(keys)


def _write_parquet(out: Path, tx: sqlite3.Connection, segments: list[Segment], state: State) -> None:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

    types = {"key": pa.int64(), "id": pa.string(), "text": pa.string(), "metadata": pa.string(), "passage": pa.string()}
    vector, about = (
        pa.list_(pa.float32(), state.dimension),
        {"st_reba.metric": state.metric, "st_reba.factory": state.factory},
    )
    schema = pa.schema([*types.items(), ("vector", vector)], about)
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


def about(store: Store, tx: sqlite3.Connection) -> dict[str, Any]:
    """The result of ``Index.info``."""
    state = read_state(tx, store.path)
    model = Probe.from_json(state.model)
    size = sum(one.stat().st_size for one in store.folder.iterdir() if one.is_file())
    found = {"path": str(store.folder), **asdict(state), "vectors": state.filed - state.deleted + state.pending}
    return {**found, "bytes": size, "model": str(model), "model_source": model.source, "revision": model.revision}


def verify(store: Store, tx: sqlite3.Connection) -> dict[str, Any]:
    """Read every file; errors as for ``Index.verify``."""
    found, state = about(store, tx), read_state(tx, store.path)
    file = open_file(store.folder, state)
    # At once, for a writer may remove it as soon as there is another.
    if state.file is not None and sha256(store.folder / state.file) != state.sha256:
        raise ValueError(damaged(store.folder / state.file, "its SHA-256 is not that of what was written"))
    if (said := tx.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        raise ValueError(damaged(store.path, said))
    count, keys = 0, list[int]()
    for one in documents(tx):
        if one.crc != crc_of(one[:-1]):
            raise ValueError(damaged(store.path, f"document {one.id!r} is not what was written"))
        count += 1
        keys += one.keys
    later, _ = read_pending(tx, state, store.path)
    dead, there = read_dead(tx), np.array(keys, np.int64)
    filed_keys = there[there < state.stop]
    wanted = np.union1d(filed_keys, dead)
    fits = (count, len(dead), len(wanted)) == (state.documents, state.deleted, state.filed)
    fits = fits and len(filed_keys) + len(dead) == len(wanted) and np.array_equal(there[len(filed_keys) :], later)
    if not fits or (file is not None and file.keys is not None and not np.array_equal(file.keys, wanted)):
        raise ValueError(damaged(store.folder, "its documents and its vectors do not belong together"))
    return found
