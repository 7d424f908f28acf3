"""A linear map of vectors, fitted on those of unlabelled texts."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from .encode import Role
from .files import whole_file
from .filter_options import (
    FULL_POWER,
    MIN_FOR_DIRECTIONS,
    MIN_FOR_MEAN,
    SEARCH_POWER,
    FilterOptions,
    Kind,
)
from .modules import QueryShift
from .probe import Probe, take_probe

Vectors = NDArray[np.floating]
Array = NDArray[np.float64]

# A filter may make the difference of two vectors at most this many times larger, for vectors
# of length 1: so what rounding adds stays below 1e-5.
MAX_GAIN = 200.0
# Partial whitening draws each variance this far towards the mean of all: with few texts, the
# smallest are too small, or 0. This makes 100 texts enough, and loses nothing with 1,000.
_SHRINKAGE = 0.5
# A smaller standard deviation, relative to the vectors' length, is mostly rounding in float32.
_MIN_DEVIATION = 1e-5
# Rows whose float64 copies exist at a time.
_ROWS_AT_A_TIME = 4096
_FORMAT = "st_reba.filter"


@dataclass(frozen=True, eq=False)
class Filter:
    """y = W (x − mean), fitted on a sample of vectors; a query's mean may be another than a document's.

    Args:
        kind: ``"center"``: W = 1. ``"abtt"`` (all but the top): W removes ``r`` principal
            directions, by default 3. ``"whiten"``: W gives the coordinates along ``dimensions``
            principal directions, by default all, each divided by a power of its variance: 0.5, by
            default, gives each the standard deviation 1; 0.25 is what search wants, as it leaves
            frequent differences larger than rare ones.
        mean: The documents' mean, [d].
        weight: W, [d', d].
        query_mean: The queries' mean, [d]; None: that of the documents.
        description: What it was fitted with, for example ``"whiten:dimensions=64,texts=2000"``.
        probe: Probe of the model that gave the vectors; None: not known.

    Source:
        Mu and Viswanath (2018), All-but-the-Top, algorithm 1 (whose projection leaves one constant
        vector more in y); whitening as in Su et al. (2021).

    Example:
        >>> import numpy as np
        >>> vectors = np.random.default_rng(0).normal(3.0, [4.0, 2.0, 1.0], (500, 3))
        >>> Filter.fit(vectors, "whiten", dimensions=2).apply(vectors).std(axis=0).round(6)
        array([1., 1.])
    """

    kind: Kind
    mean: Array = field(repr=False)
    weight: Array = field(repr=False)
    query_mean: Array | None = field(default=None, repr=False)
    description: str = ""
    probe: Probe | None = field(default=None, repr=False)

    @classmethod
    def fit(
        cls,
        document_vectors: Vectors,
        kind: Kind = "abtt",
        *,
        r: int | None = None,
        dimensions: int | None = None,
        power: float | None = None,
        query_vectors: Vectors | None = None,
        model: SentenceTransformer | None = None,
    ) -> Filter:
        """Fit a filter on vectors, in float64.

        Args:
            document_vectors: [N, d], as the model gives them without a filter. ``"center"`` needs
                20 of them; the others need 100, ``"abtt"`` also at least one per dimension, and
                full whitening at least four per dimension that it keeps.
            kind, r, dimensions, power: See the class.
            query_vectors: [M, d], of queries or of what stands for them, 20 or more; only their
                mean is used.
            model: The model that gave the vectors, so that the filter can recognize it.

        Raises:
            ValueError: An option of another kind, too few vectors, NaN, or a direction in which
                they hardly vary.
        """
        if document_vectors.ndim != 2:
            raise ValueError(
                f"document_vectors has the shape {list(document_vectors.shape)}, not [N, d]. "
                "Give the vectors of several texts."
            )
        text_count, width = document_vectors.shape
        options = FilterOptions.make(kind, r, dimensions, power, text_count, width)
        mean = _finite_mean(document_vectors)
        query_mean = None
        query_count = None
        if query_vectors is not None:
            query_mean = _mean_of_queries(query_vectors, width)
            query_count = len(query_vectors)
        model_probe = None
        if model is not None:
            whole_model = copy.copy(model)
            whole_model.truncate_dim = None
            model_probe = take_probe(whole_model)
        return cls(
            kind=kind,
            mean=mean,
            weight=_fit_weight(document_vectors, mean, options),
            query_mean=query_mean,
            description=options.describe(text_count, query_count),
            probe=model_probe,
        )

    @classmethod
    def fit_for_search(
        cls,
        document_vectors: Vectors,
        query_vectors: Vectors,
        *,
        model: SentenceTransformer | None = None,
    ) -> Filter | None:
        """Fit what search needs, as far as the number of vectors allows.

        Args:
            document_vectors: [N, d]. With 100 or more, the filter half-whitens; with 20 to 99, it
                only removes the means.
            query_vectors: [M, d]. Fewer than 20 have no mean of their own.
            model: As for :meth:`fit`.

        Returns:
            The filter; None: there are fewer than 20 documents.
        """
        document_count = len(document_vectors)
        if document_count < MIN_FOR_MEAN:
            return None
        kind: Kind = "center"
        power = None
        if document_count >= MIN_FOR_DIRECTIONS:
            kind = "whiten"
            power = SEARCH_POWER
        usable_query_vectors = None
        if len(query_vectors) >= MIN_FOR_MEAN:
            usable_query_vectors = query_vectors
        return cls.fit(
            document_vectors,
            kind,
            power=power,
            query_vectors=usable_query_vectors,
            model=model,
        )

    def apply(self, vectors: Vectors, task: Role | None = None) -> Array:
        """Filter vectors.

        Args:
            vectors: [N, d] or [d].
            task: ``"query"``: the queries' mean is subtracted; else the documents'.

        Returns:
            Filtered vectors in float64, [N, d'] or [d'], not scaled to length 1.
        """
        mean = self.mean
        if task == "query" and self.query_mean is not None:
            mean = self.query_mean
        centered_vectors = np.asarray(vectors, np.float64) - mean
        return np.asarray(centered_vectors @ self.weight.T)

    def dense(self, dtype: torch.dtype) -> Dense:
        """The documents' filter as sentence-transformers' own ``Dense``, W x − W·mean."""
        weight = torch.from_numpy(self.weight).to(dtype)
        # By the rounded W, so that the mean still becomes zero.
        bias = -(weight.double() @ torch.from_numpy(self.mean)).to(dtype)
        out_features, in_features = self.weight.shape
        dense = Dense(
            in_features,
            out_features,
            activation_function=torch.nn.Identity(),
            init_weight=weight,
            init_bias=bias,
        )
        return dense.eval()

    def query_shift(self, dtype: torch.dtype) -> QueryShift | None:
        """A module before the documents' filter that makes it the queries'; None: not needed."""
        if self.query_mean is None:
            return None
        shift = torch.from_numpy(self.mean - self.query_mean).to(dtype)
        return QueryShift(self.mean.size, shift)

    def to_bytes(self) -> bytes:
        """The filter as the content of a .safetensors file."""
        from safetensors.numpy import save

        arrays = {"mean": self.mean, "weight": self.weight}
        if self.query_mean is not None:
            arrays["query_mean"] = self.query_mean
        metadata = {"kind": self.kind, "description": self.description, "probe": self.probe}
        return save(arrays, metadata={_FORMAT: json.dumps(metadata, default=Probe.to_json)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Filter:
        """Read what :meth:`to_bytes` gave; a ValueError where it is not a filter, or damaged."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays = load(content)
            metadata = json.loads(_metadata_of(content)[_FORMAT])
            stored_filter = cls._from_stored(arrays, metadata)
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"it is not a filter, or damaged: {error}. Fit it again.") from error
        return stored_filter

    @classmethod
    def _from_stored(cls, arrays: dict[str, Array], metadata: dict[str, Any]) -> Filter:
        model_probe = None
        if metadata["probe"] is not None:
            model_probe = Probe.from_json(metadata["probe"])
        stored_filter = cls(
            kind=metadata["kind"],
            mean=arrays["mean"],
            weight=arrays["weight"],
            query_mean=arrays.get("query_mean"),
            description=str(metadata["description"]),
            probe=model_probe,
        )
        if stored_filter.kind not in get_args(Kind):
            raise ValueError(f"kind={stored_filter.kind!r:.80} is not known")
        zeros = np.zeros_like(stored_filter.mean)
        filtered_zeros = np.stack([stored_filter.apply(zeros), stored_filter.apply(zeros, "query")])
        if not np.isfinite(filtered_zeros).all():
            raise ValueError("it holds NaN or infinity")
        return stored_filter

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one .safetensors file, whole or not at all."""
        if Path(path).suffix != ".safetensors":
            raise ValueError(f"{str(path)!r} must end in .safetensors.")
        with whole_file(path) as stream:
            stream.write(self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Filter:
        """Read what :meth:`save` wrote; a ValueError where it is not a filter, or damaged."""
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except OSError as error:
            raise type(error)(f"filter={str(path)!r} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise ValueError(f"filter={str(path)!r}: {error}") from error


def _finite_mean(vectors: Vectors) -> Array:
    if not np.isfinite(vectors).all():
        raise ValueError("vectors hold NaN or infinity. Load the model in float32 or bfloat16.")
    return np.asarray(vectors.mean(axis=0, dtype=np.float64))


def _mean_of_queries(query_vectors: Vectors, width: int) -> Array:
    query_count, query_width = query_vectors.shape
    if query_width != width:
        raise ValueError(
            f"query_vectors have {query_width} dimensions, document_vectors {width}. Use one model."
        )
    if query_count < MIN_FOR_MEAN:
        raise ValueError(
            f"query_vectors: the mean of {query_count} is unreliable. "
            f"Give {MIN_FOR_MEAN} or more, for example sentences of the documents."
        )
    return _finite_mean(query_vectors)


def _fit_weight(vectors: Vectors, mean: Array, options: FilterOptions) -> Array:
    """W, [d', d], of vectors [N, d]."""
    width = mean.size
    if options.kind == "center":
        return np.eye(width)
    covariance = _covariance(vectors, mean)
    squared_length = float(covariance.trace() + mean @ mean)
    variances, directions = _principal_directions(covariance, options.direction_count)
    if options.power < FULL_POWER:
        variances = shrink_variances(variances, float(covariance.trace()) / width)
    if variances.min() <= _MIN_DEVIATION**2 * squared_length:
        raise ValueError(
            f"{options.kind}: the vectors hardly vary in some of the {options.direction_count} "
            "directions that were asked for. Ask for fewer, or give other texts."
        )
    if options.kind == "abtt":
        return np.eye(width) - directions.T @ directions
    return directions * whitening_scales(variances, squared_length, options.power)[:, None]


def shrink_variances(variances: Array, mean_variance: float) -> Array:
    """Variances for partial whitening: drawn towards the mean over all dimensions."""
    return (1 - _SHRINKAGE) * variances + _SHRINKAGE * mean_variance


def whitening_scales(variances: Array, squared_length: float, power: float) -> Array:
    """Factors by which whitening scales directions; ``squared_length``: mean of the vectors'."""
    bounded_variances = np.maximum(variances, squared_length / MAX_GAIN**2)
    return np.asarray(bounded_variances**-power)


def _covariance(vectors: Vectors, mean: Array) -> Array:
    width = mean.size
    sum_of_products = np.zeros((width, width))
    for start in range(0, len(vectors), _ROWS_AT_A_TIME):
        centered_vectors = vectors[start : start + _ROWS_AT_A_TIME].astype(np.float64) - mean
        sum_of_products += centered_vectors.T @ centered_vectors
    return sum_of_products / len(vectors)


def _principal_directions(covariance: Array, count: int) -> tuple[Array, Array]:
    """The largest variances [count], falling, and their directions [count, d]."""
    variances, columns = np.linalg.eigh(covariance)
    directions = np.ascontiguousarray(columns.T[::-1][:count])
    # An eigenvector may have either sign; every machine must get the same one.
    largest_columns = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(count), largest_columns])
    return variances[::-1][:count], directions * signs[:, None]


def _metadata_of(content: bytes) -> dict[str, str]:
    """Metadata of a .safetensors file that is known to be well-formed."""
    header_length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_length])
    return dict(header.get("__metadata__") or {})
