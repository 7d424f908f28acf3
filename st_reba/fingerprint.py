"""What identifies the model that made the vectors of an index or an encoded corpus."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PROBES = (
    "春天来了，河边的柳树发了新芽，孩子们在草地上放风筝。",
    "The committee read the report twice before it agreed to fund the new bridge.",
)

# The same weights in bfloat16 and float32 stay above this; other weights, prompts or poolings fall below.
MIN_PROBE_COSINE = 0.999

# Choices of how to run the model, which leave the vectors the same up to rounding. Keys that begin with an
# underscore (paths, commits, attention kernels) are left out too.
_VOLATILE = {
    "architectures",
    "attn_implementation",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "unpad_inputs",
    "use_cache",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
}
# Settings that are alike in nearly all models, or said elsewhere.
_UNTOLD = {
    "base_model",
    "embedding_dimension",
    "module_input_name",
    "module_output_name",
    "transformer_task",
}
_CACHE_FOLDER = re.compile(r"models--(?:.+--)?([^/\\]+)[/\\]snapshots[/\\]")


@dataclass(frozen=True)
class ModelFingerprint:
    """The identity of a model, as far as its document vectors go.

    Args:
        name: The base name of the model, for people to read; not compared.
        revision: The commit of the model files, when they came from a hub.
        config_hash: SHA-256 over the modules, their settings and the configuration of the backbone.
        dimension: The number of values in a vector.
        probe: The document vectors of two fixed short texts.
        method: The modules with their settings, for people to read; not compared.

    Example:
        >>> mark = ModelFingerprint("mini", None, "00ff", 2, ((1.0, 0.0), (0.0, 1.0)))
        >>> ModelFingerprint.from_json(mark.to_json()) == mark
        True
    """

    name: str | None
    revision: str | None
    config_hash: str
    dimension: int
    probe: tuple[tuple[float, ...], ...] = field(repr=False)
    method: str | None = None

    def __str__(self) -> str:
        revision = f"revision {self.revision}, " if self.revision else ""
        method = f"{self.method}, " if self.method else ""
        return (
            f"{self.name or 'unnamed'} ({revision}{method}dimension {self.dimension}, configuration "
            f"{self.config_hash[:12]}, probe {self.probe_hash})"
        )

    @property
    def probe_hash(self) -> str:
        """A few digits that differ where the probe's vectors do."""
        return hashlib.sha256(np.asarray(self.probe, dtype="<f4").tobytes()).hexdigest()[:8]

    def to_json(self) -> dict[str, Any]:
        """Give the fingerprint as values that JSON can hold; the probe becomes base64 of little-endian float32."""
        probe = [base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode("ascii") for vector in self.probe]
        return {
            "name": self.name,
            "revision": self.revision,
            "config_hash": self.config_hash,
            "dimension": self.dimension,
            "probe": probe,
            "method": self.method,
        }

    @classmethod
    def from_json(cls, value: object) -> ModelFingerprint:
        """Read what `to_json` wrote.

        Args:
            value: A parsed JSON value.

        Returns:
            The fingerprint.

        Raises:
            ValueError: A key is missing or has the wrong type; the message begins with the key.
        """
        if not isinstance(value, Mapping):
            raise ValueError(f"expected an object, found {type(value).__name__}")
        for key in ("name", "revision", "config_hash", "dimension", "probe"):
            if key not in value:
                raise ValueError(f"{key}: missing")
        for key in ("name", "revision", "method"):
            if value.get(key) is not None and not isinstance(value[key], str):
                raise ValueError(f"{key}: expected a string or null, found {type(value[key]).__name__}")
        config_hash, dimension, probe = value["config_hash"], value["dimension"], value["probe"]
        if not isinstance(config_hash, str):
            raise ValueError(f"config_hash: expected a string, found {type(config_hash).__name__}")
        if not isinstance(dimension, int) or isinstance(dimension, bool) or dimension < 1:
            raise ValueError(f"dimension: expected a positive whole number, found {dimension!r}")
        if not isinstance(probe, list) or len(probe) != len(PROBES):
            raise ValueError(f"probe: expected a list of {len(PROBES)} strings")
        return cls(
            value["name"],
            value["revision"],
            config_hash,
            dimension,
            tuple(_probe(item, dimension) for item in probe),
            value.get("method"),
        )


def _probe(item: object, dimension: int) -> tuple[float, ...]:
    try:
        raw = base64.b64decode(item, validate=True) if isinstance(item, str) else b""
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 4 * dimension:
        raise ValueError(f"probe: expected base64 of {dimension} float32 values")
    return tuple(np.frombuffer(raw, dtype="<f4").tolist())


def fingerprint(model: SentenceTransformer) -> ModelFingerprint:
    """Take the fingerprint of a model. Two short texts are encoded for it.

    Args:
        model: Any Sentence Transformers model.

    Returns:
        Its fingerprint.

    Raises:
        ValueError: The model gives NaN, infinite or zero vectors.

    Example:
        >>> import st_reba
        >>> fingerprint(st_reba.build("mini")).dimension
        192
    """
    vectors: NDArray[np.float32] = np.asarray(model.encode_document(list(PROBES), show_progress_bar=False), np.float32)
    if not np.isfinite(vectors).all() or not np.abs(vectors).max(axis=1).all():
        raise ValueError("the model gives NaN, infinite or zero vectors for ordinary text; load it in another dtype")
    config = _backbone_config(model)
    return ModelFingerprint(
        name=_name(model, config),
        revision=_revision(model, config),
        config_hash=_config_hash(model, config),
        dimension=int(vectors.shape[1]),
        probe=tuple(tuple(vector) for vector in vectors.tolist()),
        method=_method(model),
    )


