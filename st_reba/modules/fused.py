"""Attention by fused kernels: transformers' own function, and the kernel below it that tells the rows' sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from .kernels import kernel_for
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


def fused_with_totals(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    scaling: float | None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Attention of one layer, with what every row's exponentials sum to.

    Args:
        query: [B, H, T, D].
        key: [B, H', S, D].
        value: [B, H', S, D'].
        mask: [B or 1, 1 or H, T, S], additive, of the queries' type; None: everything but what ``causal`` hides.
        causal: With mask=None: a query sees no later key.
        scaling: Factor on query·key; None: 1/sqrt(D).
        sinks: [H], one more logit in every softmax, without a value.

    Returns:
        The output [B, T, H, D'], and the logarithm of every row's sum, [B, H, T]; None where no kernel does this.
    """
    if sinks is not None and torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, sinks)):
        # The kernel's gradient knows nothing of the sums it tells, by which a sink's share is taken.
        return None
    width = query.shape[-1] - value.shape[-1]
    kernel = kernel_for(query, key, value, mask) if width >= 0 else None
    if kernel is None:
        return None
    if width:
        value = nn.functional.pad(value, (0, width))
    output, totals = kernel(query, key, value, mask, causal and mask is None, scaling)
    output = output.transpose(1, 2)
    if width:
        output = output[..., :-width]
    if sinks is not None:
        # A sink takes its share of every row.
        everything = torch.logaddexp(totals, sinks.to(totals.dtype)[None, :, None])
        output = output * torch.exp(totals - everything).transpose(1, 2)[..., None].to(output.dtype)
        totals = everything
    return output, totals.detach()
