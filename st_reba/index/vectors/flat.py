"""A FAISS file of exact search, written a piece at a time: memory does not grow with the corpus."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import whole_path


def load_faiss() -> Any:
    """Import FAISS, which has no type stubs, when it is first needed."""
    import faiss  # type: ignore[import-untyped, unused-ignore]

    return faiss


def write_flat(path: Path, parts: Iterable[NDArray[np.float32]], dim: int) -> int:
    """Write an ``IndexFlatIP`` as FAISS itself would, whole or not at all.

    FAISS can only write an index that it holds in memory. Its file is a short head and then the vectors as they are, so
    the head of an empty index is written with the true counts filled in; FAISS reads the file back before it counts.

    Args:
        path: The file to write or replace.
        parts: Vectors [any number, dim].
        dim: Their dimension.

    Returns:
        How many vectors were written.

    Raises:
        OSError: The disk is full, or the folder may not be written.
    """
    faiss = load_faiss()
    head = bytearray(faiss.serialize_index(faiss.IndexFlatIP(dim)).tobytes())
    count, last = 0, None
    with whole_path(path) as temporary:
        with temporary.open("wb") as stream:
            stream.write(head)
            for part in parts:
                stream.write(np.ascontiguousarray(part, dtype="<f4").data)
                count += len(part)
                last = part[-1] if len(part) else last
            # The head: four letters, int32 dimension, int64 count, …, and at its end the number of values.
            struct.pack_into("<q", head, 8, count)
            struct.pack_into("<Q", head, len(head) - 8, count * dim)
            stream.seek(0)
            stream.write(head)
        index = read_faiss(temporary)
        same = index.ntotal == count and (last is None or np.array_equal(index.reconstruct(count - 1), last))
        if not isinstance(index, faiss.IndexFlatIP) or not same:
            raise RuntimeError(
                f"{path}: this version of FAISS ({faiss.__version__}) lays out flat indexes in another way; "
                "install another version of faiss-cpu"
            )
    return count


def read_faiss(path: Path, *, mmap: bool = True) -> Any:
    """Read a FAISS file, by default mapped: the system loads what is searched.

    Args:
        path: The file.
        mmap: Map it; else read it into memory.

    Returns:
        The FAISS index.

    Raises:
        ValueError: FAISS cannot read it.
    """
    faiss = load_faiss()
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"{path}: not a FAISS index, or damaged ({error}); build the index again") from error
