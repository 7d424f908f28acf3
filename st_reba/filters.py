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
from sentence_transformers.base.modules import Dense, Module, Normalize

from .encode import encode_texts
from .files import whole_file
from .probe import Probe, check, probe

Kind = Literal["center", "abtt", "standardize", "whiten"]
Array = NDArray[np.float64]
# How much longer a filter may make a difference of two vectors, in parts of their length: rounding stays below 1e-5.
MOST_GAIN = 200.0
# Texts of a sample: a mean of fewer is a chance one; each kept dimension needs a variance and a direction of its own.
_FEWEST, _TEXTS_A_DIMENSION = 100, {"abtt": 1, "whiten": 4}
# A smaller standard deviation, in parts of the largest or of the vectors' length, is mostly rounding of float32.
_OF_LARGEST, _OF_LENGTH = 1e-4, 1e-5
_FORMAT = "st_reba.filter"


@dataclass(frozen=True, eq=False)
class Filter:
    """y = W (x − mean), fitted on a sample of vectors.

    Args:
        kind: ``"center"``: W = 1. ``"abtt"`` (all but the top): W takes away the sample's ``r`` principal directions.
            ``"standardize"``: W divides each dimension by its standard deviation. ``"whiten"``: W gives the coordinates
            along d' principal directions behind the first r, each divided by its standard deviation to a power.
        mean: The sample's, [d].
        weight: W, [d', d]; of abtt the directions that it takes away, [r, d]; None: 1.
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
    weight: Array | None = field(default=None, repr=False)
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
        power: float = 1.0,
        model: SentenceTransformer | None = None,
    ) -> Filter:
        """Fit a filter on vectors, in float64.

        Nothing is divided by less than the vectors' root mean square length over ``MOST_GAIN``.

        Args:
            vectors: [N, d], as the model gives them without a filter.
            kind: See the class.
            r: Principal directions that abtt (None: 3) or whiten (None: none) takes away.
            dimensions: d' of whiten; None: all that are left.
            power: Of whiten, above 0 and at most 1; less than 1 depends less on the sample.
            model: The model that gave the vectors, so that the filter knows it again.
        """
        if getattr(vectors, "ndim", None) != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise ValueError(f"vectors: {type(vectors).__name__} must be an array [N, d] of floating point.")
        count, width = vectors.shape
        r = _checked(kind, r, dimensions, power, count, width)
        if not np.isfinite(vectors).all():
            raise ValueError("vectors hold NaN or infinity. Load the model in float32 or bfloat16.")
        given = {"r": r, "dimensions": dimensions, "power": None if power == 1 else power}
        about = ",".join(f"{name}={value}" for name, value in {**given, "texts": count}.items() if value)
        known: dict[str, Any] = {"about": f"{kind}:{about}", "probe": None if model is None else probe(_whole(model))}
        mean = vectors.mean(axis=0, dtype=np.float64)
        # Rows whose float64 copies exist at a time.
        parts = (vectors[start : start + 4096].astype(np.float64) - mean for start in range(0, count, 4096))
        covariance = np.asarray(sum(part.T @ part for part in parts) / count)
        variance, total = covariance.diagonal(), float(covariance.trace())
        if kind == "center":
            return cls(kind, mean, **known)
        every, columns = (variance, np.eye(width)) if kind == "standardize" else np.linalg.eigh(covariance)
        squared_length = total + float(mean @ mean)
        least = max(_OF_LARGEST**2 * float(every.max()), _OF_LENGTH**2 * squared_length)
        kept = {"standardize": width, "abtt": r}.get(kind, r + (dimensions or width - r))
        values, rows = (every, columns) if kind == "standardize" else (every[::-1][:kept], columns.T[::-1][:kept])
        if values.min() <= least:
            rank = int((every > least).sum())
            raise ValueError(f"{kind}: the vectors vary in {rank} of {width} directions only; {kept} were asked for.")
        # Either sign is an eigenvector's; the same one has to come out on every machine.
        rows = rows * np.sign(rows[np.arange(kept), np.abs(rows).argmax(axis=1)])[:, None]
        if kind != "abtt":
            scale = np.maximum(values[r:], squared_length / MOST_GAIN**2) ** (power / 2)
            rows = rows[r:] / scale[:, None]
        return cls(kind, mean, np.ascontiguousarray(rows), **known)

    def matrix(self) -> Array:
        """W, [d', d]."""
        if self.weight is None or self.kind != "abtt":
            return np.eye(self.mean.size) if self.weight is None else self.weight
        return np.asarray(np.eye(self.mean.size) - self.weight.T @ self.weight)

    def apply(self, vectors: NDArray[Any]) -> Array:
        """The filtered vectors in float64, [N, d'] or [d'], not scaled to length 1."""
        given = np.asarray(vectors, dtype=np.float64)
        if given.ndim not in (1, 2) or given.shape[-1] != self.mean.size:
            raise ValueError(f"vectors of shape {given.shape}: this filter takes {self.mean.size} dimensions.")
        return np.asarray((given - self.mean) @ self.matrix().T)

    def dense(self, dtype: torch.dtype = torch.float32) -> Dense:
        """The filter as sentence-transformers' own ``Dense``, W x − W·mean."""
        weight = torch.from_numpy(self.matrix()).to(dtype)
        # By the rounded W, so that the mean still becomes zero.
        bias = -(weight.double() @ torch.from_numpy(self.mean)).to(dtype)
        sizes = (weight.shape[1], weight.shape[0])
        activation = torch.nn.Identity()
        return Dense(*sizes, activation_function=activation, init_weight=weight, init_bias=bias).eval()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one .safetensors file, whole or not at all."""
        from safetensors.numpy import save

        target = Path(path)
        if target.suffix != ".safetensors" or not target.parent.is_dir():
            raise ValueError(f"{str(target)!r} must end in .safetensors, in a folder that exists.")
        arrays = {"mean": self.mean} if self.weight is None else {"mean": self.mean, "weight": self.weight}
        mark = None if self.probe is None else self.probe.to_json()
        about = json.dumps({"kind": self.kind, "about": self.about, "probe": mark}, ensure_ascii=False)
        with whole_file(target) as stream:
            stream.write(save(arrays, metadata={_FORMAT: about}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Filter:
        """Read what :meth:`save` wrote; a ValueError where it is no filter, or damaged."""
        from safetensors import SafetensorError, safe_open

        file = os.fspath(path)
        if not os.path.isfile(file):
            raise FileNotFoundError(
                f"filter={file!r}: there is no such file. Fit one: st_reba.fit_filter(model, texts)."
            )
        try:
            with safe_open(file, framework="numpy") as stored:
                about = json.loads((stored.metadata() or {})[_FORMAT])
                mean, weight = stored.get_tensor("mean"), None
                if about["kind"] != "center":
                    weight = stored.get_tensor("weight")
            arrays = [mean[None]] if weight is None else [mean[None], weight]
            sound = all(each.ndim == 2 and each.dtype == np.float64 and np.isfinite(each).all() for each in arrays)
            if about["kind"] not in get_args(Kind) or not sound or len({each.shape[1] for each in arrays}) > 1:
                raise ValueError("its numbers do not fit together")
            mark = None if about["probe"] is None else Probe.from_json(about["probe"])
            return cls(about["kind"], mean, weight, str(about["about"]), mark)
        except (SafetensorError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"filter={file!r} is no filter, or damaged: {error}. Fit it again.") from error


def _checked(kind: Any, r: Any, dimensions: Any, power: Any, count: int, width: int) -> int:
    """Refuse options that do not fit vectors [count, width]; how many principal directions are taken away."""
    if kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r} is not known. Choose from {', '.join(get_args(Kind))}.")
    away = (3 if kind == "abtt" else 0) if r is None else r
    for name, value, kinds in (("r", r, ("abtt", "whiten")), ("dimensions", dimensions, ("whiten",))):
        most = width - 1 if name == "r" else width - away if type(away) is int else 0
        least = 0 if (name, kind) == ("r", "whiten") else 1
        if value is not None and kind not in kinds:
            raise ValueError(f"{name}={value!r} belongs to {' and '.join(kinds)}, not to {kind}. Drop it.")
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise ValueError(f"{name}={value!r} must be a whole number from {least} to {most}.")
    if type(power) not in (int, float) or not 0 < power <= 1 or (power != 1 and kind != "whiten"):
        raise ValueError(f"power={power!r} of whiten must be above 0 and at most 1; others have none.")
    needed = max(_FEWEST, _TEXTS_A_DIMENSION.get(kind, 0) * (dimensions or width))
    if count < needed:
        raise ValueError(f"{kind}: {count} different texts are too few for {width} dimensions. Give {needed} or more.")
    return int(away)


def fit_filter(
    model: SentenceTransformer,
    texts: Iterable[str],
    kind: Kind = "abtt",
    *,
    r: int | None = None,
    dimensions: int | None = None,
    power: float = 1.0,
    **encoding: Any,
) -> SentenceTransformer:
    """Fit a linear filter on unlabelled texts, and append it to a model.

    Sentence vectors are filtered. Token vectors and those of words are not.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded; not changed.
        texts: Texts like those to be embedded, without labels. Blank and repeated ones are left out.
        kind, r, dimensions, power: See :class:`Filter`.
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
        >>> filtered = st_reba.fit_filter(model, texts, "center")
        >>> [type(module).__name__ for module in filtered]
        ['RepeatTransformer', 'Pooling', 'Normalize', 'Dense', 'Normalize']
        >>> filtered[0].recipe["filter"]
        'center:texts=108'
    """
    if isinstance(texts, str):
        raise TypeError("texts is one str; give a list or another iterable of them")
    whole, sample = _whole(model), [text for text in dict.fromkeys(texts) if text.strip()]
    if (width := whole.get_embedding_dimension()) is not None:
        _checked(kind, r, dimensions, power, len(sample), width)  # before the work of encoding
    vectors = encode_texts(whole, sample, **encoding)
    return with_filter(model, Filter.fit(vectors, kind, r=r, dimensions=dimensions, power=power))


def with_filter(model: SentenceTransformer, filter: Filter | str | os.PathLike[str]) -> SentenceTransformer:
    """Append a filter, or one that was saved, to the model that it was fitted for; a ValueError where it is another."""
    fitted = filter if isinstance(filter, Filter) else Filter.load(filter)
    whole: Any = _whole(model)
    if (width := whole.get_embedding_dimension()) not in (None, fitted.mean.size):
        raise ValueError(f"The filter takes {fitted.mean.size} dimensions, but the model gives {width}. Fit another.")
    if fitted.probe is not None:
        check(fitted.probe, whole, "the filter")
    first = copy.copy(whole[0])
    first.recipe = {**(first.recipe or {}), "filter": fitted.about}
    # sentence-transformers gives all modules the first one's dtype.
    modules = [first, *list(whole)[1:], fitted.dense(model.dtype or torch.float32).to(model.device)]
    whole._modules = {
        str(number): module
        for number, module in enumerate([*modules, Normalize()] if isinstance(modules[-2], Normalize) else modules)
    }
    whole.truncate_dim, whole.prompts = model.truncate_dim, dict(model.prompts)
    whole.model_card_data = copy.copy(model.model_card_data)
    whole.model_card_data.register_model(whole)
    for module in whole:
        if isinstance(module, Module):
            # The pooling asks the new model's input module for attention.
            module.on_model_ready(whole)
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