def check(stored: ModelFingerprint, model: SentenceTransformer, what: str = "the index") -> None:
    """Refuse a model that did not make the stored vectors.

    Args:
        stored: The fingerprint of the model that did.
        model: The model to be used now, in any dtype.
        what: What holds the vectors, for the message.

    Raises:
        ValueError: The dimension, the revision, the configuration or the weights differ; the message says which.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini")
        >>> check(fingerprint(model), model)
    """
    now = fingerprint(model)
    differs = difference(stored, now)
    if differs is None:
        return
    pinned = f"with revision={stored.revision!r}" if differs.startswith("revision") else f"that {what} was built with"
    raise ValueError(
        f"{what} was built with {stored.name or 'an unnamed model'} and cannot be used with "
        f"{now.name or 'an unnamed model'}: they differ in {differs}. Fingerprint of {what}: {stored}; of this model: "
        f"{now}. To go on, load the model {pinned}, or build {what} again with this one"
    )


def difference(first: ModelFingerprint, second: ModelFingerprint) -> str | None:
    """What tells two models apart.

    Args:
        first: One fingerprint, as that of an index.
        second: Another, as that of a model that is to search it.

    Returns:
        What differs, the first one's value first; None: their vectors can be compared.

    Example:
        >>> mark = ModelFingerprint("mini", None, "00ff", 2, ((1.0, 0.0), (0.0, 1.0)))
        >>> difference(mark, ModelFingerprint("mini", None, "00ff", 3, ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))))
        'dimension: 2 there, 3 here'
    """
    if first.dimension != second.dimension:
        return f"dimension: {first.dimension} there, {second.dimension} here"
    if first.revision and second.revision and first.revision != second.revision:
        return f"revision: {first.revision} there, {second.revision} here"
    if first.config_hash != second.config_hash:
        return (
            "configuration: the modules, their settings (such as the pooling), the similarity, truncate_dim or the "
            "backbone's configuration, which another version of a library can change as well"
        )
    cosine = _lowest_cosine(first.probe, second.probe)
    if cosine >= MIN_PROBE_COSINE:
        return None
    return (
        f"weights or document prompt: the vectors of the probe texts have a cosine of only {cosine:.4f} "
        f"(at least {MIN_PROBE_COSINE} is needed)"
    )


def _lowest_cosine(first: tuple[tuple[float, ...], ...], second: tuple[tuple[float, ...], ...]) -> float:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    # A damaged probe (zero or NaN) must not pass as equal.
    return float(cosines.min()) if np.isfinite(cosines).all() else 0.0


def _backbone_config(model: SentenceTransformer) -> Any:
    for module in model.modules():
        config = getattr(module, "config", None)
        if callable(getattr(config, "to_dict", None)):
            return config
    return None


def _name(model: SentenceTransformer, config: Any) -> str | None:
    card = getattr(model, "model_card_data", None)
    for value in (getattr(card, "base_model", None), getattr(config, "_name_or_path", None)):
        if isinstance(value, str) and value:
            cached = _CACHE_FOLDER.search(value)
            return cached.group(1) if cached else os.path.basename(os.path.abspath(value)) or None
    return None


def _revision(model: SentenceTransformer, config: Any) -> str | None:
    card = getattr(model, "model_card_data", None)
    for value in (getattr(config, "_commit_hash", None), getattr(card, "base_model_revision", None)):
        if isinstance(value, str) and value:
            return value
    return None


def _method(model: SentenceTransformer) -> str:
    """The modules and those of their settings that fit on a line."""
    parts = []
    for module in model.children():
        get_config = getattr(module, "get_config_dict", None)
        config = _plain(get_config()) if callable(get_config) else {}
        shown = [
            f"{key}={value}"
            for key, value in config.items()
            if isinstance(value, (str, int, float)) and not isinstance(value, bool) and 0 < len(str(value)) <= 40
            if key not in _UNTOLD
        ]
        named = [config.get("method"), *(config.get("stages") or ())]
        options = [item for each in named if isinstance(each, dict) for item in each.items()]
        shown += [" ".join([name, *(f"{key}={value}" for key, value in own.items())]) for name, own in options]
        parts.append(f"{type(module).__name__}({', '.join(shown)})")
    return " → ".join(parts)


def _config_hash(model: SentenceTransformer, config: Any) -> str:
    modules = []
    for module in model.children():
        get_config = getattr(module, "get_config_dict", None)
        settings = get_config() if callable(get_config) else None
        modules.append([type(module).__name__, settings])
    value = {
        "modules": modules,
        "backbone": None if config is None else config.to_dict(),
        "max_seq_length": model.max_seq_length,
        "truncate_dim": model.truncate_dim,
        "similarity_fn_name": model.similarity_fn_name,
    }
    text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _plain(value: Any) -> Any:
    """Turn settings into JSON values that are the same on every machine."""
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
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    # The printed form of other objects may hold a memory address.
    return type(value).__name__
