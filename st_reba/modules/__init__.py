"""All that a published model computes, how it is registered and checked; nothing here imports the rest of st_reba.

The module classes need torch and sentence-transformers, and are imported when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal


@dataclass(frozen=True)
class ModuleDeclaration:
    """A class that modules.json may name.

    Args:
        section: Where it is: a file of this package, or an importable module of another.
        reads: What it needs: texts, the vectors of their tokens, or one vector of a text.
        has_weights: Whether a module that reads vectors stores weights, whose shapes its
            configuration tells.
    """

    section: str
    reads: Literal["text", "tokens", "vector"]
    has_weights: bool = False


MODULES = {
    "RepeatTransformer": ModuleDeclaration("transformer", reads="text"),
    "NoSinkTransformer": ModuleDeclaration("nosink", reads="text"),
    "ReBAPooling": ModuleDeclaration("pooling", reads="tokens"),
    "AuthorsReBAPooling": ModuleDeclaration("authors", reads="tokens"),
    "ChunkedReBAPooling": ModuleDeclaration("pieces", reads="tokens"),
    "PromptEnsemble": ModuleDeclaration("ensemble", reads="vector"),
    "QueryShift": ModuleDeclaration("shift", reads="vector", has_weights=True),
    "TokenPart": ModuleDeclaration("token_part", reads="vector", has_weights=True),
}


@cache
def section_names() -> frozenset[str]:
    """The files of this package."""
    return frozenset(module.name for module in iter_modules(__path__))


def module_of_section(section: str) -> str:
    """The name under which Python imports a section."""
    if section in section_names():
        return f"{__name__}.{section}"
    return section


@cache
def load_sections() -> None:
    """Import all files of this package: each enters what it offers into ``extensions``."""
    for section in section_names():
        import_module(f"{__name__}.{section}")


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load_sections()
    module = import_module(module_of_section(MODULES[name].section))
    return getattr(module, name)
