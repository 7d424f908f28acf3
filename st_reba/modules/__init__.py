"""All that a published model computes, how it is registered and checked; nothing here imports the rest of st_reba.

The module classes need torch and sentence-transformers, and are imported when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .authors import AuthorsReBAPooling as AuthorsReBAPooling
    from .chunks import ChunkedReBAPooling as ChunkedReBAPooling
    from .ensemble import PromptEnsemble as PromptEnsemble
    from .nosink import NoSinkTransformer as NoSinkTransformer
    from .pooling import ReBAPooling as ReBAPooling
    from .shift import QueryShift as QueryShift
    from .token_part import TokenPart as TokenPart
    from .transformer import RepeatTransformer as RepeatTransformer


@dataclass(frozen=True)
class ModuleDeclaration:
    """A class that modules.json may name.

    Args:
        section: The file that it is in, as Python imports it: of this package, or of another.
        reads: What it needs: texts, the vectors of their tokens, or one vector of a text.
        has_weights: Whether a module that reads vectors stores weights, whose shapes its
            configuration tells.
    """

    section: str
    reads: Literal["text", "tokens", "vector"]
    has_weights: bool = False


MODULES = {
    "RepeatTransformer": ModuleDeclaration("st_reba.modules.transformer", reads="text"),
    "NoSinkTransformer": ModuleDeclaration("st_reba.modules.nosink", reads="text"),
    "ReBAPooling": ModuleDeclaration("st_reba.modules.pooling", reads="tokens"),
    "AuthorsReBAPooling": ModuleDeclaration("st_reba.modules.authors", reads="tokens"),
    "ChunkedReBAPooling": ModuleDeclaration("st_reba.modules.chunks", reads="tokens"),
    "PromptEnsemble": ModuleDeclaration("st_reba.modules.ensemble", reads="vector"),
    "QueryShift": ModuleDeclaration("st_reba.modules.shift", reads="vector", has_weights=True),
    "TokenPart": ModuleDeclaration("st_reba.modules.token_part", reads="vector", has_weights=True),
}


@cache
def load_sections() -> None:
    """Import all files of this package: each enters what it offers into ``extensions``."""
    for section in iter_modules(__path__):
        import_module(f"{__name__}.{section.name}")


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(MODULES[name].section), name)
