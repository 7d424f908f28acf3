"""Registry of optional code: published files contain only what the model needs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor

from .layout import IS_INSTALLED, Template


class MissingSectionError(ValueError, AttributeError):
    """A published file lacks a section."""


class Extensions:
    """What sections offer that not every model needs; each is set by the section that defines it.

    The installed package loads all sections when something is asked for that is not set yet.
    """

    # What published files may contain.
    attend_both_ways: Callable[..., Tensor]
    attend_in_blocks: Callable[..., Tensor]
    install_attention: Callable[..., bool]
    layer_reader: Callable[..., Any]
    output_reader: Callable[..., Any]
    parse_templates: Callable[[Any], list[dict[str, Template]]]
    question_batch: Callable[..., Any]
    repeated_layers: Callable[..., Any]
    reverse_words: Callable[[str], str]
    run_shared: Callable[..., Tensor | None]
    score_terms: Callable[..., Any]
    # What the installed package alone has.
    checkpoint_in_pass: Callable[..., None]
    code_of: Callable[..., str]
    mask_of_chosen_keys: Callable[..., Tensor]
    observe_eager_attention: Callable[..., None]
    stored_as: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self.load_sections()
        if name in vars(self):
            return vars(self)[name]
        remedy = "pip install st-reba"
        raise MissingSectionError(f"This copy of st_reba's code lacks {name!r}, which the model needs: {remedy}.")

    def has(self, name: str) -> bool:
        """Whether something is there, for what a model can do without."""
        if name not in vars(self):
            self.load_sections()
        return name in vars(self)

    def load_sections(self) -> None:
        """Import all sections of the installed package; a published file holds its own already."""
        if IS_INSTALLED:
            package = import_module("st_reba.modules")
            package.load_sections()


extensions = Extensions()
