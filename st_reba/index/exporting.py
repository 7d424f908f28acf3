"""Give an index away: vectors as .npy, or vectors, ids, texts and metadata as parquet."""

from __future__ import annotations

import glob
import json
import logging
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus.arrays import npy_writer
from ..files import whole_file, whole_path
from ..optional import required
from .changing.merging import bar
from .changing.rows import Piece, Rows
from .folder.generation import Generation
from .folder.manifest import Manifest

logger = logging.getLogger(__name__)

SUFFIXES = (".npy", ".parquet")
_ROWS_A_GROUP = 8192


def export(
    folder: str | PathLike[str],
    out: str | PathLike[str],
    *,
    overwrite: bool = False,
    show_progress_bar: bool | None = None,
) -> int:
    """Write the documents of an index that are not deleted into a file, in their order, a part at a time.

    ``X.npy`` holds vectors [documents, d] float32; beside it ``X.documents.jsonl`` has a line for each with its id,
    text and metadata. ``X.parquet`` has the columns ``id``, ``text``, ``metadata`` (JSON) and ``vector`` (d float32
    values). Vectors are as they are searched: of length one where cosines are compared.

    Args:
        folder: The index folder; it may be written meanwhile, the export is of one moment.
        out: The file to write; its suffix says how.
        overwrite: Replace what is there.
        show_progress_bar: Show a bar; None: on a terminal.

    Returns:
        How many documents were written.

    Raises:
        FileNotFoundError: There is no such index.
        FileExistsError: Something is there already.
        ValueError: The suffix is another, there is nothing to write, or a file of the index is damaged.
        ImportError: pyarrow is not installed.
        OSError: The disk is full, or the folder may not be written; no part of a file is left.

    Example:
        >>> import st_reba
        >>> from st_reba.index import Index
        >>> Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index").close()
        >>> export("my_index", "my_vectors.npy")
        2
        >>> np.load("my_vectors.npy").shape
        (2, 192)
    """
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise ValueError(f"{out}: export writes {' or '.join(SUFFIXES)}; give the file such a suffix")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: already there; give another path, or overwrite=True (--overwrite)")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder; make it first")
    if out.suffix == ".parquet":
        _pyarrow()
    beside = out.with_suffix(".documents.jsonl")
    for name in (out.name, beside.name):  # left by an export that was killed
        for left in out.parent.glob(f".{glob.escape(name)}.*.tmp"):
            left.unlink(missing_ok=True)
    generation = Generation.open(Path(folder))
    try:
        for segment in generation.segments:
            if not segment.is_exact:
                logger.warning(
                    "%s: an index of factory %r keeps codes in place of vectors, so the vectors that are exported are "
                    "approximations; encode the texts again for others",
                    folder,
                    segment.record.factory,
                )
        rows = Rows([Piece.live(segment) for segment in generation.segments], generation.manifest.dim)
        if not rows.count:
            raise ValueError(f"{folder}: the index is empty, so there is nothing to export")
        with bar(rows.count, "Exporting", show_progress_bar) as update:
            if out.suffix == ".parquet":
                _write_parquet(out, rows, generation.manifest, update)
            else:
                _write_npy(out, beside, rows, update)
    finally:
        generation.retire()
    return rows.count


def _write_npy(out: Path, beside: Path, rows: Rows, update: Any) -> None:
    # The vectors appear last: where they are, their documents are.
    with npy_writer(out, rows.count, "float32") as write:
        with whole_file(beside) as stream:
            for identity, text, metadata in rows.records():
                line = {"id": identity, "text": text, "metadata": json.loads(metadata)}
                stream.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        for block in rows.blocks():
            write(block)
            update(len(block))


def _write_parquet(out: Path, rows: Rows, manifest: Manifest, update: Any) -> None:
    pa, parquet = _pyarrow()
    about = {"model": manifest.model.name or "", "metric": manifest.metric, "factory": manifest.factory}
    schema = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("metadata", pa.string(), nullable=False),
            pa.field("vector", pa.list_(pa.float32(), rows.dim), nullable=False),
        ],
        metadata={f"st_reba.{key}": value for key, value in about.items()},
    )
    records = rows.records()
    with whole_path(out) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for vectors in _groups(rows):
            columns = zip(*(next(records) for _ in range(len(vectors))), strict=True)
            flat = pa.array(vectors.ravel(), pa.float32())
            arrays = [pa.array(column, pa.string()) for column in columns]
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, rows.dim))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            update(len(vectors))


def _groups(rows: Rows) -> Iterator[NDArray[np.float32]]:
    for block in rows.blocks():
        for start in range(0, len(block), _ROWS_A_GROUP):
            yield block[start : start + _ROWS_A_GROUP]


def _pyarrow() -> tuple[Any, Any]:
    need = "writing .parquet, unlike .npy, needs pyarrow"
    return required("pyarrow", "corpus", need), required("pyarrow.parquet", "corpus", need)
