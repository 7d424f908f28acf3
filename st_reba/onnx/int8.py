"""Quantize a graph to 8 bits, measure the loss, and refuse it where it is too large."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..hub.graph import GRAPH, LEAST, QUANTIZED, Runner, cosines
from .graph import BEHIND

_TOGETHER = 16


def quantize(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Write ``onnx/model_quantized.onnx`` beside a folder's graph, and what it loses into a JSON file of that name.

    Weights are rounded once, activations in every batch by a scale that depends on all of it: a vector depends on its
    batch mates. The loss is therefore measured of each text alone, and in batches, by running both graphs.
    Returned are cosines between vectors of the ``texts``, and file sizes; a ValueError where one lies below ``LEAST``.
    """
    source, target = folder / GRAPH, folder / QUANTIZED
    _write(source, target)
    wanted, rounded = Runner(folder).encode(texts), Runner(folder, QUANTIZED)
    found = {
        name: cosines(rounded.encode(texts, size), wanted) for name, size in (("alone", 1), ("batched", _TOGETHER))
    }
    for name, each in found.items():
        if not each["ok"]:
            raise ValueError(
                f"quantize='int8' loses too much with this model: {name}, cosines of {len(texts)} texts to float32 are "
                f"{each}, and at least {LEAST} are asked for. Export without it."
            )
    sizes = {
        name: sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*"))
        for name, file in (("float32", source), ("int8", target))
    }
    measured = {"least": LEAST, "texts": len(texts), "batch_size": _TOGETHER, "bytes": sizes, **found}
    target.with_suffix(".json").write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    return measured


def _write(source: Path, target: Path) -> None:
    tools, onnx = import_module("onnxruntime.quantization"), import_module("onnx")
    nodes = onnx.load(str(source), load_external_data=False).graph.node
    behind = [node.name for node in nodes if any(name.startswith(BEHIND) for name in node.input)]
    outside = source.with_name(f"{source.name}_data").exists()
    logging.disable(logging.WARNING)  # it advises a preparation that these graphs do not need
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
            nodes_to_exclude=[*behind, *(f"{name}_MatMul" for name in behind)],  # what it makes of a Gemm
        )
    finally:
        logging.disable(logging.NOTSET)
    if outside:
        # transformers.js asks for weights beside a graph by this name.
        graph, given = onnx.load(str(target)), target.with_name(f"{target.name}.data")
        given.unlink()
        onnx.save(graph, str(target), save_as_external_data=True, location=f"{target.name}_data")
