"""FAISS files as a search needs them: opened, searched by key, and read back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ann import add, import_faiss, keeps_ids, parts, set_parameters
from .store import Keys, Matrix, damaged

logger = logging.getLogger(__name__)

# Below this share of allowed vectors, a graph is not searched: comparing with all of those is quicker and exact.
_GRAPH_SHARE = 0.1
# From so many queries on, products of matrices, of about so many numbers each, are several times faster than FAISS.
_TOGETHER, _BLOCK = 5, 2**20


class VectorFile:
    """An opened FAISS file, mapped (the system loads what is searched) or in memory; safe from several threads."""

    def __init__(self, path: Path, dim: int, parameters: str | None = None, *, mmap: bool = True) -> None:
        faiss = import_faiss()
        self.whole = _read(path, mmap=mmap)
        mapped = isinstance(self.whole, faiss.IndexIDMap)
        fits = self.whole.d == dim and self.whole.metric_type == faiss.METRIC_INNER_PRODUCT
        if not fits or not (mapped or keeps_ids(self.whole)):
            raise ValueError(damaged(path, "another dimension or metric, or no ids"))
        self.inner = faiss.downcast_index(self.whole.index) if mapped else self.whole
        if parameters is not None:
            set_parameters(self.inner, parameters)
        # Of each row; None: inverted lists hold the keys.
        self.keys: Keys | None = faiss.vector_to_array(self.whole.id_map) if mapped else None
        if self.keys is not None and (np.diff(self.keys) <= 0).any():
            raise ValueError(damaged(path, "its ids do not ascend"))
        self.count = int(self.whole.ntotal)
        self.is_flat = isinstance(self.inner, faiss.IndexFlat)
        self.is_graph = any(isinstance(part, faiss.IndexHNSW) for part in parts(self.inner))
        # Whether vectors come back as they were added.
        storage = self.inner.refine_index if isinstance(self.inner, faiss.IndexRefine) else self.inner
        storage = faiss.downcast_index(getattr(storage, "storage", storage))
        self.is_exact = isinstance(storage, (faiss.IndexFlat, faiss.IndexIVFFlat))
        self._lock, self._reads_by_key = threading.Lock(), False

    def search(self, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Matrix, Keys]:
        """The k nearest vectors of queries [q, d], among those that are allowed by key.

        Returns:
            Scores and keys [q, ≤ k], best first, equal scores by key; −1: nothing more was found.
        """
        mask = None if allowed is None else allowed if self.keys is None else allowed[self.keys]
        count = self.count if mask is None else min(int(mask.sum()), self.count)
        k = min(k, count)
        if not k or not len(queries):
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        if count == self.count and self.keys is not None:
            mask = None
        share = count / self.count
        few = mask is not None and self.keys is not None and self._is_few(share)
        if few or (self.is_flat and len(queries) >= _TOGETHER):
            scores, found = self._compared(queries, k, mask)
        elif mask is None:
            scores, found = self.inner.search(queries, k)
        else:
            scores, found = self._among(queries, k, mask, share)
        if (short := (found < 0).any(axis=1)).any():
            # The others are in lists that were not looked at, or where no link of a graph leads.
            search = self._compared if self.keys is not None else self._among
            scores[short], found[short] = search(queries[short], k, mask)
        if self.keys is not None:
            found = np.where(found < 0, -1, self.keys[found])
        if self.is_flat:
            scores = rescored(queries, found, self.vectors)
        return best(scores, found, k)

    def _is_few(self, share: float) -> bool:
        return self.is_graph and share < _GRAPH_SHARE

    def _among(self, queries: Matrix, k: int, mask: NDArray[np.bool_] | None, share: float = 0) -> tuple[Matrix, Keys]:
        """Search among rows (or keys) that are allowed; the smaller their share, the further it looks (0: at all)."""
        faiss = import_faiss()
        bits = None if mask is None else np.packbits(mask, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
        try:
            found: tuple[Matrix, Keys] = self.inner.search(queries, k, params=_narrowed(self.inner, selector, share))
            return found
        except RuntimeError:  # some indexes, as PQ alone, know no selectors
            if self.keys is None:
                raise
            return self._compared(queries, k, mask)

    def _compared(self, queries: Matrix, k: int, mask: NDArray[np.bool_] | None) -> tuple[Matrix, Keys]:
        """Exact search among the rows that are allowed, by products of matrices."""
        rows = np.arange(self.count) if mask is None else np.flatnonzero(mask)
        scores, found = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        size = min(8192, max(1024, _BLOCK // len(queries)))
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            products = queries @ self._at(some).T
            kept = np.argpartition(-products, min(k, len(some)) - 1, axis=1)[:, :k]
            more = np.take_along_axis(products, kept, axis=1)
            scores, found = best(np.hstack([scores, more]), np.hstack([found, some[kept]]), k)
        return scores, found

    def _at(self, rows: Keys) -> Matrix:
        """Vectors [rows, d] of row numbers, ascending."""
        if not self.is_flat:
            return np.asarray(self.inner.reconstruct_batch(rows), np.float32)
        vectors: Matrix = import_faiss().rev_swig_ptr(self.inner.get_xb(), self.count * self.whole.d)
        vectors = vectors.reshape(self.count, self.whole.d)
        # A copy, for numbers in the file are not aligned, which makes products slow.
        return vectors[rows[0] : rows[-1] + 1].copy() if rows[-1] - rows[0] == len(rows) - 1 else vectors[rows]

    def vectors(self, keys: Keys) -> Matrix:
        """Vectors [keys, d] of ascending keys; of a quantized index approximations, or a ValueError."""
        faiss = import_faiss()
        if not len(keys):
            return np.zeros((0, self.whole.d), np.float32)
        try:
            if self.keys is not None:
                return self._at(np.searchsorted(self.keys, keys))
            inverted = faiss.downcast_index(faiss.try_extract_index_ivf(self.whole))
            with self._lock:  # FAISS makes this table once, and not for several threads
                if not self._reads_by_key:
                    inverted.set_direct_map_type(faiss.DirectMap.Hashtable)
                    self._reads_by_key = True
            return np.asarray(self.whole.reconstruct_batch(keys), np.float32)
        except RuntimeError as error:
            raise ValueError(f"an index of this kind does not give its vectors back ({error})") from error

    def without(self, dead: Keys, alive: Keys) -> Any:
        """The index, read into memory, without dead keys; all ascend."""
        if not len(dead):
            return self.whole
        # Codes are moved, not made again: a vector made of its own code may get another.
        with suppress(RuntimeError):  # of graphs, which are filled anew
            if self.whole.remove_ids(import_faiss().IDSelectorBatch(dead)) == len(dead):
                return self.whole
        vectors = self.vectors(alive)
        self.whole.reset()
        return add(self.whole, [(alive, lambda: vectors)])


def _read(path: Path, *, mmap: bool) -> Any:
    faiss = import_faiss()
    try:
        if mmap:
            try:
                return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
            except RuntimeError:
                logger.debug("%s: not mapped", path, exc_info=True)
        with path.open("rb") as stream:
            return faiss.read_index(faiss.PyCallbackIOReader(stream.read, 2**24))
    except (RuntimeError, MemoryError) as error:
        raise ValueError(damaged(path, error)) from None


def _narrowed(index: Any, selector: Any, share: float) -> Any:
    """Search parameters that select rows; the fewer may be found, the further an approximate index looks."""
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=_narrowed(index.index, selector, share))
    if isinstance(index, faiss.IndexRefine):
        inner = _narrowed(index.base_index, selector, share)
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    if isinstance(index, faiss.IndexIVF):
        probed = index.nlist if not share else min(index.nlist, ceil(index.nprobe / share))
        return faiss.SearchParametersIVF(sel=selector, nprobe=probed)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(sel=selector, efSearch=min(4096, ceil(index.hnsw.efSearch / (share or 1))))
    return faiss.SearchParameters(sel=selector)


# Scores


def scaled(vectors: NDArray[Any], metric: str) -> Matrix:
    """Vectors [n, d] as FAISS takes them: float32, and for cosines of length one; zero and not finite ones stay."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(vectors, dtype=np.float32)
    if metric != "cosine":
        return single
    found = np.empty_like(single)
    # Blocks stay in the processor's cache; float64, so that squares neither overflow nor vanish.
    for start in range(0, len(single), size := max(1, 2**20 // single.shape[1])):
        lengths = np.linalg.norm(single[start : start + size].astype(np.float64), axis=1)
        lengths[~np.isfinite(lengths) | (lengths == 0)] = 1
        found[start : start + size] = single[start : start + size] / lengths[:, None]
    return found


def scaled_queries(vectors: NDArray[Any], dim: int, metric: str) -> Matrix:
    """Query vectors [queries, dim] as FAISS takes them."""
    if vectors.dtype.kind != "f" or vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(
            f"the query vectors are {vectors.dtype} {vectors.shape}; the index needs floats [queries, {dim}]"
        )
    found = scaled(vectors, metric)
    if (wrong := ~np.isfinite(found).all(axis=1)).any():
        raise ValueError(f"query {int(np.flatnonzero(wrong)[0])}: its vector is NaN or infinite; leave it out")
    if metric == "cosine" and (zero := ~found.any(axis=1)).any():
        raise ValueError(f"query {int(np.flatnonzero(zero)[0])}: its vector is zero; leave it out")
    return found


def rescored(queries: Matrix, keys: Keys, load: Callable[[Keys], Matrix]) -> Matrix:
    """Products of queries [q, d] with the vectors of keys [q, k], the same bit for bit whatever else is asked."""
    there = np.unique(keys[keys >= 0])
    vectors = load(there).astype(np.float64)
    scores = np.full(keys.shape, -np.inf, np.float32)
    for query, wanted, row in zip(queries, keys, scores, strict=True):
        real = wanted >= 0
        row[real] = np.einsum("nd,d->n", vectors[np.searchsorted(there, wanted[real])], query)
    return scores


def best(scores: Matrix, keys: Keys, k: int) -> tuple[Matrix, Keys]:
    """The k best of each row, [q, ≤ k], equal scores by key; a key of −1 is nothing, and comes last."""
    scores = np.where(keys < 0, -np.inf, scores).astype(np.float32)
    order = np.lexsort((keys, -scores))[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(keys, order, axis=1)
