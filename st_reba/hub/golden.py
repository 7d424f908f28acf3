"""Golden vectors: what a saved model made of twenty texts, so that any machine can tell whether it makes the same."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_file_path
from tqdm.auto import tqdm

from ..files import whole_file
from ..modules.layout import special_ids
from ..modules.options import MOST_CHARACTERS
from ..version import __version__

FILE = "golden.json"
FORMAT = 1
# What an exported model's file names, and the graph of 8 bits beside it: transformers.js knows both by these names.
GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"
# Cosines to float32 that a graph of 8 bits must reach, over all texts.
LEAST = {"min": 0.98, "mean": 0.99}
_PACKAGES = ("sentence-transformers", "transformers", "torch")
_DTYPES = ("float32", "float64", "bfloat16", "float16")
# A file of another program may hold more texts than ours, but not without end.
_MOST_TEXTS = 1000
_MOST_BYTES = 1 << 26
# A vector's own numbers are far smaller, and their squares must still be finite.
_LARGEST = 1e38
_DIGITS = 7

TEXTS = (
    "",
    "猫",
    "今天天气真好！",
    "我在银行取了三百块钱，然后沿着河岸走回家。",
    "“随便”这两个字，往往最不随便——你说是不是？",
    "第3季度营收为1,284.5亿元，同比增长7.2%；净利润率则由11.9%降至10.4%。",
    "北京（Beijing）到上海（Shanghai）的 G1 次列车，全程约 4 小时 28 分。",
    "先把米淘净\n再加两碗水",
    "昨夜的雨一直下到天亮，院子里的石榴花落了一地。母亲起得很早，扫完地，又把水缸挑满，才坐下来喝第一碗热茶。"
    "她说，日子就像这口井，天天打水，也不见它空；可要是哪一天忘了盖上，树叶就落满了。我那时还小，不懂她说的是什么。",
    "开会改到周五下午两点半了，别忘了带上次的记录👍",
    "a",
    "The cat is asleep on the warm roof.",
    "She deposited the cheque at the bank, then walked along the river bank.",
    "WHERE is the nearest station?? I've been looking for 20 minutes...",
    "def area(radius: float) -> float:\n    return 3.14159 * radius ** 2",
    "Order #58213: 2 x 0.75 l @ $13.40 = $26.80 (incl. 19% VAT)",
    "The word 意思 has at least six meanings, and 没意思 is not the opposite of any of them.",
    "To whom it may concern: the lease for the flat at 12 Mill Lane ends on 31 March. The tenants have looked after "
    "the garden, repaired the gate at their own cost and never once paid late. If they ask for a reference, please "
    "tell the new landlord that we would let to them again without a second thought, and that the cracked window on "
    "the stairs was there long before they came.",
    "naïve café, Zürich, Ærø, São Paulo, İstanbul",
    "Happy birthday 🎂, and many more to come!",
)


@dataclass(frozen=True)
class TextResult:
    """How near a text's vector is to the golden one."""

    text: str
    # Between the two vectors; 1 where both are zero.
    cosine: float
    # The largest absolute one, in units of the golden vector's largest number.
    difference: float
    # Whether that is within the tolerance.
    ok: bool


@dataclass(frozen=True)
class Rounded:
    """What a graph of 8 bits gives, beside float32."""

    graph: str
    # Cosines between their vectors.
    min: float
    mean: float

    @property
    def ok(self) -> bool:
        """Whether it loses no more than it may."""
        return self.min >= LEAST["min"] and self.mean >= LEAST["mean"]


