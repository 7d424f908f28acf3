"""What identifies the model that made the vectors of an index or a corpus: its vectors of a few fixed texts."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from .spec import spec_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

PROBES = (
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
# How far the probes' vectors may be from those that are kept, relative to how far they lie from their mean. Measured
# on two models: another dtype 0.0007 to 0.019, the nearest other method of the same weights 0.03 (st_reba never gives
# two runs in float32 that differ by a thousandth of that).
TOLERANCE = {"float32": 0.005, "other": 0.025}
# Choices of how to run the model, which leave the vectors the same up to rounding.
_VOLATILE = {"architectures", "attn_implementation", "dtype", "torch_dtype", "transformers_version", "use_cache"}
_CACHE_FOLDER = re.compile(r"models--(?:.+--)?([^/\\]+)[/\\]snapshots[/\\]")


@dataclass(frozen=True)
class ModelFingerprint:
    """The identity of a model, as far as its document vectors go. The probe alone is compared.

    Args:
        dimension: The number of values in a vector.
        probe: The document vectors [texts, d] of ``PROBES``.
        dtype: Of the weights.
        name: The base name of the model, for people to read.
        revision: The commit of the model files, when they came from a hub.
        method: What it computes, for people to read.
        configuration: SHA-256 of the modules' settings and the backbone's configuration: where the vectors agree
            but this does not, a warning says so.

    Example:
        >>> import st_reba
        >>> mark = fingerprint(st_reba.build("mini"))
        >>> ModelFingerprint.from_json(mark.to_json()) == mark, mark.dimension
        (True, 192)
    """

    dimension: int
    probe: tuple[tuple[float, ...], ...] = field(repr=False)
    dtype: str | None = None
    name: str | None = None
    revision: str | None = None
    method: str | None = None
    configuration: str | None = None

    def __str__(self) -> str:
        said = [f"revision {self.revision}"] if self.revision else []
        said += [self.method] if self.method else []
        digest = hashlib.sha256(np.asarray(self.probe, "<f4").tobytes()).hexdigest()[:8]
        return f"{self.name or 'unnamed'} ({', '.join([*said, f'dimension {self.dimension}', f'probe {digest}'])})"

    def to_json(self) -> dict[str, Any]:
        """Give the fingerprint as values that JSON can hold; the probe becomes base64 of little-endian float32."""
        probe = base64.b64encode(np.asarray(self.probe, "<f4").tobytes()).decode("ascii")
        return {**vars(self), "probe": probe}

    @classmethod
    def from_json(cls, value: Any) -> ModelFingerprint:
        """Read what `to_json` wrote.

        Raises:
            ValueError: Something is missing or of the wrong type.
        """
        try:
            raw = np.frombuffer(base64.b64decode(value["probe"], validate=True), "<f4")
            probe = raw.reshape(len(PROBES), int(value["dimension"]))
            return cls(**{**value, "probe": tuple(tuple(vector) for vector in probe.tolist())})
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise ValueError(f"the fingerprint of the model is damaged ({error})") from None


# Of each model: its version, its fingerprint, and the seconds that the probes took.
_taken: WeakKeyDictionary[SentenceTransformer, tuple[int, ModelFingerprint, float]] = WeakKeyDictionary()


def fingerprint(model: SentenceTransformer) -> ModelFingerprint:
    """Take the fingerprint of a model; a few short texts are encoded for it, unless they were and nothing has changed.

    Raises:
        ValueError: The model gives NaN, infinite or zero vectors.
    """
    return _fingerprint(model)[1]


def encoding_rate(model: SentenceTransformer) -> float:
    """Short texts that a model encodes in a second, as far as the probes tell."""
    return len(PROBES) / max(_fingerprint(model)[2], 1e-3)


def version_of(model: SentenceTransformer) -> int:
    """A number that changes when weights are changed in place or replaced, and with the settings."""
    settings = (_settings(model), model.max_seq_length, model.truncate_dim, model.prompts, model.default_prompt_name)
    weights = tuple((one.data_ptr(), one._version) for one in model.parameters())
    return hash((json.dumps(settings, sort_keys=True), str(model.device), weights))


def _fingerprint(model: SentenceTransformer) -> tuple[int, ModelFingerprint, float]:
    version = version_of(model)
    if model not in _taken or _taken[model][0] != version:
        model.encode_document(PROBES[0], show_progress_bar=False)  # the first call of a process takes long
        began = time.perf_counter()
        mark = _take(model)
        _taken[model] = (version, mark, time.perf_counter() - began)
    return _taken[model]


def _take(model: SentenceTransformer) -> ModelFingerprint:
    vectors: NDArray[np.float32] = np.asarray(model.encode_document(list(PROBES), show_progress_bar=False), np.float32)
    if not np.isfinite(vectors).all() or not np.abs(vectors).max(axis=1).all():
        raise ValueError("the model gives NaN, infinite or zero vectors for ordinary text; load it in another dtype")
    config = next(
        (one.config for one in model.modules() if callable(getattr(getattr(one, "config", None), "to_dict", None))),
        None,
    )
    card = getattr(model, "model_card_data", None)
    revisions = (getattr(config, "_commit_hash", None), getattr(card, "base_model_revision", None))
    return ModelFingerprint(
        dimension=int(vectors.shape[1]),
        probe=tuple(tuple(vector) for vector in vectors.tolist()),
        dtype=dtype_of(model),
        name=_name(getattr(card, "base_model", None), getattr(config, "_name_or_path", None)),
        revision=next((one for one in revisions if isinstance(one, str) and one), None),
        method=_method(model),
        configuration=_configuration(model, config),
    )


def dtype_of(model: SentenceTransformer) -> str | None:
    """The dtype of a model's weights; None: it has none."""
    return next((str(one.dtype).removeprefix("torch.") for one in model.parameters()), None)


