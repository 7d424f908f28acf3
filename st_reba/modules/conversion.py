"""Whether a backbone can be converted by a plan and read at a layer, and whether a pass did so."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from .attention import ATTENTION_NAME, switch_on
from .backbone import layer_kinds, text_decoder
from .depth import Reading, cut_short
from .hooks import decoder_layers, install, layer_list
from .plan import LayerPlan, Stack
from .state import ForwardState


def check_convertible(model: PreTrainedModel, plan: LayerPlan, stack: Stack, *, is_causal: bool) -> None:
    """Raise unless a backbone's layers can see what a plan says; its attention is then ours.

    Args:
        model: The backbone.
        plan: The plan.
        stack: What it says of this backbone.
        is_causal: Whether the backbone's own layers look back only.
    """
    name = type(text_decoder(model)).__name__
    shared = getattr(model.config.get_text_config(), "num_kv_shared_layers", 0)
    if stack.second and shared:
        raise ValueError(
            f"layers={plan!r}: layers of {name} read the keys and values of layers below, which a second pass "
            "through those would replace. Use a plan of architecture 'inplace'."
        )
    if not is_causal and not all("bidirectional" in kind for _, kind in stack.calls):
        raise ValueError(
            f"layers={plan!r}: {name} looks both ways already, so none of its layers can look forward or backward. "
            "Convert all of them to 'bidirectional' or 'nosink-bidirectional' (k='all')."
        )
    if not switch_on(model):
        raise ValueError(
            f"layers={plan!r}: {name} does not call transformers' attention interface, so what its layers see "
            "cannot be changed. Use a base model that does (llama, qwen, mistral, gpt2, …), or layers=None."
        )


def check_readable(model: PreTrainedModel, reading: Reading, plan: LayerPlan, stack: Stack) -> None:
    """Raise unless a backbone's inner layers can be read; its list of layers can then be cut short.

    Args:
        model: The backbone.
        reading: What is to be read.
        plan: The plan.
        stack: What it says of the layers that run.
    """
    name = type(text_decoder(model)).__name__
    if stack.second and (len(reading.layers) > 1 or reading.layers == (0,)):
        ends = reading.layers[0] if len(reading.layers) == 1 else [reading.layers[0], reading.layers[-1]]
        raise ValueError(
            f"layer={ends}: {plan!r} runs layers twice, so that there is no one hidden state "
            f"{'between two of them' if reading.layers[-1] else 'in front of them'}. Name one layer from 1 on, or use "
            "a plan of architecture 'inplace'."
        )
    try:
        layers = layer_list(model, reading.depth)
    except ValueError:
        raise ValueError(
            f"layer={list(reading.layers)}: {name} has no list of {reading.depth} layers that say their layer_idx, so "
            "its inner layers cannot be read. Use layer=None."
        ) from None
    cut_short(layers)
    install(decoder_layers(model, reading.depth))


def check_obeyed(model: PreTrainedModel, plan: LayerPlan, state: ForwardState, attention: str) -> None:
    """Raise where a pass did not run its plan: one that silently does nothing would give the vectors of another model.

    Args:
        model: The backbone.
        plan: The plan.
        state: Of the pass.
        attention: Name of the attention implementation that ran.
    """
    assert state.stack is not None
    if state.last is None or state.further != len(state.stack.second):
        raise ValueError(
            f"layers={plan!r}: {type(model).__name__} did not run it: its attention implementation is "
            f"{attention!r} ({ATTENTION_NAME!r} is needed), or layers were replaced or left out. Set "
            "model[0].layers again, or use another plan."
        )


def check_captured(model: PreTrainedModel, stack: Stack, runs: int, captured: int) -> None:
    """Raise unless every layer was captured: one that was not would change the vectors silently.

    Args:
        model: The backbone.
        stack: What each layer that runs sees.
        runs: How many layers run, from the bottom.
        captured: How many layers were.
    """
    if kinds := layer_kinds(model)[:runs]:
        expected = sum("attention" in kind and "linear" not in kind for kind in kinds)
    else:
        expected = runs
    expected += len(stack.second)
    if captured == 0 or captured < expected:
        raise ValueError(
            f"{type(model).__name__} handed out the attention of {captured} of its {expected} attention "
            "layers, so backward attention cannot be computed. Use a decoder whose every layer computes softmax "
            "attention, or method='classical' or 'echo', which need none."
        )


def not_finite(text: str, dtype: torch.dtype) -> ValueError:
    """The error for a text that has no vector.

    Args:
        text: The text, by its tokens.
        dtype: Of the hidden states.
    """
    return ValueError(
        f"The backbone gave NaN or infinity ({dtype}) for the text {text[:80]!r}. "
        "Load it with dtype='float32' (or 'bfloat16', whose range is wider than float16's), or build with "
        "non_finite='zeros' to give such texts a zero vector."
    )
