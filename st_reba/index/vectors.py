"""FAISS indexes: chosen by size, trained, filled, written, opened, searched by key, and read back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import whole_file
from .store import Keys, Matrix, State, damaged

faiss: Any = import_module("faiss")  # its stubs lack most of what it has
METRICS = ("cosine", "dot")
# So many vectors are compared with every query; of more, inverted lists are searched in part.
FLAT_UP_TO = 200_000
# A query looks at this share of the inverted lists, and at so many at least.
PROBED, FEWEST_PROBED = 1 / 32, 8
# FAISS uses at most 256 training vectors a centroid.
_SAMPLED_PER_LIST, _FEWEST_SAMPLED = 64, 2**16
# From so many queries on, comparing them together, with so many vectors at a time, is faster than one by one.
_TOGETHER, _BLOCK = 5, 2**13

Segment = tuple[Keys, Callable[[], Matrix]]
"""Keys of some vectors, ascending, and a function that loads the vectors [keys, d]."""


def choose_factory(count: int) -> str:
    """FAISS factory string by the number of vectors: exact, or inverted lists from ``FLAT_UP_TO`` on.

    Example:
        >>> choose_factory(10_000), choose_factory(1_000_000)
        ('Flat', 'IVF4000,Flat')
    """
    return "Flat" if count <= FLAT_UP_TO else f"IVF{ceil(4 * sqrt(count))},Flat"


def make_index(factory: str, dim: int, parameters: str | None = None) -> Any:
    """An empty FAISS index that compares by inner product."""
    if wrong := re.search("PCA|ITQ|fs|IDMap", factory):
        raise ValueError(
            f"factory={factory!r}: leave {wrong[0]} out. PCA and ITQ subtract the mean, which changes products; fs "
            "does not give vectors back; and an IDMap is there already"
        )
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        faiss.ParameterSpace().set_index_parameters(index, parameters or "")
        return index
    except RuntimeError as error:
        raise ValueError(
            f"factory={factory!r}, parameters={parameters!r}: FAISS makes no such index of {dim} dimensions for inner "
            f"products ({_last(error)}); use one as 'Flat' (exact), 'IVF1024,Flat' with 'nprobe=16', 'HNSW32' with "
            "'efSearch=64', 'IVF4096,PQ48np,RFlat' with 'nprobe=16,k_factor_rf=4'"
        ) from None


def _last(error: RuntimeError) -> str:
    return str(error).rsplit(": ", 1)[-1].strip()


def lists_of(index: Any) -> int:
    """Number of inverted lists."""
    inverted = faiss.try_extract_index_ivf(index)
    return 0 if inverted is None else int(inverted.nlist)


def keeps_ids(index: Any) -> bool:
    """True for inverted lists, which store ids; other indexes are wrapped in an IDMap."""
    return lists_of(index) > 0 and not isinstance(index, faiss.IndexRefine)


def trained(factory: str, dim: int, parameters: str | None, segments: Sequence[Segment]) -> tuple[Any, str | None]:
    """An empty index, trained on a sample at equal steps over all segments, and its search parameters."""
    index, count = make_index(factory, dim, parameters), sum(len(keys) for keys, _ in segments)
    lists = lists_of(index)
    if not index.is_trained:
        step = max(1, count // max(_SAMPLED_PER_LIST * lists, _FEWEST_SAMPLED))
        sample = np.concatenate([vectors()[::step] for keys, vectors in segments if len(keys)])
        try:
            index.train(sample)
        except RuntimeError as error:
            why = f"cannot be trained on {count:,} vectors ({_last(error)}); use 'Flat', or fewer lists"
            raise ValueError(f"factory={factory!r} {why}") from None
    if parameters is None and lists:
        parameters = f"nprobe={max(ceil(lists * PROBED), min(lists, FEWEST_PROBED))}"
    return index, parameters


def add(index: Any, segments: Sequence[Segment]) -> Any:
    """Add vectors with their keys to a trained index; returns the index that knows the keys."""
    if isinstance(index, faiss.IndexFlat):
        # Memory for all at once: the vector would double itself.
        index.codes.resize(sum(len(keys) for keys, _ in segments) * index.d * 4)
        index.codes.resize(0)
    if not (keeps_ids(index) or isinstance(index, faiss.IndexIDMap)):
        index = faiss.IndexIDMap(index)
    for keys, vectors in segments:
        if len(keys):
            index.add_with_ids(np.ascontiguousarray(vectors(), np.float32), keys)
    return index


def save(path: Path, index: Any) -> None:
    """Write an index, whole or not at all."""
    with whole_file(path) as stream:
        faiss.write_index(index, faiss.PyCallbackIOWriter(stream.write, 2**24))


class VectorFile:
    """An opened FAISS file, mapped (the system loads what is searched) or in memory; threads may search it."""

    def __init__(self, path: Path, dim: int, parameters: str | None = None, *, mmap: bool = True) -> None:
        try:
            self.whole = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
        except (RuntimeError, MemoryError) as error:
            raise ValueError(damaged(path, error)) from None
        mapped = isinstance(self.whole, faiss.IndexIDMap)
        fits = self.whole.d == dim and self.whole.metric_type == faiss.METRIC_INNER_PRODUCT
        if not fits or not (mapped or keeps_ids(self.whole)):
            raise ValueError(damaged(path, "another dimension or metric, or no ids"))
        self.inner = faiss.downcast_index(self.whole.index) if mapped else self.whole
        faiss.ParameterSpace().set_index_parameters(self.inner, parameters or "")
        # Of each row; None: inverted lists hold the keys.
        self.keys: Keys | None = faiss.vector_to_array(self.whole.id_map) if mapped else None
        if self.keys is not None and (np.diff(self.keys) <= 0).any():
            raise ValueError(damaged(path, "its ids do not ascend"))
        self.is_flat = isinstance(self.inner, faiss.IndexFlat)

    def search(self, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Matrix, Keys]:
        """The k nearest vectors of queries [q, d], among those that are allowed by key.

        Returns:
            Scores and keys [q, ≤ k], best first, equal scores by key; −1: nothing more was found.
        """
        mask = allowed if allowed is None or self.keys is None else allowed[self.keys]
        total = int(self.whole.ntotal)
        count = total if mask is None else min(int(mask.sum()), total)
        if not (k := min(k, count)) or not len(queries):
            return compared(queries, k, [])
        if self.is_flat and len(queries) >= _TOGETHER:
            scores, found = self._exhaustive(queries, k, mask)
        else:
            scores, found = self._among(queries, k, mask, count / total)
        if (short := (found < 0).any(axis=1)).any():
            # The others are in lists that were not looked at, or where no link of a graph leads.
            scores[short], found[short] = self._exhaustive(queries[short], k, mask)
        if self.is_flat:
            scores = rescored(queries, found, self.vectors)
        return best(scores, found, k)

    def _among(self, queries: Matrix, k: int, mask: NDArray[np.bool_] | None, share: float) -> tuple[Matrix, Keys]:
        """Search among rows (or keys) that are allowed; the smaller their share, the more lists are probed (0: all)."""
        bits = None if mask is None else np.packbits(mask, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
        options = None if mask is None and share else _options(self.inner, selector, share)
        try:
            scores, found = self.inner.search(queries, k, params=options)
        except RuntimeError:  # some indexes, as PQ alone, know no selectors
            if self.keys is None:
                raise
            return self._exhaustive(queries, k, mask)
        return scores, found if self.keys is None else np.where(found < 0, -1, self.keys[found])

    def _exhaustive(self, queries: Matrix, k: int, mask: NDArray[np.bool_] | None) -> tuple[Matrix, Keys]:
        if self.keys is None:
            return self._among(queries, k, mask, 0)
        return compared(queries, k, self.segments(self.keys if mask is None else self.keys[mask]))

    def segments(self, keys: Keys) -> Iterator[Segment]:
        """Vectors of ascending keys, a block at a time."""
        for start in range(0, len(keys), _BLOCK):
            some = keys[start : start + _BLOCK]
            yield some, lambda some=some: self.vectors(some)  # type: ignore[misc]

    def vectors(self, keys: Keys) -> Matrix:
        """Vectors [keys, d] of ascending keys; of a quantized index approximations."""
        if self.keys is None:
            faiss.extract_index_ivf(self.whole).set_direct_map_type(faiss.DirectMap.Hashtable)
            return np.asarray(self.whole.reconstruct_batch(keys), np.float32)
        return np.asarray(self.inner.reconstruct_batch(np.searchsorted(self.keys, keys)), np.float32)

    def without(self, dead: Keys, alive: Keys) -> Any:
        """The index, read into memory, without dead keys; all ascend."""
        if not len(dead):
            return self.whole
        # Codes are moved, not made again: a vector made of its own code may get another.
        with suppress(RuntimeError):  # of graphs, which are filled anew
            if self.whole.remove_ids(faiss.IDSelectorBatch(dead)) == len(dead):
                return self.whole
        vectors = self.vectors(alive)
        self.whole.reset()
        return add(self.whole, [(alive, lambda: vectors)])


def _options(index: Any, selector: Any, share: float) -> Any:
    """Search parameters that select ids; the fewer there are, the more lists are probed."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=_options(index.index, selector, share))
    if isinstance(index, faiss.IndexRefine):
        inner = _options(index.base_index, selector, share)
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    if isinstance(index, faiss.IndexIVF):
        probed = min(index.nlist, ceil(index.nprobe / share)) if share else index.nlist
        return faiss.SearchParametersIVF(sel=selector, nprobe=probed)
    return faiss.SearchParameters(sel=selector)


