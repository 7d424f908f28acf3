"""Attention by transformers' own fused function, whatever a layer sees, without a mask where none is needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from .plan import LayerKind

_SDPA: Any = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call]


def fused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kind: LayerKind,
    *,
    m: int,
    causal: bool,
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """Attention of one layer.

    Args:
        module: The attention module that calls.
        query: [B, H, T, D].
        key: [B, H', S, D].
        value: [B, H', S, D'].
        mask: [B or 1, 1, T, S], boolean or additive, and then all there is to know; None: ``kind`` says what is
            visible, without padding and windows.
        kind: What the layer sees.
        m: Number of sink tokens that nosink kinds hide.
        causal: Whether the layer itself is causal.
        scaling: Factor on query·key; None: 1/sqrt(D).
        dropout: Dropout rate on the probabilities.

    Returns:
        [B, T, H, D'].
    """

    def attention(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Tensor:
        keywords: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        output: Tensor = _SDPA(module, query, key, value, mask, **keywords)[0]
        return output

    if mask is not None or kind == "forward":
        return attention(query, key, value, is_causal=causal and mask is None)
    if kind == "bidirectional":
        return attention(query, key, value, is_causal=False)
    if kind == "backward":
        # The causal triangle of the reversed sequence.
        flipped = (each.flip(2) for each in (query, key, value))
        return attention(*flipped, is_causal=causal).flip(1)
    # The first m rows see what the kind without nosink shows them; the others never meet the first m keys.
    forward = causal and kind == "nosink-forward"
    sinks = min(m, query.shape[2])
    shown = slice(0, sinks) if forward else slice(None)
    parts = []
    if sinks:
        parts.append(attention(query[:, :, :sinks], key[:, :, shown], value[:, :, shown], is_causal=forward))
    if sinks < query.shape[2]:
        parts.append(attention(query[:, :, sinks:], key[:, :, sinks:], value[:, :, sinks:], is_causal=forward))
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
