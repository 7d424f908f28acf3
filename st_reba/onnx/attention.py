"""Attention as a graph can hold it: standard operators, without a branch that depends on the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
)
from transformers.masking_utils import sdpa_mask

from ..modules.blocks import ScoreTerms, scores_of
from ..modules.both_ways import sum_rows_and_columns
from ..modules.capture import BackwardAttention, Capture
from ..modules.layout import decoder_of
from ..modules.masks import MASKS
from ..modules.nosink import LayerMasks, apply_mask
from ..modules.passes import LayerMask, current_pass
from ..modules.placement import PlacedRows
from ..modules.transformer import RepeatTransformer

GRAPH_ATTENTION = "st_reba_graph"
# Larger than any score, small enough for every runtime's float16.
_HIDDEN = -1e9
# Arguments of some models' attention that change it in a way that `attend` does not follow.
_UNSUPPORTED_TERMS = ("block_indices", "sinks", "indices", "position_bias")


class GraphMasks(LayerMasks):
    """Masks of the traced pass, as numbers to add to scores; equal masks share one tensor."""

    def __init__(self, transformer: RepeatTransformer) -> None:
        super().__init__(transformer)
        # Each mask with the native mask that it was made from: while that is kept, no other tensor
        # gets its id.
        self.additive_masks: dict[tuple[str, int, bool], tuple[Tensor | None, Tensor]] = {}

    def name_of_mask(self, module: nn.Module) -> str:
        """Name of the mask of the layer that runs now."""
        return super().name_of_mask(module) if self.layer_masks else "forward"

    def mask_for_layer(
        self, module: nn.Module, native_mask: Tensor | None, is_causal: bool
    ) -> LayerMask:
        """Mask [B or 1, 1, T, T] of the layer that runs now, added to its scores; see LayerMasks."""
        mask_name = self.name_of_mask(module)
        self.last_attention = (module, mask_name)
        key = (mask_name, id(native_mask), is_causal)
        if key not in self.additive_masks:
            additive_mask = self._additive_mask(mask_name, native_mask, is_causal)
            self.additive_masks[key] = native_mask, additive_mask
        looks_ahead = not (is_causal and MASKS[mask_name].is_causal)
        return LayerMask(self.additive_masks[key][1], False, looks_ahead)

    def _additive_mask(self, mask_name: str, native_mask: Tensor | None, is_causal: bool) -> Tensor:
        if native_mask is None or native_mask.dtype == torch.bool:
            boolean_mask = self.boolean_mask(native_mask, is_causal)
            visible_tokens = apply_mask(mask_name, boolean_mask, self.real_tokens, self.m)
            return torch.where(visible_tokens, 0.0, _HIDDEN)
        if mask_name != "forward":
            raise ValueError(
                "The model adds position biases to its masks, so these cannot be changed."
            )
        return native_mask.clamp(min=_HIDDEN)  # it may hold position biases


class GraphCapture(BackwardAttention):
    """Rows of A^new in the traced pass, in which the positions of texts are tensors.

    Args:
        capture: Which rows and columns the pooling needs.
        rows: The rows of the batch.
    """

    def __init__(self, capture: Capture, rows: PlacedRows) -> None:
        self.earlier_columns = capture.earlier_columns
        self.kept_columns = rows.real_tokens if capture.special_columns else rows.copy_ids > 0
        first_anchors, anchor_counts, max_count = _anchor_ranges(capture.anchors, rows)
        offsets = torch.arange(max_count, device=rows.copy_ids.device)
        self.anchors = first_anchors + offsets
        self.valid = offsets < anchor_counts
        self.observed_layers = 0
        self.maxima = []
        self._rows = None
        # Two different values stand for any: in a graph, texts may begin anywhere, so their anchors
        # cannot be taken as a slice.
        self.first_anchors = [0, 1]

    def take(self, probabilities: Tensor, *, looks_ahead: bool) -> None:
        """Update the maxima by one layer's probabilities [B, H, T, T]."""
        if looks_ahead or self.earlier_columns:
            layer_rows = sum_rows_and_columns(self, probabilities)
        else:
            layer_rows = self.anchor_columns(probabilities)
        self.observed_layers += 1
        if self.maxima:
            layer_rows = torch.maximum(self.maxima[0], layer_rows)
        self.maxima = [layer_rows]


def _anchor_ranges(anchors: str, rows: PlacedRows) -> tuple[Tensor, Tensor, int]:
    """As `anchor_range`: first anchor and number of anchors of each text, and the largest number."""
    if anchors == "last":
        return rows.first_starts + rows.text_lengths - 1, rows.text_lengths, 1
    if anchors == "copy":
        return rows.first_starts, rows.text_lengths, rows.max_text_length
    if anchors == "end":
        return rows.row_lengths - 1, rows.row_lengths, 1
    half_lengths = (rows.row_lengths // 2).clamp(min=1)
    return (
        torch.zeros_like(rows.row_lengths),
        half_lengths,
        rows.copy_ids.shape[1],
    )


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **terms: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer in the traced pass; arguments as in `st_reba.modules.attention`."""
    for name in _UNSUPPORTED_TERMS:
        if terms.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} passes {name!r} to its attention, which a graph cannot express."
            )
    state: Any = current_pass()
    is_causal = terms.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    layer_mask = state.masks.mask_for_layer(module, attention_mask, bool(is_causal))
    batch_size, head_count, length, width = query.shape
    group_count, key_count = key.shape[1:3]
    scaling = terms.get("scaling")
    if scaling is None:
        scaling = width**-0.5
    score_terms = ScoreTerms(
        layer_mask.mask, scaling=scaling, softcap=terms.get("softcap"), sinks=terms.get("s_aux")
    )
    probabilities = scores_of(query, key, score_terms).softmax(dim=-1)[..., :key_count]
    if state.observer is not None:
        state.observer.take(probabilities, looks_ahead=layer_mask.looks_ahead)
    grouped_probabilities = probabilities.reshape(batch_size, group_count, -1, key_count)
    outputs = torch.matmul(grouped_probabilities, value)
    outputs = outputs.reshape(batch_size, head_count, length, -1)
    return outputs.transpose(1, 2), None


AttentionInterface.register(GRAPH_ATTENTION, attend)
AttentionMaskInterface.register(GRAPH_ATTENTION, sdpa_mask)


@contextmanager
def graph_attention(model: PreTrainedModel) -> Iterator[bool]:
    """Inside the ``with`` block a model calls :func:`attend`; False if it has an attention of its own."""
    decoder = decoder_of(model)
    previous_attention = decoder.config._attn_implementation
    try:
        if previous_attention != "eager":  # where attention is hooked, it is "eager"
            decoder.set_attn_implementation(GRAPH_ATTENTION)
        yield decoder.config._attn_implementation == GRAPH_ATTENTION
    finally:
        decoder.set_attn_implementation(previous_attention)
