"""Hooks for models that do not call transformers' attention interface: their eager attention is observed."""

from __future__ import annotations

import logging
import re
from typing import Any

import torch
from torch import Tensor, nn

from .both_ways import sums
from .extensions import extensions
from .passes import current_pass

logger = logging.getLogger(__name__)


def observe_eager_attention(decoder: Any) -> None:
    """Observe a decoder's eager attention; one layer's [B, H, T, T] is held at a time."""
    decoder.observed = True
    decoder.config._attn_implementation = "eager"
    for module in decoder.modules():
        if re.search("attention", type(module).__name__, re.IGNORECASE):
            module.register_forward_hook(see_output)
    logger.warning(
        "%s does not call transformers' attention interface: its eager attention is observed, with the time and "
        "memory that it takes. The vectors are the same.", type(decoder).__name__,
    )  # fmt: skip


def see_output(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
    """Forward hook: show an attention module's probabilities to the pass, and drop them from its output."""
    state = current_pass()
    if state is None or state.attention_reader is None or not isinstance(output, (tuple, list)):
        return output
    batch, length = state.real_tokens.shape
    kept: list[Any] = []
    for value in output:
        if isinstance(value, Tensor) and value.ndim == 4 and value.shape == (batch, value.shape[1], length, length):
            backward: Any = state.attention_reader
            backward.layers += 1
            if backward.both:
                for head in range(value.shape[1]):
                    backward.add(sums(backward, value[:, head : head + 1]))
            else:
                backward.see(value)
            kept.append(None)
        else:
            kept.append(value)
    return type(output)(*kept) if hasattr(output, "_fields") else type(output)(kept)


def mask_of_chosen_keys(mask: Tensor, indices: Tensor, keys: int) -> Tensor:
    """Mask of the keys that an indexer chose for each query, ``indices`` [B, T, n], as far as ``mask`` shows them.

    Such models always make a mask, as their indexer needs one.
    """
    batch, queries, _ = indices.shape
    chosen = torch.zeros(batch, 1, queries, keys, dtype=torch.bool, device=indices.device)
    chosen.scatter_(3, indices.long()[:, None], True)
    return chosen & (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)


extensions.mask_of_chosen_keys = mask_of_chosen_keys
extensions.observe_eager_attention = observe_eager_attention
