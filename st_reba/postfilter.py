"""A linear map behind the pooling, fitted on vectors of unlabelled texts: its mathematics, its file, its module."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.base.modules import Dense
from torch import nn

from .files import whole_file
from .modules.record import check_record, is_power

__all__ = ["KINDS", "Kind", "PostFilter", "check_options", "least_texts"]

Kind = Literal["center", "abtt", "standardize", "whiten"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SUFFIX = ".safetensors"

_FORMAT = "st_reba.postfilter"
_FACTS = ("kind", "skipped", "power", "count", "spread", "seed", "sha256", "prompt", "dtype")
_VERSION = 1
# A mean of fewer texts is a chance one.
_FEWEST = 100
# Texts a kept dimension, of which each needs a variance and a direction of its own.
_TEXTS_A_DIMENSION = 4
# A standard deviation that is smaller, in parts of the largest one or of the vectors' length, is mostly rounding of
# float32; dividing by it would make a dimension of noise as loud as the others.
_SMALLEST_OF_LARGEST = 1e-4
_SMALLEST_OF_LENGTH = 1e-5
# Rows whose float64 copies exist at a time.
_ROWS = 4096

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PostFilter:
    """y = W (x − mean), fitted on a sample of vectors.

    Args:
        kind: ``"center"``: W = 1. ``"abtt"``, all but the top: W takes away the parts of x along the sample's ``r``
            principal directions. ``"standardize"``: W divides each dimension by its standard deviation. ``"whiten"``:
            W gives the coordinates along d' of the sample's principal directions, those behind the first ``skipped``,
            each divided by its standard deviation to the power ``power``: with 1 the sample's y have unit covariance.
        mean: The sample's, [d].
        directions: Its principal directions, the largest variance first, [r, d] or [d', d]: rows of length 1, in which
            the number of largest size is positive; abtt and whiten.
        scale: What is divided by: standard deviations (of the sample, divided by its number of vectors), of whiten to
            the power, [d] or [d']; standardize and whiten.
        skipped: Of whiten: principal directions that are taken away, as by abtt.
        power: Of whiten.
        count: Vectors in the sample.
        spread: Root of the mean squared distance of the sample's vectors from their mean.
        seed: By which the sample was drawn.
        sha256: Of the sample's texts.
        prompt: With which they were encoded.
        dtype: Of the model's weights then.
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
        check_record(self.record())
        wanted = {"center": (), "abtt": ("directions",), "standardize": ("scale",), "whiten": ("directions", "scale")}
        for name in ("directions", "scale"):
            if (getattr(self, name) is not None) != (name in wanted[self.kind]):
                raise ValueError(f"a post-filter of kind {self.kind!r} has {list(wanted[self.kind])}, not {name!r}.")
        rows = self.dimension if self.directions is None else len(self.directions)
        shapes = {"mean": (self.dimension,), "directions": (rows, self.dimension), "scale": (rows,)}
        shapes["probe"] = (2, self.dimension)
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is None:
                continue
            if array.shape != shape or not 0 < rows <= self.dimension:
                raise ValueError(f"{name} of a post-filter has the shape {array.shape}, not {shape}.")
            if not np.isfinite(array).all() or (name == "scale" and not (array > 0).all()):
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
        seed: int = 0,
        sha256: str | None = None,
    ) -> PostFilter:
        """Fit a filter on vectors, in float64.

        Args:
            vectors: [N, d], as the model gives them without a filter.
            kind: See the class.
            r: Principal directions that abtt or whiten takes away; None: 3 of abtt, none of whiten.
            dimensions: d' of whiten; None: all that are left.
            power: Of whiten, above 0 and at most 1.
            seed: For the record.
            sha256: For the record.

        Returns:
            The filter. What model it belongs to is not known.

        Raises:
            ValueError: An option of another kind, fewer vectors than :func:`least_texts` asks for, vectors that are not
                finite, or a variance that would be divided by and is (nearly) zero.
        """
        if getattr(vectors, "ndim", None) != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise ValueError(
                f"vectors: {type(vectors).__name__} must be a NumPy array [N, d] of floating-point numbers."
            )
        count, width = vectors.shape
        check_options(kind, width, r=r, dimensions=dimensions, power=power)
        r = directions_away(kind, r)
        check_count(count, kind, width, dimensions=dimensions)
        if not np.isfinite(vectors).all():
            raise ValueError("vectors hold NaN or infinity. Load the model in float32 or bfloat16, and encode again.")
        mean = vectors.mean(axis=0, dtype=np.float64)
        variance = sum((_centred(part, mean) ** 2).sum(axis=0) for part in _parts(vectors)) / count
        total = float(np.sum(variance))
        facts = {"count": count, "spread": total**0.5, "seed": seed, "sha256": sha256}
        least = max(_SMALLEST_OF_LARGEST**2 * float(variance.max()), _SMALLEST_OF_LENGTH**2 * (total + mean @ mean))
        if kind == "center":
            return cls(kind, mean, **facts)
        if kind == "standardize":
            if len(flat := np.flatnonzero(variance <= least)):
                raise ValueError(
                    f"kind='standardize': of {width} dimensions, {len(flat)} have (nearly) no variance in the sample, "
                    f"as number {flat[0]}, so nothing can be divided by it. Use kind='abtt', or 'whiten' with fewer "
                    "dimensions."
                )
            return cls(kind, mean, scale=np.sqrt(variance), **facts)
        covariance = sum(_centred(part, mean).T @ _centred(part, mean) for part in _parts(vectors)) / count
        kept = r if kind == "abtt" else r + (dimensions or width - r)
        every, columns = np.linalg.eigh(covariance)
        values, directions = every[::-1][:kept], columns.T[::-1][:kept]
        least = max(least, _SMALLEST_OF_LARGEST**2 * float(values[0]))
        if values[-1] <= least:
            rank = int((every > least).sum())
            asked = (
                f"r={r}"
                if kind == "abtt"
                else f"dimensions={dimensions}"
                if dimensions
                else f"dimensions={width} (all)"
            )
            raise ValueError(
                f"{asked}: the sample's vectors vary in {rank} directions only (of {width}); in the others there is "
                "no variance that could be taken away or divided by. Give "
                f"{'r' if kind == 'abtt' else 'dimensions'} of at most {rank}, or more texts that differ more."
            )
        # Either sign is an eigenvector's; the same one has to come out on every machine.
        largest = np.abs(directions).argmax(axis=1)
        directions = directions * np.sign(directions[np.arange(kept), largest])[:, None]
        if kind == "abtt":
            return cls(kind, mean, np.ascontiguousarray(directions), **facts)
        scale = values[r:] ** (power / 2)
        return cls(kind, mean, np.ascontiguousarray(directions[r:]), scale, skipped=r, power=float(power), **facts)

    @property
    def dimension(self) -> int:
        """Dimension d of the vectors that it takes."""
        return int(self.mean.shape[0]) if self.mean.ndim == 1 else 0

    @property
    def out_dimension(self) -> int:
        """Dimension of the vectors that it gives."""
        return len(self.scale) if self.kind == "whiten" and self.scale is not None else self.dimension

    def record(self) -> dict[str, Any]:
        """What a model's configuration keeps of it, JSON-serializable."""
        own: dict[str, Any] = {}
        if self.directions is not None:
            own["r" if self.kind == "abtt" else "dimensions"] = len(self.directions)
        if self.kind == "whiten":
            own.update(r=self.skipped, power=self.power)
        return {"kind": self.kind, **own, "texts": self.count, "seed": self.seed, "sha256": self.sha256}

    def apply(self, vectors: NDArray[Any]) -> Array:
        """Filter vectors in float64, without scaling them to length 1.

        Args:
            vectors: [N, d] or [d], as the model gives them without the filter.

        Returns:
            [N, out_dimension] or [out_dimension].

        Raises:
            ValueError: They have another dimension.
        """
        given = np.asarray(vectors, dtype=np.float64)
        if given.ndim not in (1, 2) or given.shape[-1] != self.dimension:
            raise ValueError(f"vectors of shape {given.shape}: this post-filter takes {self.dimension} dimensions.")
        centred = given - self.mean
        if self.kind == "abtt" and self.directions is not None:
            return np.asarray(centred - centred @ self.directions.T @ self.directions)
        if self.kind == "whiten" and self.directions is not None:
            centred = centred @ self.directions.T
        return np.asarray(centred if self.scale is None else centred / self.scale)

    def matrix(self) -> Array:
        """W, [out_dimension, d]."""
        if self.kind == "abtt" and self.directions is not None:
            return np.asarray(np.eye(self.dimension) - self.directions.T @ self.directions)
        weight = np.eye(self.dimension) if self.directions is None else self.directions
        return np.asarray(weight if self.scale is None else weight / self.scale[:, None])

    def dense(self, dtype: torch.dtype = torch.float32) -> Dense:
        """The filter as sentence-transformers' own ``Dense``: W x + b with b = −W·mean.

        Args:
            dtype: Of its weights, which must be that of the vectors.
        """
        weight = torch.from_numpy(self.matrix()).to(dtype)
        # By the rounded W, so that the mean still becomes zero.
        bias = -(weight.double() @ torch.from_numpy(self.mean))
        module = Dense(
            self.dimension,
            self.out_dimension,
            activation_function=nn.Identity(),
            init_weight=weight,
            init_bias=bias.to(dtype),
        )
        return module.eval()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as one .safetensors file, whole or not at all.

        Args:
            path: The file to write or replace; of abtt it holds the mean and r directions, no matrix.

        Raises:
            ValueError: The name has another suffix, or its folder is not there.
        """
        from safetensors.numpy import save

        target = Path(path)
        if target.suffix != SUFFIX or target.is_dir():
            raise ValueError(f"{str(target)!r}: a post-filter is written as a file that ends in {SUFFIX!r}.")
        if not target.parent.is_dir():
            raise ValueError(f"{str(target)!r}: the folder {str(target.parent)!r} does not exist. Make it first.")
        arrays = {name: getattr(self, name) for name in ("mean", "directions", "scale", "probe")}
        facts = {name: getattr(self, name) for name in _FACTS}
        stored = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
        about = json.dumps({"version": _VERSION, **facts}, ensure_ascii=False)
        with whole_file(target) as stream:
            stream.write(save(stored, metadata={_FORMAT: about}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PostFilter:
        """Read what :meth:`save` wrote.

        Args:
            path: The file.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is no post-filter, one of a later version, or damaged.
        """
        from safetensors import SafetensorError, safe_open

        file = os.fspath(path)
        if not os.path.isfile(file):
            raise FileNotFoundError(
                f"postfilter={file!r}: no such file. Make one with: st-reba postfilter MODEL TEXTS {file}"
            )
        try:
            with safe_open(file, framework="numpy") as stored:
                about = json.loads((stored.metadata() or {})[_FORMAT])
                names = stored.keys()
                arrays = {name: stored.get_tensor(name) for name in names}
            if about.pop("version") != _VERSION:
                raise ValueError("it was written by a later version of st_reba. Update st_reba")
            for name, array in arrays.items():
                if array.dtype != (np.float32 if name == "probe" else np.float64):
                    raise ValueError(f"{name} is of {array.dtype}")
            for name in ("prompt", "dtype"):
                if not isinstance(about[name], (str, type(None))):
                    raise ValueError(f"{name}={about[name]!r} is no string")
            return cls(**about, **arrays)
        except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
            reason = "it has none's metadata" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"postfilter={file!r} is no post-filter, or damaged: {reason}. Make one with: st-reba postfilter MODEL "
                f"TEXTS {file}"
            ) from error


def least_texts(kind: Kind, width: int, dimensions: int | None = None) -> int:
    """How many different texts a filter is fitted on at least.

    Args:
        kind: Of filter.
        width: Dimension d of the vectors.
        dimensions: d' of whiten; None: d.

    Example:
        >>> least_texts("center", 192), least_texts("abtt", 192), least_texts("whiten", 192)
        (100, 192, 768)
    """
    needed = {"abtt": width, "whiten": _TEXTS_A_DIMENSION * (dimensions or width)}
    return max(_FEWEST, needed.get(kind, 0))


def check_count(count: int, kind: Kind, width: int, *, dimensions: int | None = None) -> None:
    """Refuse a sample that is too small.

    Raises:
        ValueError: It has fewer texts than :func:`least_texts`.
    """
    least = least_texts(kind, width, dimensions)
    if count < least:
        fewer = ", or fewer dimensions" if kind == "whiten" else ", or kind='center'" if least > _FEWEST else ""
        raise ValueError(
            f"kind={kind!r}: a sample of {count} different texts is too small; vectors of {width} dimensions need at "
            f"least {least}. Give more texts{fewer}."
        )


def directions_away(kind: Kind, r: int | None) -> int:
    """How many principal directions a filter takes away."""
    return r if r is not None else 3 if kind == "abtt" else 0


def check_options(
    kind: object, width: int | None, *, r: object = None, dimensions: object = None, power: object = 1.0
) -> None:
    """Refuse options that do not fit together.

    Args:
        kind: Of filter.
        width: Dimension d of the vectors; None: not known yet.
        r: As for :meth:`PostFilter.fit`.
        dimensions: As there.
        power: As there.

    Raises:
        ValueError: What does not fit, and what does.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not known: choose one of {list(KINDS)}.")
    if kind not in ("abtt", "whiten") and r is not None:
        raise ValueError(f"r={r!r} belongs to kind='abtt' or 'whiten', not to kind={kind!r}. Drop it.")
    for name, value, default in (("dimensions", dimensions, None), ("power", power, 1.0)):
        if kind != "whiten" and value != default:
            raise ValueError(f"{name}={value!r} belongs to kind='whiten', not to kind={kind!r}. Drop it.")
    if not is_power(power):
        raise ValueError(f"power={power!r} must be a number above 0, at most 1.")
    least = {"r": 1 if kind == "abtt" else 0, "dimensions": 1}
    most = {"r": -1, "dimensions": -(r if isinstance(r, int) and kind == "whiten" else 0)}
    for name, value in (("r", r), ("dimensions", dimensions)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least[name]:
            hint = " (kind='center' takes no direction away)" if name == "r" and kind == "abtt" else ""
            raise ValueError(f"{name}={value!r} must be a whole number from {least[name]} on{hint}.")
        if width is not None and value > width + most[name]:
            raise ValueError(f"{name}={value}: the vectors have {width} dimensions. Give at most {width + most[name]}.")


def _parts(vectors: NDArray[Any]) -> Any:
    return (vectors[start : start + _ROWS] for start in range(0, len(vectors), _ROWS))


def _centred(part: NDArray[Any], mean: Array) -> Array:
    return np.asarray(part, dtype=np.float64) - mean
