"""Golden vectors: vectors of twenty texts, kept with a model, so that any machine can compare its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sentence_transformers import SentenceTransformer

from ..comparison import (
    GOLDEN_TEXTS,
    dtype_name,
    machine_tolerance,
    relative_distance,
    text_distances,
)
from ..encode import describe_pipeline_fault, unreported_cuts
from ..methods import open_fields
from ..modules.layout import TASKS, empty_text_token
from ..modules.version import __version__
from .digests import digests_of

GOLDEN_FILE = "golden.json"
# Even with thousands of tensors and thousands of dimensions, a file has a few million bytes.
_MAX_BYTES = 32 << 20
# Each text is encoded by itself.
_MAX_TEXTS = 1000
_MAX_LETTERS = 100_000
_MAX_FILES = 10_000
_FIELD_VALUE = "Find its meaning."
# How many of the texts are also encoded as queries and as documents, where these differ.
_SEARCH_TEXTS = 5
_PACKAGES = ("sentence-transformers", "transformers", "torch")

# A text with its vector, and perhaps its task.
Entry = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """Comparison of a model with its golden vectors.

    Args:
        distance: Of all vectors, as :func:`st_reba.comparison.relative_distance` gives it; infinity:
            the weights are damaged, and the model gives no vectors.
        tolerance: The largest distance that is allowed.
        texts: Distance of each text's two vectors, relative to the length of the golden one; of a
            query and a document by ``"query: …"`` and ``"document: …"``.
        changes: What differs between then and now: (then, now) by name.
        ran: Whose code computed the vectors; None: sentence-transformers' own, or a graph.
        code: How the repository's code differs from the installed package's; None: it does not.
        foreign: The code is of another version of st_reba, so its difference says nothing.
        graph: The ONNX graph that was run; None: torch ran the model.
        rounded: For an 8-bit graph beside it: ``ok``, and its cosines to float32.
        damage: Files that are not what was saved; None: golden.json has no digests of them.
    """

    distance: float
    tolerance: float
    texts: dict[str, float]
    changes: Mapping[str, tuple[str | None, str | None]]
    ran: str | None = None
    code: str | None = None
    foreign: bool = False
    graph: str | None = None
    rounded: Mapping[str, Any] | None = None
    damage: Sequence[str] | None = None

    @property
    def ok(self) -> bool:
        """Whether vectors and digests agree, and the code is what its version of st_reba writes."""
        if self.damage:
            return False
        rounded = self.rounded is None or bool(self.rounded["ok"])
        return self.distance <= self.tolerance and rounded and (self.code is None or self.foreign)

    def to_dict(self) -> dict[str, Any]:
        """All of it, JSON-serializable."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        lines: list[str] = []
        if self.code:
            lines.append(f"{self.code}.")
        for damage in self.damage or ():
            lines.append(f"not what was saved: {damage}")
        lines += self._describe_distance()
        if self.ran:
            lines.append(f"run by {self.ran}")
        if self.graph:
            lines.append(f"run by onnxruntime: {self.graph}")
        if self.rounded:
            lines.append(f"8 bits: {json.dumps(dict(self.rounded))}")
        for name, (value_then, value_now) in self.changes.items():
            lines.append(f"changed since: {name} {value_then} -> {value_now}")
        if self.damage is None:
            lines.append(
                "weights and tokenizer were not compared: golden.json has no digests of them"
            )
        lines.append("ok" if self.ok else "FAIL")
        return "\n".join(lines)

    def _describe_distance(self) -> list[str]:
        if not self.texts:
            return ["with these weights, the model gives no vectors"]
        furthest = max(self.texts, key=lambda text: self.texts[text])
        shown_text = json.dumps(furthest[:48], ensure_ascii=False)
        return [
            f"{len(self.texts)} texts: distance {self.distance:.1e}, allowed {self.tolerance:.1e}",
            f"furthest: {shown_text}, by {self.texts[furthest]:.1e} of its length",
        ]


def environment(model: SentenceTransformer) -> dict[str, str]:
    """Type of the weights, device, and versions."""
    device = model.device
    name = f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    versions = {"st-reba": __version__, **{package: version(package) for package in _PACKAGES}}
    return {"dtype": dtype_name(model) or "float32", "device": name, **versions}


