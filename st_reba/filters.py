"""A linear filter behind the pooling, fitted on vectors of unlabelled texts."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from .encode import encode_texts
from .storage.files import whole_file
from .storage.probe import Probe, check, probe

Kind = Literal["center", "abtt", "whiten"]
Array = NDArray[np.float64]
# How many times larger a filter may make the difference of two vectors: rounding stays below 1e-5.
MOST_GAIN = 200.0
# Texts of a sample: a mean of fewer is a chance one.
_FEWEST = 100
# A smaller standard deviation, in parts of the vectors' length, is mostly rounding of float32.
_LEAST = 1e-5
_FORMAT = "st_reba.filter"


@dataclass(frozen=True, eq=False)
class Filter:
    """y = W (x − mean), fitted on a sample of vectors.

    Args:
        kind: ``"center"``: W = 1. ``"abtt"`` (all but the top): W takes away ``r`` principal directions, by default 3.
            ``"whiten"``: W gives the coordinates along ``dimensions`` of them, by default all, each divided by its
            standard deviation, but by no less than the vectors' root mean square length over ``MOST_GAIN``.
        mean: The sample's, [d].
        weight: W, [d', d].
        about: What it was fitted with, as ``"whiten:dimensions=64,texts=2000"``.
        probe: Probe of the model that gave the vectors; None: not known.

    Source:
        Mu and Viswanath (2018), All-but-the-Top, algorithm 1 (whose projection leaves one constant vector more in y);
        whitening as in Su et al. (2021).

    Example:
        >>> import numpy as np
        >>> vectors = np.random.default_rng(0).normal(3.0, [4.0, 2.0, 1.0], (500, 3))
        >>> Filter.fit(vectors, "whiten", dimensions=2).apply(vectors).std(axis=0).round(6)
        array([1., 1.])
    """

    kind: Kind
    mean: Array = field(repr=False)
    weight: Array = field(repr=False)
    about: str = ""
    probe: Probe | None = field(default=None, repr=False)

    @classmethod
    def fit(
        cls,
        vectors: NDArray[Any],
        kind: Kind = "abtt",
        *,
        r: int | None = None,
        dimensions: int | None = None,
        model: SentenceTransformer | None = None,
    ) -> Filter:
        """Fit a filter on vectors, in float64.

        Args:
            vectors: [N, d], as the model gives them without a filter.
            kind, r, dimensions: See the class.
            model: The model that gave the vectors, so that the filter knows it again.
        """
        count, width = vectors.shape
        kept = _checked(kind, r, dimensions, count, width)
        if not np.isfinite(vectors).all():
            raise ValueError("vectors hold NaN or infinity. Load the model in float32 or bfloat16.")
        given = {"r": kept if kind == "abtt" else None, "dimensions": dimensions, "texts": count}
        about = f"{kind}:" + ",".join(f"{name}={value}" for name, value in given.items() if value)
        mark = None if model is None else probe(_whole(model))
        mean = vectors.mean(axis=0, dtype=np.float64)
        if kind == "center":
            return cls(kind, mean, np.eye(width), about, mark)
        # Rows whose float64 copies exist at a time.
        parts = (vectors[start : start + 4096].astype(np.float64) - mean for start in range(0, count, 4096))
        covariance = np.asarray(sum(part.T @ part for part in parts) / count)
        squared_length = float(covariance.trace()) + float(mean @ mean)
        variances, directions = np.linalg.eigh(covariance)
        values, rows = variances[::-1][:kept], directions.T[::-1][:kept]
        if values.min() <= _LEAST**2 * squared_length:
            raise ValueError(f"{kind}: the vectors hardly vary in some of the {kept} directions that were asked for.")
        # Either sign is an eigenvector's; the same one has to come out on every machine.
        rows = np.ascontiguousarray(rows * np.sign(rows[np.arange(kept), np.abs(rows).argmax(axis=1)])[:, None])
        divided = rows / np.sqrt(np.maximum(values, squared_length / MOST_GAIN**2))[:, None]
        return cls(kind, mean, divided if kind == "whiten" else np.eye(width) - rows.T @ rows, about, mark)

    def apply(self, vectors: NDArray[Any]) -> Array:
        """The filtered vectors in float64, [N, d'] or [d'], not scaled to length 1."""
        return np.asarray((np.asarray(vectors, np.float64) - self.mean) @ self.weight.T)

    def dense(self, dtype: torch.dtype = torch.float32) -> Dense:
        """The filter as sentence-transformers' own ``Dense``, W x − W·mean."""
        weight = torch.from_numpy(self.weight).to(dtype)
        # By the rounded W, so that the mean still becomes zero.
        bias = -(weight.double() @ torch.from_numpy(self.mean)).to(dtype)
        width, kept = self.weight.shape[::-1]
        return Dense(width, kept, activation_function=torch.nn.Identity(), init_weight=weight, init_bias=bias).eval()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one .safetensors file, whole or not at all."""
        from safetensors.numpy import save

        if Path(path).suffix != ".safetensors":
            raise ValueError(f"{str(path)!r} must end in .safetensors.")
        about = json.dumps({"kind": self.kind, "about": self.about, "probe": self.probe}, default=Probe.to_json)
        with whole_file(path) as stream:
            stream.write(save({"mean": self.mean, "weight": self.weight}, metadata={_FORMAT: about}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Filter:
        """Read what :meth:`save` wrote; a ValueError where it is no filter, or damaged."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as stored:
                about = json.loads((stored.metadata() or {})[_FORMAT])
                mean, weight = stored.get_tensor("mean"), stored.get_tensor("weight")
            mark = None if about["probe"] is None else Probe.from_json(about["probe"])
            found = cls(about["kind"], mean, weight, str(about["about"]), mark)
            if found.kind not in get_args(Kind) or not np.isfinite(found.apply(np.zeros_like(mean))).all():
                raise ValueError("its numbers do not fit together")
            return found
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"filter={str(path)!r} is no filter, or damaged: {error}. Fit it again.") from error


