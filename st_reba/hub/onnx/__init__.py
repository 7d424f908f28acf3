"""A model as one ONNX graph in a folder of stock modules, for consumers without st_reba or without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ...files import check_folder, whole_folder
from ..golden import FILE, read_golden, write_golden
from .export import LARGEST, export_graph, require_onnx
from .folder import write_folder
from .method import Method, Task, method_of
from .quantize import quantize
from .runtime import GRAPH, Runner

__all__ = ["Runner", "check_out", "export_onnx"]

_CHECKED = 16
_TOLERANCE = 1e-4
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
    of its ``last_hidden_state`` over the tokens is the sentence vector. It is run before the folder appears.

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
    with whole_folder(folder, overwrite=overwrite, kind=_KIND, is_kind=_is_exported) as temporary:
        write_folder(model, method, temporary)
        export_graph(model, method, temporary / GRAPH, largest=largest)
        golden = _write_golden(model, method, task, temporary)
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
    return report


def check_out(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise what :func:`export_onnx` would raise for its folder, before the work is done."""
    check_folder(Path(folder), overwrite=overwrite, kind=_KIND, is_kind=_is_exported)


def _is_exported(folder: Path) -> bool:
    return (folder / GRAPH).is_file() and (folder / "modules.json").is_file()


def _encode(model: SentenceTransformer, task: Task | None, texts: Sequence[str]) -> NDArray[np.float32]:
    calls: dict[Task | None, Any] = {"query": model.encode_query, "document": model.encode_document}
    first: Any = model[0]
    warned, first._warned_of_cut = first._warned_of_cut, True  # These texts are no one's to be warned about.
    try:
        return np.asarray(calls.get(task, model.encode)(list(texts), show_progress_bar=False), dtype=np.float32)
    finally:
        first._warned_of_cut = warned


def _write_golden(model: SentenceTransformer, method: Method, task: Task | None, folder: Path) -> list[str]:
    """Write golden vectors, of what the graph computes; returns their texts."""
    write_golden(model, folder)
    golden = read_golden(folder / FILE)
    if method.before + method.after == 0:
        # The stock tokenizer makes no token of such a text, so that nothing reaches the graph.
        golden["texts"] = [each for each in golden["texts"] if each["text"]]
    texts = [each["text"] for each in golden["texts"]]
    for text, vector in zip(golden["texts"], _encode(model, task, texts).tolist(), strict=True):
        text["vector"] = [float(f"{x:.7g}") for x in vector]
    (folder / FILE).write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return texts


def _difference(model: SentenceTransformer, task: Task | None, folder: Path, texts: Sequence[str]) -> float:
    """The largest difference between the graph's vectors and torch's, in parts of the largest number in them."""
    wanted = _encode(model, task, texts)
    runner = Runner(folder)
    found = [runner.encode(texts, side="right"), runner.encode(texts, side="left")]
    found.append(np.concatenate([runner.encode([text]) for text in texts]))
    scale = float(np.abs(wanted).max())
    difference = max(float(np.abs(each - wanted).max()) for each in found) / scale
    if not difference <= _TOLERANCE:
        name = type(model[0].model).__name__
        raise ValueError(
            f"{name} was exported, but its graph computes something else: vectors differ by {difference:.1e} of their "
            f"scale (tolerance {_TOLERANCE:.0e}), so nothing was written. This architecture's forward pass depends on "
            "its input in a way that a graph cannot hold."
        )
    return difference
