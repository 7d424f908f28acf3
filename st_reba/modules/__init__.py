"""All that a published model needs to run: nothing here imports the rest of st_reba.

Options are light; the module classes, which need torch and sentence-transformers, are imported when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .ensemble import Ensemble
from .filter import Filter
from .layout import Layout
from .methods import Classical, Echo, Method, PromptEOL, ReBA
from .own_attention import OwnAttention
from .plan import LayerPlan, NoSink
from .prepend import Prepend
from .reading import ReadLayers
from .stages import Stage

# The classes that modules.json may name, and where they stand.
MODULES = {
    "DecoderTransformer": "decoder",
    "RepeatTransformer": "repeat",
    "NoSinkTransformer": "nosink",
    "ReBAPooling": "pooling",
    "ChunkedReBAPooling": "chunked",
    "PromptEnsemble": "prompts",
}

__all__ = [
    "MODULES",
    "Classical",
    "Echo",
    "Ensemble",
    "Filter",
    "Layout",
    "LayerPlan",
    "Method",
    "NoSink",
    "OwnAttention",
    "Prepend",
    "PromptEOL",
    "ReBA",
    "ReadLayers",
    "Stage",
]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{MODULES[name]}", __name__), name)
