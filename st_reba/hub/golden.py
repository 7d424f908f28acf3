"""Golden vectors: vectors of twenty texts, kept with a model, so that any machine can compare its own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sentence_transformers import SentenceTransformer

from ..encode import describe_pipeline_fault, unreported_cuts
from ..modules.layout import empty_text_token
from ..modules.version import __version__
from ..storage.probe import worst
from .digests import compare_digests, digests_of, writers_of

FILE = "golden.json"
# Of a model with thousands of tensors, and vectors of thousands of dimensions, it is a few million.
_MOST_BYTES = 32 << 20
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
class Report:
    """Comparison of a model with its golden vectors.

    Args:
        distance: Of all vectors, as :func:`st_reba.storage.probe.worst` gives it.
        tolerance: The largest distance that is allowed.
        texts: Distance of each text's two vectors, relative to the length of the golden one.
        changes: What differs between then and now: (then, now) by name.
        ran: Whose code made the vectors; None: sentence-transformers' own modules, or a graph.
        code: How the repository's code differs from the installed package's; None: it does not.
        foreign: The code is of another version of st_reba, so its difference says nothing.
        graph: The ONNX graph that was run; None: torch ran the model.
        rounded: Of a graph of 8 bits beside it: ``ok`` and its cosines to float32.
        damage: What differs in weights, tokenizer and settings; None: golden.json has no digests of them.
        resaved: What another library version or number type changed in them, which is no damage.
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
    resaved: Sequence[str] = ()

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
        furthest = max(self.texts, key=lambda text: self.texts[text])
        shown_text = json.dumps(furthest[:48], ensure_ascii=False)
        lines.append(f"{len(self.texts)} texts: distance {self.distance:.1e}, allowed {self.tolerance:.1e}")
        lines.append(f"furthest: {shown_text}, by {self.texts[furthest]:.1e} of its length")
        if self.ran:
            lines.append(f"run by {self.ran}")
        if self.graph:
            lines.append(f"run by onnxruntime: {self.graph}")
        if self.rounded:
            lines.append(f"8 bits: {json.dumps(dict(self.rounded))}")
        for name, (value_then, value_now) in self.changes.items():
            lines.append(f"changed since: {name} {value_then} -> {value_now}")
        if self.damage is None:
            lines.append("weights and tokenizer were not compared: golden.json has no digests of them")
        for change in self.resaved:
            lines.append(f"saved again since, unharmed: {change}")
        lines.append("ok" if self.ok else "FAIL")
        return "\n".join(lines)


def tolerance_of(model: SentenceTransformer, dtype: str | None = None) -> float:
    """How far a model's vectors may be off on another machine, as :func:`st_reba.storage.probe.worst` gives it.

    Rounding errors grow with the square root of the number L of layers. In real models, vectors in bfloat16 and float16
    were at most 1.1·ε·√L off those in float32, off those of other kernels, and in a batch, where ε is the type's
    precision; in float32, at most 4·ε·√L off those in a batch, and 25 in random models. Two machines may each be so far
    off: 2.5·ε·√L are allowed in 16 bits, and 64 in float32. Another method is off by 0.27 or more, where 0.11 are
    allowed (bfloat16, 30 layers; for vectors of length 1, 1 − cosine is then 0.006 at most on average).
    """
    backbone: Any = model.transformers_model
    # A model of word vectors has no backbone.
    depth = backbone and getattr(backbone.config.get_text_config(), "num_hidden_layers", None) or 1
    # Kernels for quantized weights round differently from machine to machine.
    dtype = "bfloat16" if getattr(backbone, "hf_quantizer", None) is not None else dtype or environment(model)["dtype"]
    exact = dtype in ("float32", "float64")
    precision = torch.finfo(torch.float32 if exact else getattr(torch, dtype)).eps
    return float(f"{(64 if exact else 2.5) * precision * math.sqrt(depth):.2g}")


def environment(model: SentenceTransformer) -> dict[str, str]:
    """Type of the weights, device, and versions."""
    # Quantized weights say nothing of the numbers that run through them; a bag of words has no weights.
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
    device = model.device
    name = f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    versions = {"st-reba": __version__, **{package: version(package) for package in _PACKAGES}}
    return {"dtype": str(dtype).removeprefix("torch."), "device": name, **versions}


def write_golden(model: SentenceTransformer, folder: str | PathLike[str]) -> None:
    """Write ``golden.json`` into a model's folder: texts, their vectors, and what made them."""
    first: Any = model[0]
    fields = dict.fromkeys(open_fields(first), "Find its meaning.")
    texts = list(TEXTS)
    try:
        empty_text_token(model.tokenizer)
    except ValueError:  # no token stands for an empty text
        texts.remove("")
    vectors = encoded(model, texts, fields)
    header = {"tolerance": tolerance_of(model), "fields": fields, "made": environment(model)}
    header |= digest_header(folder)
    write_file(folder, header, texts, vectors.tolist())


def digest_header(folder: str | PathLike[str]) -> dict[str, Any]:
    """Digests of a model's files, as golden.json holds them, and the versions that wrote these."""
    path = Path(folder)
    digests = digests_of(path, with_rounded_weights=True)
    return {"writers": writers_of(path), "digests": digests}


def with_digests(report: Report, stored: Mapping[str, Any], folder: str | PathLike[str]) -> Report:
    """The report, with what differs between a folder and the digests that :func:`read_golden` read."""
    if not stored.get("digests"):
        return report
    path = Path(folder)
    has_same_writers = stored.get("writers") == writers_of(path)
    comparison = compare_digests(stored["digests"], digests_of(path), has_same_writers=has_same_writers)
    return replace(report, damage=comparison.damage, resaved=comparison.harmless)