def check(stored: ModelFingerprint, model: SentenceTransformer | ModelFingerprint, what: str = "the index") -> None:
    """Refuse a model that did not make the stored vectors.

    Args:
        stored: The fingerprint of the model that did.
        model: The model to be used now, in any dtype; or its fingerprint.
        what: What holds the vectors, for the message.

    Raises:
        ValueError: The dimension or the vectors differ; the message says how much.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini")
        >>> check(fingerprint(model), model)
    """
    now = model if isinstance(model, ModelFingerprint) else fingerprint(model)
    differs = difference(stored, now)
    if differs is not None:
        raise ValueError(
            f"{what} was built with {stored.name or 'an unnamed model'} and cannot be used with "
            f"{now.name or 'an unnamed model'}: they differ in {differs}. Of {what}: {stored}; this model: {now}. Load "
            f"the model that {what} was built with, or build {what} again with this one"
        )
    if stored.configuration != now.configuration:
        logger.warning(
            "%s was built with a model of another configuration, or by another version of a library; its vectors of "
            "%d probe texts are the same, so it is used", what, len(PROBES),
        )  # fmt: skip


def difference(first: ModelFingerprint, second: ModelFingerprint) -> str | None:
    """What tells two models apart, the first one's value first; None: their vectors can be compared."""
    if first.dimension != second.dimension:
        return f"dimension: {first.dimension} there, {second.dimension} here"
    a, b = (np.asarray(one.probe, np.float64) for one in (first, second))
    spread = max(np.linalg.norm(a - a.mean(axis=0)), 1e-3 * np.linalg.norm(a))
    distance = np.linalg.norm(a - b) / spread
    exact = first.dtype == second.dtype and first.dtype in (None, "float32")
    limit = TOLERANCE["float32" if exact else "other"]
    if distance <= limit:  # not of a damaged probe, whose distance is NaN
        return None
    return (
        f"the vectors of {len(PROBES)} probe texts, by {distance:.2g} of their spread (at most {limit} is allowed): "
        "other weights, method or document prompt"
    )


def _name(*values: object) -> str | None:
    for value in values:
        if isinstance(value, str) and value:
            cached = _CACHE_FOLDER.search(value)
            return cached.group(1) if cached else os.path.basename(os.path.abspath(value)) or None
    return None


def _settings(model: SentenceTransformer) -> list[tuple[str, Any]]:
    modules = [(type(one).__name__, getattr(one, "get_config_dict", None)) for one in model.children()]
    return [(name, _plain(get()) if callable(get) else {}) for name, get in modules]


def _method(model: SentenceTransformer) -> str:
    """What a model computes, in the short form; of one that is not st_reba's, its modules."""
    modules = [type(one).__name__ for one in model.children()]
    return str(spec_of(model)) if hasattr(model[0], "stages") else " → ".join(modules)


def _configuration(model: SentenceTransformer, config: Any) -> str:
    backbone = None if config is None else _plain(config.to_dict())
    value = [_settings(model), backbone, model.max_seq_length, model.truncate_dim, model.similarity_fn_name]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Settings as JSON values that are the same on every machine."""
    if isinstance(value, Mapping):
        return {
            str(key): os.path.basename(item) if isinstance(item, str) and str(key).endswith("path") else _plain(item)
            for key, item in value.items()
            if str(key) not in _VOLATILE and not str(key).startswith("_")
        }
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    # The printed form of other objects may hold a memory address.
    return value if value is None or isinstance(value, (str, bool, int, float)) else type(value).__name__
