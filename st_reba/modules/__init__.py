"""All that a published model computes, how it is registered and checked; nothing here imports the rest of st_reba.

The module classes need torch and sentence-transformers, and are imported when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

# The classes that modules.json may name, and where they stand.
MODULES = {
    "RepeatTransformer": "transformer",
    "NoSinkTransformer": "masks",
    "ReBAPooling": "pooling",
    "AuthorsReBAPooling": "authors",
    "ChunkedReBAPooling": "pieces",
    "PromptEnsemble": "ensemble",
    "QueryShift": "shift",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # All of them: each enters what it offers into layout.PARTS.
    for each in iter_modules(__path__):
        import_module(f".{each.name}", __name__)
    return getattr(import_module(f".{MODULES[name]}", __name__), name)
