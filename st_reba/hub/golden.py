"""Golden vectors: what a saved model made of twenty texts, so that any machine can tell whether it makes the same."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
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
# What an exported model's file names.
GRAPH = "onnx/model.onnx"
_PACKAGES = ("sentence-transformers", "transformers", "torch")
_DTYPES = ("float32", "float64", "bfloat16", "float16")
# Each text is embedded alone; a file of another program may hold more of them than ours, but not without end.
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
    """How near a text's vector is to the golden one.

    Args:
        text: The text.
        cosine: Between the two vectors (1 where both are zero).
        difference: Largest absolute difference, in units of the golden vector's largest number.
        ok: Whether that is within the tolerance.
    """

    text: str
    cosine: float
    difference: float
    ok: bool


@dataclass(frozen=True)
class Report:
    """Whether a model gives its golden vectors.

    Args:
        texts: The result of each text.
        tolerance: Largest ``difference`` that is allowed.
        changes: What differs between then and now: the name, what it was, what it is.
        code: What the code in the repository is, where it is not the installed package's own.
        graph: The ONNX graph that was run; None: torch ran the model.
    """

    texts: tuple[TextResult, ...]
    tolerance: float
    changes: dict[str, tuple[str | None, str | None]]
    code: str | None = None
    graph: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every text agrees."""
        return all(each.ok for each in self.texts)

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
        lines += [f"code: {self.code}"] if self.code else []
        right = sum(each.ok for each in self.texts)
        lines.append(f"{right} of {len(self.texts)} texts agree (largest difference allowed: {self.tolerance:.1e})")
        return "\n".join(lines)


def tolerance_of(model: SentenceTransformer, dtype: str | None = None) -> float:
    """How far a model's vectors may be off on another machine, in units of their largest number.

    Rounding errors grow with the square root of the number L of layers. Against float64, as the largest of 20 texts and
    4 methods, they were at most 5.0·ε·√L in float32 and 2.2·ε·√L in bfloat16 and float16 in trained models (of 5 and 6
    layers), where ε is the type's precision, and 25 and 8 in random ones of 4 to 80 layers. Two machines may differ by
    twice as much.

    Args:
        model: The model.
        dtype: The type of its weights; None: as they are.
    """
    config: Any = getattr(model.transformers_model, "config", None)
    depth = getattr(config and config.get_text_config(), "num_hidden_layers", None) or 1
    quantized = getattr(model.transformers_model, "hf_quantizer", None) is not None
    # Kernels for quantized weights round differently from machine to machine.
    dtype = "bfloat16" if quantized else dtype or _environment(model)["dtype"]
    # The file keeps no more digits than float32 has.
    exact = dtype in ("float32", "float64")
    precision = torch.finfo(torch.float32 if exact else getattr(torch, dtype)).eps
    return float(f"{(64 if exact else 5) * precision * math.sqrt(depth):.2g}")


def write_golden(model: SentenceTransformer, folder: str | os.PathLike[str]) -> None:
    """Write ``golden.json``: texts, their vectors and what made them.

    Args:
        model: The model, as it is saved.
        folder: Where it is saved.

    Raises:
        ValueError: The model cannot embed one of the texts.
    """
    fields = dict.fromkeys(open_fields(model[0]), "Find its meaning.")
    texts = [text for text in TEXTS if text or _embeds_nothing(model)]
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
    """Hold a loaded model against golden vectors that :func:`read_golden` read."""
    found = _vectors(model, [each["text"] for each in stored["texts"]], stored["fields"])
    # Whichever of both is coarser: then, or now.
    tolerance = max(tolerance_of(model), tolerance_of(model, stored["dtype"]))
    return held(stored, found, tolerance, {**_environment(model), **_versions()})


def held(stored: Mapping[str, Any], found: Any, tolerance: float, now: Mapping[str, str | None]) -> Report:
    """Hold vectors against golden ones.

    Args:
        stored: What :func:`read_golden` read.
        found: [texts, d], the vectors of its texts, as computed now.
        tolerance: As :class:`Report` has it.
        now: What they depend on: versions, dtype, device.

    Raises:
        ValueError: They have another dimension.
    """
    wanted = np.array([each["vector"] for each in stored["texts"]], dtype=np.float64)
    found = np.asarray(found, dtype=np.float64)
    if found.shape != wanted.shape:
        raise ValueError(
            f"The model gives vectors of {found.shape[1]} dimensions, and its golden vectors have {wanted.shape[1]}: "
            "these are not of the same model."
        )
    texts = [each["text"] for each in stored["texts"]]
    results = tuple(_result(*row, tolerance) for row in zip(texts, wanted, found, strict=True))
    then = {"dtype": stored["dtype"], "device": stored["device"], **stored["versions"]}
    changes = {name: (then.get(name), value) for name, value in now.items() if then.get(name) != value}
    return Report(results, tolerance, changes)


def _result(text: str, wanted: Any, found: Any, tolerance: float) -> TextResult:
    difference = float(np.abs(found - wanted).max()) / (float(np.abs(wanted).max()) or 1.0)
    lengths = float(np.linalg.norm(wanted)) * float(np.linalg.norm(found))
    cosine = float(wanted @ found) / lengths if lengths else float(not wanted.any() and not found.any())
    return TextResult(text, cosine, difference, difference <= tolerance)


