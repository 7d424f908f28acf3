"""Backward attention: rows of A^new, the maximum over layers and heads of (A + Aᵀ) / 2.

A[q, t], of one layer and head, is the weight that position q gives to position t. In a causal layer
it is 0 for t > q. So A^new[i, t] is ½ · max A[t, i] for t > i, and A^new[i, i] is max A[i, i]:
column i of A is all that is needed. The maxima are collected first, and halved in `rows`. (In a
layer that looks both ways, row i of A counts too.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from .attention import install_attention
from .blocks import ScoreTerms, attend_in_blocks
from .extensions import extensions
from .layout import Span
from .passes import ForwardPass

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Capture:
    """Rows of A^new that a pooling asks for; a hook of the passes that it is given to.

    Args:
        anchors: The positions i whose rows are kept: ``"last"``, the last content token of copy 1,
            or ``"copy"``, every content token of copy 1.
        earlier_columns: Keep the columns t < i too.
        special_columns: Keep those of template and special positions too.
        chunk_plan: A ChunkPlan; where given, the rows are those of chunks, each repeated by itself.
    """

    anchors: str
    earlier_columns: bool = False
    special_columns: bool = False
    chunk_plan: Any = None
    # Whether a text whose states are not finite gets zeros; otherwise it is an error.
    zeroes_nonfinite_texts: ClassVar[bool] = False

    def before_layers(self, forward_pass: ForwardPass) -> None:
        """Install `attention` where that is possible, and let a BackwardAttention observe the layers of this pass."""
        if not install_attention(forward_pass.model):
            forward_pass.model_arguments["output_attentions"] = True
        kept_columns = (
            forward_pass.real_tokens if self.special_columns else forward_pass.copy_ids > 0
        )
        backward = BackwardAttention(
            list(map(self.anchor_range, forward_pass.spans)), kept_columns, self.earlier_columns
        )
        forward_pass.hook_data[self] = forward_pass.observer = backward

    def after_layers(self, forward_pass: ForwardPass, hidden_states: Tensor) -> Tensor:
        """Hand the rows over as ``backward_attention`` [B, R, T]; an error where a layer's attention was not seen."""
        backward: BackwardAttention = forward_pass.hook_data[self]
        layer_count = count_attention_layers(forward_pass.model.config.get_text_config())
        second_count = 0 if forward_pass.masks is None else len(forward_pass.masks.second)
        if backward.observed_layers < layer_count + second_count:
            problem = f"but {backward.observed_layers} showed theirs"
            raise ValueError(
                f"ReBA needs the attention of {layer_count} layers, {problem}. Use method 'echo'."
            )
        forward_pass.pooling_features["backward_attention"] = backward.rows()
        return hidden_states

    def anchor_range(self, span: Span) -> tuple[int, int]:
        """First anchor of a text, and number of anchors, which follow one another."""
        if self.anchors == "last":
            return span.start + span.text_length - 1, 1
        return span.start, span.text_length


def count_attention_layers(config: PretrainedConfig) -> int:
    """Layers that show their attention; those of linear attention or state spaces have none to show."""
    # Some models name what each layer is.
    layer_types = (
        getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    )
    is_shown = [
        name == "hybrid" or ("attention" in name and "linear" not in name) for name in layer_types
    ]
    return sum(is_shown) or int(config.num_hidden_layers)


