"""Export a model as one ONNX graph in a folder of stock modules, which need no st_reba."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ..comparison import GOLDEN_TEXTS, relative_distance
from ..encode import encode_texts
from ..graph_rules import GraphTask
from ..hub.golden import environment, make_entries, write_golden_file
from ..hub.graph_runner import GRAPH, Runner, versions
from ..hub.save import new_folder
from ..optional import required
from .card import write_graph_card
from .folder import write_folder
from .graph import EmbeddingGraph
from .int8 import quantize_graph
from .tracing import export_graph

# Largest distance between torch and onnxruntime, which sum in another order, as `relative_distance`
# gives it.
TOLERANCE = 1e-4


def export(
    model: SentenceTransformer,
    folder: str | os.PathLike[str],
    *,
    quantize: str | None = None,
    overwrite: bool = False,
    task: GraphTask = None,
) -> dict[str, object]:
    """Write a model as one ONNX graph, in a folder of stock sentence-transformers modules.

    The graph takes ``input_ids`` and ``attention_mask`` of the plain text, repeats it, runs it and
    pools; the mean of its ``last_hidden_state`` over the tokens is the sentence vector. It is tried
    before the folder appears. The folder also holds golden vectors and a card, so that
    ``st-reba verify`` and ``st-reba push`` take it like a saved model.

    Args:
        model: A model that st_reba built, in float32, on a CPU.
        folder: The folder to make.
        quantize: ``"int8"``: also write a graph in 8 bits, and its loss on the golden texts;
            refused if it loses too much.
        overwrite: Replace an exported model that is there.
        task: Whose template, prompt and shift the graph holds: ``"query"``, ``"document"``, or
            ``"similarity"`` for what ``encode`` gives; None: all are the same.

    Returns:
        Sizes, the distance from torch, and the loss of int8 if asked for.

    Raises:
        FileExistsError: Something is there that may not be replaced.
        ImportError: onnx, onnxscript or onnxruntime is missing.
        ValueError: The model cannot be exported, or its graph computes something else; nothing is
            written then.

    Example:
        >>> import st_reba, st_reba.onnx
        >>> model = st_reba.build("mini", dtype="float32", device="cpu")
        >>> st_reba.onnx.export(model, "exported", task="query")["distance"] < 1e-5  # doctest: +SKIP
        True
    """
    if quantize not in (None, "int8"):
        raise ValueError(f"quantize={quantize!r} is not known: choose 'int8', or None.")
    for package in ("onnx", "onnxruntime", "onnxscript"):
        required(package, "onnx", f"exporting needs {package}")
    graph = EmbeddingGraph(model, task)
    with new_folder(folder, overwrite=overwrite, is_export=True) as new:
        write_folder(model, graph, new)
        export_graph(graph, new / GRAPH)
        texts, expected_vectors = _golden_vectors(model, graph)
        report: dict[str, object] = {
            "dimension": graph.dimension,
            "max_seq_length": graph.max_length,
            "distance": _check_graph(graph, new, texts, expected_vectors),
        }
        int8 = None
        if quantize is not None:
            int8 = quantize_graph(new, texts)
            report["int8"] = int8
        _write_golden(model, graph, new, texts, expected_vectors)  # with digests of all graphs
        write_graph_card(model, graph, new, int8=int8, tolerance=TOLERANCE)
    return report


def _golden_vectors(
    model: SentenceTransformer, graph: EmbeddingGraph
) -> tuple[list[str], NDArray[np.float32]]:
    texts = list(GOLDEN_TEXTS)
    # The stock tokenizer may make no token of an empty text, so that nothing would reach the graph.
    if graph.empty_text_id is None or graph.special_token_count == 0:
        texts.remove("")
    return texts, encode_texts(model, texts, task=graph.task)


def _write_golden(
    model: SentenceTransformer,
    graph: EmbeddingGraph,
    folder: Path,
    texts: Sequence[str],
    vectors: NDArray[np.float32],
) -> None:
    header: dict[str, object] = {
        "graph": GRAPH,
        "task": graph.task,
        "tolerance": TOLERANCE,
        "fields": {},
        "made": environment(model) | versions(),
    }
    write_golden_file(folder, header, make_entries(texts, vectors))


def _check_graph(
    graph: EmbeddingGraph,
    folder: Path,
    texts: Sequence[str],
    expected_vectors: NDArray[np.float32],
) -> float:
    """The largest distance from torch of texts that run alone, and in a batch padded on either side."""
    runner = Runner(folder)
    batch_size = len(texts)
    runs = [
        runner.encode(texts),
        runner.encode(texts, batch_size),
        runner.encode(texts, batch_size, "left"),
    ]
    distance = max(relative_distance(expected_vectors, vectors) for vectors in runs)
    if not distance <= TOLERANCE:
        raise ValueError(
            f"The graph of {type(graph.model).__name__} is off by {distance:.1e} ({TOLERANCE:.0e} are allowed): "
            "its forward pass depends on the input in a way that a graph cannot hold."
        )
    return distance