def write_golden(model: SentenceTransformer, folder: Path) -> None:
    """Write ``golden.json`` into a model's folder: texts, their vectors, and what made them."""
    fields = _values_of_open_fields(model)
    texts = list(GOLDEN_TEXTS)
    try:
        empty_text_token(model.tokenizer)
    except ValueError:  # no token stands for an empty text
        texts.remove("")
    entries = make_entries(texts, _encode_each(model, texts, fields=fields))
    search_entries = _search_entries(model, entries[1 : 1 + _SEARCH_TEXTS])
    header = {"tolerance": machine_tolerance(model), "fields": fields, "made": environment(model)}
    write_golden_file(folder, header, entries, search_entries)


def make_entries(texts: Sequence[str], vectors: NDArray[np.float32]) -> list[Entry]:
    """Texts with their vectors [texts, d], as golden.json holds them."""
    entries: list[Entry] = []
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        entries.append({"text": text, "vector": [float(f"{value:.7g}") for value in vector]})
    return entries


def _search_entries(model: SentenceTransformer, entries: Sequence[Entry]) -> list[Entry]:
    """The same texts as queries and as documents, if the model encodes those differently."""
    texts = [entry["text"] for entry in entries]
    vectors = np.array([entry["vector"] for entry in entries])
    search_entries: list[Entry] = []
    for task in TASKS:
        try:
            task_vectors = _encode_each(model, texts, task)
        except ValueError:  # from others' modules: not every Router has a route for queries
            continue
        if relative_distance(vectors, task_vectors) > machine_tolerance(model):
            for entry in make_entries(texts, task_vectors):
                search_entries.append({"task": task, **entry})
    return search_entries


def compare(model: SentenceTransformer, stored: Mapping[str, Any]) -> Report:
    """Compare a loaded model with golden vectors that :func:`read_golden` read."""
    if stored["fields"].keys() != _values_of_open_fields(model).keys():
        field_names = list(stored["fields"])
        raise ValueError(
            f"The golden vectors are of a template with the fields {field_names!s:.80}."
        )
    texts = [entry["text"] for entry in stored["texts"]]
    vectors = list(_encode_each(model, texts, fields=stored["fields"]))
    for entry in stored.get("searches", ()):
        vectors.extend(_encode_each(model, [entry["text"]], entry["task"]))
    # The tolerance of the coarser type: the one then, or the one now.
    tolerance = max(machine_tolerance(model), machine_tolerance(model, stored["made"]["dtype"]))
    return compare_vectors(stored, vectors, tolerance, environment(model))


def compare_vectors(
    stored: Mapping[str, Any],
    vectors: ArrayLike,
    tolerance: float,
    current_environment: Mapping[str, str],
) -> Report:
    """Compare what :func:`read_golden` read with vectors [texts, d], made in the current environment.

    First come the vectors of its texts, then those of its queries and documents.
    """
    entries = [*stored["texts"], *stored.get("searches", ())]
    golden_vectors = np.array([entry["vector"] for entry in entries], dtype=np.float64)
    current_vectors = np.asarray(vectors, dtype=np.float64)
    if current_vectors.shape != golden_vectors.shape:
        current_dimension, golden_dimension = current_vectors.shape[1], golden_vectors.shape[1]
        raise ValueError(
            f"The model gives {current_dimension} dimensions, golden vectors have {golden_dimension}."
        )
    distances = text_distances(golden_vectors, current_vectors)
    distance_of_text: dict[str, float] = {}
    for entry, distance in zip(entries, distances, strict=True):
        name = entry["text"]
        if "task" in entry:
            name = f"{entry['task']}: {name}"
        distance_of_text[name] = float(distance)
    changes: dict[str, tuple[str | None, str | None]] = {}
    for name, current_value in current_environment.items():
        stored_value = stored["made"].get(name)
        if stored_value != current_value:
            changes[name] = (stored_value, current_value)
    distance = relative_distance(golden_vectors, current_vectors)
    return Report(distance, tolerance, distance_of_text, changes)


def _values_of_open_fields(model: SentenceTransformer, task: str | None = None) -> dict[str, str]:
    """A value for each field of a task's templates that has none; saved prompts are left out."""
    return dict.fromkeys(open_fields(model, task, prompt=None), _FIELD_VALUE)


