"""Probe of a model: its vectors of a few fixed texts, which tell whether it made the vectors of an index."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from .comparison import PROBE_TEXTS, dtype_name, model_tolerance, relative_distance
from .encode import naming_pipeline, unreported_cuts
from .methods import Options, method_of
from .safety import load

_REMEDY = "name its folder or Hub id, such as model='my_model'"
_SNAPSHOT = re.compile(r"models--([^/\\]+)[/\\]snapshots[/\\]([0-9a-f]{40})")


@dataclass(frozen=True)
class Probe:
    """Vectors of a few fixed texts, for comparison, and what is known about their model.

    Args:
        vectors: Document vectors of ``PROBE_TEXTS``, [texts, d].
        dtype: Number type of the weights.
        name: Name of the model.
        revision: Commit of its repository.
        method: Short form of its method, or its modules.
        source: Folder or Hub id of the saved model, if it is known.
    """

    vectors: NDArray[np.float32] = field(repr=False, compare=False)
    dtype: str | None = None
    name: str | None = None
    revision: str | None = None
    method: str | None = None
    source: str | None = None

    @property
    def dimension(self) -> int:
        """Number of values in a vector."""
        return int(self.vectors.shape[1])

    def __str__(self) -> str:
        known_details = [self.method, self.dtype, f"{self.dimension} dimensions"]
        return f"{self.name or 'an unnamed model'} ({', '.join(filter(None, known_details))})"

    def to_json(self) -> dict[str, Any]:
        """The probe as JSON values; vectors as base64 of little-endian float32."""
        vector_bytes = self.vectors.astype("<f4").tobytes()
        json_values = dict(vars(self))
        json_values["vectors"] = base64.b64encode(vector_bytes).decode("ascii")
        json_values["dimension"] = self.dimension
        return json_values

    @classmethod
    def from_json(cls, json_values: Options) -> Probe:
        """Read what `to_json` wrote."""
        try:
            description = dict(json_values)
            vector_bytes = base64.b64decode(description.pop("vectors"), validate=True)
            dimension = int(description.pop("dimension"))
            vectors = np.frombuffer(vector_bytes, "<f4").reshape(len(PROBE_TEXTS), dimension)
            return cls(vectors.astype(np.float32), **description)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the probe of the model is damaged ({error})") from None

    def check_same(self, model: SentenceTransformer | Probe, holder: str) -> None:
        """Refuse a model, in any number type, that did not make the vectors of what holds this probe.

        Args:
            model: The model, or its probe.
            holder: What holds this probe, for the message.
        """
        current_probe = model if isinstance(model, Probe) else take_probe(model)
        tolerance = model_tolerance(self.dtype, current_probe.dtype)
        distance = relative_distance(self.vectors, current_probe.vectors)
        if distance > tolerance:
            remedy = "Load that model"
            if self.dtype != current_probe.dtype:
                remedy += f" with dtype={self.dtype!r}"
            raise ValueError(
                f"{holder} was built with {self} and cannot be used with {current_probe}: "
                f"vectors of {len(PROBE_TEXTS)} texts differ by {distance:.2g} of their spread; "
                f"at most {tolerance} is allowed. {remedy}, or build {holder} again"
            )

    def seen_from(
        self, folder: str | os.PathLike[str], model: SentenceTransformer | str | os.PathLike[str]
    ) -> Probe:
        """The probe to store in a folder; a source that is a folder becomes relative to that one.

        A relative source begins with a dot.

        Args:
            folder: The folder.
            model: What the caller gave; if it is a path or Hub id, that is the source.
        """
        model_source = os.fspath(model) if isinstance(model, (str, os.PathLike)) else self.source
        if model_source is not None and os.path.isdir(model_source):
            model_source = os.path.relpath(os.path.realpath(model_source), os.path.realpath(folder))
            if not model_source.startswith("."):
                model_source = os.path.join(".", model_source)
        return replace(self, source=model_source)

    def find_source(self, folder: str | os.PathLike[str]) -> str:
        """Folder or Hub id of the model; ``folder`` holds the probe."""
        if self.source is None:
            raise ValueError(f"the location of the model, {self}, is not known; {_REMEDY}")
        if not self.source.startswith("."):
            return self.source
        model_folder = os.path.normpath(os.path.join(os.path.realpath(folder), self.source))
        if not os.path.isdir(model_folder):
            # Not passed to the Hub, where a missing folder's name could be somebody's repository.
            raise ValueError(f"the folder of the model, {model_folder!r}, is gone; {_REMEDY}")
        return model_folder

    def load_model(self, folder: str | os.PathLike[str], options: Options) -> SentenceTransformer:
        """Load the model, with options of `st_reba.load`; ``folder`` holds the probe.

        A model that computed in 16 bits does so again, unless ``dtype`` says otherwise.
        """
        model_source = self.find_source(folder)
        loading_options = dict(options)
        if self.dtype in ("bfloat16", "float16") and loading_options.get("dtype") is None:
            loading_options["dtype"] = self.dtype
        if model_source == self.source and self.revision:  # of a repository on the Hub
            loading_options.setdefault("revision", self.revision)
        return load(model_source, **loading_options)


class _Measurement(NamedTuple):
    """The probe of a version of a model, and the seconds that encoding the texts took."""

    version: int
    probe: Probe
    seconds: float


_measurements: WeakKeyDictionary[SentenceTransformer, _Measurement] = WeakKeyDictionary()


def take_probe(model: SentenceTransformer) -> Probe:
    """Take the probe of a model, or give the last one if neither weights nor settings changed since."""
    return _measure(model).probe


def encoding_rate(model: SentenceTransformer) -> float:
    """Short texts per second, as measured by the probe."""
    return len(PROBE_TEXTS) / max(_measure(model).seconds, 1e-3)


def _measure(model: SentenceTransformer) -> _Measurement:
    model_version = version_of(model)
    measurement = _measurements.get(model)
    if measurement is not None and measurement.version == model_version:
        return measurement
    with unreported_cuts(model), naming_pipeline(model):
        # Not timed: the first call in a process is slow.
        model.encode_document(PROBE_TEXTS[0], show_progress_bar=False)
        start_time = time.perf_counter()
        probe_vectors = np.asarray(
            model.encode_document(list(PROBE_TEXTS), show_progress_bar=False), np.float32
        )
        encoding_seconds = time.perf_counter() - start_time
    if not np.isfinite(probe_vectors).all() or not probe_vectors.any(axis=1).all():
        raise ValueError("the model gives NaN, infinite or zero vectors; load it in another dtype")
    measurement = _Measurement(model_version, _describe(model, probe_vectors), encoding_seconds)
    _measurements[model] = measurement
    return measurement


def version_of(model: SentenceTransformer) -> int:
    """A number that changes when weights or settings of a loaded model change."""
    module_configs: list[object] = []
    for module in model.children():
        get_config = getattr(module, "get_config_dict", dict)
        module_configs.append((type(module).__name__, get_config()))
    model_settings = [
        model.max_seq_length,
        model.truncate_dim,
        model.prompts,
        model.default_prompt_name,
    ]
    weights = [(weight.data_ptr(), weight._version, weight.device) for weight in model.parameters()]
    return hash((json.dumps([module_configs, model_settings], default=repr), tuple(weights)))


def _describe(model: SentenceTransformer, probe_vectors: NDArray[np.float32]) -> Probe:
    """The probe, with what is known of the model."""
    # A Hub id, if sentence-transformers could ask the Hub about it.
    model_source = model.model_card_data.base_model
    revision = model.model_card_data.base_model_revision
    is_saved = isinstance(model_source, str)
    if not isinstance(model_source, str):
        model_source = next(_loaded_paths(model), "")
        is_saved = os.path.isfile(os.path.join(model_source, "modules.json"))
    cached_snapshot = _SNAPSHOT.search(model_source)
    if cached_snapshot is not None:
        model_source, revision = cached_snapshot[1].replace("--", "/", 1), cached_snapshot[2]
    module_names = " → ".join(type(module).__name__ for module in model.children())
    return Probe(
        probe_vectors,
        dtype=dtype_name(model),
        name=os.path.basename(os.path.normpath(model_source)) if model_source else None,
        revision=revision,
        method=str(method_of(model) or module_names),
        source=model_source if is_saved else None,
    )


def _loaded_paths(model: SentenceTransformer) -> Iterator[str]:
    """Folders and Hub ids that transformers loaded modules from."""
    for module in model.modules():
        loaded_path = getattr(getattr(module, "config", None), "_name_or_path", None)
        if loaded_path:
            yield loaded_path


def resolve_model(
    model: SentenceTransformer | str | os.PathLike[str],
    options: Options | None = None,
) -> SentenceTransformer:
    """A model, loaded by `st_reba.load` if only its folder or Hub id is given.

    Args:
        model: The model, or its folder or Hub id.
        options: Options of `st_reba.load`; refused if the model is loaded already.
    """
    options = options or {}
    if isinstance(model, (str, os.PathLike)):
        return load(model, **options)
    if not hasattr(model, "encode_document"):
        raise TypeError(f"model={model!r:.80}: give a SentenceTransformer, or its folder or Hub id")
    set_options = {name: value for name, value in options.items() if value not in (None, False)}
    if set_options:
        raise TypeError(f"{set_options}: the model is loaded already; drop these options")
    return model