class BackwardAttention:
    """Rows of A^new at R anchors per text: running maxima over the layers of a pass.

    Args:
        anchor_ranges: First anchor and number of anchors of each text; R is the largest number.
        kept_columns: [B, T] bool, the columns that are kept.
        earlier_columns: Keep the columns before an anchor too.
    """

    def __init__(
        self,
        anchor_ranges: Sequence[tuple[int, int]],
        kept_columns: Tensor,
        earlier_columns: bool = False,
    ) -> None:
        self.kept_columns = kept_columns
        self.earlier_columns = earlier_columns
        self.first_anchors = [first for first, _ in anchor_ranges]
        ranges = torch.tensor(anchor_ranges).to(kept_columns.device, non_blocking=True)
        first, count = ranges[:, :, None].unbind(dim=1)
        max_count = max(anchor_count for _, anchor_count in anchor_ranges)
        offset = torch.arange(max_count, device=kept_columns.device)
        self.anchors = (first + offset).clamp(max=kept_columns.shape[1] - 1)  # [B, R]
        self.valid = offset < count  # [B, R]
        self.observed_layers = 0
        # [B, R, T] each; more than one only while gradients are wanted.
        self.maxima: list[Tensor] = []
        self._rows: Tensor | None = None

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        terms: ScoreTerms,
        looks_ahead: bool,
    ) -> Tensor:
        """Compute a layer's attention, [B, T, H, D'], and update the maxima by its probabilities."""
        self.observed_layers += 1
        if looks_ahead or self.earlier_columns:
            return extensions.attend_both_ways(self, query, key, value, terms)
        return attend_in_blocks(query, key, value, terms, self.observe)

    def observe(self, probabilities: Tensor, texts: slice = slice(None), start: int = 0) -> None:
        """Update the maxima by the columns of a block [b, H, Q, S] of a causal layer, from query ``start`` on."""
        self.update_maxima(self.anchor_columns(probabilities, texts), texts, start)

    def anchor_columns(self, probabilities: Tensor, texts: slice = slice(None)) -> Tensor:
        """A[q, i] at the anchors i, the maximum over heads, [b, r, Q]: r < R where a block has no more of the keys."""
        key_count, anchors = probabilities.shape[3], self.anchors[texts]
        first_anchor = self.first_anchors[0]
        if set(self.first_anchors) == {first_anchor}:
            # The texts begin together: their anchors are a slice.
            return probabilities[..., first_anchor : first_anchor + anchors.shape[1]].amax(dim=1).mT
        index = anchors.clamp(max=key_count - 1)[:, None]  # [b, 1, R]
        if index.shape[2] == 1:
            index = index[:, None].expand(*probabilities.shape[:3], -1)
            largest = probabilities.gather(3, index).amax(dim=1)
        else:
            index = index.expand(-1, probabilities.shape[2], -1)
            largest = probabilities.amax(dim=1).gather(2, index)
        return largest.masked_fill(anchors[:, None] >= key_count, 0.0).mT

    def update_maxima(self, layer_rows: Tensor, texts: slice = slice(None), start: int = 0) -> None:
        """Update the maxima by those of some heads of a layer, [b, r, Q], from position ``start`` on."""
        if self._rows is not None:
            return  # gradient checkpointing runs a layer once more
        if layer_rows.requires_grad:
            self.maxima.append(layer_rows)
            return
        if not self.maxima:
            batch, length = self.kept_columns.shape
            self.maxima.append(layer_rows.new_zeros(batch, length, self.anchors.shape[1]).mT)
        largest = self.maxima[0][texts, : layer_rows.shape[1], start : start + layer_rows.shape[2]]
        torch.maximum(largest, layer_rows, out=largest)

    def rows(self) -> Tensor:
        """[B, R, T], zero at columns that are not kept, and after a text's own rows."""
        if self._rows is not None:
            return self._rows
        anchors = self.anchors[:, None]
        largest = reduce(torch.maximum, self.maxima).mT  # [B, T, R], as it lies in memory
        # (A + Aᵀ) / 2 halves all but A[i, i], which counts twice in the sum.
        at_anchors = largest.gather(1, anchors)
        halves = largest * 0.5 if largest.requires_grad else largest.mul_(0.5)
        rows = halves.scatter_(1, anchors, at_anchors)
        rows = rows.masked_fill_(~self.kept_columns[:, :, None], 0.0)
        rows = rows.masked_fill_(~self.valid[:, None], 0.0)
        self._rows = rows.mT
        self.maxima = []
        return self._rows