def compare(model: SentenceTransformer, stored: Mapping[str, Any]) -> Report:
    """Compare a loaded model with golden vectors that :func:`read_golden` read."""
    if set(stored["fields"]) != {*open_fields(model[0])}:
        raise ValueError(f"The golden vectors are of a template with the fields {[*stored['fields']]!s:.80}.")
    texts = [text["text"] for text in stored["texts"]]
    vectors = encoded(model, texts, stored["fields"])
    # That of the coarser type: then, or now.
    tolerance = max(tolerance_of(model), tolerance_of(model, stored["made"]["dtype"]))
    return report(stored, vectors, tolerance, environment(model))


def report(
    stored: Mapping[str, Any],
    vectors: ArrayLike,
    tolerance: float,
    current_environment: Mapping[str, str],
) -> Report:
    """Compare what :func:`read_golden` read with vectors [texts, d] of its texts, made in the current environment."""
    golden_vectors = np.array([text["vector"] for text in stored["texts"]], dtype=np.float64)
    current_vectors = np.asarray(vectors, dtype=np.float64)
    if current_vectors.shape != golden_vectors.shape:
        current_dimension, golden_dimension = current_vectors.shape[1], golden_vectors.shape[1]
        raise ValueError(f"The model gives {current_dimension} dimensions, golden vectors have {golden_dimension}.")
    golden_lengths = np.linalg.norm(golden_vectors, axis=1)
    positive_lengths = np.maximum(golden_lengths, np.finfo(np.float64).tiny)
    distances = np.linalg.norm(current_vectors - golden_vectors, axis=1) / positive_lengths
    text_distances: dict[str, float] = {}
    for text, distance in zip(stored["texts"], distances, strict=True):
        text_distances[text["text"]] = float(distance)
    changes: dict[str, tuple[str | None, str | None]] = {}
    for name, current_value in current_environment.items():
        stored_value = stored["made"].get(name)
        if stored_value != current_value:
            changes[name] = (stored_value, current_value)
    return Report(worst(golden_vectors, current_vectors), tolerance, text_distances, changes)


def open_fields(first: Any, task: str | None = None) -> list[str]:
    """Fields of a task's templates that have no value of their own."""
    if not hasattr(first, "fields"):
        return []
    field_names = set(first.fields(task))
    if first.instruction:
        field_names.discard("instruction")
    return sorted(field_names)


def encoded(model: SentenceTransformer, texts: Sequence[str], fields: Mapping[str, str]) -> NDArray[np.float32]:
    """Vectors [texts, d], each text alone, so that no vector holds what a batch adds to it."""
    options: dict[str, Any] = {"prompt": "", "show_progress_bar": False, "convert_to_tensor": True, **fields}
    encoded_texts: list[NDArray[np.float32]] = []
    try:
        with model.truncate_embeddings(None), unreported_cuts(model):
            for text in texts:
                vectors = model.encode([text], **options)
                encoded_texts.append(vectors[0].float().cpu().numpy())
    except Exception as error:  # of others' modules, which check little before they run
        if isinstance(error, ValueError) and hasattr(model[0], "fields"):
            raise  # ours says what is wrong
        fault = describe_pipeline_fault(model, error)
        raise ValueError(f"{fault} Golden vectors need one vector of each text.") from error
    if not np.isfinite(encoded_texts).all():
        raise ValueError("Golden vectors: the model gives NaN or infinity. Load it in another dtype.")
    return np.stack(encoded_texts)


def write_file(
    folder: str | PathLike[str], header: Mapping[str, Any], texts: Iterable[str], vectors: Iterable[Iterable[float]]
) -> None:
    """Write golden.json: the header, and a line for each text with its vector [d]."""
    text_lines: list[str] = []
    for text, vector in zip(texts, vectors, strict=True):
        rounded_vector = [float(f"{value:.7g}") for value in vector]
        text_lines.append(json.dumps({"text": text, "vector": rounded_vector}, ensure_ascii=False))
    header_lines = json.dumps(header, indent=1).removesuffix("\n}")
    joined_lines = ",\n  ".join(text_lines)
    content = f'{header_lines},\n "texts": [\n  {joined_lines}\n ]\n}}\n'
    Path(folder, FILE).write_text(content, encoding="utf-8")


def read_golden(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a golden.json; a ValueError where it is not what :func:`write_golden` writes."""
    try:
        size = Path(path).stat().st_size
        if size > _MOST_BYTES:
            raise ValueError(f"{size:,} bytes, where {_MOST_BYTES:,} are enough")
        value: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        vectors = np.array([text["vector"] for text in value["texts"]], dtype=np.float64)
        if vectors.ndim != 2 or not np.isfinite(vectors).all() or not isinstance(value["made"]["dtype"], str):
            raise ValueError("a value is of the wrong type")
        _check_header(value)
        if not all(isinstance(digest, str) for digest in value.get("digests", {}).values()):
            raise ValueError("a digest is no text")
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}). Save the model again.") from None
    return value


def _check_header(header: Mapping[str, Any]) -> None:
    if not isinstance(getattr(torch, header["made"]["dtype"], None), torch.dtype):
        raise ValueError(f"dtype {header['made']['dtype']!r:.40} is not known")
    if not isinstance(header["fields"], dict) or not isinstance(header["tolerance"], (int, float)):
        raise ValueError("a value is of the wrong type")
    for text in header["texts"]:
        if not isinstance(text["text"], str):
            raise ValueError("a text is none")
