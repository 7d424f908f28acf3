"""Export of an index for other tools."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from typing import BinaryIO

from ..corpus.records import DOCUMENT_COLUMNS
from ..files import whole_file
from .factories import add_vectors, train_index
from .schema import read_documents
from .scoring import Segment
from .search import Snapshot
from .state import IndexState
from .store import vector_keys
from .vector_file import write_index_into
from .whitening import read_whitening_bytes

_Row = tuple[object, ...]
# Characters of the rows that are written at once: each passage has its whole document.
_ROW_CHARACTERS = 1 << 26


def export(snapshot: Snapshot, connection: Connection, out: Path, *, overwrite: bool) -> int:
    """Write an index's vectors and documents; arguments as for ``Index.export``."""
    store = snapshot.store
    state = snapshot.state
    _check_target(out, store.folder, overwrite)
    whitening_path = out.with_name(f"{out.name}.whitening.safetensors")
    for path in (out, whitening_path):
        _remove_leftovers(path)
    keys = vector_keys(connection, state)
    if not len(keys):
        raise ValueError(f"{store.folder}: the index is empty, so there is nothing to export")
    snapshot.check_keys(connection)
    segments = snapshot.vectors.segments(keys)
    whitening = snapshot.whitening(connection)
    if whitening is not None:
        segments = [
            segment.converted(lambda keys, vectors: whitening.model_part(vectors))
            for segment in segments
        ]
    with whole_file(out) as stream:
        if out.suffix == ".parquet":
            _write_parquet(stream, connection, segments, state)
        else:
            flat = train_index("Flat", state.dimension, None, segments)
            add_vectors(flat.index, segments)
            write_index_into(stream, flat.index)
        stream.flush()
        # Written last, so that after an error an earlier export still has its own whitening.
        _write_whitening(whitening_path, connection, state)
    return len(keys)


def _check_target(out: Path, index_folder: Path, overwrite: bool) -> None:
    if out.suffix not in (".parquet", ".faiss"):
        raise ValueError(f"{out}: export writes X.parquet or X.faiss; give it such a name")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder")
    if out.is_dir() or (out.exists() and not overwrite):
        raise FileExistsError(
            f"{out}: already there; give another path, or overwrite=True to replace a file"
        )
    if out.resolve().is_relative_to(index_folder):
        raise ValueError(f"{out}: in the folder of the index; give a path outside of it")


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of an export that was killed."""
    pattern = f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}.tmp"
    for leftover in path.parent.glob(pattern):
        leftover.unlink(missing_ok=True)


def _write_whitening(whitening_path: Path, connection: Connection, state: IndexState) -> None:
    """Write the whitening of exported vectors; if they are raw, remove an earlier export's."""
    if state.whitening is None:
        whitening_path.unlink(missing_ok=True)
        return
    content, *_ = read_whitening_bytes(connection, state)
    with whole_file(whitening_path) as stream:
        stream.write(content)


def _write_parquet(
    stream: BinaryIO,
    connection: Connection,
    segments: list[Segment],
    state: IndexState,
) -> None:
    import pyarrow  # type: ignore[import-untyped, unused-ignore]
    from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

    facts = {
        "similarity": state.metric,
        "whitening": state.whitening,
        "whitening_sha256": state.whitening_sha256,
    }
    column_types = [
        ("key", pyarrow.int64()),
        *((name, pyarrow.string()) for name in DOCUMENT_COLUMNS),
        ("passage", pyarrow.string()),
        ("vector", pyarrow.list_(pyarrow.float32(), state.dimension)),
    ]
    schema = pyarrow.schema(column_types, {"st_reba": json.dumps(facts)})
    rows = _read_rows(connection)
    with parquet.ParquetWriter(stream, schema) as writer:
        for segment in segments:
            vectors = segment.load()
            for segment_rows in _bounded_groups(islice(rows, len(segment.keys))):
                column_values = zip(*segment_rows, strict=True)
                arrays = list(map(pyarrow.array, column_values, schema.types))
                values = pyarrow.array(vectors[: len(segment_rows)].ravel())
                vectors = vectors[len(segment_rows) :]
                arrays.append(pyarrow.FixedSizeListArray.from_arrays(values, state.dimension))
                writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _bounded_groups(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Rows in groups of at most `_ROW_CHARACTERS` characters, or of one row."""
    group: list[_Row] = []
    character_count = 0
    for row in rows:
        row_characters = sum(len(cell) for cell in row if isinstance(cell, str))
        if group and character_count + row_characters > _ROW_CHARACTERS:
            yield group
            group = []
            character_count = 0
        group.append(row)
        character_count += row_characters
    if group:
        yield group


def _read_rows(connection: Connection) -> Iterator[_Row]:
    """Key, columns of the document, and passage of every vector."""
    for document in read_documents(connection):
        document_cells = document.document_fields().values()
        passages: list[str] | list[None] = [None]
        if document.spans is not None:
            passages = document.passages
        for key, passage in zip(document.keys, passages, strict=True):
            yield key, *document_cells, passage
