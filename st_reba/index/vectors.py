"""FAISS indexes: chosen by size, trained, filled, written, opened, searched by key, and read back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from math import ceil, sqrt
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus.folder import sha256
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
# FAISS reserves memory for all lists at once: some hundred megabytes for so many, which are enough for 10⁹ vectors.
_MAX_LISTS = 2**22
# A factory is tried with a small index of the same kind. Graphs over the centroids need about a hundred of them.
_TRIAL_LISTS, _TRIAL_VECTORS = 128, 256

_FAISS_SOURCE = re.compile(r"Error in .*? at \S+:\d+: (Error: )?")

Segment = tuple[Keys, Callable[[], Matrix]]
"""Keys of some vectors, ascending, and a function that loads the vectors [keys, d]."""


def make_index(factory: str, dim: int, parameters: str | None = None) -> Any:
    """An empty FAISS index that compares by inner product: exact, or one of inverted lists."""
    try:
        check_list_count(factory)
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        if not isinstance(index, (faiss.IndexFlat, faiss.IndexIVF)) or isinstance(index, faiss.IndexIVFFastScan):
            raise ValueError(f"{type(index).__name__} is not used here; export the vectors for others")
        set_parameters(index, parameters)
    except (RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise ValueError(
            f"{_describe(factory, parameters)}, for {dim} dimensions: {_reason(error)}. Use 'Flat' (exact), or "
            "inverted lists, as 'IVF1024,Flat', 'IVF1024,SQ8' or 'IVF4096,PQ48np' with 'nprobe=16'"
        ) from None
    return index


def _describe(factory: str, parameters: str | None) -> str:
    if parameters is None:
        return f"factory={factory!r}"
    return f"factory={factory!r}, parameters={parameters!r}"


def _reason(error: BaseException) -> str:
    """What an error of FAISS says, without the lines of its source that it names."""
    return _FAISS_SOURCE.sub("", str(error))


def check_list_count(factory: str) -> None:
    """Raise a ValueError if a factory asks for no inverted list, or for more than memory holds."""
    units = {"": 1, "k": 2**10, "M": 2**20}
    for digits, unit in re.findall(r"IVF(\d+)([kM]?)", factory):
        if not 1 <= int(digits[:20]) * units[unit] <= _MAX_LISTS:
            raise ValueError(f"{digits}{unit} inverted lists, where 1 to {_MAX_LISTS:,} can be made")


def set_parameters(index: Any, parameters: str | None) -> None:
    """Set search parameters of FAISS, as "nprobe=16"; a ValueError if no search can use them."""
    for name, value in re.findall(r"([^=,]*)=([^,]*)", parameters or ""):
        least = 1 if name.endswith("nprobe") else 0  # a search of no list finds nothing
        if not re.fullmatch(r"\d{1,9}", value) or int(value) < least:
            raise ValueError(f"{name}={value} must be a whole number from {least} on, of at most nine digits")
    try:
        faiss.ParameterSpace().set_index_parameters(index, parameters or "")
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def try_factory(factory: str, dim: int, parameters: str | None = None) -> None:
    """Fill, search and change a small index of the same kind; a ValueError if it does not find what it holds.

    Example:
        >>> try_factory("IVF1024,SQ8", 8, "nprobe=4")
        >>> try_factory("IVF1024,FlatDedup", 8)
        Traceback (most recent call last):
        ...
        ValueError: factory='IVF1024,FlatDedup': a small index of this kind ...
    """
    if isinstance(make_index(factory, dim, parameters), faiss.IndexFlat):
        return
    # Of the product quantizer, 16 centroids are trained in place of 256 or 65,536.
    small = re.sub(r"PQ(\d+)(x\d+)?", r"PQ\1x4", re.sub(r"IVF\d+[kM]?", f"IVF{_TRIAL_LISTS}", factory))
    vectors = np.random.default_rng(0).standard_normal((_TRIAL_VECTORS, dim)).astype(np.float32)
    keys = np.arange(_TRIAL_VECTORS)
    try:
        index = make_index(small, dim, parameters)
        _hasten_training(index)
        index.train(vectors)
        index.add_with_ids(vectors, keys)
        scores, neighbours = search_lists(index, vectors[:4], 1, _bitmap(np.ones(len(keys), bool)))
        index.set_direct_map_type(faiss.DirectMap.Hashtable)
        index.reconstruct_batch(keys)
        index.set_direct_map_type(faiss.DirectMap.NoMap)
        index.remove_ids(faiss.IDSelectorBatch(keys[:4]))
        if (neighbours < 0).any() or not np.isfinite(scores).all():
            raise ValueError("a search finds nothing")
    except (RuntimeError, ValueError, MemoryError) as error:
        raise ValueError(
            f"{_describe(factory, parameters)}: a small index of this kind cannot be searched or changed "
            f"({_reason(error)}); use 'Flat', or 'IVF1024,Flat', 'IVF1024,SQ8' or 'IVF4096,PQ48np' with 'nprobe=16'"
        ) from None


def _hasten_training(index: Any) -> None:
    """One round of k-means and no warning of few vectors: the small index of a trial need not be a good one."""
    quantizer = getattr(index, "pq", None)
    for clustering in (index.cp, getattr(quantizer, "cp", None)):
        if clustering is not None:
            clustering.niter = 1
            clustering.min_points_per_centroid = 1
    if hasattr(index, "do_polysemous_training"):
        index.do_polysemous_training = False


def _bitmap(allowed: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(allowed, bitorder="little")


def search_lists(
    index: Any, queries: Matrix, k: int, bitmap: NDArray[np.uint8] | None, widening: float = 1
) -> tuple[Matrix, Keys]:
    """Scores and keys [q, k] in inverted lists; all lists are probed for queries that the nearest lists leave short.

    Args:
        index: An index of inverted lists.
        queries: [q, d].
        k: Keys a query.
        bitmap: Keys that may be found, a bit each; None: all.
        widening: Factor of the number of lists that are probed.
    """
    selector = None
    if bitmap is not None:
        selector = faiss.IDSelectorBitmap(len(bitmap), faiss.swig_ptr(bitmap))
    lists = min(index.nlist, ceil(index.nprobe * widening))
    options = faiss.SearchParametersIVF(sel=selector, nprobe=lists)
    scores, keys = index.search(queries, k, params=options)
    is_short = (keys < 0).any(axis=1)
    if is_short.any():
        options = faiss.SearchParametersIVF(sel=selector, nprobe=index.nlist)
        scores[is_short], keys[is_short] = index.search(queries[is_short], k, params=options)
    return scores, keys


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
        why = f"cannot be trained on {count:,} vectors ({_reason(error)}); use 'Flat', or fewer lists"
        raise ValueError(f"factory={factory!r} {why}") from None
    probed = max(ceil(index.nlist * PROBED), min(index.nlist, FEWEST_PROBED))
    return index, factory, parameters or f"nprobe={probed}"


def add(index: Any, segments: Iterable[Segment]) -> Any:
    """Add vectors with their keys to a trained index; returns it."""
    for keys, vectors in segments:
        if len(keys):
            index.add_with_ids(np.ascontiguousarray(vectors(), np.float32), keys)
    return index


def save(path: Path, index: Any) -> tuple[int, str]:
    """Write an index, whole or not at all; returns the file's size and the SHA-256 of what was written."""
    digest = hashlib.sha256()
    size = 0
    failures: list[OSError] = []

    def write(block: bytes) -> int:
        nonlocal size
        try:
            stream.write(block)
        except OSError as error:  # FAISS would give its own words for it
            failures.append(error)
            return 0
        digest.update(block)
        size += len(block)
        return len(block)

    with whole_file(path) as stream:
        try:
            faiss.write_index(index, faiss.PyCallbackIOWriter(write, 2**24))
        except RuntimeError:
            if failures:
                raise failures[0] from None
            raise
    return size, digest.hexdigest()


