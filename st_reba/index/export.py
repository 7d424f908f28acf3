"""Export of an index for other tools, its verification, and what it says of itself."""

from __future__ import annotations

import glob
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..corpus.folder import sha256
from ..files import whole_path
from ..probe import Probe
from . import ann
from .ann import Segment
from .changes import filed, open_file
from .store import State, Store, all_documents, damaged, read_dead, read_pending, read_state, vector_keys

logger = logging.getLogger(__name__)

_ROWS = 8192


def export(store: Store, tx: sqlite3.Connection, out: Path, *, overwrite: bool, show: bool | None) -> int:
    """Write an index's vectors and documents; arguments as for ``Index.export``."""
    if out.suffix not in (".parquet", ".faiss"):
        raise ValueError(f"{out}: export writes X.parquet or X.faiss; give it such a name")
    if out.is_dir() or (out.exists() and not overwrite):
        raise FileExistsError(f"{out}: already there; give another path, or overwrite=True to replace a file")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder; make it first")
    if out.resolve().is_relative_to(store.folder):
        raise ValueError(f"{out}: in the folder of the index; give a path outside of it")
    for left in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 12}.tmp"):  # of one that was killed
        left.unlink(missing_ok=True)
    state = read_state(tx, store.path)
    file, keys = open_file(store.folder, state), vector_keys(tx)
    if not len(keys):
        raise ValueError(f"{store.folder}: the index is empty, so there is nothing to export")
    if file is not None and not file.is_exact:
        logger.warning("%s: factory %r stores approximate vectors, which are exported", store.folder, state.factory)
    later, pending = read_pending(tx, state, store.path)
    segments: list[Segment] = [*filed(file, keys[keys < state.stop]), (later, lambda: pending)]
    with tqdm(total=len(keys), desc="Exporting", unit=" vectors", disable=None if show is None else not show) as bar:
        if out.suffix == ".parquet":
            _write_parquet(out, tx, segments, state, bar)
        else:
            ann.save(out, ann.add(ann.make_index("Flat", state.dim), segments))
    return len(keys)


def _write_parquet(out: Path, tx: sqlite3.Connection, segments: list[Segment], state: State, bar: Any) -> None:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

    types = {"key": pa.int64(), "id": pa.string(), "text": pa.string(), "metadata": pa.string(), "passage": pa.string()}
    columns = [pa.field(name, kind, nullable=name == "passage") for name, kind in types.items()]
    about = {"st_reba.metric": state.metric, "st_reba.factory": state.factory}
    schema = pa.schema([*columns, pa.field("vector", pa.list_(pa.float32(), state.dim), nullable=False)], about)
    rows = _rows(tx)
    with whole_path(out) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for keys, load in segments:
            vectors = load()
            for start in range(0, len(keys), _ROWS):
                some = vectors[start : start + _ROWS]
                cells = zip(*(next(rows) for _ in some), strict=True)
                arrays = [pa.array(values, kind) for values, kind in zip(cells, types.values(), strict=True)]
                arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(some.ravel(), pa.float32()), state.dim))
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
                bar.update(len(some))


def _rows(tx: sqlite3.Connection) -> Iterator[tuple[int, str, str, str, str | None]]:
    """Key, id, text, metadata and passage of each vector, in the order of their keys."""
    for one in all_documents(tx):
        for key in one.keys:
            yield key, one.id, one.text, one.metadata, None if one.spans is None else one.passage(key)


def about(store: Store, tx: sqlite3.Connection) -> dict[str, Any]:
    """The result of ``Index.info``."""
    state = read_state(tx, store.path)
    file = {"vectors": 0} if state.file is None else state.file
    model = Probe.from_json(state.model)
    return {
        "path": str(store.folder),
        "documents": state.count,
        "vectors": file["vectors"] - state.dead + state.pending,
        "dimension": state.dim,
        "metric": state.metric,
        "factory": state.factory,
        "parameters": state.parameters,
        "model": str(model),
        "model_source": model.source,
        "revision": model.revision,
        "columns": state.columns,
        "passages": state.passages,
        "pending": state.pending,
        "deleted": state.dead,
        "changes": state.generation,
        "bytes": sum(one.stat().st_size for one in store.folder.iterdir() if one.is_file()),
    }


def verify(store: Store, tx: sqlite3.Connection) -> dict[str, Any]:
    """Read every file; errors as for ``Index.verify``."""
    found, state = about(store, tx), read_state(tx, store.path)
    file = open_file(store.folder, state)
    # At once, for a writer may remove it as soon as there is another.
    if state.file is not None and sha256(store.folder / state.file["name"]) != state.file["sha256"]:
        raise ValueError(damaged(store.folder / state.file["name"], "its SHA-256 is not that of what was written"))
    if (said := tx.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        raise ValueError(damaged(store.path, said))
    documents, keys = 0, list[int]()
    for one in all_documents(tx):
        if not one.is_intact:
            raise ValueError(damaged(store.path, f"document {one.id!r} is not what was written"))
        documents += 1
        keys += one.keys
    later, _ = read_pending(tx, state, store.path)
    dead, there = read_dead(tx), np.array(keys, np.int64)
    filed_keys = there[there < state.stop]
    wanted = np.union1d(filed_keys, dead)
    fits = len(dead) == state.dead and documents == state.count and np.array_equal(there[len(filed_keys) :], later)
    fits = fits and len(wanted) == len(filed_keys) + len(dead) == (0 if file is None else file.count)
    if not fits or (file is not None and file.keys is not None and not np.array_equal(file.keys, wanted)):
        raise ValueError(damaged(store.folder, "its documents and its vectors do not belong together"))
    return found
