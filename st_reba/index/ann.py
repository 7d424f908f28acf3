"""FAISS indexes: chosen by size, trained, filled and written."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from ..files import whole_path
from .store import Keys, Matrix

METRICS = ("cosine", "dot")
_EXAMPLES = "'Flat' (exact), 'IVF1024,Flat', 'HNSW32', 'IVF4096,PQ48,RFlat'"
_LEFT_OUT = {
    "IDMap": "ids are added to every index",
    **dict.fromkeys(("PCA", "ITQ"), "it subtracts the mean, which changes products"),
    "fs": "lists with fast scan do not give their vectors back",
}
# So many vectors are compared with every query; of more, inverted lists are searched in part.
FLAT_UP_TO = 200_000
# A query looks at this share of the inverted lists, at so many at least, and at so many nodes of a graph.
PROBED, FEWEST_PROBED, EF_SEARCH = 1 / 32, 8, 64
# FAISS uses at most 256 training vectors a centroid.
_SAMPLED_PER_CENTROID, _FEWEST_SAMPLED = 64, 2**16

Segment = tuple[Keys, Callable[[], Matrix]]
"""Keys of some vectors, ascending, and a function that loads the vectors [keys, d]."""


def import_faiss() -> Any:
    """Import FAISS, which takes a moment, when it is first needed."""
    import faiss

    return faiss


def choose_factory(count: int) -> str:
    """FAISS factory string by the number of vectors: exact, or inverted lists from ``FLAT_UP_TO`` on.

    Example:
        >>> choose_factory(10_000), choose_factory(1_000_000)
        ('Flat', 'IVF4000,Flat')
    """
    return "Flat" if count <= FLAT_UP_TO else f"IVF{ceil(4 * sqrt(count))},Flat"


def make_index(factory: str, dim: int, parameters: str | None = None) -> Any:
    """An empty FAISS index that compares by inner product."""
    faiss = import_faiss()
    named = f"factory={factory!r}"
    if wrong := re.search("|".join(_LEFT_OUT), factory):
        raise ValueError(f"{named}: leave {wrong[0]} out, for {_LEFT_OUT[wrong[0]]}")
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        why = f"FAISS makes no such index of {dim} dimensions for inner products ({_last(error)})"
        raise ValueError(f"{named}: {why}; use one as {_EXAMPLES}") from None
    if lists_of(index) == 0 or any(part.metric_type != faiss.METRIC_INNER_PRODUCT for part in parts(index)[:2]):
        raise ValueError(f"{named}: it has no lists, or compares by the Euclidean distance; use one as {_EXAMPLES}")
    for part in parts(index):
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = False  # takes most of the training's time, and is not used
    if parameters is not None:
        set_parameters(index, parameters)
    return index


def parts(index: Any) -> list[Any]:
    """An index and those that it is made of."""
    faiss = import_faiss()
    found = [index]
    if isinstance(index, (faiss.IndexPreTransform, faiss.IndexIDMap)):
        found += parts(faiss.downcast_index(index.index))
    elif isinstance(index, faiss.IndexRefine):
        found += parts(faiss.downcast_index(index.base_index)) + parts(faiss.downcast_index(index.refine_index))
    elif isinstance(index, faiss.IndexIVF):
        found += parts(faiss.downcast_index(index.quantizer))
    return found


def lists_of(index: Any) -> int | None:
    """Number of inverted lists; None: it has none."""
    inverted = import_faiss().try_extract_index_ivf(index)
    return None if inverted is None else int(inverted.nlist)


def keeps_ids(index: Any) -> bool:
    """True for inverted lists, which store ids; other indexes are wrapped in an IDMap."""
    return lists_of(index) is not None and not isinstance(index, import_faiss().IndexRefine)


def default_parameters(index: Any) -> str | None:
    """FAISS search parameters where none are named, as "nprobe=125" for 4,000 lists."""
    if (lists := lists_of(index)) is not None:
        return f"nprobe={max(ceil(lists * PROBED), min(lists, FEWEST_PROBED))}"
    return f"efSearch={EF_SEARCH}" if any(isinstance(one, import_faiss().IndexHNSW) for one in parts(index)) else None


def set_parameters(index: Any, parameters: str) -> None:
    """Set FAISS search parameters, as "nprobe=16" or "nprobe=16,k_factor_rf=4"."""
    try:
        import_faiss().ParameterSpace().set_index_parameters(index, parameters)
    except RuntimeError as error:
        raise ValueError(
            f"parameters={parameters!r} do not fit a FAISS index of class {type(index).__name__}; write as 'nprobe=16' "
            "(IVF), 'efSearch=64' (HNSW) or 'k_factor_rf=4' (RFlat), joined by commas"
        ) from error


def train(index: Any, segments: Sequence[Segment], factory: str) -> None:
    """Train an index on a sample that is drawn over all segments, the same each time."""
    if index.is_trained:
        return
    codes = [int(part.pq.ksub) for part in parts(index) if hasattr(part, "pq")]
    count, centroids = sum(len(keys) for keys, _ in segments), max([lists_of(index) or 0, *codes])
    size = min(count, max(_SAMPLED_PER_CENTROID * centroids, _FEWEST_SAMPLED))
    rows = np.sort(np.random.default_rng(0).choice(count, size, replace=False, shuffle=False))
    sample, start = [], 0
    for keys, vectors in segments:
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(keys))] - start
        if len(inside):
            sample.append(vectors()[inside])
        start += len(keys)
    try:
        index.train(np.concatenate(sample))
    except RuntimeError as error:
        raise ValueError(
            f"factory={factory!r} cannot be trained on {count:,} vectors ({_last(error)}); use 'Flat', or fewer lists"
        ) from None


def _last(error: RuntimeError) -> str:
    return str(error).rsplit(": ", 1)[-1].strip()


def add(index: Any, segments: Sequence[Segment]) -> Any:
    """Add vectors with their keys to a trained index; returns the index that knows the keys."""
    faiss = import_faiss()
    if not (keeps_ids(index) or isinstance(index, faiss.IndexIDMap)):
        index = faiss.IndexIDMap(index)
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
    if isinstance(inner, faiss.IndexFlat) and not inner.ntotal:
        # Memory for all at once: the vector would double itself.
        inner.codes.resize(sum(len(keys) for keys, _ in segments) * inner.d * 4)
        inner.codes.resize(0)
    for keys, vectors in segments:
        if len(keys):
            index.add_with_ids(np.ascontiguousarray(vectors(), np.float32), keys)
    return index


def save(path: Path, index: Any) -> None:
    """Write an index, whole or not at all."""
    faiss = import_faiss()
    with whole_path(path) as temporary:
        try:
            # Through Python's file: FAISS itself cannot open names of every script on every system.
            with temporary.open("wb") as stream:
                faiss.write_index(index, faiss.PyCallbackIOWriter(stream.write, 2**24))
        except RuntimeError as error:
            full = "No space" in str(error) or "space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, f"cannot write vectors ({error})", str(path)) from error
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
