"""One ONNX graph of a model, traced and written."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from .attention import graph_attention
from .graph import EmbeddingGraph

OPSET = 18
# protobuf writes no message of 2 GiB, and besides the weights, the graph itself needs room.
MAX_BYTES = 2_000_000_000
# Smaller tensors stay in the graph, from which shapes are read.
_MIN_EXTERNAL_BYTES = 1024


def export_graph(graph: EmbeddingGraph, file: Path) -> None:
    """Trace a model and write its graph; more than ``MAX_BYTES`` of weights go into ``<name>_data``."""
    name = type(graph.model).__name__
    with torch.no_grad(), graph_attention(graph.model) as is_ours:
        if not is_ours and (graph.capture is not None or graph.transformer.changes_masks):
            raise ValueError(
                f"{name} has an attention of its own: export 'echo' or 'classical', without a setting."
            )
        try:
            traced_model = _trace(graph.eval())
        except Exception as error:
            reason = _describe_cause(error)
            raise ValueError(
                f"{name} cannot be exported, as torch cannot trace a part of it: {reason}"
            ) from error
    file.parent.mkdir()
    weights = traced_model.graph.initializers.values()
    byte_count = sum(weight.const_value.nbytes for weight in weights)
    weights_file = None
    if byte_count > MAX_BYTES:
        weights_file = f"{file.name}_data"
    # The exporter records each node's place in the source, with paths of this machine.
    import_module("onnx_ir.passes.common").ClearMetadataAndDocStringPass()(traced_model)
    import_module("onnx_ir").save(
        traced_model,
        file,
        external_data=weights_file,
        size_threshold_bytes=_MIN_EXTERNAL_BYTES,
    )


def _describe_cause(error: BaseException) -> str:
    """The root cause of an error, which torch's exporter wraps in many lines of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:300]}"


def _trace(graph: EmbeddingGraph) -> Any:
    """The model as onnx_ir has it."""
    token_ids = torch.ones(2, graph.special_token_count + 5, dtype=torch.long)
    example_inputs = (token_ids, torch.ones_like(token_ids))
    dynamic_axes = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    axis_names = {0: "batch", 1: "length"}
    # The exporter logs its progress, and every package that it does without.
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            exported = torch.export.export(
                graph,
                example_inputs,
                dynamic_shapes=(dynamic_axes, dynamic_axes),
                strict=False,
            )
            program: Any = torch.onnx.export(
                exported,
                dynamo=True,
                opset_version=OPSET,
                input_names=["input_ids", "attention_mask"],
                output_names=["last_hidden_state"],
                dynamic_shapes=(axis_names, axis_names),
            )
    finally:
        logging.disable(logging.NOTSET)
    return program.model
