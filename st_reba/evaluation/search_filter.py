"""Cosines of queries and documents behind the filters that search knows, without the work of fitting a whole one.

:class:`st_reba.Filter` decomposes a matrix of d · d numbers, which is too much for each of hundreds of candidates.
Here the N documents are decomposed, and all directions in which they do not vary are treated alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..filter_options import FEWEST_FOR_DIRECTIONS, FEWEST_FOR_MEAN, SEARCH_POWER
from ..linear_filter import shrink_variances, whitening_scales

Vectors = NDArray[np.float32]


def usable_kinds(
    document_count: int,
    query_sample_size: int,
) -> list[str | None]:
    """Kinds of filters that so many vectors allow; None: without one."""
    kinds: list[str | None] = [None]
    if min(document_count, query_sample_size) >= FEWEST_FOR_MEAN:
        kinds.append("center")
        if document_count >= FEWEST_FOR_DIRECTIONS:
            kinds.append("whiten")
    return kinds


@dataclass(frozen=True, eq=False)
class EncodedItems:
    """Vectors of what judges a method for search.

    Args:
        queries: [Q, d].
        query_sample: [S, d], of the sentences that stand for queries where their mean is measured.
        documents: [N, d].
    """

    queries: Vectors
    query_sample: Vectors
    documents: Vectors

    def similarities(
        self,
        kind: str | None,
    ) -> Vectors:
        """Cosines [Q, N] of queries and documents.

        Args:
            kind: Of the filter: ``"center"`` takes away the means of documents and of queries, ``"whiten"``
                half-whitens what is left; None: there is no filter.
        """
        queries = normalize_rows(self.queries)
        documents = normalize_rows(self.documents)
        if kind is not None:
            query_sample = normalize_rows(self.query_sample)
            query_mean = query_sample.mean(axis=0)
            document_mean = documents.mean(axis=0)
            queries = queries - query_mean
            documents = documents - document_mean
            if kind == "whiten":
                whitening = HalfWhitening.fit(documents, document_mean)
                queries = whitening.apply(queries)
                documents = whitening.apply(documents)
        compared_queries = normalize_rows(queries)
        compared_documents = normalize_rows(documents)
        return compared_queries @ compared_documents.T


@dataclass(frozen=True, eq=False)
class HalfWhitening:
    """Half-whitening, but for a rotation, which no cosine sees.

    Args:
        directions: [r, d], in which the documents vary.
        scales: [r], by which these are multiplied.
        other_scale: By which all other directions are multiplied.
    """

    directions: Vectors
    scales: Vectors
    other_scale: float

    @classmethod
    def fit(
        cls,
        centered_documents: Vectors,
        document_mean: Vectors,
    ) -> HalfWhitening:
        """Fit it on documents [N, d] without their mean [d]."""
        document_count, width = centered_documents.shape
        _, deviations, directions = np.linalg.svd(
            centered_documents,
            full_matrices=False,
        )
        variances = deviations.astype(np.float64) ** 2 / document_count
        total_variance = float(variances.sum())
        squared_mean = float(document_mean @ document_mean)
        squared_length = total_variance + squared_mean
        # Those of the other directions are 0.
        all_variances = np.append(variances, 0.0)
        mean_variance = total_variance / width
        shrunk_variances = shrink_variances(all_variances, mean_variance)
        scales = whitening_scales(shrunk_variances, squared_length, SEARCH_POWER)
        return cls(
            directions=directions,
            scales=scales[:-1].astype(np.float32),
            other_scale=float(scales[-1]),
        )

    def apply(self, centered_vectors: Vectors) -> Vectors:
        """Whiten vectors [n, d] without their mean."""
        coordinates = centered_vectors @ self.directions.T
        added_scales = self.scales - self.other_scale
        scaled_coordinates = coordinates * added_scales
        whitened_vectors = self.other_scale * centered_vectors
        whitened_vectors += scaled_coordinates @ self.directions
        return whitened_vectors


def normalize_rows(vectors: Vectors) -> Vectors:
    """Vectors [n, d] with length 1, or 0 where they have none."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    divisors = np.maximum(lengths, 1e-12)
    return np.asarray(vectors / divisors, np.float32)
