"""A graph in 8 bits, beside the exact one, and how far its vectors are from that one's."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from .graph import DENSE_WEIGHT
from .runtime import GRAPH, Runner

QUANTIZED = GRAPH.with_name("model_int8.onnx")
MEASURED = GRAPH.with_name("model_int8.json")
_TOGETHER = 16


def quantize(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Write ``onnx/model_int8.onnx`` beside a folder's graph, and what it loses into ``onnx/model_int8.json``.

    Weights are rounded once, activations in every batch by a scale that depends on all of it: a vector then depends
    on its batch mates. What is measured is therefore the loss of each text alone, and in batches.

    Args:
        folder: The exported folder.
        texts: What to measure on.

    Returns:
        What was measured: cosines between vectors.
    """
    tools = import_module("onnxruntime.quantization")
    source, target = folder / GRAPH, folder / QUANTIZED
    large = source.with_name(f"{source.name}_data").exists()
    root = logging.getLogger()
    level = root.level
    # It advises a preparation that these graphs do not need.
    root.setLevel(logging.ERROR)
    try:
        tools.quantize_dynamic(
            source,
            target,
            weight_type=tools.QuantType.QInt8,
            per_channel=True,
            use_external_data_format=large,
            extra_options={"MatMulConstBOnly": True},
            # Small layers that take differences of nearly equal numbers: 8 bits would leave little of these.
            nodes_to_exclude=_dense(source),
        )
    finally:
        root.setLevel(level)
    exact = Runner(folder)
    rounded = Runner(folder, QUANTIZED)
    wanted = _encode(exact, texts, 1, "float32")
    alone = _encode(rounded, texts, 1, "int8, alone")
    together = _encode(rounded, texts, _TOGETHER, "int8, in batches")
    measured = {
        "graph": QUANTIZED.as_posix(),
        "quantization": "dynamic, int8 weights a channel",
        "texts": len(texts),
        "batch_size": _TOGETHER,
        "bytes": {"float32": _size(source), "int8": _size(target)},
        "alone_against_float32": _cosines(alone, wanted),
        "batched_against_float32": _cosines(together, wanted),
        "batched_against_alone": _cosines(together, alone),
    }
    (folder / MEASURED).write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    return measured


def _dense(graph: Path) -> list[str]:
    """Names of the products by the weights of dense layers behind the pooling."""
    nodes = import_module("onnx").load(str(graph), load_external_data=False).graph.node
    return [node.name for node in nodes if any(name.endswith(DENSE_WEIGHT) for name in node.input)]


def _encode(runner: Runner, texts: Sequence[str], size: int, what: str) -> NDArray[np.float32]:
    bar = tqdm(range(0, len(texts), size), desc=what, leave=False)
    return np.concatenate([runner.encode(texts[start : start + size]) for start in bar])


def _cosines(some: NDArray[np.float32], others: NDArray[np.float32]) -> dict[str, float]:
    a, b = some.astype(np.float64), others.astype(np.float64)
    cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return {"min": round(float(cosines.min()), 6), "mean": round(float(cosines.mean()), 6)}


def _size(file: Path) -> int:
    return sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*") if each.suffix != ".json")
