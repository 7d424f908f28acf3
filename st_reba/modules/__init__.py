"""All that a published model computes; nothing here imports the rest of st_reba.

The module classes need torch and sentence-transformers, and are imported when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The classes that modules.json may name, and where they stand.
MODULES = {
    "RepeatTransformer": "transformer",
    "NoSinkTransformer": "masks",
    "ReBAPooling": "pooling",
    "ChunkedReBAPooling": "pieces",
    "PromptEnsemble": "ensemble",
}
# What the installed package adds to the code that travels: each enters itself into layout.PARTS.
_ADDED = ("reader", "outputs", "reversal", "second", "both_ways", "code", "fused", "training", "eager")


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for each in _ADDED:
        import_module(f".{each}", __name__)
    return getattr(import_module(f".{MODULES[name]}", __name__), name)
