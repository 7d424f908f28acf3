"""Probe of a model: its vectors of a few fixed texts, which tell whether it made the vectors of an index."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..encode import naming_pipeline, unreported_cuts
from ..methods import method_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TEXTS = (
    "春天来了，河边的柳树发了新芽，孩子们在草地上放风筝。",
    "The committee read the report twice before it agreed to fund the new bridge.",
    "猫",
    "Dogs bark.",
    "def add(a, b):\n    return a + b",
    "3.14159, 2.71828; 42%",
    "请问去火车站怎么走？",
    "It was a cold morning, and the harbour lay under a thick fog; the ferries waited, their lamps lit, while gulls "
    "walked up and down the pier as if they owned it.",
)
# Largest distance as `worst` gives it. Measured on two models: another dtype 0.0007 to 0.019, the nearest other method
# of the same weights 0.03; two runs in float32 differ by less than a thousandth of 0.005.
TOLERANCE = {"float32": 0.005, "other": 0.025}
_NAME_IT = "name its folder or Hub id, as model='my_model'"
_SNAPSHOT = re.compile(r"models--([^/\\]+)[/\\]snapshots[/\\]([0-9a-f]{40})")


@dataclass(frozen=True)
class Probe:
    """Vectors of a few fixed texts, and what is known of the model that gave them. The vectors alone are compared."""

    vectors: NDArray[np.float32] = field(repr=False, compare=False)  # document vectors [texts, d] of TEXTS
    dtype: str | None = None  # of the weights
    name: str | None = None
    revision: str | None = None  # commit of its repository
    method: str | None = None  # short form of its method, or its modules
    source: str | None = None  # folder or Hub id of the saved model, if it is known

    @property
    def dimension(self) -> int:
        """Number of values in a vector."""
        return int(self.vectors.shape[1])

    def __str__(self) -> str:
        about = filter(None, (self.method, self.dtype, f"{self.dimension} dimensions"))
        return f"{self.name or 'an unnamed model'} ({', '.join(about)})"

    def to_json(self) -> dict[str, Any]:
        """The probe as JSON values; vectors as base64 of little-endian float32."""
        data = base64.b64encode(self.vectors.astype("<f4").tobytes()).decode("ascii")
        return {**vars(self), "vectors": data, "dimension": self.dimension}

    @classmethod
    def from_json(cls, value: Any) -> Probe:
        """Read what `to_json` wrote."""
        try:
            about = dict(value)
            data = np.frombuffer(base64.b64decode(about.pop("vectors"), validate=True), "<f4")
            return cls(data.reshape(len(TEXTS), int(about.pop("dimension"))).astype(np.float32), **about)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the probe of the model is damaged ({error})") from None


# Of each model: its version, its probe, and the seconds that encoding the texts took.
_taken: WeakKeyDictionary[SentenceTransformer, tuple[int, Probe, float]] = WeakKeyDictionary()


def probe(model: SentenceTransformer) -> Probe:
    """Take the probe of a model, or give the one that was taken before if neither weights nor settings changed."""
    version = version_of(model)
    if model not in _taken or _taken[model][0] != version:
        with unreported_cuts(model), naming_pipeline(model):
            model.encode_document(TEXTS[0], show_progress_bar=False)  # the first call of a process takes long
            began = time.perf_counter()
            vectors = np.asarray(model.encode_document(list(TEXTS), show_progress_bar=False), np.float32)
            seconds = time.perf_counter() - began
        if not np.isfinite(vectors).all() or not np.abs(vectors).max(axis=1).all():
            raise ValueError("the model gives NaN, infinite or zero vectors; load it in another dtype")
        _taken[model] = (version, Probe(vectors, **_about(model)), seconds)
    return _taken[model][1]


def encoding_rate(model: SentenceTransformer) -> float:
    """Short texts a second, as measured by the probe."""
    probe(model)
    return len(TEXTS) / max(_taken[model][2], 1e-3)


def version_of(model: SentenceTransformer) -> int:
    """A number that changes when weights or settings of a loaded model change."""
    modules: list[Any] = [(type(one).__name__, getattr(one, "get_config_dict", dict)()) for one in model.children()]
    settings = (modules, model.max_seq_length, model.truncate_dim, model.prompts, model.default_prompt_name)
    weights = tuple((one.data_ptr(), one._version, one.device) for one in model.parameters())
    return hash((json.dumps(settings, default=repr), weights))


def _about(model: SentenceTransformer) -> dict[str, str | None]:
    dtype = next((str(one.dtype).removeprefix("torch.") for one in model.parameters()), None)
    method = str(method_of(model) or " → ".join(type(one).__name__ for one in model.children()))
    card = model.model_card_data
    # Of a model from the Hub that sentence-transformers could ask for; else what transformers loaded.
    asked, revision = card.base_model if isinstance(card.base_model, str) else None, card.base_model_revision
    loaded = (getattr(getattr(one, "config", None), "_name_or_path", None) for one in model.modules())
    place = asked or next(filter(None, loaded), "")
    saved = asked is not None or os.path.isfile(os.path.join(place, "modules.json"))
    if cached := _SNAPSHOT.search(place):
        place, revision = cached[1].replace("--", "/", 1), cached[2]
    name = os.path.basename(os.path.normpath(place)) if place else None
    return {"dtype": dtype, "name": name, "revision": revision, "method": method, "source": place if saved else None}


def worst(stored: NDArray[Any], now: NDArray[Any]) -> float:
    """Distance of two sets of vectors of the same texts, relative to how far the stored ones lie from their mean.

    Args:
        stored: [texts, d].
        now: [texts, d]. Where shapes differ or a value is not finite, the distance is infinite.
    """
    a, b = np.asarray(stored, np.float64), np.asarray(now, np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    spread = max(np.linalg.norm(a - a.mean(axis=0)), 1e-3 * np.linalg.norm(a), np.finfo(np.float64).tiny)
    return float(np.linalg.norm(a - b) / spread)


def check(stored: Probe, model: SentenceTransformer | Probe, what: str = "the index") -> None:
    """Refuse a model, in any dtype, or its probe, that did not make the stored vectors; ``what`` holds them."""
    now = model if isinstance(model, Probe) else probe(model)
    limit = TOLERANCE["float32" if stored.dtype == now.dtype and stored.dtype in (None, "float32") else "other"]
    if (distance := worst(stored.vectors, now.vectors)) > limit:
        raise ValueError(
            f"{what} was built with {stored} and cannot be used with {now}: vectors of {len(TEXTS)} texts differ by "
            f"{distance:.2g} of their spread; at most {limit} is allowed. Load that model, or build {what} again"
        )


def load(model: Any, options: Mapping[str, Any] | None = None) -> SentenceTransformer:
    """A model, loaded by `st_reba.safety.load` if only its folder or Hub id is given; options belong to that alone."""
    options = options or {}
    if isinstance(model, (str, os.PathLike)):
        from ..safety import load as load_model

        return load_model(model, **options)
    if not hasattr(model, "encode_document"):
        raise TypeError(f"model={model!r:.80}: give a SentenceTransformer, or its folder or Hub id")
    if given := {name: value for name, value in options.items() if value not in (None, False)}:
        raise TypeError(f"{given}: the model is loaded already; drop these options")
    return model  # type: ignore[no-any-return]


def remembered(model: Any, mark: Probe, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """A probe as JSON whose source is kept relative to a folder, beginning with a dot, if it is a folder."""
    source = os.fspath(model) if isinstance(model, (str, os.PathLike)) else mark.source
    if source is not None and os.path.isdir(source):
        path = os.path.relpath(os.path.realpath(source), os.path.realpath(folder))
        source = path if path.startswith(".") else os.path.join(".", path)
    return {**mark.to_json(), "source": source}


def located(stored: Probe, folder: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """Folder or Hub id of a remembered model, and its revision as an option of `load`."""
    if stored.source is None:
        raise ValueError(f"the place of the model, {stored}, is not known; {_NAME_IT}")
    if not stored.source.startswith("."):
        return stored.source, {"revision": stored.revision} if stored.revision else {}
    path = os.path.normpath(os.path.join(os.path.realpath(folder), stored.source))
    if not os.path.isdir(path):
        # Not passed on: the name of a missing folder could be somebody's repository on the Hub.
        raise ValueError(f"the folder of the model, {path!r}, is gone; {_NAME_IT}")
    return path, {}
