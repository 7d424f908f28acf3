"""A FAISS file that is opened: searched by key among the documents that are allowed, and read back."""

from __future__ import annotations

import threading
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ann import keeps_ids, load_faiss, parts, read_faiss, set_parameters
from .vectors import Keys, Matrix, best, exact

# Where fewer than this share of a graph may be found, comparing with all of those is quicker and exact.
_GRAPH_SHARE = 0.1
# So many queries are faster by products of matrices, of which this is the size: rows of the index, and queries.
_TOGETHER = 5
_BLOCK, _MOST_TOGETHER = 8192, 256
_MOST_EF = 4096


class Searcher:
    """An opened FAISS file; safe from several threads.

    Args:
        path: The file.
        dim: The dimension that it must have.
        parameters: FAISS search parameters.
        mmap: Map the file; else read it into memory.

    Raises:
        ValueError: FAISS cannot read it, or it does not fit.
    """

    def __init__(self, path: Path, dim: int, parameters: str | None = None, *, mmap: bool = True) -> None:
        faiss = load_faiss()
        self.whole = read_faiss(path, mmap=mmap)
        if self.whole.d != dim or self.whole.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(f"{path}: of dimension {self.whole.d}, not {dim}, or of another metric; build it again")
        mapped = isinstance(self.whole, faiss.IndexIDMap)
        if not mapped and not keeps_ids(self.whole):
            raise ValueError(f"{path}: its vectors have no ids; build the index again")
        self.inner = faiss.downcast_index(self.whole.index) if mapped else self.whole
        if parameters is not None:
            set_parameters(self.inner, parameters)
        # Of each row; None: inverted lists hold the keys.
        self.keys: Keys | None = faiss.vector_to_array(self.whole.id_map) if mapped else None
        if self.keys is not None and (np.diff(self.keys) <= 0).any():
            raise ValueError(f"{path}: its ids do not ascend; build the index again")
        self.count = int(self.whole.ntotal)
        self.is_flat = isinstance(self.inner, faiss.IndexFlat)
        # Whether vectors come back as they were added.
        storage = self.inner.refine_index if isinstance(self.inner, faiss.IndexRefine) else self.inner
        storage = faiss.downcast_index(getattr(storage, "storage", storage))
        self.is_exact = isinstance(storage, (faiss.IndexFlat, faiss.IndexIVFFlat))
        self._lock = threading.Lock()
        self._reads_by_key = False

    def search(self, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Matrix, Keys]:
        """The nearest vectors, best first, equal scores by key.

        Args:
            queries: [q, d].
            k: How many.
            allowed: By key: which may be found; None: all.

        Returns:
            Scores and keys [q, ≤ k]; where a key is −1, nothing was found.
        """
        mask = None if allowed is None else allowed if self.keys is None else allowed[self.keys]
        # Of inverted lists, a key may be allowed that is not in the file.
        count = self.count if mask is None else min(int(mask.sum()), self.count)
        k = min(k, count)
        if not k or not len(queries):
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        if count == self.count and self.keys is not None:
            mask = None
        # FAISS multiplies matrices itself where there are very many queries, and no selector.
        own = mask is not None or queries.size < load_faiss().cvar.distance_compute_blas_threshold
        if self.is_flat and len(queries) >= _TOGETHER and own:
            scores, found = self._compared(queries, k, None if mask is None else np.flatnonzero(mask))
        elif mask is None:
            scores, found = self.inner.search(queries, k)
        else:
            scores, found = self._among(queries, k, mask, count / self.count)
        share = count / self.count
        while share > 1 / self.count and (lacking := (found < 0).any(axis=1)).any():
            # There are more in lists that were not looked at, or in a graph where no link leads.
            share /= 8
            every = np.ones(self.count, bool) if mask is None and self.keys is not None else mask
            scores[lacking], found[lacking] = self._among(queries[lacking], k, every, share)
        if self.keys is not None:
            found = np.where(found < 0, -1, self.keys[found])
        if self.is_flat:
            scores = exact(queries, found, self.vectors)
        return best(scores, found, k)

    def _among(self, queries: Matrix, k: int, mask: NDArray[np.bool_] | None, share: float) -> tuple[Matrix, Keys]:
        """As `inner.search`, of those rows (or keys) alone; the smaller the share, the further it looks."""
        faiss = load_faiss()
        graph = self.keys is not None and any(isinstance(part, faiss.IndexHNSW) for part in parts(self.inner))
        if mask is None:
            found: tuple[Matrix, Keys] = self.inner.search(queries, k, params=_parameters(self.inner, None, share))
            return found
        if graph and share < _GRAPH_SHARE:
            return self._compared(queries, k, np.flatnonzero(mask))
        bits = np.packbits(mask, bitorder="little")
        selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
        try:
            found = self.inner.search(queries, k, params=_parameters(self.inner, selector, share))
            return found
        except RuntimeError:  # some indexes, as PQ alone, know no selectors
            fetch = k
            while True:
                fetch = min(max(2 * fetch, ceil(k / share)), self.count)
                scores, rows = self.inner.search(queries, fetch)
                there = (rows >= 0) & mask[np.maximum(rows, 0)]
                if fetch == self.count or (there.sum(axis=1) >= k).all():
                    return best(scores, np.where(there, rows, -1), k)

    def _compared(self, queries: Matrix, k: int, rows: Keys | None) -> tuple[Matrix, Keys]:
        """Exact search among some rows, or all: products of matrices, which FAISS leaves to single vectors."""
        if len(queries) > _MOST_TOGETHER:
            half = len(queries) // 2
            both = self._compared(queries[:half], k, rows), self._compared(queries[half:], k, rows)
            return np.concatenate([both[0][0], both[1][0]]), np.concatenate([both[0][1], both[1][1]])
        scores, found = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
        for start in range(0, self.count if rows is None else len(rows), _BLOCK):
            some = np.arange(start, min(start + _BLOCK, self.count)) if rows is None else rows[start : start + _BLOCK]
            products = queries @ self._at(some).T
            # Those that are better than the worst that is kept, at the beginning of each row.
            which, column = np.nonzero(products > scores.min(axis=1)[:, None])
            counts = np.bincount(which, minlength=len(queries))
            place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
            more = np.full((len(queries), counts.max()), -np.inf, np.float32)
            its = np.full(more.shape, -1, np.int64)
            more[which, place], its[which, place] = products[which, column], some[column]
            scores, its = np.concatenate([scores, more], axis=1), np.concatenate([found, its], axis=1)
            kept = np.argpartition(-scores, k - 1, axis=1)[:, :k]
            scores, found = np.take_along_axis(scores, kept, axis=1), np.take_along_axis(its, kept, axis=1)
        return scores, found

    def _at(self, rows: Keys) -> Matrix:
        """The vectors [rows, d] of row numbers, ascending."""
        if not self.is_flat:
            return np.asarray(self.inner.reconstruct_batch(rows), np.float32)
        table = load_faiss().rev_swig_ptr(self.inner.get_xb(), self.count * self.whole.d)
        vectors: Matrix = table.reshape(self.count, self.whole.d)
        # A copy, for numbers in the file do not begin at multiples of four bytes, which products take long for.
        return vectors[rows[0] : rows[-1] + 1].copy() if rows[-1] - rows[0] == len(rows) - 1 else vectors[rows]

    def vectors(self, keys: Keys) -> Matrix:
        """The vectors [keys, d] as far as the index knows them; those of a quantized one are approximations.

        Raises:
            ValueError: FAISS cannot give back vectors of such an index.
        """
        faiss = load_faiss()
        if not len(keys):
            return np.zeros((0, self.whole.d), np.float32)
        try:
            if self.keys is not None:
                return self._at(np.searchsorted(self.keys, keys))
            inverted = faiss.downcast_index(faiss.try_extract_index_ivf(self.whole))
            if isinstance(inverted, faiss.IndexIVFFastScan):  # reading a row of these ends the process
                raise ValueError("inverted lists with fast scan do not give their vectors back")
            with self._lock:  # FAISS makes this table once, and not for several threads
                if not self._reads_by_key:
                    inverted.set_direct_map_type(faiss.DirectMap.Hashtable)
                    self._reads_by_key = True
            return np.asarray(self.whole.reconstruct_batch(keys), np.float32)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"an index of this kind does not give its vectors back ({error})") from error


def without(searcher: Searcher, dead: Keys) -> Any | None:
    """The index of a file that was read into memory, some keys taken out; None: FAISS cannot take them out.

    Codes are moved, not made again: a vector encoded from its own reconstruction may fall into another list.
    """
    faiss = load_faiss()
    if not len(dead):
        return searcher.whole
    try:
        removed = searcher.whole.remove_ids(faiss.IDSelectorBatch(dead))
    except RuntimeError:
        return None
    return searcher.whole if removed == len(dead) else None


def _parameters(index: Any, selector: Any, share: float) -> Any:
    """Search parameters that select rows; the fewer may be found, the further an approximate index looks."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=_parameters(index.index, selector, share))
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(index.base_index, selector, share)
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(sel=selector, nprobe=min(index.nlist, ceil(index.nprobe / share)))
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(sel=selector, efSearch=min(_MOST_EF, ceil(index.hnsw.efSearch / share)))
    return faiss.SearchParameters(sel=selector)
