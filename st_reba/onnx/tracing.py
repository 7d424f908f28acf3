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
LARGEST = 2_000_000_000  # protobuf writes no message of 2 GiB; a graph beside its weights needs room
_SMALLEST_OUTSIDE = 1024  # what is smaller stays in the graph, where shapes are read from
_INPUTS, _OUTPUT = ("input_ids", "attention_mask"), "last_hidden_state"


def export_graph(graph: EmbeddingGraph, file: Path) -> None:
    """Trace a model and write its graph; more than ``LARGEST`` bytes of weights stand beside it, in ``<name>_data``."""
    name = type(graph.model).__name__
    with torch.no_grad(), graph_attention(graph.model) as called:
        if not called and (graph.capture is not None or getattr(graph.first, "changes_masks", False)):
            raise ValueError(f"{name} has an attention of its own: export 'echo' or 'classical', without a setting.")
        try:
            traced = _traced(graph.eval())
        except Exception as error:
            first: BaseException = error  # the exporter wraps it into advice of many lines
            while first.__cause__ is not None:
                first = first.__cause__
            reason = f"{type(first).__name__}: {' '.join(str(first).split())[:300]}"
            raise ValueError(f"{name} cannot be exported, as torch cannot trace a part of it: {reason}") from error
    file.parent.mkdir()
    size = sum(value.const_value.nbytes for value in traced.graph.initializers.values())
    outside = {"external_data": f"{file.name}_data", "size_threshold_bytes": _SMALLEST_OUTSIDE}
    import_module("onnx_ir").save(traced, file, **(outside if size > LARGEST else {}))


def _traced(graph: EmbeddingGraph) -> Any:
    length = graph.before + graph.after + 5
    example = tuple(torch.ones(2, length, dtype=torch.long) for _ in _INPUTS)
    dynamic = tuple(dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC) for _ in _INPUTS)
    named: Any = tuple({0: "batch", 1: "length"} for _ in _INPUTS)
    # The exporter reports progress, and every package that it does without.
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            traced = torch.export.export(graph, example, dynamic_shapes=dynamic, strict=False)
            names: dict[str, Any] = {"input_names": list(_INPUTS), "output_names": [_OUTPUT], "dynamic_shapes": named}
            program: Any = torch.onnx.export(traced, dynamo=True, opset_version=OPSET, **names)
    finally:
        logging.disable(logging.NOTSET)
    return program.model
