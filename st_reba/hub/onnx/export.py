"""One ONNX graph of a model: traced, written, and checked for what it may hold."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from .attention import graph_attention
from .graph import EmbeddingGraph
from .method import Method

OPSET = 18
# protobuf writes no message of 2 GiB; a graph beside its weights needs room.
LARGEST = (1 << 31) - (1 << 26)
# What is smaller stays in the graph, where shapes are read from.
_SMALLEST_OUTSIDE = 1024
_INPUTS, _OUTPUT = ("input_ids", "attention_mask"), "last_hidden_state"


def export_graph(model: SentenceTransformer, method: Method, file: Path, *, largest: int = LARGEST) -> None:
    """Trace a model and write its graph; weights of more than ``largest`` bytes stand beside it, in ``<name>_data``.

    Raises:
        ValueError: The architecture cannot be traced, or the graph holds what other runtimes do not know.
    """
    first: Any = model[0]
    first.model.eval()
    name = type(first.model).__name__
    with torch.no_grad(), graph_attention(first.model) as called:
        if not called and (method.reba is not None or first.stack is not None):
            raise ValueError(
                f"{name} does not call transformers' attention interface, so neither backward attention nor a layer "
                "plan can be exported with it. Use method='echo' or 'classical', without a setting."
            )
        try:
            graph = _traced(EmbeddingGraph(first, method).eval(), method)
        except Exception as error:
            raise ValueError(
                f"{name} cannot be exported, as torch's exporter does not know a part of it: {_reason(error)}"
            ) from error
    file.parent.mkdir(parents=True, exist_ok=True)
    size = sum(value.const_value.nbytes for value in graph.graph.initializers.values())
    outside = {"external_data": f"{file.name}_data", "size_threshold_bytes": _SMALLEST_OUTSIDE}
    import_module("onnx_ir").save(graph, file, **(outside if size > largest else {}))
    _check(file)


def _reason(error: BaseException) -> str:
    """What went wrong first, in one line: the exporter wraps it into advice of many lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _traced(graph: EmbeddingGraph, method: Method) -> Any:
    length = method.before + method.after + 5
    example = tuple(torch.ones(2, length, dtype=torch.long) for _ in _INPUTS)
    dynamic = torch.export.Dim.DYNAMIC
    named: Any = tuple({0: "batch", 1: "length"} for _ in _INPUTS)
    with _quiet():
        traced = torch.export.export(
            graph, example, dynamic_shapes=tuple({0: dynamic, 1: dynamic} for _ in _INPUTS), strict=False
        )
        program: Any = torch.onnx.export(
            traced,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(_INPUTS),
            output_names=[_OUTPUT],
            dynamic_shapes=named,
            verbose=False,
        )
    return program.model


def _check(file: Path) -> None:
    """Refuse a graph that not every runtime knows, or that takes one size only."""
    onnx = import_module("onnx")
    onnx.checker.check_model(str(file))
    graph = onnx.load(str(file), load_external_data=False)
    opsets = {each.domain: each.version for each in graph.opset_import}
    if opsets != {"": OPSET} or graph.functions:
        raise ValueError(f"The graph needs operators {opsets}, and not every runtime knows more than opset {OPSET}.")
    for value in (*graph.graph.input, *graph.graph.output):
        if not all(size.dim_param for size in value.type.tensor_type.shape.dim[:2]):
            raise ValueError(f"The graph takes a fixed batch or length: {value.name}.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports progress, and every package that it does without."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
