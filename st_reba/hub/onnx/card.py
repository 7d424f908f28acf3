"""The card of an exported model: what it is, how it is run without st_reba, what 8 bits lose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from ...files import whole_file
from ..card import FILE, TEMPLATE, render, values_of
from .method import Method, Task, prompt_of
from .vectors import TOLERANCE

ONNX_TEMPLATE = TEMPLATE.with_name("template_onnx.md")


def write_onnx_card(
    model: SentenceTransformer, method: Method, task: Task | None, folder: Path, int8: Mapping[str, Any] | None = None
) -> None:
    """Write the README.md of an exported folder.

    Args:
        model: The model that was exported.
        method: What the graph computes.
        task: Whose template and prompt it holds.
        folder: The folder, with golden.json in it.
        int8: What :func:`~st_reba.hub.onnx.quantize.quantize` measured; None: there is no graph of 8 bits.
    """
    own = "-".join([str(values_of(model)["metadata"].model_name), "onnx", *([task] if task else [])])
    values = values_of(model, folder, tags=("onnx",), name=own)
    prompt, _ = prompt_of(model, task)
    layout = values["layouts"][task or "document"][0]
    more = {
        "task": task,
        "call": f"encode_{task}" if task else "encode",
        "around": {"template": layout, "prompt": prompt} if prompt or not values["plain"] else None,
        "positions": method.max_length,
        "special": method.before + method.after,
        "int8": int8,
        "checked": len(values["golden"]["texts"]),
        "tolerance": f"{TOLERANCE:.0e}".replace("e-0", "e-"),
    }
    text = render(ONNX_TEMPLATE, {**values, **more})
    with whole_file(folder / FILE) as stream:
        stream.write(text.encode("utf-8"))
