"""What is told of the layer whose hidden states a model pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..modules import DecoderTransformer
from ..modules.depth import resolve_reading

if TYPE_CHECKING:
    from .facts import Facts

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


def reads(facts: Facts) -> str | None:
    """Which layer's hidden states are pooled; None: the last's."""
    layer, final_norm = facts.options.get("layer"), facts.options.get("final_norm", True)
    if layer is None and final_norm:
        return None
    if facts.depth is not None:
        shown = resolve_reading(layer, final_norm, facts.depth, facts.options.get("join", "mean"))
        return None if shown.is_plain else str(shown)
    several = f"{_join(facts)} of layers {layer}"
    name = "the last layer" if layer is None else f"layer {layer}" if isinstance(layer, int) else several
    return f"{name}, {'after' if final_norm else 'before'} the final norm"


def _join(facts: Facts) -> str:
    return "mean" if facts.options.get("join", "mean") == "mean" else "concatenation"


def held(facts: Facts) -> str | None:
    """Which layers the model has, where the base has more."""
    if facts.held is None or facts.held == facts.depth:
        return None
    return f"the lowest {facts.held} layers of the base are held alone"


def hidden_states(facts: Facts) -> str:
    """What v_t is."""
    shown = reads(facts)
    if shown is None:
        return "the base's last hidden state at position t, after the final norm"
    lengths = f", each layer's vector divided by its length before the {_join(facts)}" * (" of layers " in shown)
    above = "; no layer above is run" if "layer" in facts.options else ""
    return f"the base's hidden state at position t: {shown} (0 are the embeddings){lengths}{above}"
