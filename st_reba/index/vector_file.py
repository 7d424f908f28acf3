"""The FAISS file of an index: written, opened, searched by key, and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np

from ..files import sha256, whole_file
from .factories import FaissIndex, faiss, pack_bits, search_lists, select_ids, set_parameters
from .scoring import (
    Keys,
    Mask,
    Matrix,
    Neighbors,
    Segment,
    no_neighbors,
    rescore,
    search_exactly,
    top_k,
)
from .state import REMEDY, IndexState, damaged

METRICS = ("cosine", "dot")
# With at least this many queries, comparing them together, block by block, is faster.
_MIN_QUERIES_TOGETHER = 5
_BLOCK_SIZE = 2**13
_WRITE_SIZE = 2**24


def write_index(path: Path, index: FaissIndex) -> tuple[int, str]:
    """Write an index, whole or not at all.

    Returns:
        The size of the file and its SHA-256.
    """
    with whole_file(path) as stream:
        return write_index_into(stream, index)


def write_index_into(stream: BinaryIO, index: FaissIndex) -> tuple[int, str]:
    """Write an index into a file that is open.

    Returns:
        The number of bytes and their SHA-256.
    """
    digest = hashlib.sha256()
    size = 0
    failures: list[OSError] = []

    def write(block: bytes) -> int:
        nonlocal size
        if failures:
            return 0
        try:
            stream.write(block)
        except OSError as error:  # FAISS would report it in its own words, or not at all
            failures.append(error)
            return 0
        digest.update(block)
        size += len(block)
        return len(block)

    try:
        faiss.write_index(index, faiss.PyCallbackIOWriter(write, _WRITE_SIZE))
    except RuntimeError:
        if not failures:
            raise
    if failures:
        raise failures[0]
    return size, digest.hexdigest()


class VectorFile:
    """The FAISS file of a state, which threads may search together.

    Args:
        folder: The folder of the index.
        state: The state.
        mmap: Map the file, so that the system loads what is searched; False: read it into memory,
            to write it anew.
    """

    def __init__(self, folder: Path, state: IndexState, *, mmap: bool = True) -> None:
        self.path = folder / str(state.vector_file)
        self._expected_digest = state.vector_file_sha256
        self._end_of_keys = state.first_pending_key
        size = self._size()
        if size != state.vector_file_size:
            reason = f"{size} bytes, but {state.vector_file_size} were written"
            raise damaged(self.path, reason)
        if not mmap:
            self.check_digest()
        self.index = self._open(mmap)
        self._prepare_index(state)
        self._direct_map_lock = Lock()
        # Keys and vectors, by row, of an exact index; inverted lists hold the keys.
        self.keys: Keys | None = None
        if isinstance(self.index, faiss.IndexIDMap):
            self.keys = faiss.vector_to_array(self.index.id_map)
            is_ascending = (self.keys[1:] > self.keys[:-1]).all()
            if not is_ascending or (self.keys[:1] < 0).any():
                raise self._wrong_keys()
            self._check_range(self.keys[-1:])
            self._flat = faiss.downcast_index(self.index.index)
            values = faiss.rev_swig_ptr(self._flat.get_xb(), self._flat.ntotal * self._flat.d)
            self._flat_vectors: Matrix = values.reshape(self._flat.ntotal, self._flat.d)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path}: the file of the vectors is missing; {REMEDY}"
            ) from None

    def _open(self, mmap: bool) -> FaissIndex:
        flags = 0
        if mmap:
            flags = faiss.IO_FLAG_MMAP_IFC
        try:
            return faiss.read_index(str(self.path), flags)
        except (RuntimeError, MemoryError) as error:
            self._size()  # a FileNotFoundError where a writer has replaced it meanwhile
            raise damaged(self.path, error) from None

    def _prepare_index(self, state: IndexState) -> None:
        """Set the search parameters; a ValueError for an index that cannot be searched here."""
        shape = (self.index.d, self.index.ntotal, self.index.metric_type)
        if shape != (state.vector_dimension, state.indexed_count, faiss.METRIC_INNER_PRODUCT):
            reason = "another number of vectors, another dimension, or another metric"
            raise damaged(self.path, reason)
        is_supported = isinstance(self.index, faiss.IndexIVF)
        if isinstance(self.index, faiss.IndexIDMap):
            inner_index = faiss.downcast_index(self.index.index)
            is_supported = isinstance(inner_index, faiss.IndexFlat)
        if not is_supported:
            kind = type(self.index).__name__
            raise damaged(self.path, f"{kind} is not used here")
        try:
            set_parameters(self.index, state.parameters)
        except ValueError as error:
            raise damaged(self.path, f"parameters={state.parameters!r}: {error}") from None

    def _check_range(self, keys: Keys) -> None:
        """Raise a ValueError for keys above those of this file."""
        if (keys >= self._end_of_keys).any():
            raise self._wrong_keys()

    def _wrong_keys(self) -> ValueError:
        return damaged(self.path, "its keys are not those of the index's vectors")

    def check_digest(self) -> None:
        """Raise a ValueError if the file's SHA-256 is not that of what was written."""
        self._size()
        if sha256(self.path) != self._expected_digest:
            raise damaged(self.path, "its SHA-256 is not that of what was written")

    def search(self, queries: Matrix, k: int, is_allowed: Mask | None = None) -> Neighbors:
        """The k vectors nearest to queries [q, d], of those that are allowed, by key."""
        if self.keys is not None and is_allowed is not None:
            is_allowed = is_allowed[self.keys]  # by row
        vector_count = int(self.index.ntotal)
        allowed_count = vector_count
        if is_allowed is not None:
            allowed_count = min(int(is_allowed.sum()), vector_count)
        k = min(k, allowed_count)
        if k == 0 or not len(queries):
            return no_neighbors(len(queries))
        if self.keys is not None:
            keys = self._search_flat(self.keys, queries, k, is_allowed)
            return top_k(rescore(queries, keys, self.vectors), keys, k)
        bitmap = None
        if is_allowed is not None:
            bitmap = pack_bits(is_allowed)
        # The fewer vectors are allowed, the more lists must be probed.
        widening = vector_count / allowed_count
        neighbors = search_lists(self.index, queries, k, bitmap, widening)
        self._check_range(neighbors.keys)
        return top_k(*neighbors, k)

    def _search_flat(
        self, all_keys: Keys, queries: Matrix, k: int, is_allowed: Mask | None
    ) -> Keys:
        """Keys [q, k] of the vectors nearest to queries in an exact index; ``is_allowed`` by row."""
        if len(queries) < _MIN_QUERIES_TOGETHER:
            options = None
            if is_allowed is not None:
                bitmap = pack_bits(is_allowed)
                options = faiss.SearchParameters(sel=select_ids(bitmap))
            _, rows = self._flat.search(queries, k, params=options)
            return np.asarray(all_keys[rows], np.int64)
        allowed_keys = all_keys
        if is_allowed is not None:
            allowed_keys = all_keys[is_allowed]
        return search_exactly(queries, k, self.segments(allowed_keys)).keys

    def segments(self, keys: Keys) -> Iterator[Segment]:
        """Vectors of ascending keys, a block at a time."""
        for start in range(0, len(keys), _BLOCK_SIZE):
            block_keys = keys[start : start + _BLOCK_SIZE]
            yield Segment(block_keys, partial(self.vectors, block_keys))

    def vectors(self, keys: Keys) -> Matrix:
        """Vectors [keys, d] of ascending keys; approximate ones if the index is quantized."""
        if self.keys is not None:
            rows = np.searchsorted(self.keys, keys)
            if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
                # Copied: numbers in the file are not aligned, which makes products slow.
                return self._flat_vectors[rows[0] : rows[-1] + 1].copy()
            return self._flat_vectors[rows]
        with self._direct_map_lock:  # made with the first call
            self.index.set_direct_map_type(faiss.DirectMap.Hashtable)
        try:
            return np.asarray(self.index.reconstruct_batch(keys), np.float32)
        except RuntimeError:
            raise self._wrong_keys() from None

    def remove(self, tombstones: Keys) -> FaissIndex:
        """Remove keys from the index, which must have been read into memory, and return it.

        Codes are moved, not made again, which would alter some.
        """
        if len(tombstones):
            self.index.remove_ids(faiss.IDSelectorBatch(tombstones))
        return self.index