def _encode_each(
    model: SentenceTransformer,
    texts: Sequence[str],
    task: str | None = None,
    fields: Mapping[str, str] | None = None,
) -> NDArray[np.float32]:
    """Vectors [texts, d] that ``encode`` gives without a prompt, or a task's method with the model's prompt.

    Each text is encoded alone, so that no vector depends on a batch.
    """
    if fields is None:
        fields = _values_of_open_fields(model, task)
    options = {"prompt": "", **fields}
    encode: Callable[..., Any] = model.encode
    if task is not None:
        options = dict(fields)
        encode = getattr(model, f"encode_{task}")
    encoded_texts: list[NDArray[np.float32]] = []
    try:
        with model.truncate_embeddings(None), unreported_cuts(model):
            for text in texts:
                vectors = encode([text], show_progress_bar=False, convert_to_tensor=True, **options)
                encoded_texts.append(vectors[0].float().cpu().numpy())
    except Exception as error:  # from others' modules, which check little before they run
        if isinstance(error, ValueError) and hasattr(model[0], "fields"):
            raise  # ours says what is wrong
        fault = describe_pipeline_fault(model, error)
        raise ValueError(f"{fault} Golden vectors need one vector of each text.") from error
    if not np.isfinite(encoded_texts).all():
        raise ValueError(
            "Golden vectors: the model gives NaN or infinity. Load it in another dtype."
        )
    return np.stack(encoded_texts)


def write_golden_file(
    folder: Path,
    header: Mapping[str, object],
    entries: Sequence[Entry],
    search_entries: Sequence[Entry] = (),
) -> None:
    """Write golden.json: the header, digests of the folder's files, and a line for each text with its vector [d]."""
    whole_header = {**header, "digests": digests_of(folder)}
    lists = [f'"texts": {_lines_of(entries)}']
    if search_entries:
        lists.insert(0, f'"searches": {_lines_of(search_entries)}')
    header_lines = json.dumps(whole_header, indent=1).removesuffix("\n}")
    content = ",\n ".join([header_lines, *lists]) + "\n}\n"
    (folder / GOLDEN_FILE).write_text(content, encoding="utf-8")


def _lines_of(entries: Sequence[Entry]) -> str:
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    joined_lines = ",\n  ".join(lines)
    return f"[\n  {joined_lines}\n ]"


def read_golden(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a golden.json; a ValueError where it is not what :func:`write_golden` writes."""
    try:
        size = Path(path).stat().st_size
        if size > _MAX_BYTES:
            raise ValueError(f"{size:,} bytes, where {_MAX_BYTES:,} are enough")
        value: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        entries = [*value["texts"], *value.get("searches", ())]
        vectors = np.array([entry["vector"] for entry in entries], dtype=np.float64)
        if not value["texts"] or vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise ValueError("a value is of the wrong type")
        _check_header(value)
        _check_texts(entries)
        if not {entry["task"] for entry in value.get("searches", ())} <= set(TASKS):
            raise ValueError("a task is neither query nor document")
        digests = value.get("digests", {})
        if len(digests) > _MAX_FILES:
            raise ValueError(f"more than {_MAX_FILES:,} digests")
        if not all(isinstance(digest, str) for digest in digests.values()):
            raise ValueError("a digest is not a text")
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}). Save the model again."
        ) from None
    return value


def _check_header(header: Mapping[str, Any]) -> None:
    if not isinstance(getattr(torch, header["made"]["dtype"], None), torch.dtype):
        raise ValueError(f"dtype {header['made']['dtype']!r:.40} is not known")
    if not isinstance(header["fields"], dict) or not isinstance(header["tolerance"], (int, float)):
        raise ValueError("a value is of the wrong type")


def _check_texts(entries: Sequence[Entry]) -> None:
    letter_count = 0
    for entry in entries:
        if not isinstance(entry["text"], str):
            raise ValueError("a text is not a string")
        letter_count += len(entry["text"])
    if len(entries) > _MAX_TEXTS or letter_count > _MAX_LETTERS:
        limits = f"{_MAX_TEXTS:,} texts of {_MAX_LETTERS:,} letters in all"
        raise ValueError(f"more than {limits}")
