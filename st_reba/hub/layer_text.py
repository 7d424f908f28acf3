"""What a card tells of the layer whose hidden states a model pools."""

from __future__ import annotations

from ..modules.depth import resolve_reading
from .facts import Facts


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
