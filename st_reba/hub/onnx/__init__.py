"""A model as one ONNX graph in a folder of stock modules, for consumers without st_reba or without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from ...folders import check_folder, new_folder
from .card import write_onnx_card
from .export import LARGEST, export_graph, require_onnx
from .folder import write_folder
from .method import Task, method_of
from .quantize import quantize
from .runtime import GRAPH, Runner
from .vectors import TOLERANCE, encode, write_vectors

__all__ = ["Runner", "check_out", "export_onnx"]

_CHECKED = 16
_KIND = "an exported model"


def export_onnx(
    model: SentenceTransformer,
    folder: str | os.PathLike[str],
    *,
    task: Task | None = None,
    overwrite: bool = False,
    int8: bool = False,
    texts: Sequence[str] = (),
    largest: int = LARGEST,
) -> dict[str, Any]:
    """Write a model as one ONNX graph, in a folder of stock sentence-transformers modules.

    The graph takes ``input_ids`` and ``attention_mask`` of the plain text, repeats, runs, captures and pools; the mean
    of its ``last_hidden_state`` over the tokens is the sentence vector. It is run before the folder appears. That holds
    golden vectors and a card, like a saved model's, so that ``st-reba verify`` and ``st-reba push`` take it too.

    Args:
        model: A model that st_reba built, in float32, on a CPU.
        folder: The folder to make.
        task: Whose template and prompt the graph holds, ``"query"`` or ``"document"``; None: both are the same.
        overwrite: Replace an exported model that is there.
        int8: Also write a graph of 8-bit weights, and what it loses.
        texts: What that is measured on; none: the golden ones. The float32 graph is checked on the first of them too.
        largest: Bytes of weights that the graph's own file holds; more stand beside it.

    Returns:
        What was made: file sizes, the difference from torch, and the loss of int8 if asked for.

    Raises:
        FileExistsError: Something is there that may not be replaced.
        ImportError: onnx, onnxscript or onnxruntime is missing.
        ValueError: The model cannot be exported, or its graph computes something else; nothing is written then.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", dtype="float32", device="cpu")
        >>> export_onnx(model, "exported")["difference"] < 1e-5  # doctest: +SKIP
        True
    """
    require_onnx()
    method = method_of(model, task)
    with new_folder(folder, overwrite=overwrite, kind=_KIND, is_kind=_is_exported) as temporary:
        write_folder(model, method, temporary)
        export_graph(model, method, temporary / GRAPH, largest=largest)
        golden = write_vectors(model, method, task, temporary)
        difference = _difference(model, task, temporary, [*golden, *texts[:_CHECKED]])
        report: dict[str, Any] = {
            "graph": GRAPH.as_posix(),
            "bytes": {each.name: each.stat().st_size for each in sorted((temporary / GRAPH).parent.iterdir())},
            "task": task,
            "dimension": method.dimension,
            "max_seq_length": method.max_length,
            "difference": difference,
        }
        if int8:
            report["int8"] = quantize(temporary, list(texts) or golden)
        write_onnx_card(model, method, task, temporary, report.get("int8"))
    return report


def check_out(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise what :func:`export_onnx` would raise for its folder, before the work is done."""
    check_folder(Path(folder), overwrite=overwrite, kind=_KIND, is_kind=_is_exported)


def _is_exported(folder: Path) -> bool:
    return (folder / GRAPH).is_file() and (folder / "modules.json").is_file()


def _difference(model: SentenceTransformer, task: Task | None, folder: Path, texts: Sequence[str]) -> float:
    """The largest difference between the graph's vectors and torch's, in parts of the largest number in them."""
    wanted = encode(model, task, texts)
    runner = Runner(folder)
    found = [runner.encode(texts, side="right"), runner.encode(texts, side="left")]
    found.append(np.concatenate([runner.encode([text]) for text in texts]))
    scale = float(np.abs(wanted).max())
    difference = max(float(np.abs(each - wanted).max()) for each in found) / scale
    if not difference <= TOLERANCE:
        name = type(model[0].model).__name__
        raise ValueError(
            f"{name} was exported, but its graph computes something else: vectors differ by {difference:.1e} of their "
            f"scale (tolerance {TOLERANCE:.0e}), so nothing was written. This architecture's forward pass depends on "
            "its input in a way that a graph cannot hold."
        )
    return difference
