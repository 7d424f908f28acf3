"""Hooks for models that do not call transformers' attention interface: their eager attention is observed."""

from __future__ import annotations

import logging
import re
from typing import Any

import torch
from torch import Tensor, nn

from .attention import as_booleans
from .both_ways import sum_rows_and_columns
from .capture import BackwardAttention
from .extensions import extensions
from .passes import current_pass

logger = logging.getLogger(__name__)


def observe_eager_attention(decoder: Any) -> None:
    """Observe a decoder's eager attention; one layer's [B, H, T, T] is held at a time."""
    decoder.is_observed = True
    decoder.config._attn_implementation = "eager"
    for module in decoder.modules():
        if re.search("attention", type(module).__name__, re.IGNORECASE):
            module.register_forward_hook(observe_output)
    logger.warning(
        "%s does not call transformers' attention interface: its eager attention is observed, with the time and "
        "memory that it takes. The vectors are the same.",
        type(decoder).__name__,
    )


def observe_output(module: nn.Module, arguments: tuple[object, ...], output: object) -> object:
    """Forward hook: show an attention module's probabilities to the pass, and drop them from its output."""
    forward_pass = current_pass()
    if forward_pass is None or not isinstance(output, (tuple, list)):
        return output
    backward = forward_pass.observer
    if not isinstance(backward, BackwardAttention):
        return output
    batch, length = forward_pass.real_tokens.shape
    values = list(output)
    for index, value in enumerate(values):
        is_square = (
            isinstance(value, Tensor) and value.ndim == 4 and value.shape[2:] == (length, length)
        )
        if is_square and len(value) == batch:
            add_probabilities(backward, value)
            values[index] = None
    if hasattr(output, "_fields"):
        return type(output)(*values)
    return type(output)(values)


def add_probabilities(backward: BackwardAttention, probabilities: Tensor) -> None:
    """Update the maxima by the attention [B, H, T, T] of a layer."""
    backward.observed_layers += 1
    if not backward.earlier_columns:
        backward.observe(probabilities)
        return
    for head in range(probabilities.shape[1]):
        head_probabilities = probabilities[:, head : head + 1]
        backward.update_maxima(sum_rows_and_columns(backward, head_probabilities))


def mask_of_chosen_keys(mask: Tensor, indices: Tensor, key_count: int) -> Tensor:
    """Mask of the keys that an indexer chose for each query, ``indices`` [B, T, n], as far as ``mask`` shows them.

    Such models always make a mask, as their indexer needs one.
    """
    batch, query_count, _ = indices.shape
    is_chosen = torch.zeros(
        batch, 1, query_count, key_count, dtype=torch.bool, device=indices.device
    )
    is_chosen.scatter_(3, indices.long()[:, None], True)
    return is_chosen & as_booleans(mask)


extensions.mask_of_chosen_keys = mask_of_chosen_keys
extensions.observe_eager_attention = observe_eager_attention
