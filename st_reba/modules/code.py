"""The code that travels with a model, in one file: the sections of this package that its modules need."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from . import MODULES
from .layout import PARTS
from .transformer import RepeatTransformer
from .version import __version__

# In the order in which a text meets them.
_SECTIONS = (
    "layout",
    "passes",
    "transformer",
    "layers",
    "reader",
    "outputs",
    "shared_prefix",
    "questions",
    "templates",
    "reversal",
    "attention",
    "blocks",
    "masks",
    "second",
    "capture",
    "both_ways",
    "pooling",
    "authors",
    "pieces",
    "ensemble",
    "shift",
)
_EXAMPLE = re.compile(r"\n    Example:\n(?:        .*\n)+")
# Arguments of a model's own attention that SDPA does not take.
_TERMS = ("softcap", "s_aux", "position_bias")


def code_of(modules: Iterable[nn.Module]) -> str:
    """The file ``st_reba.py`` of a repository, for all modules of its pipeline."""
    ours = [each for each in modules if type(each).__name__ in MODULES]
    needed = _with_imports({"transformer", *(MODULES[type(each).__name__] for each in ours)})
    for transformer in (each for each in ours if isinstance(each, RepeatTransformer)):
        needed |= _of(transformer, needed)
    return joined(sorted(_with_imports(needed), key=_SECTIONS.index))


def _of(transformer: RepeatTransformer, needed: Collection[str]) -> set[str]:
    """Sections that a transformer's options need beside ``needed``."""
    masks = {*getattr(transformer, "layer_masks", ()), *(name for _, name in getattr(transformer, "second", ()))}
    looks_ahead = masks - {"forward", "nosink-forward"} or not transformer.causal
    capped = getattr(transformer.config.get_text_config(), "attn_logit_softcapping", None)
    reads = None if transformer.reading is None else transformer.reading["of"]
    rows = [name for row in transformer.templates for each in row.values() for _, name in each]
    wanted = {
        "both_ways": "authors" in needed or ("capture" in needed and looks_ahead),
        "attention": capped,
        "blocks": (capped or "attention" in needed) and _has_terms(transformer.model),
        "reader": reads == "states",
        "outputs": reads == "attention",
        "shared_prefix": transformer.shares_prefix,
        "questions": transformer.shares_prefix and transformer.rows > 1,
        "templates": transformer.template is not None,
        "reversal": "reversed" in rows,
        "second": getattr(transformer, "second", None),
    }
    return {name for name, needs in wanted.items() if needs}


def _tree(name: str) -> tuple[str, ast.Module]:
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return text, ast.parse(text)


def _with_imports(sections: Collection[str]) -> set[str]:
    """Sections, and those that they import."""
    found: set[str] = set()
    missing = set(sections)
    while missing:
        found |= missing
        nodes = [node for name in missing for node in _tree(name)[1].body]
        missing = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and node.level} - found
    return found


def _has_terms(model: nn.Module) -> bool:
    """Whether the code of a model's layers names a term of the scores that SDPA does not take."""
    files = {type(module).__module__ for module in model.modules() if hasattr(module, "layer_idx")}
    try:
        return any(term in inspect.getsource(sys.modules[file]) for file in files for term in _TERMS) or not files
    except (KeyError, OSError):
        return True


def joined(sections: Collection[str]) -> str:
    """Sections of this package as one file."""
    modules: dict[str, set[str]] = {}
    plain: set[str] = set()
    bodies, contents = [], []
    for name in sections:
        text, tree = _tree(name)
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
        about, *more = str(ast.get_docstring(tree)).splitlines()
        contents.append(f"- {name}: {about}")
        bodies.append("\n".join([f"# {name}", *(f"# {line}".rstrip() for line in [about, *more]), "", body]))
    head = f"The code of this model, joined from sections of st_reba {__version__}, in the way that a text takes:"
    lines = [f'"""{head}', "", *contents, '"""', "", "from __future__ import annotations", "", *sorted(plain)]
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
