"""FAISS indexes: chosen by size, trained, filled, written, opened, searched by key, and read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from math import ceil, sqrt
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..storage.files import whole_file
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


def make_index(factory: str, dim: int, parameters: str | None = None) -> Any:
    """An empty FAISS index that compares by inner product: exact, or one of inverted lists."""
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        faiss.ParameterSpace().set_index_parameters(index, parameters or "")
        if isinstance(index, (faiss.IndexFlat, faiss.IndexIVF)) and not isinstance(index, faiss.IndexIVFFastScan):
            return index
        why = f"a {type(index).__name__} is not used here; export the vectors for others"
    except RuntimeError as error:
        why = str(error)
    raise ValueError(
        f"factory={factory!r}, parameters={parameters!r}, for {dim} dimensions: {why}. Use 'Flat' (exact), or inverted "
        "lists, as 'IVF1024,Flat', 'IVF1024,SQ8' or 'IVF4096,PQ48np' with 'nprobe=16'"
    )


def trained(factory: str, dim: int, parameters: str | None, segments: Sequence[Segment]) -> tuple[Any, str, str | None]:
    """An empty index, trained on a sample at equal steps over all segments; its factory and its search parameters."""
    count = sum(len(keys) for keys, _ in segments)
    if factory == "auto":
        factory = "Flat" if count <= FLAT_UP_TO else f"IVF{ceil(4 * sqrt(count))},Flat"
    index = make_index(factory, dim, parameters)
    if isinstance(index, faiss.IndexFlat):
        # Memory for all at once: the vector would double itself.
        index.codes.resize(count * dim * 4)
        return faiss.IndexIDMap(index), factory, None
    step = max(1, count // max(_SAMPLED_PER_LIST * index.nlist, _FEWEST_SAMPLED))
    sample = np.concatenate([vectors()[::step] for keys, vectors in segments if len(keys)])
    try:
        index.train(sample)
    except RuntimeError as error:
        why = f"cannot be trained on {count:,} vectors ({error}); use 'Flat', or fewer lists"
        raise ValueError(f"factory={factory!r} {why}") from None
    probed = max(ceil(index.nlist * PROBED), min(index.nlist, FEWEST_PROBED))
    return index, factory, parameters or f"nprobe={probed}"


def add(index: Any, segments: Iterable[Segment]) -> Any:
    """Add vectors with their keys to a trained index; returns it."""
    for keys, vectors in segments:
        if len(keys):
            index.add_with_ids(np.ascontiguousarray(vectors(), np.float32), keys)
    return index


def save(path: Path, index: Any) -> None:
    """Write an index, whole or not at all."""
    with whole_file(path) as stream:
        faiss.write_index(index, faiss.PyCallbackIOWriter(stream.write, 2**24))


class VectorFile:
    """The FAISS file of a state, mapped (the system loads what is searched) or in memory; threads may search it."""

    def __init__(self, folder: Path, state: State, *, mmap: bool = True) -> None:
        path = folder / str(state.file)
        if (size := path.stat().st_size) != state.bytes:
            raise ValueError(damaged(path, f"{size} bytes, but {state.bytes} were written"))
        try:
            self.whole = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
        except (RuntimeError, MemoryError) as error:
            path.stat()  # a FileNotFoundError where a writer has replaced it meanwhile
            raise ValueError(damaged(path, error)) from None
        about = (self.whole.d, self.whole.ntotal, self.whole.metric_type)
        if about != (state.dimension, state.filed, faiss.METRIC_INNER_PRODUCT):
            raise ValueError(damaged(path, "another number of vectors, another dimension, or another metric"))
        self._mapping = Lock()
        # Of each row of an exact index; inverted lists hold the keys.
        self.keys: Keys | None = None
        if isinstance(self.whole, faiss.IndexIDMap):
            self.keys = faiss.vector_to_array(self.whole.id_map)
            self.flat = faiss.downcast_index(self.whole.index)
            shape = (self.flat.ntotal, self.flat.d)
            self.rows: Matrix = faiss.rev_swig_ptr(self.flat.get_xb(), shape[0] * shape[1]).reshape(shape)
        else:
            faiss.ParameterSpace().set_index_parameters(self.whole, state.parameters or "")

    def search(self, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Matrix, Keys]:
        """Scores and keys [q, ≤ k] of the vectors nearest to queries [q, d], best first; a key of −1 is nothing."""
        mask = allowed if allowed is None or self.keys is None else allowed[self.keys]
        total = int(self.whole.ntotal)
        count = total if mask is None else min(int(mask.sum()), total)
        if not (k := min(k, count)) or not len(queries):
            return compared(queries, k, [])
        bits = None if mask is None else np.packbits(mask, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
        if self.keys is None:
            # The fewer vectors are allowed, the more lists are probed; all if there were too few in them.
            probed = min(self.whole.nlist, ceil(self.whole.nprobe * total / count))
            scores, found = self.whole.search(queries, k, params=faiss.SearchParametersIVF(sel=selector, nprobe=probed))
            if (short := (found < 0).any(axis=1)).any():
                options = faiss.SearchParametersIVF(sel=selector, nprobe=self.whole.nlist)
                scores[short], found[short] = self.whole.search(queries[short], k, params=options)
            return best(scores, found, k)
        if len(queries) < _TOGETHER:
            options = None if selector is None else faiss.SearchParameters(sel=selector)
            found = self.keys[self.flat.search(queries, k, params=options)[1]]
        else:
            found = compared(queries, k, self.segments(self.keys if mask is None else self.keys[mask]))[1]
        return best(rescored(queries, found, self.vectors), found, k)

    def segments(self, keys: Keys) -> Iterator[Segment]:
        """Vectors of ascending keys, a block at a time."""
        for start in range(0, len(keys), _BLOCK):
            some = keys[start : start + _BLOCK]
            yield some, lambda some=some: self.vectors(some)  # type: ignore[misc]

    def vectors(self, keys: Keys) -> Matrix:
        """Vectors [keys, d] of ascending keys; of a quantized index approximations."""
        if self.keys is not None:
            places = np.searchsorted(self.keys, keys)
            # Copied, for numbers in the file do not begin at multiples of four bytes, which makes products slow.
            together = len(places) and places[-1] - places[0] + 1 == len(places)
            return self.rows[places[0] : places[-1] + 1].copy() if together else self.rows[places]
        with self._mapping:  # made with the first call
            self.whole.set_direct_map_type(faiss.DirectMap.Hashtable)
        return np.asarray(self.whole.reconstruct_batch(keys), np.float32)

    def without(self, dead: Keys) -> Any:
        """The index, read into memory, without dead keys. Codes are moved, not made again, which would alter some."""
        if len(dead):
            self.whole.remove_ids(faiss.IDSelectorBatch(dead))
        return self.whole


def scaled(vectors: NDArray[Any], metric: str) -> Matrix:
    """Vectors [n, d] as FAISS takes them: float32, and for cosines of length one; zero and not finite ones stay."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(vectors, dtype=np.float32)
    if metric != "cosine":
        return single
    # In float64, squares neither overflow nor vanish.
    lengths = np.sqrt(np.einsum("nd,nd->n", single, single, dtype=np.float64))
    lengths[~np.isfinite(lengths) | (lengths == 0)] = 1
    return np.asarray(single / lengths[:, None].astype(np.float32))


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
            products = queries @ vectors().T  # with a partition, several times faster than faiss.knn
            if scores.shape[1] == k:  # few of a block's vectors can be among the best
                some = (products >= scores[:, -1:]).any(axis=0)
                keys, products = keys[some], products[:, some]
            if few := min(k, len(keys)):
                kept = np.argpartition(products, -few, axis=1)[:, -few:]
                more = np.take_along_axis(products, kept, axis=1)
                scores, found = best(np.hstack([scores, more]), np.hstack([found, keys[kept]]), k)
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
