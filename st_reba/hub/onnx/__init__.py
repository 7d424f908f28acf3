"""A model as one ONNX graph in a folder of stock modules, for consumers without st_reba or without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ...folders import check_folder, new_folder
from ...optional import required
from ..card import FILE, TEMPLATE, render, values_of
from ..golden import GRAPH, TEXTS, header, write_file
from .export import LARGEST, export_graph
from .folder import write_folder
from .int8 import quantize
from .method import Method, Task, method_of
from .runtime import Runner, verify_graph, versions

__all__ = ["Runner", "check_out", "export_onnx", "verify_graph"]

# In parts of a vector's scale, between torch and onnxruntime, whose sums run in another order.
TOLERANCE = 1e-4
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
        int8: Also write a graph in 8 bits, and what it loses; refused where it loses too much.
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
    check_out(folder, overwrite=overwrite)
    method = method_of(model, task)
    with new_folder(folder, overwrite=overwrite, kind=_KIND, is_kind=_is_exported) as temporary:
        write_folder(model, method, temporary)
        export_graph(model, method, temporary / GRAPH, largest=largest)
        golden = _write_golden(model, method, temporary)
        difference = _difference(model, task, temporary, [*golden, *texts[:_CHECKED]])
        report: dict[str, Any] = {
            "graph": GRAPH,
            "bytes": {each.name: each.stat().st_size for each in sorted((temporary / GRAPH).parent.iterdir())},
            "task": task,
            "dimension": method.dimension,
            "max_seq_length": method.max_length,
            "difference": difference,
        }
        if int8:
            report["int8"] = quantize(temporary, list(texts) or golden)
        _write_card(model, method, temporary, report.get("int8"))
    return report


def check_out(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise what :func:`export_onnx` would raise for its folder and for missing packages, before the work is done."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        required(name, "onnx", f"exporting needs {name}")
    check_folder(Path(folder), overwrite=overwrite, kind=_KIND, is_kind=_is_exported)


def _is_exported(folder: Path) -> bool:
    return (folder / GRAPH).is_file() and (folder / "modules.json").is_file()


def _encode(model: SentenceTransformer, task: Task | None, texts: Sequence[str]) -> NDArray[np.float32]:
    """What the model itself gives, with the call that the graph stands for."""
    calls: dict[Task | None, Any] = {"query": model.encode_query, "document": model.encode_document}
    first: Any = model[0]
    warned, first._warned_of_cut = first._warned_of_cut, True  # These texts are no one's to be warned about.
    try:
        return np.asarray(calls.get(task, model.encode)(list(texts), show_progress_bar=False), dtype=np.float32)
    finally:
        first._warned_of_cut = warned


def _write_golden(model: SentenceTransformer, method: Method, folder: Path) -> list[str]:
    """Write golden.json with the vectors that the model gives in torch; returns its texts."""
    # The stock tokenizer may make no token of an empty text, so that nothing would reach the graph.
    empty = method.stand_in is not None and method.before + method.after > 0
    texts = [text for text in TEXTS if text or empty]
    vectors = _encode(model, method.task, texts)
    about = header(model, vectors.shape[1], {})
    about["versions"] |= versions()
    about |= {"graph": GRAPH, "task": method.task, "tolerance": TOLERANCE}
    write_file(folder, about, texts, vectors.tolist())
    return texts


def _difference(model: SentenceTransformer, task: Task | None, folder: Path, texts: Sequence[str]) -> float:
    """The largest difference between the graph's vectors and torch's, in parts of the largest number in them."""
    wanted = _encode(model, task, texts)
    runner = Runner(folder)
    alone = runner.encode_in_batches(texts, 1, "Checking the graph")
    found = (alone, runner.encode(texts), runner.encode(texts, side="left"))
    difference = max(float(np.abs(each - wanted).max()) for each in found) / float(np.abs(wanted).max())
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{type(model[0].model).__name__} was exported, but its graph computes something else: vectors differ by "
            f"{difference:.1e} of their scale (tolerance {TOLERANCE:.0e}), so nothing was written. This architecture's "
            "forward pass depends on its input in a way that a graph cannot hold."
        )
    return difference


def _write_card(model: SentenceTransformer, method: Method, folder: Path, int8: Mapping[str, Any] | None) -> None:
    """Write README.md: what the model is, how it is run without st_reba, what 8 bits lose."""
    task = method.task
    own = "-".join([str(values_of(model)["metadata"].model_name), "onnx", *([task] if task else [])])
    values = values_of(model, folder, tags=("onnx",), name=own)
    layout = values["layouts"][task or "document"][0]
    values |= {
        "task": task,
        "call": f"encode_{task}" if task else "encode",
        "around": {"template": layout, "prompt": method.prompt} if method.prompt or not values["plain"] else None,
        "positions": method.max_length,
        "special": method.before + method.after,
        "int8": int8,
        "checked": len(values["golden"]["texts"]),
        "tolerance": f"{TOLERANCE:.0e}".replace("e-0", "e-"),
    }
    (folder / FILE).write_text(render(TEMPLATE.with_name("template_onnx.md"), values), encoding="utf-8", newline="\n")
