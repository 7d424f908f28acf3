"""Export a model as one ONNX graph in a folder of stock modules, for consumers without st_reba or without torch."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Literal

from sentence_transformers import SentenceTransformer

from ..comparison import GOLDEN_TEXTS, relative_distance
from ..encode import Task, encode_texts
from ..hub.golden import digest_header, environment, write_file
from ..hub.graph import GRAPH, Runner, verify_graph, versions
from ..hub.save import check_free, put
from ..optional import required
from .card import write_graph_card
from .folder import write_folder
from .graph import EmbeddingGraph
from .int8 import quantize as _quantize
from .tracing import export_graph

__all__ = ["export", "verify_graph"]

# Distance between torch and onnxruntime, whose sums run in another order, as `relative_distance` gives it.
TOLERANCE = 1e-4


def export(
    model: SentenceTransformer,
    folder: str | os.PathLike[str],
    *,
    quantize: str | None = None,
    overwrite: bool = False,
    task: Task | Literal["similarity"] | None = None,
) -> dict[str, Any]:
    """Write a model as one ONNX graph, in a folder of stock sentence-transformers modules.

    The graph takes ``input_ids`` and ``attention_mask`` of the plain text, repeats, runs, captures and pools; the mean
    of its ``last_hidden_state`` over the tokens is the sentence vector. It is run before the folder appears, which also
    holds golden vectors and a card, so that ``st-reba verify`` and ``st-reba push`` take it like a saved model.

    Args:
        model: A model that st_reba built, in float32, on a CPU.
        folder: The folder to make.
        quantize: ``"int8"``: also write a graph in 8 bits, and what it loses on the golden texts; refused where that is
            too much.
        overwrite: Replace an exported model that is there.
        task: Whose template, prompt and shift the graph holds: ``"query"``, ``"document"``, or ``"similarity"`` for
            what ``encode`` gives; None: all are the same.

    Returns:
        Sizes, the distance from torch, and the loss of int8 if asked for.

    Raises:
        FileExistsError: Something is there that may not be replaced.
        ImportError: onnx, onnxscript or onnxruntime is missing.
        ValueError: The model cannot be exported, or its graph computes something else; nothing is written then.

    Example:
        >>> import st_reba, st_reba.onnx
        >>> model = st_reba.build("mini", dtype="float32", device="cpu")
        >>> st_reba.onnx.export(model, "exported", task="query")["distance"] < 1e-5  # doctest: +SKIP
        True
    """
    if quantize not in (None, "int8"):
        raise ValueError(f"quantize={quantize!r} is not known: choose 'int8', or None.")
    for name in ("onnx", "onnxruntime", "onnxscript"):
        required(name, "onnx", f"exporting needs {name}")
    check_free(folder, overwrite=overwrite, kind="exported model")
    graph, target = EmbeddingGraph(model, task), Path(os.path.realpath(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        write_folder(model, graph, new)
        export_graph(graph, new / GRAPH)
        golden, wanted = _write_golden(model, graph, new)
        report: dict[str, Any] = {"dimension": graph.dimension, "max_seq_length": graph.max_length}
        runner, count = Runner(new), len(golden)
        found = (runner.encode(golden), runner.encode(golden, count), runner.encode(golden, count, "left"))
        report["distance"] = distance = max(relative_distance(wanted, each) for each in found)
        if not distance <= TOLERANCE:
            raise ValueError(
                f"The graph of {type(graph.model).__name__} is off by {distance:.1e} ({TOLERANCE:.0e} are allowed): "
                "its forward pass depends on the input in a way that a graph cannot hold."
            )
        if quantize is not None:
            report["int8"] = _quantize(new, golden)
        write_graph_card(model, graph, new, int8=report.get("int8"), tolerance=TOLERANCE)
        put(new, target)
    return report


def _write_golden(model: SentenceTransformer, graph: EmbeddingGraph, folder: Path) -> tuple[list[str], Any]:
    # The stock tokenizer may make no token of an empty text, so that nothing would reach the graph.
    empty = graph.empty is not None and graph.before + graph.after > 0
    texts = [text for text in GOLDEN_TEXTS if text or empty]
    about: dict[str, Any] = {"graph": GRAPH, "task": graph.task, "tolerance": TOLERANCE, "fields": {}}
    about["made"] = {**environment(model), **versions()}
    about |= digest_header(folder)
    vectors = encode_texts(model, texts, task=graph.task)
    write_file(folder, about, texts, vectors.tolist())
    return texts, vectors
