"""Makes plain ``SentenceTransformer(folder)`` find this plugin's classes, and exactly those."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import wrapt

from . import modules


def register() -> None:
    """Register this package's module classes with sentence-transformers, now or when it is imported.

    It refuses classes from outside its own package unless remote code is trusted, but for those in a table that it
    consults first. No other name becomes loadable.
    """
    # As soon as all of it is there: the classes need it.
    wrapt.when_imported("sentence_transformers")(lambda _: _register(import_module("sentence_transformers.base.model")))


def _register(module: Any) -> None:
    table = getattr(module.BaseModel, "_module_classes", None)
    if not isinstance(table, Mapping):
        raise RuntimeError(
            "This sentence-transformers no longer has the table of module classes that st_reba registers with. Install "
            "another version, or load models with trust_remote_code=True."
        )
    ours = {f"st_reba.{name}": getattr(modules, name) for name in modules.MODULES}
    module.BaseModel._module_classes = {**table, **ours}
