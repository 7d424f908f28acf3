"""The tokens that all texts of a batch begin with, run once: an instruction, a template's words, special tokens.

Nothing in a causal decoder depends on what follows, so the keys, values and hidden states of a common beginning are the
same in every text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

# Two passes have to pay: so many tokens must be spared at least.
WORTHWHILE = 256


def common_prefix(input_ids: Tensor, attention_mask: Tensor) -> int:
    """How many tokens all rows begin with; the shortest row's last two are left out.

    Args:
        input_ids: [B, T].
        attention_mask: [B, T], 1 at real positions, which begin at column 0.
    """
    most = max(0, int(attention_mask.sum(dim=1).min()) - 2)
    differs = (input_ids[:, :most] != input_ids[:1, :most]).any(dim=0)
    return int(differs.int().argmax()) if bool(differs.any()) else most


def run_prefix(model: PreTrainedModel, input_ids: Tensor, runs: int) -> tuple[Cache, Tensor] | None:
    """Run a common beginning.

    Args:
        model: The backbone.
        input_ids: [1, p].
        runs: How many of its layers run.

    Returns:
        A cache that puts the beginning's keys and values in front of every text's own, and forgets the latter; and the
        last hidden states [1, p, d], or what is handed out in their place. None where the backbone keeps anything but
        all keys and values.
    """
    cache = DynamicCache(config=model.config)
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    output = model(**inputs, past_key_values=cache, use_cache=True, return_dict=True)
    kept: Any = getattr(output, "past_key_values", None)
    if not isinstance(kept, Cache) or not kept.layers:
        return None
    layers = kept.layers[:runs]
    if not all(map(_is_whole, layers, [input_ids.shape[1]] * len(layers))):
        return None
    return Cache(layers=[_Beginning(layer) for layer in layers]), output.last_hidden_state


def is_exact(model: PreTrainedModel, input_ids: Tensor, runs: int) -> bool:
    """Whether a backbone gives texts the same hidden states behind their beginning as in one piece.

    Args:
        model: The backbone.
        input_ids: [B, T], a beginning of 8 tokens at most and what follows.
        runs: How many of its layers run.
    """
    head = min(8, input_ids.shape[1] - 2)
    rows = input_ids[:2, : head + 2]
    mask = torch.ones_like(rows)
    whole: Tensor = model(input_ids=rows, attention_mask=mask, use_cache=False, return_dict=True).last_hidden_state
    try:
        shared = run_prefix(model, rows[:1, :head], runs)
        if shared is None:
            return False
        inputs = {"input_ids": rows[:, head:], "attention_mask": mask}
        rest = model(**inputs, past_key_values=shared[0], use_cache=True, return_dict=True)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        # Some architectures cannot go on from a cache that they did not fill themselves.
        return False
    precise = whole.dtype in (torch.float32, torch.float64)
    difference = (rest.last_hidden_state - whole[:, head:]).abs().max()
    return bool(difference <= (1e-4 if precise else 5e-2) * whole.abs().max())


def _is_whole(layer: Any, length: int) -> bool:
    """Whether a layer keeps every token, and keys and values alone; a recurrent layer has a class of its own."""
    known = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) and layer.keys is not None
    return known and layer.keys.shape[-2] == length


class _Beginning(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer's keys and values of a beginning; those that follow are passed on behind them, and not kept."""

    def __init__(self, layer: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(layer.keys, layer.values)
        self.keys: Tensor = layer.keys
        self.values: Tensor = layer.values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, p + t, D] of the beginning and of what follows."""
        rows = key_states.shape[0]
        return (
            torch.cat([self.keys.expand(rows, -1, -1, -1), key_states], dim=-2),
            torch.cat([self.values.expand(rows, -1, -1, -1), value_states], dim=-2),
        )