def check_search(index: Any, parameters: str | None, segments: Iterable[Segment]) -> None:
    """Raise a ValueError if a search of an index does not find vectors that were added to it."""
    if not isinstance(index, faiss.IndexIVF):
        return
    set_parameters(index, parameters)
    sample = next(load()[:4] for keys, load in segments if len(keys))
    _, neighbours = search_lists(index, np.ascontiguousarray(sample, np.float32), 1, None)
    if (neighbours < 0).any():
        raise ValueError("a search of the new FAISS index does not find what it holds; name another factory")


class VectorFile:
    """The FAISS file of a state, mapped (the system loads what is searched) or in memory; threads may search it."""

    def __init__(self, folder: Path, state: State, *, mmap: bool = True) -> None:
        path = folder / str(state.file)
        self.path = path
        self._expected_digest = state.sha256
        self._parameters = state.parameters
        size = self._size()
        if size != state.bytes:
            raise ValueError(damaged(path, f"{size} bytes, but {state.bytes} were written"))
        if not mmap:  # it is read to be written anew
            self.check_digest()
        try:
            self.whole = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
        except (RuntimeError, MemoryError) as error:
            self._size()  # a FileNotFoundError where a writer has replaced it meanwhile
            raise ValueError(damaged(path, error)) from None
        about = (self.whole.d, self.whole.ntotal, self.whole.metric_type)
        if about != (state.dimension, state.filed, faiss.METRIC_INNER_PRODUCT):
            raise ValueError(damaged(path, "another number of vectors, another dimension, or another metric"))
        is_exact = isinstance(self.whole, faiss.IndexIDMap) and isinstance(
            faiss.downcast_index(self.whole.index), faiss.IndexFlat
        )
        if not is_exact and not isinstance(self.whole, faiss.IndexIVF):
            raise ValueError(damaged(path, f"{type(self.whole).__name__} is not used here"))
        self._mapping = Lock()
        # Of each row of an exact index; inverted lists hold the keys.
        self.keys: Keys | None = None
        if isinstance(self.whole, faiss.IndexIDMap):
            self.keys = faiss.vector_to_array(self.whole.id_map)
            self.flat = faiss.downcast_index(self.whole.index)
            shape = (self.flat.ntotal, self.flat.d)
            self.rows: Matrix = faiss.rev_swig_ptr(self.flat.get_xb(), shape[0] * shape[1]).reshape(shape)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            remedy = "restore a copy of the folder, or build the index again"
            raise FileNotFoundError(f"{self.path}: the file of the vectors is missing; {remedy}") from None

    def check_digest(self) -> None:
        """Raise a ValueError if the file's SHA-256 is not that of what was written."""
        self._size()
        if sha256(self.path) != self._expected_digest:
            raise ValueError(damaged(self.path, "its SHA-256 is not that of what was written"))

    def check_search(self, keys: Keys) -> None:
        """Search for some of the vectors, by their keys; a ValueError if nothing is found."""
        if not len(keys):
            return
        _, neighbours = self.search(self.vectors(keys), 1)
        if neighbours.shape != (len(keys), 1) or (neighbours < 0).any():
            raise ValueError(damaged(self.path, "a search for its own vectors finds nothing"))

    def search(self, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Matrix, Keys]:
        """Scores and keys [q, ≤ k] of the vectors nearest to queries [q, d], best first; a key of −1 is nothing."""
        mask = allowed if allowed is None or self.keys is None else allowed[self.keys]
        total = int(self.whole.ntotal)
        count = total if mask is None else min(int(mask.sum()), total)
        if not (k := min(k, count)) or not len(queries):
            return compared(queries, k, [])
        bits = None if mask is None else _bitmap(mask)
        if self.keys is None:
            if self._parameters is not None:
                self._apply_parameters()
            # The fewer vectors are allowed, the more lists are probed; all if there were too few in them.
            return best(*search_lists(self.whole, queries, k, bits, total / count), k)
        if len(queries) < _TOGETHER:
            selector = None if bits is None else faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            options = None if selector is None else faiss.SearchParameters(sel=selector)
            found = self.keys[self.flat.search(queries, k, params=options)[1]]
        else:
            found = compared(queries, k, self.segments(self.keys if mask is None else self.keys[mask]))[1]
        return best(rescored(queries, found, self.vectors), found, k)

    def _apply_parameters(self) -> None:
        """Set the search parameters, once. Not when the file is opened: `compact` must be able to replace them."""
        try:
            set_parameters(self.whole, self._parameters)
        except ValueError as error:
            raise ValueError(
                f"{self.path}: parameters={self._parameters!r}, which no search can use ({error}); "
                "Index.compact(factory=…, parameters=…) writes the file anew, from the same vectors"
            ) from None
        self._parameters = None

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
