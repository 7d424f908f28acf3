"""Makes plain ``SentenceTransformer(folder)`` find this plugin's classes, and exactly those."""

from __future__ import annotations

from collections.abc import Mapping

from sentence_transformers.base.model import BaseModel
from torch import nn


def register(*classes: type[nn.Module]) -> None:
    """Register module classes with sentence-transformers under the names that repositories store.

    Sentence-transformers refuses a module class from outside its own package unless remote code is trusted. A class
    that the user has already imported needs no such trust: its exact name is entered into the table that
    sentence-transformers consults first. No other name becomes loadable.

    Args:
        *classes: Classes whose ``module.name`` stands in ``modules.json``.

    Raises:
        RuntimeError: This version of sentence-transformers has no such table.
    """
    table = getattr(BaseModel, "_module_classes", None)
    if not isinstance(table, Mapping):
        raise RuntimeError(
            "This version of sentence-transformers no longer has the table of known module classes that st_reba "
            "registers with. Install sentence-transformers>=6.0,<7, or load models with trust_remote_code=True."
        )
    BaseModel._module_classes = {**table, **{f"{each.__module__}.{each.__name__}": each for each in classes}}