@dataclass(frozen=True)
class Report:
    """Whether a model gives its golden vectors."""

    texts: tuple[TextResult, ...]
    # The largest ``difference`` that is allowed.
    tolerance: float
    # What differs between then and now: the name, what it was, what it is.
    changes: dict[str, tuple[str | None, str | None]]
    # What the code in the repository is, where it is not the installed package's own.
    code: str | None = None
    # The ONNX graph that was run; None: torch ran the model.
    graph: str | None = None
    # What the graph of 8 bits beside it gives.
    rounded: Rounded | None = None

    @property
    def ok(self) -> bool:
        """Whether every text agrees, and a graph of 8 bits is near enough."""
        return all(each.ok for each in self.texts) and (self.rounded is None or self.rounded.ok)

    @property
    def worst(self) -> TextResult:
        """The text whose vector is furthest off."""
        return max(self.texts, key=lambda each: each.difference)

    def to_dict(self) -> dict[str, Any]:
        """All of it, JSON-serializable."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        lines = [f"{'1 - cosine':>10}  {'difference':>10}      text"]
        for each in self.texts:
            shown = json.dumps(each.text[:48], ensure_ascii=False)
            mark = "ok  " if each.ok else "FAIL"
            lines.append(f"{max(0.0, 1 - each.cosine):10.1e}  {each.difference:10.1e}  {mark}  {shown}")
        lines += [f"changed since: {name} {then} -> {now}" for name, (then, now) in self.changes.items()]
        lines += [f"run by onnxruntime: {self.graph}"] if self.graph else []
        if self.rounded is not None:
            lines.append(
                f"{self.rounded.graph}: {'ok' if self.rounded.ok else 'FAIL'}, cosines min {self.rounded.min}, mean "
                f"{self.rounded.mean} (at least {LEAST['min']} and {LEAST['mean']})"
            )
        lines += [f"code: {self.code}"] if self.code else []
        right = sum(each.ok for each in self.texts)
        lines.append(f"{right} of {len(self.texts)} texts agree (largest difference allowed: {self.tolerance:.1e})")
        return "\n".join(lines)


def tolerance_of(model: SentenceTransformer, dtype: str | None = None) -> float:
    """How far a model's vectors may be off on another machine, in units of their largest number.

    Rounding errors grow with the square root of the number L of layers. Against float64, as the largest of 20 texts and
    4 methods, they were at most 5.0·ε·√L in float32 and 2.2·ε·√L in bfloat16 and float16 in trained models (of 5 and 6
    layers), where ε is the type's precision, and 25 and 8 in random ones of 4 to 80 layers. Two machines may differ by
    twice as much. ``dtype`` is the type of the weights; None: as they are.
    """
    config: Any = getattr(model.transformers_model, "config", None)
    depth = getattr(config and config.get_text_config(), "num_hidden_layers", None) or 1
    if getattr(model.transformers_model, "hf_quantizer", None) is not None:
        # Kernels for quantized weights round differently from machine to machine.
        dtype = "bfloat16"
    dtype = dtype or _environment(model)["dtype"]
    # The file keeps no more digits than float32 has.
    exact = dtype in ("float32", "float64")
    precision = torch.finfo(torch.float32 if exact else getattr(torch, dtype)).eps
    return float(f"{(64 if exact else 5) * precision * math.sqrt(depth):.2g}")


def write_golden(model: SentenceTransformer, folder: str | os.PathLike[str]) -> None:
    """Write ``golden.json`` into a model's folder: texts, their vectors and what made them."""
    first: Any = model[0]
    fields = dict.fromkeys(open_fields(first), "Find its meaning.")
    laid_out = hasattr(first, "token_layout")
    # Whether an empty text has a token that stands for it.
    empty = first.token_layout.stand_in() is not None if laid_out else any(special_ids(model.tokenizer))
    texts = [text for text in TEXTS if text or empty]
    vectors = _vectors(model, texts, fields)
    write_file(folder, header(model, vectors.shape[1], fields), texts, vectors.tolist())


def header(model: SentenceTransformer, dimension: int, fields: Mapping[str, str]) -> dict[str, Any]:
    """What a golden.json says of the model that gave its vectors, and of the machine."""
    return {
        "format": FORMAT,
        "dimension": dimension,
        "prompt": None,
        "fields": dict(fields),
        "tolerance": tolerance_of(model),
        **_environment(model),
        "versions": _versions(),
    }


def compare(model: SentenceTransformer, stored: Mapping[str, Any]) -> Report:
    """Compare a loaded model with golden vectors that :func:`read_golden` read."""
    found = _vectors(model, [each["text"] for each in stored["texts"]], stored["fields"])
    # Whichever of both is coarser: then, or now.
    tolerance = max(tolerance_of(model), tolerance_of(model, stored["dtype"]))
    return held(stored, found, tolerance, {**_environment(model), **_versions()})


def held(stored: Mapping[str, Any], found: Any, tolerance: float, now: Mapping[str, str | None]) -> Report:
    """Compare what :func:`read_golden` read with vectors [texts, d] of its texts; ``now``: versions, dtype, device."""
    golden = np.array([each["vector"] for each in stored["texts"]], dtype=np.float64)
    found = np.asarray(found, dtype=np.float64)
    if found.shape != golden.shape:
        raise ValueError(
            f"The model gives vectors of {found.shape[1]} dimensions, and its golden vectors have {golden.shape[1]}: "
            "these are not of the same model."
        )
    results = []
    for each, wanted, given in zip(stored["texts"], golden, found, strict=True):
        difference = float(np.abs(given - wanted).max()) / (float(np.abs(wanted).max()) or 1.0)
        lengths = float(np.linalg.norm(wanted)) * float(np.linalg.norm(given))
        cosine = float(wanted @ given) / lengths if lengths else float(not wanted.any() and not given.any())
        results.append(TextResult(each["text"], cosine, difference, difference <= tolerance))
    then = {"dtype": stored["dtype"], "device": stored["device"], **stored["versions"]}
    changes = {name: (then.get(name), value) for name, value in now.items() if then.get(name) != value}
    return Report(tuple(results), tolerance, changes)


def open_fields(first: Any, task: str | None = None) -> list[str]:
    """The fields of a task's templates that have no value of their own."""
    names = sorted(first.fields(task)) if hasattr(first, "fields") else []
    return [name for name in names if not (name == "instruction" and first.layout.instruction)]