def _checked(kind: str, r: int | None, dimensions: int | None, count: int, width: int) -> int:
    if kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r} is not known. Choose from {', '.join(get_args(Kind))}.")
    r = 3 if r is None and kind == "abtt" else r
    dimensions = width if dimensions is None and kind == "whiten" else dimensions
    for name, value, of, most in (("r", r, "abtt", width - 1), ("dimensions", dimensions, "whiten", width)):
        if value is not None and (kind != of or type(value) is not int or not 1 <= value <= most):
            raise ValueError(f"{name}={value!r} belongs to {of} alone, and must be a whole number from 1 to {most}.")
    kept = r or dimensions or 0
    needed = max(_FEWEST, {"center": 0, "abtt": width, "whiten": 4 * kept}[kind])
    if count < needed:
        raise ValueError(f"{kind}: {count} different texts are too few for {width} dimensions. Give {needed} or more.")
    return kept


def fit_filter(
    model: SentenceTransformer,
    texts: Iterable[str],
    kind: Kind = "abtt",
    *,
    r: int | None = None,
    dimensions: int | None = None,
    **encoding: Any,
) -> SentenceTransformer:
    """Fit a linear filter of sentence vectors (not of words) on unlabelled texts, and append it to a model.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded; not changed.
        texts: Texts like those to be embedded, without labels. Blank and repeated ones are left out.
        kind, r, dimensions: See :class:`Filter`.
        **encoding: As for :func:`st_reba.encode.encode_texts`: ``task``, ``prompt``, ``batch_tokens``.

    Returns:
        A new model that shares the weights of ``model``, with sentence-transformers' own ``Dense`` behind them, and a
        ``Normalize`` behind that where ``model`` ended with one.

    Raises:
        ValueError: An option of another kind, too few texts, a direction in which they (nearly) do not vary, or
            a model that is not ours or has a filter already.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> texts = [f"{name} sells {number} books." for name in ("Ann", "王芳", "Tom", "Li") for number in range(27)]
        >>> [type(module).__name__ for module in st_reba.fit_filter(model, texts, "center")]
        ['RepeatTransformer', 'Pooling', 'Normalize', 'Dense', 'Normalize']
    """
    if isinstance(texts, str):
        raise TypeError("texts is one str; give a list or another iterable of them")
    whole: Any = _whole(model)
    given = list(texts)
    if other := [each for each in given if not isinstance(each, str)]:
        raise TypeError(f"texts holds {other[0]!r:.80}, which is no text")
    sample = [text for text in dict.fromkeys(given) if text.strip()]
    _checked(kind, r, dimensions, len(sample), whole.get_embedding_dimension())  # before the work of encoding
    vectors = encode_texts(whole, sample, **encoding)
    return with_filter(model, Filter.fit(vectors, kind, r=r, dimensions=dimensions))


def with_filter(model: SentenceTransformer, fitted: Filter) -> SentenceTransformer:
    """Append a filter to the model that it was fitted for; a ValueError where it is another."""
    whole: Any = _whole(model)
    if (width := whole.get_embedding_dimension()) not in (None, fitted.mean.size):
        raise ValueError(f"The filter takes {fitted.mean.size} dimensions, but the model gives {width}. Fit another.")
    if fitted.probe is not None:
        check(fitted.probe, whole, "the filter")
    first = copy.copy(whole[0])
    first.recipe = {**(first.recipe or {}), "filter": fitted.about}
    # sentence-transformers gives all modules the first one's dtype.
    modules = [first, *list(whole)[1:], fitted.dense(model.dtype or torch.float32).to(model.device)]
    modules += [Normalize()] if isinstance(modules[-2], Normalize) else []
    whole._modules = {str(number): module for number, module in enumerate(modules)}
    whole.truncate_dim, whole.prompts = model.truncate_dim, dict(model.prompts)
    whole.model_card_data = copy.copy(model.model_card_data)
    whole.model_card_data.register_model(whole)
    return whole  # type: ignore[no-any-return]


def _whole(model: SentenceTransformer) -> SentenceTransformer:
    """A copy without ``truncate_dim``, as the filter stands before the cut; an error where no filter can be kept."""
    first: Any = model[0]
    if not hasattr(first, "recipe"):
        raise ValueError(f"The model starts with {type(first).__name__}. Build it with st_reba.build(…, pooling=…).")
    if "filter" in (first.recipe or {}):
        raise ValueError(f"The model has a filter already ({first.recipe['filter']}). Fit on the model without it.")
    whole = copy.copy(model)
    whole.truncate_dim = None
    return whole
