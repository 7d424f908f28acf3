"""Makes plain ``SentenceTransformer(folder)`` find this plugin's classes, and exactly those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import wrapt

from .modules import MODULES

_PREFIX = "st_reba."


class KnownClasses(Mapping[str, Any]):
    """The module classes that sentence-transformers may load without trusting a repository's code.

    Args:
        others: Those that were known before.
    """

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._others = others

    def __getitem__(self, name: str) -> Any:
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in MODULES:
            return getattr(import_module(".modules", __package__), name.removeprefix(_PREFIX))
        return self._others[name]

    def __iter__(self) -> Iterator[str]:
        yield from {**dict.fromkeys(self._others), **{f"{_PREFIX}{name}": None for name in MODULES}}

    def __len__(self) -> int:
        return sum(1 for _ in self)


def register() -> None:
    """Register this package's module classes with sentence-transformers, now or when it is imported.

    Sentence-transformers refuses a module class from outside its own package unless remote code is trusted. A class
    whose package the user has imported needs no such trust: its exact name is entered into the table that
    sentence-transformers consults first. No other name becomes loadable.
    """
    wrapt.when_imported("sentence_transformers.base.model")(_register)


def _register(module: Any) -> None:
    table = getattr(module.BaseModel, "_module_classes", None)
    if not isinstance(table, Mapping):
        raise RuntimeError(
            "This version of sentence-transformers no longer has the table of known module classes that st_reba "
            "registers with. Install another version, or load models with trust_remote_code=True."
        )
    if not isinstance(table, KnownClasses):
        module.BaseModel._module_classes = KnownClasses(table)
