"""A linear filter behind the pooling, fitted on vectors of unlabelled texts."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from torch import nn

from .encode import encode_stream
from .files import whole_file
from .fingerprint import PROBES, dtype_of
from .modules.decoder import DecoderTransformer
from .modules.filter import Filter, Kind
from .pipelines import copied, rebuilt

KINDS: tuple[Kind, ...] = get_args(Kind)
SUFFIX = ".safetensors"
# How much longer a filter may make a difference of two vectors, in parts of their length: rounding stays below 1e-5.
# Measured, see docs/how-to/compose.md.
MOST_GAIN = 200.0

_FORMAT, _VERSION = "st_reba.postfilter", 1
_ARRAYS = ("mean", "directions", "scale", "probe")
# A mean of fewer texts is a chance one.
_FEWEST = 100
# Each kept dimension needs a variance and a direction of its own.
_TEXTS_A_DIMENSION = 4
# A smaller standard deviation, in parts of the largest or of the vectors' length, is mostly rounding of float32.
_SMALLEST_OF_LARGEST, _SMALLEST_OF_LENGTH = 1e-4, 1e-5
# How far a probe's vector may be from the stored one, in parts of the sample's spread, for 16-bit weights and others:
# rounding stays below on every machine; another base, layer, template or pooling does not.
_TOLERANCE_16, _TOLERANCE = 0.05, 0.005
# Rows whose float64 copies exist at a time.
_ROWS = 4096

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PostFilter:
    """y = W (x − mean), fitted on a sample of vectors.

    Args:
        kind: ``"center"``: W = 1. ``"abtt"``, all but the top: W takes away the sample's ``r`` principal directions.
            ``"standardize"``: W divides each dimension by its standard deviation. ``"whiten"``: W gives the coordinates
            along d' principal directions, those behind the first ``skipped``, each divided by its standard deviation to
            the power ``power``.
        mean: The sample's, [d].
        directions: Of abtt and whiten: principal directions, the largest variance first, [r, d] or [d', d]: rows of
            length 1, in which the number of largest size is positive.
        scale: Of standardize and whiten: what is divided by, [d] or [d'].
        skipped: Of whiten: principal directions that are taken away, as by abtt.
        power: Of whiten.
        count, seed, sha256: Of the sample's texts: their number, the draw's seed, their hash.
        spread: Root of the mean squared distance of the sample's vectors from their mean.
        prompt, dtype: The prompt that they were encoded with; of the model's weights then.
        probe: The model's vectors of two fixed texts, [2, d], by which it is known again; None: not known.

    Source:
        Mu and Viswanath (2018), All-but-the-Top, algorithm 1 (whose projection leaves one constant vector more in y
        than this does); whitening as in Su et al. (2021).

    Example:
        >>> import numpy as np
        >>> vectors = np.random.default_rng(0).normal(3.0, [4.0, 2.0, 1.0], (500, 3))
        >>> PostFilter.fit(vectors, "whiten", dimensions=2).apply(vectors).std(axis=0).round(6)
        array([1., 1.])
    """

    kind: Kind
    mean: Array = field(repr=False)
    directions: Array | None = field(default=None, repr=False)
    scale: Array | None = field(default=None, repr=False)
    skipped: int = 0
    power: float = 1.0
    count: int = 0
    spread: float = 0.0
    seed: int = 0
    sha256: str | None = None
    prompt: str | None = None
    dtype: str | None = None
    probe: NDArray[np.float32] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.record()
        d = self.dimension
        rows = d if self.directions is None else len(self.directions)
        shapes = {
            "mean": (d,),
            "directions": (rows, d) if self.kind in ("abtt", "whiten") else None,
            "scale": (rows,) if self.kind in ("standardize", "whiten") else None,
            "probe": None if self.probe is None else (2, d),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            found = None if array is None else array.shape
            if found != shape or not 0 < rows <= d:
                raise ValueError(f"{name} of a post-filter of kind {self.kind!r} has the shape {found}, not {shape}.")
            if array is not None and not (np.isfinite(array).all() and (name != "scale" or (array > 0).all())):
                raise ValueError(f"{name} of a post-filter holds numbers that cannot be: NaN, infinite or below zero.")
        if not (np.isfinite(self.spread) and self.spread >= 0):
            raise ValueError(f"spread={self.spread!r} of a post-filter must be a number from 0 on.")

    @classmethod
    def fit(
        cls,
        vectors: NDArray[Any],
        kind: Kind = "abtt",
        *,
        r: int | None = None,
        dimensions: int | None = None,
        power: float = 1.0,
    ) -> PostFilter:
        """Fit a filter on vectors, in float64.

        Nothing is divided by less than the vectors' root mean square length over ``MOST_GAIN``.

        Args:
            vectors: [N, d], as the model gives them without a filter.
            kind: See the class.
            r: Principal directions that abtt or whiten takes away; None: 3 of abtt, none of whiten.
            dimensions: d' of whiten; None: all that are left.
            power: Of whiten, above 0 and at most 1.

        Returns:
            The filter. What model it belongs to is not known.

        Raises:
            ValueError: An option of another kind, fewer vectors than :func:`least_texts` asks for, vectors that are not
                finite, or a direction in which they (nearly) do not vary.
        """
        if getattr(vectors, "ndim", None) != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise ValueError(f"vectors: {type(vectors).__name__} must be a NumPy array [N, d] of floating point.")
        count, width = vectors.shape
        r = _check(kind, r, dimensions, power, count, width)
        if not np.isfinite(vectors).all():
            raise ValueError("vectors hold NaN or infinity. Load the model in float32 or bfloat16, and encode again.")
        mean = vectors.mean(axis=0, dtype=np.float64)
        parts = (vectors[start : start + _ROWS].astype(np.float64) - mean for start in range(0, count, _ROWS))
        covariance = np.asarray(sum(part.T @ part for part in parts) / count)
        variance = covariance.diagonal()
        total = float(variance.sum())
        facts: dict[str, Any] = {"count": count, "spread": total**0.5}
        if kind == "center":
            return cls(kind, mean, **facts)
        every, columns = (variance, None) if kind == "standardize" else np.linalg.eigh(covariance)
        squared_length = total + float(mean @ mean)
        least = max(_SMALLEST_OF_LARGEST**2 * float(every.max()), _SMALLEST_OF_LENGTH**2 * squared_length)
        floor = squared_length / MOST_GAIN**2
        if columns is None:
            if len(flat := np.flatnonzero(variance <= least)):
                raise ValueError(
                    f"kind='standardize': of {width} dimensions, {len(flat)} have (nearly) no variance in the sample, "
                    f"as number {flat[0]}. Use kind='abtt', or 'whiten' with fewer dimensions."
                )
            return cls(kind, mean, scale=np.sqrt(np.maximum(variance, floor)), **facts)
        kept = r if kind == "abtt" else r + (dimensions or width - r)
        values, directions = every[::-1][:kept], columns.T[::-1][:kept]
        if values[-1] <= least:
            rank = int((every > least).sum())
            name, asked = ("r", r) if kind == "abtt" else ("dimensions", dimensions or f"{width} (all)")
            raise ValueError(
                f"{name}={asked}: the sample's vectors vary in {rank} directions only (of {width}). Give {name} of at "
                f"most {rank}, or more texts."
            )
        # Either sign is an eigenvector's; the same one has to come out on every machine.
        largest = np.abs(directions).argmax(axis=1)
        directions = np.ascontiguousarray(directions * np.sign(directions[np.arange(kept), largest])[:, None])
        if kind == "abtt":
            return cls(kind, mean, directions, **facts)
        scale = np.maximum(values[r:], floor) ** (power / 2)
        return cls(kind, mean, directions[r:], scale, skipped=r, power=float(power), **facts)

    @property
    def dimension(self) -> int:
        """Dimension d of the vectors that it takes."""
        return self.mean.size

    @property
    def out_dimension(self) -> int:
        """Dimension of the vectors that it gives."""
        return self.dimension if self.directions is None or self.kind == "abtt" else len(self.directions)

    def record(self) -> Filter:
        """What a model's configuration keeps of it."""
        rows = None if self.directions is None else len(self.directions)
        r, dimensions = (rows, None) if self.kind == "abtt" else (self.skipped or None, rows)
        return Filter(self.kind, r, dimensions, self.power, self.count, self.seed, self.sha256)

    def apply(self, vectors: NDArray[Any]) -> Array:
        """The filtered vectors in float64, [N, out_dimension] or [out_dimension], not scaled to length 1.

        Args:
            vectors: [N, d] or [d], as the model gives them without the filter.

        Raises:
            ValueError: They have another dimension.
        """
        given = np.asarray(vectors, dtype=np.float64)
        if given.ndim not in (1, 2) or given.shape[-1] != self.dimension:
            raise ValueError(f"vectors of shape {given.shape}: this post-filter takes {self.dimension} dimensions.")
        return np.asarray((given - self.mean) @ self.matrix().T)

    def matrix(self) -> Array:
        """W, [out_dimension, d]."""
        if self.kind == "abtt" and self.directions is not None:
            return np.asarray(np.eye(self.dimension) - self.directions.T @ self.directions)
        weight = np.eye(self.dimension) if self.directions is None else self.directions
        return np.asarray(weight if self.scale is None else weight / self.scale[:, None])

    def dense(self, dtype: torch.dtype = torch.float32) -> Dense:
        """The filter as sentence-transformers' own ``Dense``, W x − W·mean, in the number type of the vectors."""
        weight = torch.from_numpy(self.matrix()).to(dtype)
        # By the rounded W, so that the mean still becomes zero.
        bias = -(weight.double() @ torch.from_numpy(self.mean)).to(dtype)
        sizes = (self.dimension, self.out_dimension)
        return Dense(*sizes, activation_function=nn.Identity(), init_weight=weight, init_bias=bias).eval()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as one .safetensors file, whole or not at all.

        Args:
            path: The file to write or replace; of abtt it holds the mean and r directions, no matrix.

        Raises:
            ValueError: The name has another suffix, or its folder is not there.
        """
        from safetensors.numpy import save

        target = Path(path)
        if target.suffix != SUFFIX or not target.parent.is_dir():
            raise ValueError(f"{str(target)!r}: give a file that ends in {SUFFIX!r}, in a folder that exists.")
        arrays = {name: np.ascontiguousarray(array) for name in _ARRAYS if (array := getattr(self, name)) is not None}
        facts = {name: value for name, value in vars(self).items() if name not in _ARRAYS}
        about = json.dumps({"version": _VERSION, **facts}, ensure_ascii=False)
        with whole_file(target) as stream:
            stream.write(save(arrays, metadata={_FORMAT: about}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PostFilter:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is no post-filter, one of a later version, or damaged.
        """
        from safetensors import SafetensorError, safe_open

        file = os.fspath(path)
        remedy = f"Make one with: st-reba postfilter MODEL TEXTS {file}"
        if not os.path.isfile(file):
            raise FileNotFoundError(f"filter: file={file!r}: no such file. {remedy}")
        try:
            with safe_open(file, framework="numpy") as stored:
                about = json.loads((stored.metadata() or {})[_FORMAT])
                arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            if about.pop("version") != _VERSION:
                raise ValueError("it was written by a later version of st_reba. Update st_reba")
            for name, array in arrays.items():
                if array.dtype != (np.float32 if name == "probe" else np.float64):
                    raise ValueError(f"{name} is of {array.dtype}")
            if not all(isinstance(about[name], (str, type(None))) for name in ("prompt", "dtype")):
                raise ValueError("its prompt or dtype is no string")
            return cls(**about, **arrays)
        except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
            reason = "it has none's metadata" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"filter: file={file!r} is no post-filter, or damaged: {reason}. {remedy}") from error


def least_texts(kind: Kind, width: int, dimensions: int | None = None) -> int:
    """How many different texts a filter of vectors [N, width] is fitted on at least."""
    needed = {"abtt": width, "whiten": _TEXTS_A_DIMENSION * (dimensions or width)}
    return max(_FEWEST, needed.get(kind, 0))


def told(record: Filter) -> str:
    """A record in words."""
    if record.file is not None:
        return f"of the file {record.file}"
    given = record.to_dict()
    numbers = (f", {name}={given[name]}" for name in ("r", "dimensions", "power") if name in given)
    return f"{record.kind}{''.join(numbers)}, fitted on {record.texts:,} texts"


def _check(kind: Kind, r: int | None, dimensions: int | None, power: float, count: int, width: int) -> int:
    """Refuse options that do not fit vectors [count, width]; how many principal directions are taken away."""
    Filter(kind, r, dimensions, power)
    away = 3 if r is None and kind == "abtt" else r or 0
    for name, value, most in (("r", r, width - 1), ("dimensions", dimensions, width - away)):
        if value is not None and value > most:
            raise ValueError(f"{name}={value}: the vectors have {width} dimensions. Give at most {most}.")
    least = least_texts(kind, width, dimensions)
    if count < least:
        fewer = ", or fewer dimensions" if kind == "whiten" else ", or kind='center'" if least > _FEWEST else ""
        raise ValueError(
            f"kind={kind!r}: a sample of {count} different texts is too small; vectors of {width} dimensions need at "
            f"least {least}. Give more texts{fewer}."
        )
    return away


def fit_postfilter(
    model: SentenceTransformer,
    texts: Iterable[str],
    kind: Kind = "abtt",
    *,
    r: int | None = None,
    dimensions: int | None = None,
    power: float = 1.0,
    sample: int | None = None,
    seed: int = 0,
    **encoding: Any,
) -> SentenceTransformer:
    """Fit a linear filter on unlabelled texts, and append it to a model.

    Sentence vectors are filtered. Token vectors and those of words (:func:`st_reba.encode_words`) are not.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded; not changed.
        texts: Texts like those to be embedded, without labels. Blank and repeated ones are left out.
        kind: ``"center"``, ``"abtt"`` (all but the top ``r`` principal directions), ``"standardize"`` or ``"whiten"``;
            see :class:`PostFilter`.
        r: For abtt and whiten: principal directions that are taken away; None: 3 of abtt, none of whiten.
        dimensions: For whiten: d' that are kept; None: all.
        power: For whiten: of the standard deviations that are divided by, above 0 and at most 1; less than 1 depends
            less on the sample.
        sample: Fit on so many of the texts, drawn at random; None: on all.
        seed: Of that draw.
        **encoding: As for :func:`st_reba.encode.encode_stream`: ``prompt`` (None: the model's default prompt, if it has
            one; a text counts as a document), ``batch_size``, ``batch_tokens``, ``show_progress_bar``.

    Returns:
        A new model that shares the weights of ``model``, sentence-transformers' own ``Dense`` behind them, and a
        ``Normalize`` behind that where ``model`` ended with one.

    Raises:
        ValueError: An option of another kind, too few texts, a direction in which their vectors (nearly) do not vary,
            or a model that st_reba did not build or that has a post-filter already.

    Source:
        Mu and Viswanath (2018), All-but-the-Top, algorithm 1.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> texts = [f"{name} sells {number} books." for name in ("Ann", "王芳", "Tom", "Li") for number in range(27)]
        >>> filtered = st_reba.fit_postfilter(model, texts, "center")
        >>> [type(module).__name__ for module in filtered]
        ['RepeatTransformer', 'Pooling', 'Normalize', 'Dense', 'Normalize']
        >>> filtered[0].stage("filter").texts
        108
    """
    options: dict[str, Any] = {"r": r, "dimensions": dimensions, "power": power, "sample": sample, "seed": seed}
    return _appended(model, postfilter_of(model, texts, kind, **options, **encoding))


def postfilter_of(
    model: SentenceTransformer,
    texts: Iterable[str],
    kind: Kind = "abtt",
    *,
    r: int | None = None,
    dimensions: int | None = None,
    power: float = 1.0,
    sample: int | None = None,
    seed: int = 0,
    **encoding: Any,
) -> PostFilter:
    """The filter alone that :func:`fit_postfilter` appends, which knows its model again; arguments as there."""
    whole = _whole(model)
    chosen, digest = sample_texts(texts, sample, seed)
    if (width := whole.get_embedding_dimension()) is not None:
        # Before the work of encoding.
        _check(kind, r, dimensions, power, len(chosen), width)
    parts = [part for _, part in encode_stream(whole, chosen, **encoding)]
    vectors = np.concatenate(parts or [np.zeros((0, width or 1), np.float32)])
    fitted = PostFilter.fit(vectors, kind, r=r, dimensions=dimensions, power=power)
    prompt = encoding.get("prompt")
    probe = _probe(whole, prompt)
    return replace(fitted, seed=seed, sha256=digest, prompt=prompt, dtype=dtype_of(model), probe=probe)


def with_postfilter(model: SentenceTransformer, postfilter: PostFilter | str | os.PathLike[str]) -> SentenceTransformer:
    """Append a filter, or one that was saved as a file, to the model that it was fitted for.

    Raises:
        ValueError: The filter was fitted on vectors of another model; or the model is none of st_reba's, or has a
            post-filter already.
        FileNotFoundError: There is no such file.
    """
    name = "filter" if isinstance(postfilter, PostFilter) else f"filter: file={os.fspath(postfilter)!r}"
    fitted = postfilter if isinstance(postfilter, PostFilter) else PostFilter.load(postfilter)
    whole = _whole(model)
    width = whole.get_embedding_dimension()
    remedy = "Fit one on this model: st_reba.fit_postfilter(model, texts)."
    if width is not None and width != fitted.dimension:
        given = f"{fitted.dimension} dimensions, but this model's have {width}"
        raise ValueError(f"{name} was fitted on vectors of {given}. {remedy}")
    if fitted.probe is not None:
        apart = float(np.linalg.norm(_probe(whole, fitted.prompt) - fitted.probe, axis=1).max())
        allowed = _TOLERANCE if {fitted.dtype, dtype_of(model)} == {"float32"} else _TOLERANCE_16
        if not apart <= allowed * fitted.spread:
            raise ValueError(
                f"{name} was fitted on vectors of another model: those of a fixed text differ by {apart:.3g}, not "
                f"{allowed * fitted.spread:.3g} at most. Base, method, stages and prompt must be the same. {remedy}"
            )
    return _appended(model, fitted)


def sample_texts(texts: Iterable[str], sample: int | None = None, seed: int = 0) -> tuple[list[str], str]:
    """Different texts that are not blank, ``sample`` of them drawn by ``seed``, in their order; and their SHA-256."""
    if isinstance(texts, str):
        raise TypeError("texts is one str; give a list or another iterable of them")
    for name, value, least in (("sample", 1 if sample is None else sample, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number from {least} on.")
    different = dict.fromkeys(texts)
    for text in different:
        if not isinstance(text, str):
            raise TypeError(f"texts holds {text!r:.80}, which is no str")
    chosen = [text for text in different if text.strip()]
    if sample is not None:
        if sample > len(chosen):
            raise ValueError(f"sample={sample}: there are only {len(chosen)} different texts. Give a smaller sample.")
        rows = np.sort(np.random.default_rng(seed).choice(len(chosen), sample, replace=False))
        chosen = [chosen[row] for row in rows]
    digest = hashlib.sha256()
    for data in (text.encode("utf-8", "surrogatepass") for text in chosen):
        # With its length, so that no two samples read alike.
        digest.update(len(data).to_bytes(8, "big") + data)
    return chosen, digest.hexdigest()


def _probe(model: SentenceTransformer, prompt: str | None) -> NDArray[np.float32]:
    """Vectors [2, d] of two fixed texts, by which a filter knows its model again."""
    return np.asarray(model.encode(list(PROBES[:2]), prompt=prompt, show_progress_bar=False), dtype=np.float32)


def _whole(model: SentenceTransformer) -> SentenceTransformer:
    """A model that can take a filter, without ``truncate_dim``: the filter stands before the cut."""
    first = model[0]
    if not isinstance(first, DecoderTransformer):
        raise ValueError(
            f"the model starts with {type(first).__name__}, which cannot keep a post-filter's record. Build it with "
            "st_reba.build(…, pooling=…); or fit by hand, PostFilter.fit(vectors), and append its .dense()."
        )
    if (record := first.stage("filter")) is not None:
        raise ValueError(
            f"the model has a post-filter already ({told(cast(Filter, record))}). Fit on the model without it."
        )
    whole = copy.copy(model)
    whole.truncate_dim = None
    return whole


def _appended(model: SentenceTransformer, fitted: PostFilter) -> SentenceTransformer:
    first = copied(cast(DecoderTransformer, model[0]))
    first.rebind([*first.stages, fitted.record()])
    # sentence-transformers gives all modules the first one's dtype.
    dense = fitted.dense(model.dtype or torch.float32)
    modules: list[nn.Module] = [first, *list(model)[1:], dense.to(model.device)]
    if isinstance(modules[-2], Normalize):
        modules.append(Normalize())
    return rebuilt(model, modules)
