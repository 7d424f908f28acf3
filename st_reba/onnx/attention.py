"""Attention as a graph can hold it: one block of standard operators, without a branch that depends on the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ..modules.both_ways import sum_rows_and_columns
from ..modules.capture import BackwardAttention, Capture
from ..modules.layout import decoder_of
from ..modules.masks import MASKS
from ..modules.nosink import LayerMask, LayerMasks, apply_mask
from ..modules.passes import current_pass

GRAPH_ATTENTION = "st_reba_graph"
# Larger than any score, small enough for every runtime's float16.
_HIDDEN = -1e9


class GraphMasks(LayerMasks):
    """Masks of the traced pass as numbers to add to scores; layers that see alike share one."""

    def __init__(self, transformer: Any) -> None:
        self.layer_masks = getattr(transformer, "layer_masks", [])
        self.second = getattr(transformer, "second", [])
        self.m = getattr(transformer, "m", 1)
        self.rerun_mask = None
        self.last_attention = None
        # Each mask is kept beside what was made of it, so that its identity stays its own.
        self.added: dict[tuple[str, int, bool], tuple[Tensor | None, Tensor]] = {}

    def name_of_mask(self, module: nn.Module) -> str:
        """Name of the mask of the layer that runs now."""
        return super().name_of_mask(module) if self.layer_masks else "forward"

    def mask_for_layer(self, module: nn.Module, native_mask: Tensor | None, is_causal: bool) -> LayerMask:
        """Mask [B or 1, 1, T, T] of the layer that runs now, added to its scores; see LayerMasks."""
        mask_name = self.name_of_mask(module)
        self.last_attention = (module, mask_name)
        key = (mask_name, id(native_mask), is_causal)
        if key not in self.added:
            if native_mask is None or native_mask.dtype == torch.bool:
                boolean_mask = self.boolean_mask(native_mask, is_causal)
                visible_tokens = apply_mask(mask_name, boolean_mask, self.real_tokens, self.m)
                mask = torch.where(visible_tokens, 0.0, _HIDDEN)
            elif mask_name == "forward":
                mask = native_mask.clamp(min=_HIDDEN)  # it may hold position biases
            else:
                raise ValueError("The model adds position biases to its masks, so these cannot be changed.")
            self.added[key] = native_mask, mask
        looks_ahead = not (is_causal and MASKS[mask_name].is_causal)
        return LayerMask(self.added[key][1], False, looks_ahead)


class GraphCapture(BackwardAttention):
    """Rows of A^new in the traced pass, in which the texts' spans are tensors: start, length and total, [B, 1] each."""

    def __init__(self, capture: Capture, span: tuple[Tensor, Tensor, Tensor], summed: Tensor, longest: int) -> None:
        self.earlier_columns = capture.earlier_columns
        self.kept_columns, end = summed, summed.shape[1]
        start, length, total = span
        first, count, rows = {
            "last": (start + length - 1, length, 1),
            "copy": (start, length, longest),
            "end": (total - 1, total, 1),
            "half": (torch.zeros_like(total), (total // 2).clamp(min=1), end),
        }[capture.anchors]
        offset = torch.arange(rows, device=summed.device)
        self.anchors, self.valid = first + offset, offset < count
        self.layer_count, self.maxima, self._rows = 0, [], None
        self.first_anchors = [0, 1]  # in a graph, texts begin anywhere

    def take(self, probabilities: Tensor, *, looks_ahead: bool) -> None:
        """Raise the maxima by one layer's probabilities [B, H, T, T]."""
        if looks_ahead or self.earlier_columns:
            layer = sum_rows_and_columns(self, probabilities)
        else:
            layer = self.anchor_columns(probabilities)
        self.layer_count += 1
        self.maxima = [torch.maximum(self.maxima[0], layer) if self.maxima else layer]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **terms: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer in the traced pass; arguments as for :func:`st_reba.modules.attention.attention`."""
    for name in ("block_indices", "sinks", "indices", "position_bias"):
        if terms.get(name) is not None:
            raise ValueError(f"{type(module).__name__} passes {name!r} to its attention, which no graph is made for.")
    is_causal, scaling, softcap, sinks = (terms.get(name) for name in ("is_causal", "scaling", "softcap", "s_aux"))
    state: Any = current_pass()
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    mask, _, looks_ahead = state.masks.mask_for_layer(module, attention_mask, causal)
    batch, heads, length, width = query.shape
    groups, keys = key.shape[1:3]
    rows = (query * (width**-0.5 if scaling is None else scaling)).reshape(batch, groups, -1, width)
    scores = torch.matmul(rows, key.mT).reshape(batch, heads, length, keys)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is not None:
        sink = sinks.to(scores.dtype).reshape(1, heads, 1, 1).expand(batch, heads, length, 1)
        scores = torch.cat([scores, sink], dim=-1)
    probabilities = scores.softmax(dim=-1)[..., :keys]
    if state.attention_reader is not None:
        state.attention_reader.take(probabilities, looks_ahead=looks_ahead)
    mixed = torch.matmul(probabilities.reshape(batch, groups, -1, keys), value)
    return mixed.reshape(batch, heads, length, -1).transpose(1, 2), None


def _whole_mask(*arguments: Any, **keywords: Any) -> Tensor | None:
    keywords.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    mask: Tensor | None = sdpa_mask(*arguments, **keywords)
    return mask


AttentionInterface.register(GRAPH_ATTENTION, attend)
AttentionMaskInterface.register(GRAPH_ATTENTION, _whole_mask)


@contextmanager
def graph_attention(model: Any) -> Iterator[bool]:
    """Inside the ``with`` block a model calls :func:`attend`; False where its architecture calls no interface."""
    decoder = decoder_of(model)
    before = decoder.config._attn_implementation
    try:
        if before != "eager":  # so it is where attention is hooked
            decoder.set_attn_implementation(GRAPH_ATTENTION)
        yield decoder.config._attn_implementation == GRAPH_ATTENTION
    finally:
        decoder.set_attn_implementation(before)
