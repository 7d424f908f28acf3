"""The card of an exported model: what it is, how it is run without st_reba, what 8 bits lose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from ...files import whole_file
from ..card import FILE, PLACEHOLDER, TEMPLATE, known, render
from ..card_text import limits, properties
from ..golden_file import FILE as GOLDEN
from ..golden_file import read_golden
from .method import Method, Task, prompt_of
from .vectors import TOLERANCE

ONNX_TEMPLATE = TEMPLATE.with_name("template_onnx.md")
# Of the model in torch.
_NOT_HERE = ("modules", "weights")


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
    name, facts, about = known(model)
    facts = replace(facts, budget=method.budget)
    prompt, _ = prompt_of(model, task)
    templates = facts.templates or {}
    around = None
    if prompt or not facts.plain:
        around = {"template": templates[task or "document"], "prompt": prompt}
    rows = [row for row in properties(facts, about) if row[0] not in _NOT_HERE]
    text = render(
        facts,
        about,
        name="-".join([name, "onnx", *([task] if task else [])]),
        repo=PLACEHOLDER,
        golden=True,
        template=ONNX_TEMPLATE,
        tags=("onnx",),
        more={
            "task": task,
            "call": f"encode_{task}" if task else "encode",
            "around": around,
            "properties": [*rows, ("graph", "`onnx/model.onnx`, float32, opset 18")],
            "limits": [*limits(facts, about, recipe_only=False, measured=False), *_limits(method)],
            "int8": int8,
            "checked": len(read_golden(folder / GOLDEN)["texts"]),
            "tolerance": f"{TOLERANCE:.0e}".replace("e-0", "e-"),
        },
    )
    with whole_file(folder / FILE) as stream:
        stream.write(text.encode("utf-8"))


def _limits(method: Method) -> list[str]:
    lines = ["There are no weights of torch here: `SentenceTransformer(…)` without a backend fails, on purpose."]
    if not method.before + method.after:
        lines.append("The tokenizer adds no special tokens, so an empty text reaches the graph as nothing: skip it.")
    lines.append("Prompts are in the graph, or not at all: one that is put in front of a text is repeated with it.")
    return lines
