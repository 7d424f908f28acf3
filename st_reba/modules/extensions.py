"""Registry of optional code: published files contain only what the model needs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from .layout import IS_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .layout import ParsedTemplate

    class OptionalCode:
        """What sections offer that not every model needs; each is set by the section that defines it."""

        # What published files may contain.
        attend_both_ways: Callable[..., Tensor]
        attend_in_blocks: Callable[..., Tensor]
        install_attention: Callable[..., bool]
        layer_reader: Callable[..., Any]
        output_reader: Callable[..., Any]
        pad_content: Callable[..., Tensor]
        parse_templates: Callable[[Any], list[dict[str, ParsedTemplate]]]
        question_batch: Callable[..., Any]
        repeated_layers: Callable[..., Any]
        reverse_words: Callable[[str], str]
        run_shared: Callable[..., Tensor | None]
        score_terms: Callable[..., Any]
        # What the installed package alone has.
        check_adapter: Callable[[Any], None]
        checkpoint_in_pass: Callable[..., None]
        code_of: Callable[..., str]
        mask_of_chosen_keys: Callable[..., Tensor]
        observe_eager_attention: Callable[..., None]
        stored_as: Callable[..., Any]

        def has(self, name: str) -> bool: ...


class MissingSectionError(ValueError, AttributeError):
    """A published file lacks a section."""


class Extensions:
    """What sections have registered, by name; in the installed package, a missing name makes all sections load."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self.has(name):
            raise MissingSectionError(
                f"This copy of st_reba's code lacks {name!r}, which the model needs: pip install st-reba."
            )
        return vars(self)[name]

    def has(self, name: str) -> bool:
        """Whether something is there, for what a model can do without."""
        if name not in vars(self) and IS_INSTALLED:
            import_module("st_reba.modules").load_sections()
        return name in vars(self)


extensions = cast("OptionalCode", Extensions())