def _environment(model: SentenceTransformer) -> dict[str, str]:
    """What vectors depend on, beside versions."""
    backbone: Any = model.transformers_model
    # Quantized weights say nothing of the numbers that run through them.
    dtype = next((each.dtype for each in backbone.parameters() if each.is_floating_point()), torch.float32)
    device = model.device
    name = f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    return {"dtype": str(dtype).removeprefix("torch."), "device": name}


def _versions() -> dict[str, str]:
    return {"st-reba": __version__, **{package: version(package) for package in _PACKAGES}}


def _vectors(model: SentenceTransformer, texts: Sequence[str], fields: Mapping[str, str]) -> Any:
    """Each text alone, so that no vector holds what a batch adds to it."""
    first: Any = model[0]
    # These texts are no one's to be warned about.
    warned, first._warned_of_cut = getattr(first, "_warned_of_cut", False), True
    try:
        with model.truncate_embeddings(None):
            bar = tqdm(texts, desc="Golden vectors", unit=" texts", leave=False, disable=None)
            return np.stack([_vector(model, text, fields) for text in bar])
    finally:
        first._warned_of_cut = warned


def _vector(model: SentenceTransformer, text: str, fields: Mapping[str, str]) -> Any:
    try:
        vector: Any = model.encode([text], prompt="", show_progress_bar=False, convert_to_tensor=True, **fields)  # type: ignore[call-overload]
        numbers = vector[0].float().cpu().numpy()
        if not np.isfinite(numbers).all():
            raise ValueError("it is not finite.")
    except ValueError as error:
        raise ValueError(f"No golden vector of {text[:40]!r}: {error} (Or leave them out: golden=False.)") from error
    return numbers


# The file.


def write_file(
    folder: str | os.PathLike[str], header: Mapping[str, Any], texts: Iterable[str], vectors: Iterable[Iterable[float]]
) -> None:
    """Write a model's golden.json: a ``header``, and a line for each text with its vector."""
    rows = [
        json.dumps({"text": text, "vector": [float(f"{x:.{_DIGITS}g}") for x in vector]}, ensure_ascii=False)
        for text, vector in zip(texts, vectors, strict=True)
    ]
    whole = json.dumps(header, indent=1, ensure_ascii=False)[:-2] + ',\n "texts": [\n  ' + ",\n  ".join(rows)
    with whole_file(Path(folder) / FILE) as stream:
        stream.write(f"{whole}\n ]\n}}\n".encode())


def read_golden(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a golden.json; a ValueError where it is not what :func:`write_golden` writes, or of a newer format."""
    if (size := os.path.getsize(path)) > _MOST_BYTES:
        raise ValueError(f"{path}: {size} bytes are no golden vectors: at most {_MOST_BYTES} are read.")
    try:
        value: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}). Save the model again.") from error
    format_ = value.get("format") if isinstance(value, dict) else None
    if type(format_) is not int:
        raise ValueError(f"{path}: no golden vectors, as it names no format. Save the model again.")
    if format_ > FORMAT:
        raise ValueError(f"{path}: format {format_} is newer than {FORMAT}, which this st_reba reads. Update st_reba.")
    for name, fits in _FITS.items():
        try:
            right = fits(value.get(name))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            right = False
        if not right or name == "texts" and len(value["texts"][0]["vector"]) != value["dimension"]:
            raise ValueError(f"{path}: {name!r} is missing or not as written. Save the model again.")
    return dict(value)


def _are_strings(values: Any) -> bool:
    return all(isinstance(each, str) and len(each) <= MOST_CHARACTERS for each in values)


def _are_texts(rows: Any) -> bool:
    vectors = np.array([row["vector"] for row in rows[: _MOST_TEXTS + 1]])
    number = vectors.ndim == 2 and vectors.dtype.kind in "iuf" and bool((np.abs(vectors) < _LARGEST).all())
    return number and len(rows) <= _MOST_TEXTS and _are_strings(row["text"] for row in rows)


_FITS: dict[str, Callable[[Any], bool]] = {
    "dimension": lambda value: type(value) is int and value > 0,
    "dtype": lambda value: value in _DTYPES,
    # Of an exported model alone.
    "graph": lambda value: value in (None, GRAPH),
    "device": lambda value: isinstance(value, str),
    "fields": lambda value: _are_strings(value.values()),
    "versions": lambda value: _are_strings(value.values()),
    "tolerance": lambda value: 0 < value < 0.5,
    "texts": _are_texts,
}


def find_golden(path: str, hub: Mapping[str, Any]) -> str:
    """The golden.json of a folder or Hub repository; a file is one itself."""
    if os.path.isfile(path):
        return path
    try:
        file = load_file_path(path, FILE, **hub)
    except Exception as error:
        raise FileNotFoundError(f"MODEL={path!r}: {FILE} could not be fetched: {error}") from error
    if file is None:
        raise FileNotFoundError(
            f"MODEL={path!r} holds no {FILE} to verify it by. Save it again, with golden vectors: st-reba build, or "
            "st_reba.hub.saving.save(model, folder)."
        )
    return str(file)
