"""The graph in 8 bits: written beside the exact one, and refused where it loses too much."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..golden import GRAPH, LEAST, QUANTIZED, Rounded
from .graph import DENSE_WEIGHT
from .runtime import Runner, cosines

MEASURED = QUANTIZED.replace(".onnx", ".json")
_TOGETHER = 16


def quantize(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Write ``onnx/model_quantized.onnx`` beside a folder's graph, and what it loses into a JSON file of that name.

    Weights are rounded once, activations in every batch by a scale that depends on all of it: a vector then depends
    on its batch mates. What is measured, by running both graphs on ``texts``, is therefore the loss of each text alone,
    and in batches.

    Returns:
        What was measured: cosines between vectors.

    Raises:
        ValueError: A cosine to float32 lies below :data:`st_reba.hub.golden.LEAST`; the graph of 8 bits is removed.
    """
    source, target = folder / GRAPH, folder / QUANTIZED
    _write(source, target)
    exact = Runner(folder).encode_in_batches(texts, 1, "float32")
    rounded = Runner(folder, QUANTIZED)
    alone = rounded.encode_in_batches(texts, 1, "int8, alone")
    together = rounded.encode_in_batches(texts, _TOGETHER, "int8, in batches")
    measured = {
        "graph": QUANTIZED,
        "quantization": "dynamic, weights of 7 bits a channel (reduce_range)",
        "least": LEAST,
        "texts": len(texts),
        "batch_size": _TOGETHER,
        "bytes": {"float32": _size(source), "int8": _size(target)},
        "alone_against_float32": cosines(alone, exact),
        "batched_against_float32": cosines(together, exact),
        "batched_against_alone": cosines(together, alone),
    }
    for name in ("alone_against_float32", "batched_against_float32"):
        if not Rounded(QUANTIZED, **measured[name]).ok:  # type: ignore[arg-type]
            for file in target.parent.glob(f"{target.name}*"):
                file.unlink()
            raise ValueError(
                f"--quantize int8 loses too much with this model: {name.replace('_', ' ')}, cosines of {len(texts)} "
                f"texts are min {measured[name]['min']}, mean {measured[name]['mean']}, where at least "  # type: ignore[index]
                f"{LEAST['min']} and {LEAST['mean']} are asked for. Nothing was written. Export without --quantize."
            )
    (folder / MEASURED).write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    return measured


def _write(source: Path, target: Path) -> None:
    tools, onnx = import_module("onnxruntime.quantization"), import_module("onnx")
    nodes = onnx.load(str(source), load_external_data=False).graph.node
    outside = source.with_name(f"{source.name}_data").exists()
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises a preparation that these graphs do not need
    try:
        tools.quantize_dynamic(
            source,
            target,
            weight_type=tools.QuantType.QInt8,
            per_channel=True,
            # Processors without VNNI add pairs of products in 16 bits, where those of 8-bit weights overflow.
            reduce_range=True,
            use_external_data_format=outside,
            extra_options={"MatMulConstBOnly": True},
            # Small layers that take differences of nearly equal numbers: 8 bits would leave little of these.
            nodes_to_exclude=[node.name for node in nodes if any(name.endswith(DENSE_WEIGHT) for name in node.input)],
        )
    finally:
        root.setLevel(level)
    if outside:
        _rename_weights(target)


def _rename_weights(file: Path) -> None:
    """Call what lies beside a graph as the other graph's weights are called, which transformers.js asks for."""
    onnx = import_module("onnx")
    graph, wanted = onnx.load(str(file), load_external_data=False), f"{file.name}_data"
    places = [each for weight in graph.graph.initializer for each in weight.external_data if each.key == "location"]
    (given,) = {each.value for each in places}
    for each in places:
        each.value = wanted
    file.with_name(given).rename(file.with_name(wanted))
    file.write_bytes(graph.SerializeToString())


def _size(file: Path) -> int:
    return sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*"))
