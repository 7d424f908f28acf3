"""One ONNX graph of a model: traced, checked for what it may hold, written."""

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
SMALLEST_OUTSIDE = 1024
INPUTS = ("input_ids", "attention_mask")
OUTPUT = "last_hidden_state"


def require_onnx() -> None:
    """Raise ImportError, saying what to install, where a package that exporting needs is missing."""
    try:
        for name in ("onnx", "onnxruntime", "onnxscript"):
            import_module(name)
    except ImportError as error:
        raise ImportError(f"{error}. Exporting needs: pip install 'st-reba[onnx]'") from error


def export_graph(model: SentenceTransformer, method: Method, file: Path, *, largest: int = LARGEST) -> None:
    """Trace a model and write its graph.

    Args:
        model: The model.
        method: What it computes.
        file: The file to write; weights of more than ``largest`` bytes stand beside it, in ``<name>_data``.
        largest: Bytes of weights that one file holds.

    Raises:
        ValueError: The architecture cannot be traced, or the graph holds what other runtimes do not know.
    """
    first: Any = model[0]
    first.model.eval()
    name = type(first.model).__name__
    with torch.no_grad(), graph_attention(first.model) as called:
        if not called and (method.reba is not None or method.stack is not None):
            raise ValueError(
                f"{name} does not call transformers' attention interface, so neither backward attention nor a layer "
                "plan can be exported with it. Use method='echo' or 'classical', without a setting."
            )
        try:
            program = _traced(EmbeddingGraph(first, method).eval(), method)
        except Exception as error:
            raise ValueError(
                f"{name} cannot be exported, as torch's exporter does not know a part of it: {_reason(error)}"
            ) from error
    _write(program, file, largest)
    check_graph(file)


def _reason(error: BaseException) -> str:
    """What went wrong first, in one line: the exporter wraps it into advice of many lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _traced(graph: EmbeddingGraph, method: Method) -> Any:
    length = method.before + method.after + 5
    example = tuple(torch.ones(2, length, dtype=torch.long) for _ in INPUTS)
    dynamic = torch.export.Dim.DYNAMIC
    named: Any = tuple({0: "batch", 1: "length"} for _ in INPUTS)
    with _quiet():
        traced = torch.export.export(
            graph, example, dynamic_shapes=tuple({0: dynamic, 1: dynamic} for _ in INPUTS), strict=False
        )
        return torch.onnx.export(
            traced,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_shapes=named,
            verbose=False,
        )


def _write(program: Any, file: Path, largest: int) -> None:
    onnx_ir = import_module("onnx_ir")
    size = sum(value.const_value.nbytes for value in program.model.graph.initializers.values())
    file.parent.mkdir(parents=True, exist_ok=True)
    if size <= largest:
        onnx_ir.save(program.model, file)
    else:
        onnx_ir.save(program.model, file, external_data=f"{file.name}_data", size_threshold_bytes=SMALLEST_OUTSIDE)


def check_graph(file: Path) -> None:
    """Whether a graph holds only what every runtime knows.

    Args:
        file: The graph.

    Raises:
        ValueError: It has operators of other domains, functions, or other inputs and outputs than it should.
    """
    onnx = import_module("onnx")
    onnx.checker.check_model(str(file))
    graph = onnx.load(str(file), load_external_data=False)
    opsets = {each.domain: each.version for each in graph.opset_import}
    domains = {node.domain for node in graph.graph.node} | set(opsets)
    inputs = tuple(each.name for each in graph.graph.input)
    outputs = tuple(each.name for each in graph.graph.output)
    if domains - {"", "ai.onnx"} or graph.functions:
        raise ValueError(f"{file.name} holds operators of {sorted(domains)}, which not every runtime knows.")
    if opsets.get("", opsets.get("ai.onnx", 0)) < OPSET:
        raise ValueError(f"{file.name} is of opset {opsets}, below {OPSET}.")
    if (inputs, outputs) != (INPUTS, (OUTPUT,)):
        raise ValueError(f"{file.name} takes {inputs} and gives {outputs}, not {INPUTS} and {OUTPUT}.")
    for value, rank in ((graph.graph.input[0], 2), (graph.graph.input[1], 2), (graph.graph.output[0], 3)):
        shape = [each.dim_param for each in value.type.tensor_type.shape.dim]
        if len(shape) != rank or not all(shape[:2]):
            raise ValueError(f"{file.name}: {value.name} has a fixed batch or length.")


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
