"""The layer that a model reads, as options of ``build``."""

from __future__ import annotations

from typing import Any

from ..modules import DecoderTransformer

_DEFAULT = {"layer": None, "final_norm": True, "join": "mean"}


def reading_given(first: DecoderTransformer) -> tuple[Any, bool, str]:
    """Layer, final norm and join as ``build`` takes them to make the model from its base."""
    if first.base_layers is None:
        return first.layer, first.final_norm, first.join
    both = ends([first.reading.layers[0], first.reading.layers[-1]])
    return (both if len(both) > 1 else both[0]), first.final_norm, first.join


def reading_options(layer: Any, final_norm: bool, join: str) -> dict[str, Any]:
    """These as options, where they are not the default."""
    if layer is not None and not isinstance(layer, int):
        layer = list(layer)
    given = {"layer": layer, "final_norm": final_norm, "join": join}
    return {name: value for name, value in given.items() if value != _DEFAULT[name]}


def ends(layer: int | list[int]) -> list[int]:
    """A layer, or the first and the last of several."""
    return list(dict.fromkeys([layer] if isinstance(layer, int) else layer))
