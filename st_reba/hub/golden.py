"""Golden vectors: what a saved model made of twenty texts, so that any machine can tell whether it makes the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..modules.tokens import empty_id
from ..version import __version__
from .code_state import Code
from .golden_file import EXACT, FORMAT, write_file
from .golden_file import FILE as FILE
from .golden_file import read_golden as read_golden

# Largest |v - w| in units of the largest |v|, where numbers are kept in 32 bits or more.
DIFFERENCE = 1e-5
# With fewer: 1 - cosine, and how far the length may be off.
COSINE = 1e-3
LENGTH = 1e-2
_PACKAGES = ("sentence-transformers", "transformers", "torch")

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
        ok: Whether they agree within the tolerance.
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
        tolerance: What was held against: ``difference``, or ``cosine`` (1 - cosine) and ``length``.
        changes: What differs between then and now: the name, what it was, what it is.
        code: Whether the code that travels with the model is this package's own; None: a loaded model was compared,
            or a graph, which has none.
        graph: The ONNX graph that was run; None: torch ran the model.
    """

    texts: tuple[TextResult, ...]
    tolerance: dict[str, float]
    changes: dict[str, tuple[str | None, str | None]]
    code: Code | None = None
    graph: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every text agrees."""
        return all(each.ok for each in self.texts)

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
        lines += [] if self.graph is None else [f"run by onnxruntime: {self.graph}"]
        right = sum(each.ok for each in self.texts)
        # Like versions, told where it is not as it was.
        lines += [] if self.code is None or self.code.state == "same" else [str(self.code)]
        within = ", ".join(f"{name} {value:g}" for name, value in self.tolerance.items())
        lines.append(f"{right} of {len(self.texts)} texts agree (tolerance: {within})")
        return "\n".join(lines)


def write_golden(model: SentenceTransformer, folder: str | os.PathLike[str]) -> None:
    """Write ``golden.json``: texts, their vectors and what made them.

    Args:
        model: The model, as it is saved.
        folder: Where it is saved.

    Raises:
        ValueError: The model cannot embed one of the texts.
    """
    fields = _fields(model)
    texts = TEXTS if _embeds_nothing(model) else tuple(text for text in TEXTS if text)
    vectors = _vectors(model, texts, fields)
    write_file(folder, header(model, vectors.shape[1], fields), texts, vectors.tolist())


def header(model: SentenceTransformer, dimension: int, fields: Mapping[str, str]) -> dict[str, Any]:
    """What a golden.json says of the model that gave its vectors, and of the machine."""
    return {
        "format": FORMAT,
        "dimension": dimension,
        "prompt": None,
        "fields": dict(fields),
        "tolerance": _tolerance(model),
        **_environment(model),
        "versions": _versions(),
    }


def compare(model: SentenceTransformer, stored: Mapping[str, Any]) -> Report:
    """Hold a loaded model against golden vectors that :func:`read_golden` read."""
    tolerance: dict[str, float] = _tolerance(model)
    if "difference" in tolerance or "cosine" in stored["tolerance"]:
        # Whichever of both is coarser: then, or now.
        tolerance = stored["tolerance"]
    found = _vectors(model, [each["text"] for each in stored["texts"]], stored["fields"])
    return held(stored, found, tolerance, {**_environment(model), **_versions()})


def held(
    stored: Mapping[str, Any], found: Any, tolerance: Mapping[str, float], now: Mapping[str, str | None]
) -> Report:
    """Hold vectors against golden ones.

    Args:
        stored: What :func:`read_golden` read.
        found: The vectors of its texts, as computed now.
        tolerance: As :class:`Report` has it.
        now: What they depend on: versions, dtype, device.
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
    return Report(results, dict(tolerance), changes)


def _tolerance(model: SentenceTransformer) -> dict[str, float]:
    backbone: Any = model.transformers_model
    # Kernels for quantized weights round differently from machine to machine.
    quantized = getattr(backbone, "hf_quantizer", None) is not None
    exact = _environment(model)["dtype"] in EXACT and not quantized
    return {"difference": DIFFERENCE} if exact else {"cosine": COSINE, "length": LENGTH}


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


def _fields(model: SentenceTransformer) -> dict[str, str]:
    """Values for the fields of a template that has none of its own."""
    first: Any = model[0]
    names = sorted(first.fields()) if hasattr(first, "fields") else []
    return {name: "Find its meaning." for name in names if not (name == "instruction" and first.instruction)}


def _embeds_nothing(model: SentenceTransformer) -> bool:
    """Whether the model has a token to stand for a text without any."""
    return empty_id(model.tokenizer) is not None


def _vectors(model: SentenceTransformer, texts: Sequence[str], fields: Mapping[str, str]) -> Any:
    """Each text alone, so that no vector holds what a batch adds to it."""
    first: Any = model[0]
    warned = getattr(first, "_warned_of_cut", None)
    if warned is not None:
        first._warned_of_cut = True  # These texts are no one's to be warned about.
    vectors = []
    try:
        with model.truncate_embeddings(None):
            for text in tqdm(texts, desc="Golden vectors", unit=" texts", leave=False, disable=None):
                vectors.append(_vector(model, text, fields))
    finally:
        if warned is not None:
            first._warned_of_cut = warned
    return np.stack(vectors)


def _vector(model: SentenceTransformer, text: str, fields: Mapping[str, str]) -> Any:
    try:
        vector: Any = model.encode([text], prompt="", show_progress_bar=False, convert_to_tensor=True, **fields)  # type: ignore[call-overload]
    except ValueError as error:
        raise ValueError(f"No golden vector of {text[:40]!r}: {error} (Or leave them out: golden=False.)") from error
    numbers = vector[0].float().cpu().numpy()
    if not np.isfinite(numbers).all():
        raise ValueError(f"No golden vector of {text[:40]!r}: it is not finite. (Leave them out: golden=False.)")
    return numbers


def _result(text: str, wanted: Any, found: Any, tolerance: Mapping[str, float]) -> TextResult:
    scale, lengths = float(np.abs(wanted).max()), (float(np.linalg.norm(wanted)), float(np.linalg.norm(found)))
    difference = float(np.abs(found - wanted).max()) / (scale or 1.0)
    cosine = float(wanted @ found) / (lengths[0] * lengths[1]) if all(lengths) else float(not any(lengths))
    if "difference" in tolerance:
        ok = difference <= tolerance["difference"]
    else:
        ok = 1 - cosine <= tolerance["cosine"] and abs(lengths[1] - lengths[0]) <= tolerance["length"] * lengths[0]
    return TextResult(text, cosine, difference, ok)
