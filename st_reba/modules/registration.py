"""Makes plain ``SentenceTransformer(folder)`` find this plugin's classes, and exactly those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import wrapt

from .. import modules


class KnownClasses(Mapping[str, Any]):
    """The module classes that sentence-transformers may load without trusting a repository's code: ours and others."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._known = {**others, **{f"st_reba.{name}": name for name in modules.MODULES}}

    def __getitem__(self, name: str) -> Any:
        found = self._known[name]
        return getattr(modules, found) if isinstance(found, str) else found  # ours are imported on first use

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@wrapt.when_imported("sentence_transformers.base.model")
def _register(module: Any) -> None:
    """Enter our classes, now or when sentence-transformers is imported, into the table that it consults first.

    Others from outside its own package it refuses, unless remote code is trusted.
    """
    table = getattr(module.BaseModel, "_module_classes", None)
    if not isinstance(table, Mapping):
        raise RuntimeError("This sentence-transformers has no table of classes: load with trust_remote_code=True.")
    if not isinstance(table, KnownClasses):
        module.BaseModel._module_classes = KnownClasses(table)
