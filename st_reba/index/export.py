"""Give an index away: vectors with their documents, for other tools."""

from __future__ import annotations

import glob
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from tqdm.auto import tqdm

from ..corpus.records import to_json
from ..files import whole_path
from ..folders import new_folder
from ..optional import required
from .ann import write_flat
from .changes import filed, open_file
from .store import COLUMNS, State, Store, Stored, read_dead, read_pending, read_state
from .vectors import Segment, Vectors

logger = logging.getLogger(__name__)

Format = Literal["npy", "parquet", "faiss", "lancedb"]
FORMATS: tuple[Format, ...] = get_args(Format)

_BY_SUFFIX: dict[str, Format] = {"": "npy", ".parquet": "parquet", ".faiss": "faiss", ".lancedb": "lancedb"}
_ROWS = 8192
_FILES = ["documents.jsonl", "index.faiss", "vectors.npy"]
# Of a LanceDB database, and the folder that LanceDB makes of it.
_TABLE, _LANCE = "documents", "documents.lance"


def export(
    store: Store, tx: sqlite3.Connection, out: Path, to: Format | None, *, overwrite: bool, show: bool | None
) -> int:
    """Write an index's vectors and documents; arguments as for ``Index.export``."""
    to = _format(out, to)
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: already there; give another path, or overwrite=True (--overwrite)")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder; make it first")
    if to in ("parquet", "faiss") and out.is_dir():
        raise FileExistsError(f"{out}: a folder is there; give another path")
    if out.resolve().is_relative_to(store.folder):
        raise ValueError(f"{out}: in the folder of the index; give a path outside of it")
    for left in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 12}.tmp"):  # of one that was killed
        left.unlink(missing_ok=True)
    state = read_state(tx, store.path)
    assert state is not None
    vectors = all_vectors(store, tx, state)
    if not vectors.count:
        raise ValueError(f"{store.folder}: the index is empty, so there is nothing to export")
    with tqdm(
        total=vectors.count, desc="Exporting", unit=" vectors", disable=None if show is None else not show
    ) as bar:
        if to == "parquet":
            _write_parquet(out, tx, vectors, state, bar)
        elif to == "faiss":
            _write_faiss(out, vectors, bar)
        else:
            lancedb = required("lancedb", "lancedb") if to == "lancedb" else None
            with new_folder(out, overwrite=overwrite, kind=f"an export to {to}", is_kind=_IS[to]) as folder:
                if lancedb is None:
                    _write_folder(folder, tx, vectors, bar)
                else:
                    lancedb.connect(folder).create_table(_TABLE, _reader(tx, vectors, state, bar))
    return vectors.count


def _format(out: Path, to: Format | None) -> Format:
    """What to write: as it is said, or as the name says."""
    if to is not None and to not in FORMATS:
        raise ValueError(f"to={to!r} (--to): choose one of {', '.join(FORMATS)}")
    named = _BY_SUFFIX.get(out.suffix)
    if to is not None and out.suffix and named not in (None, to):
        raise ValueError(f"{out}: the name says {named}, and to={to!r} (--to) something else; change one of them")
    if (found := to or named) is None:
        raise ValueError(
            f"{out}: export writes X.parquet, X.faiss, X.lancedb, or a folder; give it such a name, or say to (--to)"
        )
    return found


def all_vectors(store: Store, tx: sqlite3.Connection, state: State) -> Vectors:
    """The vectors of all documents, in the order of their keys."""
    searcher = open_file(store.folder, state)
    if searcher is not None and not searcher.is_exact:
        logger.warning(
            "%s: an index of factory %r keeps codes in place of vectors, so the vectors that are exported are "
            "approximations; encode the texts again for others", store.folder, state.factory,
        )  # fmt: skip
    dead, _ = read_dead(tx)
    later, pending = read_pending(tx, state.dim)
    last = Segment(later, lambda rows: pending[rows])
    return Vectors([*filed(tx, searcher, state.stop, dead), last], state.dim)


def _lines(tx: sqlite3.Connection) -> Iterator[tuple[int, str, str, str, str | None]]:
    """Key, id, text, metadata and passage of each vector, in the order of their keys."""
    for row in tx.execute(f"SELECT {COLUMNS} FROM documents ORDER BY key"):
        one = Stored(*row)
        for key in one.keys:
            start, stop = (0, None) if one.spans is None else one.bounds(key)
            yield key, one.id, one.text, one.metadata, None if one.spans is None else one.text[start:stop]


def _write_faiss(path: Path, vectors: Vectors, bar: Any) -> None:
    def blocks() -> Iterator[Any]:
        for block in vectors.blocks():
            yield block
            bar.update(len(block))

    write_flat(path, blocks(), vectors.keys, vectors.dim)


def _write_folder(folder: Path, tx: sqlite3.Connection, vectors: Vectors, bar: Any) -> None:
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as text_stream:
        for key, identity, text, metadata, passage in _lines(tx):
            line = {"key": key, "id": identity, "text": text, "metadata": json.loads(metadata)}
            text_stream.write(to_json(line | ({} if passage is None else {"passage": passage})) + "\n")
    with (folder / "vectors.npy").open("wb") as stream:
        # Not mapped into memory: on a full disk that would kill the process in place of an error.
        header = {"descr": "<f4", "fortran_order": False, "shape": (vectors.count, vectors.dim)}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in vectors.blocks():
            stream.write(block.astype("<f4").data)
    _write_faiss(folder / "index.faiss", vectors, bar)


def _holds(*names: str) -> Callable[[Path], bool]:
    return lambda folder: sorted(path.name for path in folder.iterdir()) == list(names)


_IS = {"npy": _holds(*_FILES), "lancedb": _holds(_LANCE)}


def _write_parquet(out: Path, tx: sqlite3.Connection, vectors: Vectors, state: State, bar: Any) -> None:
    parquet = required("pyarrow.parquet", "corpus")
    rows = _reader(tx, vectors, state, bar)
    with whole_path(out) as temporary, parquet.ParquetWriter(temporary, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)


def _reader(tx: sqlite3.Connection, vectors: Vectors, state: State, bar: Any) -> Any:
    """Documents and vectors, a vector a row, as pyarrow's reader of batches."""
    pa = required("pyarrow", "corpus")
    columns = [
        pa.field(name, pa.string(), nullable=name == "passage") for name in ("id", "text", "metadata", "passage")
    ]
    about = {"st_reba.metric": state.metric, "st_reba.factory": state.factory}
    schema = pa.schema([*columns, pa.field("vector", pa.list_(pa.float32(), vectors.dim), nullable=False)], about)
    lines = _lines(tx)

    def batches() -> Iterator[Any]:
        for block in vectors.blocks():
            for start in range(0, len(block), _ROWS):
                some = block[start : start + _ROWS]
                rows = [next(lines)[1:] for _ in range(len(some))]
                arrays = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(some.ravel(), pa.float32()), vectors.dim))
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                bar.update(len(some))

    return pa.RecordBatchReader.from_batches(schema, batches())
