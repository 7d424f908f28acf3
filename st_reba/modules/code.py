"""The code that travels with a model, in one file: the sections of this package that its modules need."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .layout import PARTS
from .version import __version__

# In the order in which a reader meets them.
_SECTIONS = (
    "layout",
    "attention",
    "transformer",
    "layers",
    "reader",
    "outputs",
    "reversal",
    "masks",
    "second",
    "capture",
    "both_ways",
    "pooling",
    "pieces",
    "ensemble",
)
_WAY = "preprocess, forward, _run, the model's layers with their attention, and the forward of each module that follows"
_EXAMPLE = re.compile(r"\n    Example:\n(?:        .*\n)+")
# What a class needs, beside what every model does.
_NEEDS = {
    "NoSinkTransformer": {"attention", "masks"},
    "ReBAPooling": {"attention", "capture", "pooling"},
    "ChunkedReBAPooling": {"attention", "capture", "pooling", "pieces"},
    "PromptEnsemble": {"ensemble"},
}


def code_of(transformer: Any, classes: Collection[str]) -> str:
    """The file ``st_reba.py`` of a repository.

    Args:
        transformer: The pipeline's first module.
        classes: Names of the classes of all its modules.
    """
    needed = {"layout", "transformer"}.union(*(_NEEDS.get(name, set()) for name in classes))
    masks = {*getattr(transformer, "layer_masks", ()), *(name for _, name in getattr(transformer, "second", ()))}
    looks_ahead = masks - {"forward", "nosink-forward"} or not transformer.causal
    if "capture" in needed and (looks_ahead or transformer.capture.zeros):
        needed |= {"both_ways"}
    if getattr(transformer.config.get_text_config(), "attn_logit_softcapping", None):
        needed |= {"attention"}
    if transformer.layers is not None:
        needed |= {"attention", "layers", "reader" if transformer.read == "states" else "outputs"}
    if any(name == "reversed" for row in transformer.templates for each in row.values() for _, name in each):
        needed |= {"reversal"}
    if getattr(transformer, "second", None):
        needed |= {"layers", "second"}
    return joined([name for name in _SECTIONS if name in needed])


def joined(sections: Collection[str]) -> str:
    """Sections of this package as one file."""
    modules: dict[str, set[str]] = {}
    plain: set[str] = set()
    bodies = []
    for name in sections:
        text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        for node in imports:
            if isinstance(node, ast.Import):
                plain |= {f"import {each.name}" + (f" as {each.asname}" if each.asname else "") for each in node.names}
            elif not node.level and node.module != "__future__":
                named = {each.name + (f" as {each.asname}" if each.asname else "") for each in node.names}
                modules.setdefault(str(node.module), set()).update(named)
        body = "\n".join(text.splitlines()[imports[-1].end_lineno :]).strip()
        # Examples build with the package, which a repository does not need.
        body = _EXAMPLE.sub("", body)
        about = [f"# {line}".rstrip() for line in f"{name}: {ast.get_docstring(tree)}".splitlines()]
        bodies.append("\n".join([*about, "", body]))
    told = f"{', '.join(sections)}. Each begins with a comment of its name. A text takes this way: {_WAY}."
    lines = [f'"""The code of this model, joined from sections of st_reba {__version__}, in this order:', ""]
    lines += textwrap.wrap(f'{told}"""', 120) + [""]
    lines += ["from __future__ import annotations", "", *sorted(plain)]
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())]
    return "\n".join(lines) + "\n\n" + "\n\n\n".join(bodies) + "\n"


@contextmanager
def stored_as(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Give the weights the base's number type inside the ``with`` block, unless that would round them."""
    weights = [each for each in model.parameters() if each.is_floating_point()]
    before = {each.dtype for each in weights}
    parts = (part for each in weights for part in torch.split(each.detach().flatten(), 1 << 22))
    changes = dtype is not None and len(before) == 1 and before != {dtype}
    changes = changes and all(torch.equal(part.to(dtype).to(part.dtype), part) for part in parts)
    try:
        for each in weights if changes else ():
            each.data = each.data.to(dtype)
        yield
    finally:
        for each in weights if changes else ():
            each.data = each.data.to(next(iter(before)))


PARTS |= {"code": code_of, "stored_as": stored_as}
