"""All that a published model needs to run: nothing here imports the rest of st_reba.

Options are light; the module classes, which need torch and sentence-transformers, are imported when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from inspect import cleandoc
from typing import Any

from .ensemble import Ensemble as Ensemble
from .filter import Filter as Filter
from .layout import Layout as Layout
from .methods import Classical as Classical
from .methods import Echo as Echo
from .methods import Method as Method
from .methods import PromptEOL as PromptEOL
from .methods import ReBA as ReBA
from .options import Options as Options
from .plan import LayerPlan as LayerPlan
from .plan import NoSink as NoSink
from .prepend import Prepend as Prepend
from .reading import ReadLayers as ReadLayers
from .stages import Stage as Stage

# The classes that modules.json may name, and where they stand.
MODULES = {
    "DecoderTransformer": "decoder",
    "RepeatTransformer": "repeat",
    "NoSinkTransformer": "nosink",
    "ReBAPooling": "pooling",
    "ChunkedReBAPooling": "chunked",
    "PromptEnsemble": "prompts",
}


def _documented(kind: type[Options]) -> str:
    """A class's docstring with what its fields say of themselves."""
    told = [f"    {name}: {help} ({may}; default: {default!r})" for name, may, default, help in kind.described()]
    return "\n".join([cleandoc(kind.__doc__ or ""), "", "Args:", *told])


_KINDS: list[type[Options]] = [Layout, *Method.registry.values(), *Stage.registry.values()]
for _kind in _KINDS:
    _kind.__doc__ = _documented(_kind)


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{MODULES[name]}", __name__), name)
