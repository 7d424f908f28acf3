"""Vectors as an index takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ready_vectors(
    vectors: NDArray[Any], metric: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Give vectors as FAISS takes them, and which of them are not finite or zero.

    Args:
        vectors: Vectors [n, d] of any floats.
        metric: "cosine": they are scaled to length one; or "dot".

    Returns:
        The vectors [n, d] float32; which are NaN or infinite [n]; which are zero [n].

    Example:
        >>> ready_vectors(np.array([[3.0, 4.0], [0.0, 0.0]]), "cosine")[0].tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(vectors, dtype=np.float32)
    # float64, so that the squares of large and of small values neither overflow nor vanish.
    lengths: NDArray[np.float64] = np.linalg.norm(single.astype(np.float64), axis=1)
    bad = ~np.isfinite(lengths)
    zero = lengths == 0
    if metric == "cosine":
        lengths[bad | zero] = 1
        single = (single / lengths[:, None]).astype(np.float32)
    return single, bad, zero


def ready_queries(vectors: NDArray[Any], dim: int, metric: str) -> NDArray[np.float32]:
    """Query vectors [queries, dim] as FAISS takes them.

    Raises:
        ValueError: They are no floats, have another dimension, or one is NaN, infinite, or zero for cosines.
    """
    if vectors.dtype.kind != "f":
        raise ValueError(f"the query vectors are {vectors.dtype}; give floats, as model.encode_query does")
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(
            f"the query vectors have the shape {vectors.shape}; this index needs [{dim}] or [queries, {dim}]"
        )
    ready, bad, zero = ready_vectors(vectors, metric)
    # A zero vector has an inner product with every document, but no cosine.
    refused = np.flatnonzero(bad | zero if metric == "cosine" else bad)
    if len(refused):
        what = "NaN or infinite" if bad[refused[0]] else "zero"
        raise ValueError(f"the vector of query {refused[0]} (from 0) is {what}; change or leave out that query")
    return ready
