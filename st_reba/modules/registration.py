"""Makes plain ``SentenceTransformer(folder)`` find this plugin's classes, and exactly those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import wrapt

from . import MODULES

_NAMES = {f"st_reba.{name}": name for name in MODULES}


class KnownClasses(Mapping[str, Any]):
    """The module classes that sentence-transformers may load without trusting a repository's code: ours and others."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._others = others

    def __getitem__(self, name: str) -> Any:
        return getattr(import_module(__package__), _NAMES[name]) if name in _NAMES else self._others[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._others, **_NAMES})

    def __len__(self) -> int:
        return len({**self._others, **_NAMES})


def register() -> None:
    """Register this package's module classes with sentence-transformers, now or when it is imported.

    sentence-transformers refuses classes from outside its own package unless remote code is trusted, except those in a
    table that it consults first. No other name becomes loadable.
    """
    wrapt.when_imported("sentence_transformers.base.model")(_register)


def _register(module: Any) -> None:
    table = getattr(module.BaseModel, "_module_classes", None)
    if not isinstance(table, Mapping):
        raise RuntimeError("This sentence-transformers has no table of classes: load with trust_remote_code=True.")
    if not isinstance(table, KnownClasses):
        module.BaseModel._module_classes = KnownClasses(table)
