"""FAISS indexes by factory strings: made, tried, trained, filled, and searched by lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import ceil, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .scoring import Matrix, Neighbors, Segment

faiss: Any = import_module("faiss")  # its stubs lack most of what it has
FaissIndex: TypeAlias = Any
Bitmap = NDArray[np.uint8]

# Exact search up to this many vectors; inverted lists above.
MAX_FLAT_VECTORS = 200_000
# nprobe, unless it is given: 1/32 of the lists, at least 8.
PROBED_SHARE = 1 / 32
MIN_PROBED = 8
# FAISS uses at most 256 training vectors per centroid.
_SAMPLES_PER_LIST = 64
_MIN_SAMPLES = 2**16
# FAISS reserves memory for all lists at once: a few hundred megabytes for this number, which is
# enough for 10⁹ vectors.
_MAX_LISTS = 2**22
_LIST_UNITS = {"": 1, "k": 2**10, "M": 2**20}
# A factory is tried with a small index of the same kind. Graphs over the centroids need about a
# hundred of them.
_TRIAL_LISTS = 128
_TRIAL_VECTORS = 256
_REMEDY = (
    "Use 'Flat' (exact), or inverted lists, such as 'IVF1024,Flat', 'IVF1024,SQ8' or "
    "'IVF4096,PQ48np' with 'nprobe=16'"
)
_FAISS_SOURCE = re.compile(r"Error in .*? at \S+:\d+: (Error: )?")


def make_index(factory: str, dimension: int, parameters: str | None) -> FaissIndex:
    """An empty FAISS index that compares by inner product: exact, or one of inverted lists."""
    try:
        _check_list_count(factory)
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        is_supported = isinstance(index, (faiss.IndexFlat, faiss.IndexIVF))
        if not is_supported or isinstance(index, faiss.IndexIVFFastScan):
            kind = type(index).__name__
            raise ValueError(f"{kind} is not used here; export the vectors for others")
        set_parameters(index, parameters)
    except (RuntimeError, ValueError, TypeError, MemoryError) as error:
        options = _describe_options(factory, parameters)
        raise ValueError(
            f"{options}, for {dimension} dimensions: {_faiss_message(error)}. {_REMEDY}"
        ) from None
    return index


def _describe_options(factory: str, parameters: str | None) -> str:
    description = f"factory={factory!r}"
    if parameters is not None:
        description += f", parameters={parameters!r}"
    return description


def _faiss_message(error: Exception) -> str:
    """The message of FAISS, without the lines of its source that it names."""
    return _FAISS_SOURCE.sub("", str(error))


def _check_list_count(factory: str) -> None:
    """Raise a ValueError if a factory has no inverted list, or more than memory holds."""
    for digits, unit in re.findall(r"IVF(\d+)([kM]?)", factory):
        list_count = int(digits[:20]) * _LIST_UNITS[unit]
        if not 1 <= list_count <= _MAX_LISTS:
            raise ValueError(
                f"{digits}{unit} inverted lists, where 1 to {_MAX_LISTS:,} can be made"
            )


def set_parameters(index: FaissIndex, parameters: str | None) -> None:
    """Set search parameters of FAISS, such as "nprobe=16"; a ValueError if no search can use them."""
    parameters = parameters or ""
    for name, value in re.findall(r"([^=,]*)=([^,]*)", parameters):
        minimum = 0
        if name.endswith("nprobe"):
            minimum = 1  # a search of no list finds nothing
        if not re.fullmatch(r"\d{1,9}", value) or int(value) < minimum:
            raise ValueError(
                f"{name}={value} must be a whole number of at least {minimum}, with at most nine digits"
            )
    try:
        faiss.ParameterSpace().set_index_parameters(index, parameters)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def try_factory(factory: str, dimension: int, parameters: str | None = None) -> None:
    """Fill, search and change a small index of the same kind; a ValueError if that fails.

    Example:
        >>> try_factory("IVF1024,SQ8", 8, "nprobe=4")
        >>> try_factory("IVF1024,FlatDedup", 8)
        Traceback (most recent call last):
        ...
        ValueError: factory='IVF1024,FlatDedup': a small index of this kind ...
    """
    if isinstance(make_index(factory, dimension, parameters), faiss.IndexFlat):
        return
    small_factory = re.sub(r"IVF\d+[kM]?", f"IVF{_TRIAL_LISTS}", factory)
    # 16 centroids of the product quantizer are trained in place of 256 or 65,536.
    small_factory = re.sub(r"PQ(\d+)(x\d+)?", r"PQ\1x4", small_factory)
    try:
        _try_index(make_index(small_factory, dimension, parameters))
    except (RuntimeError, ValueError, MemoryError) as error:
        options = _describe_options(factory, parameters)
        raise ValueError(
            f"{options}: a small index of this kind cannot be searched or changed "
            f"({_faiss_message(error)}). {_REMEDY}"
        ) from None


def try_factory_with_tokens(
    factory: str, dimension: int, token_dimension: int, parameters: str | None
) -> None:
    """As `try_factory`, also for vectors with a part for tokens; the error says how to omit it."""
    try_factory(factory, dimension, parameters)
    if token_dimension == 0:
        return
    try:
        try_factory(factory, dimension + token_dimension, parameters)
    except ValueError:
        options = _describe_options(factory, parameters)
        raise ValueError(
            f"{options}: it takes vectors of {dimension} dimensions, but not with the "
            f"{token_dimension} of tokens; leave those out with tokens=False (--no-tokens)"
        ) from None


def _try_index(index: FaissIndex) -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((_TRIAL_VECTORS, index.d)).astype(np.float32)
    keys = np.arange(_TRIAL_VECTORS)
    _hasten_training(index)
    index.train(vectors)
    index.add_with_ids(vectors, keys)
    all_keys = pack_bits(np.ones(_TRIAL_VECTORS, bool))
    neighbors = search_lists(index, vectors[:4], 1, all_keys)
    index.set_direct_map_type(faiss.DirectMap.Hashtable)
    index.reconstruct_batch(keys)
    index.set_direct_map_type(faiss.DirectMap.NoMap)
    index.remove_ids(faiss.IDSelectorBatch(keys[:4]))
    if (neighbors.keys < 0).any() or not np.isfinite(neighbors.scores).all():
        raise ValueError("a search finds nothing")


def _hasten_training(index: FaissIndex) -> None:
    """Train in one round of k-means, without a warning about few vectors: a trial may be poor."""
    quantizer = getattr(index, "pq", None)
    for clustering in (index.cp, getattr(quantizer, "cp", None)):
        if clustering is not None:
            clustering.niter = 1
            clustering.min_points_per_centroid = 1
    if hasattr(index, "do_polysemous_training"):
        index.do_polysemous_training = False


def pack_bits(is_allowed: NDArray[np.bool_]) -> Bitmap:
    return np.packbits(is_allowed, bitorder="little")


def select_ids(bitmap: Bitmap | None) -> Any:
    """FAISS's selector of ids; it does not keep the bitmap, which must outlive the search."""
    if bitmap is None:
        return None
    return faiss.IDSelectorBitmap(len(bitmap), faiss.swig_ptr(bitmap))


