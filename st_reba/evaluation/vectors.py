"""Vectors scaled to length 1, and filters that are cheaper than fitting whole ones.

:class:`st_reba.Filter` decomposes a matrix of d · d numbers, which is too much for each of hundreds
of candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from scipy.sparse.linalg import eigsh
from torch import Tensor
from torch.nn.functional import normalize

from ..filter_options import MIN_FOR_DIRECTIONS, MIN_FOR_MEAN, SEARCH_POWER
from ..linear_filter import shrink_variances, whitening_scales

Vectors = NDArray[np.float32]
# Principal directions that the filter for similarity removes.
REMOVED_DIRECTIONS = 2


def normalize_rows(vectors: NDArray[np.floating], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Vectors [..., d] with length 1; zero vectors stay."""
    rows = np.array(vectors, dtype)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    rows /= np.where(lengths > 0, lengths, 1)
    return rows


def remove_directions(unit_vectors: Tensor, sample: Tensor | None = None) -> Tensor:
    """Vectors without their mean and two principal directions (All-but-the-Top), scaled to length 1.

    Args:
        unit_vectors: [M, d] of length 1.
        sample: [N, d] to fit the filter on; None: ``unit_vectors``.
    """
    if sample is None:
        sample = unit_vectors
    covariance = torch.cov(sample.T, correction=0).cpu().numpy()
    # A few directions take d² work, a whole decomposition d³.
    start_vector = np.ones(len(covariance), covariance.dtype)
    _, eigenvectors = eigsh(
        covariance,
        k=REMOVED_DIRECTIONS,
        v0=start_vector,
        tol=1e-5,
    )
    directions = torch.from_numpy(np.ascontiguousarray(eigenvectors)).to(unit_vectors)
    centered_vectors = unit_vectors - sample.mean(dim=0)
    coordinates = centered_vectors @ directions
    return normalize(centered_vectors - coordinates @ directions.T, dim=1)


def search_filter_kinds(document_count: int, sentence_count: int) -> list[str | None]:
    """Kinds of filters for search that can be fitted on some documents and sentences; None: no filter."""
    kinds: list[str | None] = [None]
    if min(document_count, sentence_count) >= MIN_FOR_MEAN:
        kinds.append("center")
        if document_count >= MIN_FOR_DIRECTIONS:
            kinds.append("whiten")
    return kinds


def search_similarities(
    queries: Vectors,
    query_sample: Vectors,
    documents: Vectors,
    filter_kind: str | None,
) -> Vectors:
    """Cosines [Q, N] of queries and documents.

    Args:
        queries: [Q, d].
        query_sample: [S, d], of sentences used in place of queries to measure the queries' mean.
        documents: [N, d].
        filter_kind: ``"center"`` subtracts the means of documents and of queries, ``"whiten"``
            half-whitens what is left; None: there is no filter.
    """
    queries = normalize_rows(queries)
    documents = normalize_rows(documents)
    if filter_kind is not None:
        document_mean = documents.mean(axis=0)
        queries = queries - normalize_rows(query_sample).mean(axis=0)
        documents = documents - document_mean
        if filter_kind == "whiten":
            queries, documents = _half_whiten(queries, documents, document_mean)
    similarities: Vectors = normalize_rows(queries) @ normalize_rows(documents).T
    return similarities


def _half_whiten(
    queries: Vectors,
    documents: Vectors,
    document_mean: Vectors,
) -> tuple[Vectors, Vectors]:
    """Half-whiten centred vectors, up to a rotation, which changes no cosine.

    The N documents are decomposed; all directions in which they do not vary are treated alike.
    """
    document_count, width = documents.shape
    _, deviations, directions = np.linalg.svd(documents, full_matrices=False)
    variances = deviations.astype(np.float64) ** 2 / document_count
    total_variance = float(variances.sum())
    squared_length = total_variance + float(document_mean @ document_mean)
    # One more, which stands for all other directions.
    all_variances = np.append(variances, 0.0)
    shrunk_variances = shrink_variances(all_variances, total_variance / width)
    scales = whitening_scales(shrunk_variances, squared_length, SEARCH_POWER)
    other_scale = float(scales[-1])
    relative_scales = scales[:-1].astype(np.float32) - other_scale

    def whiten(vectors: Vectors) -> Vectors:
        coordinates = vectors @ directions.T
        whitened_vectors = other_scale * vectors
        whitened_vectors += (coordinates * relative_scales) @ directions
        return whitened_vectors

    return whiten(queries), whiten(documents)