def _environment(model: SentenceTransformer) -> dict[str, str]:
    """What vectors depend on, beside versions."""
    backbone: Any = model.transformers_model
    # Quantized weights say nothing of the numbers that run through them.
    dtype = next((each.dtype for each in backbone.parameters() if each.is_floating_point()), torch.float32)
    device = model.device
    name = f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    return {"dtype": str(dtype).removeprefix("torch."), "device": name}


def _versions() -> dict[str, str]:
    found = {"st-reba": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def open_fields(first: Any, task: str | None = None) -> list[str]:
    """The fields of a task's templates that have no value of their own."""
    names = sorted(first.fields(task)) if hasattr(first, "fields") else []
    return [name for name in names if not (name == "instruction" and first.layout.instruction)]


def _embeds_nothing(model: SentenceTransformer) -> bool:
    """Whether an empty text has a token that stands for it."""
    first: Any = model[0]
    if hasattr(first, "token_layout"):
        return first.token_layout.stand_in() is not None
    return any(special_ids(model.tokenizer))


def _vectors(model: SentenceTransformer, texts: Sequence[str], fields: Mapping[str, str]) -> Any:
    """Each text alone, so that no vector holds what a batch adds to it."""
    first: Any = model[0]
    warned = getattr(first, "_warned_of_cut", None)
    if warned is not None:
        first._warned_of_cut = True  # These texts are no one's to be warned about.
    try:
        with model.truncate_embeddings(None):
            bar = tqdm(texts, desc="Golden vectors", unit=" texts", leave=False, disable=None)
            return np.stack([_vector(model, text, fields) for text in bar])
    finally:
        if warned is not None:
            first._warned_of_cut = warned


def _vector(model: SentenceTransformer, text: str, fields: Mapping[str, str]) -> Any:
    try:
        vector: Any = model.encode([text], prompt="", show_progress_bar=False, convert_to_tensor=True, **fields)  # type: ignore[call-overload]
    except ValueError as error:
        raise ValueError(f"No golden vector of {text[:40]!r}: {error} (Or leave them out: golden=False.)") from error
    numbers = vector[0].float().cpu().numpy()
    if not np.isfinite(numbers).all():
        raise ValueError(f"No golden vector of {text[:40]!r}: it is not finite. (Leave them out: golden=False.)")
    return numbers


# The file.


def write_file(
    folder: str | os.PathLike[str], header: Mapping[str, Any], texts: Iterable[str], vectors: Iterable[Iterable[float]]
) -> None:
    """Write a golden.json, a text a line.

    Args:
        folder: The model's.
        header: All that it holds beside texts.
        texts: The texts.
        vectors: Their vectors.
    """
    rows = [
        json.dumps({"text": text, "vector": [float(f"{x:.{_DIGITS}g}") for x in vector]}, ensure_ascii=False)
        for text, vector in zip(texts, vectors, strict=True)
    ]
    lines = [json.dumps(header, indent=1, ensure_ascii=False)[:-2] + ',\n "texts": [']
    lines += [f"  {row}," for row in rows[:-1]] + [f"  {rows[-1]}", " ]", "}", ""]
    with whole_file(Path(folder) / FILE) as stream:
        stream.write("\n".join(lines).encode("utf-8"))


def read_golden(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a golden.json.

    Args:
        path: The file.

    Returns:
        What it holds, checked.

    Raises:
        ValueError: It is not what :func:`write_golden` writes, or is of a newer format.
    """
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
    wrong = next((name for name, fits in _FITS.items() if not fits(value.get(name), value)), None)
    if wrong is not None:
        raise ValueError(f"{path}: {wrong!r} is missing or not as written. Save the model again.")
    return dict(value)


def find_golden(path: str, hub: Mapping[str, Any]) -> str:
    """The golden.json of a folder or Hub repository; a file is one itself.

    Raises:
        FileNotFoundError: There is none, or it could not be fetched.
    """
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


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_CHARACTERS


def _is_row(value: object, dimension: object) -> bool:
    row: Any = value if isinstance(value, dict) else {}
    vector = row.get("vector")
    return (
        _text(row.get("text")) and isinstance(vector, list) and len(vector) == dimension and all(map(_number, vector))
    )


def _is_texts(value: object, whole: Mapping[str, Any]) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= _MOST_TEXTS
        and all(_is_row(each, whole.get("dimension")) for each in value)
    )


def _is_strings(value: object, _: object) -> bool:
    return isinstance(value, dict) and all(map(_text, value.values()))


_FITS: dict[str, Any] = {
    "dimension": lambda value, _: type(value) is int and value > 0,
    "dtype": lambda value, _: value in _DTYPES,
    # Of an exported model alone.
    "graph": lambda value, _: value is None or value == GRAPH,
    "device": lambda value, _: isinstance(value, str),
    "fields": _is_strings,
    "versions": _is_strings,
    "tolerance": lambda value, _: _number(value) and 0 < value < 0.5,
    "texts": _is_texts,
}