def open_file(folder: Path, state: State, *, mmap: bool = True) -> VectorFile | None:
    """The FAISS file of a state; None: there is none."""
    if state.file is None:
        return None
    path = folder / state.file
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; build the index again")
    if (size := path.stat().st_size) != state.bytes:
        raise ValueError(damaged(path, f"{size} bytes, but {state.bytes} were written"))
    found = VectorFile(path, state.dimension, state.parameters, mmap=mmap)
    if found.whole.ntotal != state.filed:
        raise ValueError(damaged(path, f"{found.whole.ntotal} vectors, but {state.filed} were written"))
    return found


# Scores


def scaled(vectors: NDArray[Any], metric: str) -> Matrix:
    """Vectors [n, d] as FAISS takes them: float32, and for cosines of length one; zero and not finite ones stay."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(vectors, dtype=np.float32)
    if metric != "cosine":
        return single
    # In float64, squares neither overflow nor vanish.
    lengths = np.sqrt(np.einsum("nd,nd->n", single, single, dtype=np.float64))
    lengths[~np.isfinite(lengths) | (lengths == 0)] = 1
    found: Matrix = single / lengths[:, None].astype(np.float32)
    return found


def scaled_queries(vectors: NDArray[Any], dim: int, metric: str) -> Matrix:
    """Query vectors [queries, dim] as FAISS takes them."""
    if vectors.dtype.kind != "f" or vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(f"the query vectors are {vectors.dtype} {vectors.shape}; give floats [queries, {dim}]")
    found = scaled(vectors, metric)
    usable = np.isfinite(found).all(axis=1) & (found.any(axis=1) | (metric != "cosine"))
    if not usable.all():
        raise ValueError(f"query {int(np.argmin(usable))}: its vector is zero, NaN or infinite; leave it out")
    return found


def compared(queries: Matrix, k: int, segments: Iterable[Segment]) -> tuple[Matrix, Keys]:
    """Scores and keys [q, ≤ k] of the vectors nearest to queries [q, d], best first."""
    scores, found = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    for keys, vectors in segments:
        if len(keys):
            more, rows = faiss.knn(queries, vectors(), min(k, len(keys)), metric=faiss.METRIC_INNER_PRODUCT)
            scores, found = best(np.hstack([scores, more]), np.hstack([found, keys[rows]]), k)
    return scores, found


def rescored(queries: Matrix, keys: Keys, load: Callable[[Keys], Matrix]) -> Matrix:
    """Products of queries [q, d] with the vectors of keys [q, k], the same bit for bit whatever else is asked."""
    there, scores = np.unique(keys), np.zeros(keys.shape, np.float32)
    vectors = load(there).astype(np.float64)
    for query, wanted, row in zip(queries, keys, scores, strict=True):
        row[:] = np.einsum("kd,d->k", vectors[np.searchsorted(there, wanted)], query)
    return scores


def best(scores: Matrix, keys: Keys, k: int) -> tuple[Matrix, Keys]:
    """The k best of each row, [q, ≤ k], equal scores by key; a key of −1 is nothing, and comes last."""
    scores = np.where(keys < 0, -np.inf, scores).astype(np.float32)
    order = np.lexsort((keys, -scores))[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(keys, order, axis=1)