def search_lists(
    index: FaissIndex,
    queries: Matrix,
    k: int,
    bitmap: Bitmap | None,
    widening: float = 1,
) -> Neighbors:
    """Search inverted lists; all of them for queries that find fewer than k in the nearest ones.

    Args:
        index: An index of inverted lists.
        queries: [q, d].
        k: Keys per query.
        bitmap: Keys that are allowed, a bit each; None: all.
        widening: Factor by which the number of probed lists is multiplied.
    """
    selector = select_ids(bitmap)
    probed_count = min(index.nlist, ceil(index.nprobe * widening))
    options = faiss.SearchParametersIVF(sel=selector, nprobe=probed_count)
    scores, keys = index.search(queries, k, params=options)
    is_short = (keys < 0).any(axis=1)
    if is_short.any():
        options = faiss.SearchParametersIVF(sel=selector, nprobe=index.nlist)
        scores[is_short], keys[is_short] = index.search(queries[is_short], k, params=options)
    return Neighbors(scores, keys)


@dataclass(frozen=True)
class TrainedIndex:
    """An index that vectors can be added to, and what it was made by."""

    index: FaissIndex
    factory: str
    parameters: str | None


def train_index(
    factory: str,
    dimension: int,
    parameters: str | None,
    segments: Sequence[Segment],
) -> TrainedIndex:
    """Make an empty index, trained on a sample at equal steps over all segments."""
    vector_count = sum(len(segment.keys) for segment in segments)
    if factory == "auto":
        factory = "Flat"
        if vector_count > MAX_FLAT_VECTORS:
            factory = f"IVF{ceil(4 * sqrt(vector_count))},Flat"
    index = make_index(factory, dimension, parameters)
    if isinstance(index, faiss.IndexFlat):
        # Reserve all memory at once: otherwise the vector would double its size again and again.
        index.codes.resize(vector_count * dimension * 4)
        return TrainedIndex(faiss.IndexIDMap(index), factory, None)
    sample_size = max(_SAMPLES_PER_LIST * index.nlist, _MIN_SAMPLES)
    step = max(1, vector_count // sample_size)
    samples = [segment.load()[::step] for segment in segments if len(segment.keys)]
    try:
        index.train(np.concatenate(samples))
    except RuntimeError as error:
        raise ValueError(
            f"factory={factory!r} cannot be trained on {vector_count:,} vectors "
            f"({_faiss_message(error)}); use 'Flat', or fewer lists"
        ) from None
    if not parameters:
        probed_count = max(ceil(index.nlist * PROBED_SHARE), min(index.nlist, MIN_PROBED))
        parameters = f"nprobe={probed_count}"
    return TrainedIndex(index, factory, parameters)


def add_vectors(index: FaissIndex, segments: Iterable[Segment]) -> None:
    """Add vectors with their keys to a trained index."""
    for segment in segments:
        if len(segment.keys):
            vectors = np.ascontiguousarray(segment.load(), np.float32)
            index.add_with_ids(vectors, segment.keys)
