"""Runs an exported folder as a stranger would, with onnxruntime, tokenizers and numpy: to verify it, and in 8 bits."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from ...optional import required
from ..golden import GRAPH, Report, held
from .graph import DENSE_WEIGHT

QUANTIZED, MEASURED = "onnx/model_int8.onnx", "onnx/model_int8.json"
_TOGETHER = 16


class Runner:
    """An exported folder, loaded.

    Args:
        folder: The folder.
        graph: The graph in it.

    Example:
        >>> Runner("no folder")
        Traceback (most recent call last):
        ...
        ValueError: FOLDER='no folder' holds no onnx/model.onnx. Make one with: st-reba onnx MODEL FOLDER
    """

    def __init__(self, folder: str | Path, graph: str = GRAPH) -> None:
        from tokenizers import Tokenizer

        file = Path(folder) / graph
        if not file.is_file():
            raise ValueError(f"FOLDER={str(folder)!r} holds no {graph}. Make one with: st-reba onnx MODEL FOLDER")
        onnxruntime = required("onnxruntime", "onnx", "running a graph needs onnxruntime")
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3  # it warns of initializers that it folds
        self._session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        self.tokenizer: Any = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        if self.tokenizer.padding is None:
            raise ValueError(
                f"FOLDER={str(folder)!r}: tokenizer.json names no padding, so st-reba onnx did not write it."
            )
        # The file's list of special tokens does not say so, and a text that spells one is ordinary text.
        self.tokenizer.encode_special_tokens = True
        modules = json.loads((Path(folder) / "modules.json").read_text(encoding="utf-8"))
        self._normalized = any(module["type"].endswith("Normalize") for module in modules)

    def encode(self, texts: Sequence[str], *, side: Literal["left", "right"] = "right") -> NDArray[np.float32]:
        """Sentence vectors [B, d] of texts that run as one batch, padded on the given side."""
        padding = self.tokenizer.padding
        self.tokenizer.enable_padding(pad_id=padding["pad_id"], pad_token=padding["pad_token"], direction=side)
        encoded = self.tokenizer.encode_batch(list(texts))
        ids = np.array([each.ids for each in encoded], dtype=np.int64)
        mask = np.array([each.attention_mask for each in encoded], dtype=np.int64)
        (hidden,) = self._session.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
        weights = mask[:, :, None].astype(np.float32)
        vectors = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        if self._normalized:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return np.asarray(vectors, dtype=np.float32)

    def encode_in_batches(self, texts: Sequence[str], size: int, what: str) -> NDArray[np.float32]:
        """Sentence vectors [n, d], under a bar that says ``what`` is done."""
        bar = tqdm(range(0, len(texts), size), desc=what, leave=False, disable=None)
        return np.concatenate([self.encode(texts[start : start + size]) for start in bar])


def versions() -> dict[str, str]:
    """What a graph's vectors depend on; torch and the rest only made it."""
    return {package: version(package) for package in ("onnxruntime", "tokenizers")}


def verify_graph(
    model: str, stored: Mapping[str, Any], *, device: Any = None, dtype: Any = None, hub: Mapping[str, Any]
) -> Report:
    """Compare what an exported model's graph gives in onnxruntime with its golden vectors, as they are ``stored``.

    Other arguments as for :func:`st_reba.hub.verify.verify`; ``hub`` says how to fetch the folder.

    Raises:
        ImportError: onnxruntime is missing.
        ValueError: Another device or dtype is asked for, or the folder holds no graph.
    """
    if device not in (None, "cpu") or str(dtype).removeprefix("torch.") not in ("None", "float32", "auto"):
        raise ValueError(
            f"MODEL={model!r} is an exported graph, which runs in float32 on a CPU: drop device={device!r}, "
            f"dtype={dtype!r}."
        )
    folder = model
    if not os.path.isdir(model):
        from huggingface_hub import snapshot_download

        options = {"cache_dir" if name == "cache_folder" else name: value for name, value in hub.items()}
        needed = ["modules.json", "tokenizer.json", GRAPH, f"{GRAPH}_data"]
        folder = snapshot_download(model, allow_patterns=needed, **options)
    found = Runner(folder).encode_in_batches([each["text"] for each in stored["texts"]], 1, "Golden vectors")
    now = {"dtype": "float32", "device": "cpu", **versions()}
    return replace(held(stored, found, stored["tolerance"], now), graph=GRAPH)


def quantize(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Write ``onnx/model_int8.onnx`` beside a folder's graph, and what it loses into ``onnx/model_int8.json``.

    Weights are rounded once, activations in every batch by a scale that depends on all of it: a vector then depends
    on its batch mates. What is measured, on ``texts``, is therefore the loss of each text alone, and in batches.

    Returns:
        What was measured: cosines between vectors.
    """
    tools, onnx = import_module("onnxruntime.quantization"), import_module("onnx")
    source, target = folder / GRAPH, folder / QUANTIZED
    nodes = onnx.load(str(source), load_external_data=False).graph.node
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises a preparation that these graphs do not need
    try:
        tools.quantize_dynamic(
            source,
            target,
            weight_type=tools.QuantType.QInt8,
            per_channel=True,
            use_external_data_format=source.with_name(f"{source.name}_data").exists(),
            extra_options={"MatMulConstBOnly": True},
            # Small layers that take differences of nearly equal numbers: 8 bits would leave little of these.
            nodes_to_exclude=[node.name for node in nodes if any(name.endswith(DENSE_WEIGHT) for name in node.input)],
        )
    finally:
        root.setLevel(level)
    exact = Runner(folder).encode_in_batches(texts, 1, "float32")
    rounded = Runner(folder, QUANTIZED)
    alone = rounded.encode_in_batches(texts, 1, "int8, alone")
    together = rounded.encode_in_batches(texts, _TOGETHER, "int8, in batches")
    measured = {
        "graph": QUANTIZED,
        "quantization": "dynamic, int8 weights a channel",
        "texts": len(texts),
        "batch_size": _TOGETHER,
        "bytes": {"float32": _size(source), "int8": _size(target)},
        "alone_against_float32": _cosines(alone, exact),
        "batched_against_float32": _cosines(together, exact),
        "batched_against_alone": _cosines(together, alone),
    }
    (folder / MEASURED).write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    return measured


def _cosines(some: NDArray[np.float32], others: NDArray[np.float32]) -> dict[str, float]:
    a, b = some.astype(np.float64), others.astype(np.float64)
    cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return {"min": round(float(cosines.min()), 6), "mean": round(float(cosines.mean()), 6)}


def _size(file: Path) -> int:
    return sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*"))
