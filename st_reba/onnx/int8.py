"""Quantize a graph to 8 bits, measure the loss, and refuse it where it is too large."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ..hub.graph_runner import GRAPH, MIN_COSINES, QUANTIZED, Runner, summarize_cosines
from .folder import write_json
from .graph import FILTER_PREFIX

_BATCH_SIZE = 16


def quantize_graph(folder: Path, texts: Sequence[str]) -> dict[str, object]:
    """Write ``onnx/model_quantized.onnx`` beside a folder's graph, and its loss as JSON.

    Weights are rounded once, but activations are rounded in each batch by a scale that depends on
    the whole batch, so a vector depends on the other texts. The loss is therefore measured by
    running both graphs on each text alone, and on batches.

    Returns:
        Cosines between the vectors of both graphs, and the sizes of their files.

    Raises:
        ValueError: A cosine is below ``MIN_COSINES``.
    """
    source, target = folder / GRAPH, folder / QUANTIZED
    _write_quantized(source, target)
    expected_vectors = Runner(folder).encode(texts)
    quantized_runner = Runner(folder, QUANTIZED)
    report: dict[str, object] = {
        "least": MIN_COSINES,
        "texts": len(texts),
        "batch_size": _BATCH_SIZE,
        "bytes": {"float32": _byte_count(source), "int8": _byte_count(target)},
    }
    for name, batch_size in (("alone", 1), ("batched", _BATCH_SIZE)):
        loss = summarize_cosines(quantized_runner.encode(texts, batch_size), expected_vectors)
        if not loss["ok"]:
            raise ValueError(
                f"quantize='int8' loses too much with this model: {name}, cosines of {len(texts)} texts to float32 are "
                f"{loss}, and at least {MIN_COSINES} are asked for. Export without it."
            )
        report[name] = loss
    write_json(target.with_suffix(".json"), report)
    return report


def _byte_count(graph_file: Path) -> int:
    """Bytes of a graph and of the weights beside it."""
    return sum(file.stat().st_size for file in graph_file.parent.glob(f"{graph_file.name}*"))


def _write_quantized(source: Path, target: Path) -> None:
    onnx = import_module("onnx")
    onnx_quantization = import_module("onnxruntime.quantization")
    # Small layers that take differences of nearly equal numbers: 8 bits would leave little of
    # these.
    excluded_nodes: list[str] = []
    for node in onnx.load(str(source), load_external_data=False).graph.node:
        if any(name.startswith(FILTER_PREFIX) for name in node.input):
            # A Gemm becomes a MatMul of that name.
            excluded_nodes += [node.name, f"{node.name}_MatMul"]
    has_external_weights = source.with_name(f"{source.name}_data").exists()
    logging.disable(logging.WARNING)  # it advises a preparation that these graphs do not need
    try:
        onnx_quantization.quantize_dynamic(
            source,
            target,
            weight_type=onnx_quantization.QuantType.QInt8,
            per_channel=True,
            # Processors without VNNI add pairs of products in 16 bits, where those of 8-bit weights
            # overflow.
            reduce_range=True,
            use_external_data_format=has_external_weights,
            extra_options={"MatMulConstBOnly": True},
            nodes_to_exclude=excluded_nodes,
        )
    finally:
        logging.disable(logging.NOTSET)
    if has_external_weights:
        # transformers.js asks for weights beside a graph by this name.
        graph = onnx.load(str(target))
        target.with_name(f"{target.name}.data").unlink()
        onnx.save(
            graph,
            str(target),
            save_as_external_data=True,
            location=f"{target.name}_data",
        )
