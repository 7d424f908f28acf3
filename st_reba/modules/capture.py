"""Backward attention: rows of A^new, the maximum over layers and heads of (A + Aᵀ) / 2.

A[q, t] is the attention of one layer and head: the weight that position q gives to position t. In a causal layer
A[q, t] is 0 for t > q, so that row i of A^new, from i on, comes from column i of A alone: it is ½ · max A[t, i] for
t > i, and max A[i, i] at i itself. So a layer shows columns of A, and the factor ½ is applied at the end. (A layer that
looks both ways has its row added; see the section both_ways.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from .attention import install_attention
from .blocks import ScoreTerms, attend
from .extensions import extensions
from .layout import Span
from .passes import ForwardPass


@dataclass(frozen=True)
class Capture:
    """Rows of A^new that a pooling asks for; a hook of the passes that it is given to.

    Args:
        anchors: The positions i whose rows are kept: ``"last"``, the last content token of copy 1, or ``"copy"``, every
            content token of copy 1.
        both, special: Keep the columns t < i too; those of template and special positions too.
        pieces: Where given, the rows are those of pieces of the text, each repeated by itself.
    """

    anchors: str
    both: bool = False
    special: bool = False
    pieces: Any = None
    zeros: ClassVar[bool] = False  # a text whose states are not finite gets zeros; else it is an error

    def before_layers(self, state: ForwardPass) -> None:
        """Keep the rows while the layers of a pass run."""
        if not install_attention(state.model):
            state.model_arguments["output_attentions"] = True
        summed = state.real_tokens if self.special else state.copy_ids > 0
        backward = BackwardAttention([self.run(span) for span in state.spans], summed, self.both)
        state.hook_data[self] = state.attention_reader = backward

    def after_layers(self, state: ForwardPass, hidden_states: Tensor) -> Tensor:
        """Hand the rows over as ``backward_attention`` [B, R, T]; an error where a layer's attention was not seen."""
        config, backward = state.model.config.get_text_config(), state.hook_data[self]
        seen = backward.layers
        # Some models name what each layer is; those of linear attention or state spaces have no attention to show.
        types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
        shown = [each for each in types if each == "hybrid" or ("attention" in each and "linear" not in each)]
        expected = len(shown) or config.num_hidden_layers
        if seen < expected + (0 if state.masks is None else len(state.masks.second)):
            raise ValueError(f"ReBA needs the attention of {expected} layers, but {seen} showed theirs. Use Echo.")
        state.pooling_features["backward_attention"] = backward.rows()
        return hidden_states

    def run(self, span: Span) -> tuple[int, int]:
        """First anchor of a text, and number of anchors, which follow one another."""
        return (span.start + span.length - 1, 1) if self.anchors == "last" else (span.start, span.length)


class BackwardAttention:
    """Rows of A^new at R anchors a text, raised by every layer of a pass.

    Args:
        runs: First anchor and number of anchors of each text; R is the largest number.
        summed: [B, T] bool, the columns that are kept.
        both: Keep the columns before an anchor too.
    """

    def __init__(self, runs: Sequence[tuple[int, int]], summed: Tensor, both: bool = False) -> None:
        self.summed, self.both, self.firsts = summed, both, [first for first, _ in runs]
        first, count = torch.tensor(runs).to(summed.device, non_blocking=True)[:, :, None].unbind(dim=1)
        offset = torch.arange(max(number for _, number in runs), device=summed.device)
        self.anchors, self.valid = (first + offset).clamp(max=summed.shape[1] - 1), offset < count  # [B, R]
        self.layers = 0
        self.maxima: list[Tensor] = []  # [B, R, T] each; more than one only while gradients are wanted
        self._rows: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, looks_ahead: bool) -> Tensor:
        """Attention of one layer, [B, T, H, D'], which raises the maxima."""
        self.layers += 1
        if looks_ahead or self.both:
            return extensions.attend_both_ways(self, query, key, value, terms)
        return attend(query, key, value, terms, self.see)

    def see(self, probabilities: Tensor, texts: slice = slice(None), start: int = 0) -> None:
        """Raise the maxima by the columns of a block [b, H, Q, K] of a causal layer, from query ``start`` on."""
        self.add(self.columns(probabilities, texts), texts, start)

    def columns(self, probabilities: Tensor, texts: slice = slice(None)) -> Tensor:
        """A[q, i] at the anchors i, the maximum over heads, [b, r, Q]: r < R where a block has no more of the keys."""
        first, keys, anchors = self.firsts[0], probabilities.shape[3], self.anchors[texts]
        if set(self.firsts) == {first}:  # the texts begin together: their anchors are a slice
            return probabilities[..., first : first + anchors.shape[1]].amax(dim=1).mT
        index = anchors.clamp(max=keys - 1)[:, None]  # [b, 1, R]
        if index.shape[2] == 1:
            largest = probabilities.gather(3, index[:, None].expand(*probabilities.shape[:3], -1)).amax(dim=1)
        else:
            largest = probabilities.amax(dim=1).gather(2, index.expand(-1, probabilities.shape[2], -1))
        return largest.masked_fill(anchors[:, None] >= keys, 0.0).mT

    def add(self, layer: Tensor, texts: slice = slice(None), start: int = 0) -> None:
        """Raise the maxima by those of some heads of a layer, [b, r, Q], from position ``start`` on."""
        if self._rows is not None:
            return  # gradient checkpointing runs a layer once more
        if layer.requires_grad:
            self.maxima.append(layer)
            return
        if not self.maxima:
            batch, length = self.summed.shape
            self.maxima.append(layer.new_zeros(batch, length, self.anchors.shape[1]).mT)
        largest = self.maxima[0][texts, : layer.shape[1], start : start + layer.shape[2]]
        torch.maximum(largest, layer, out=largest)

    def rows(self) -> Tensor:
        """[B, R, T], zero at other columns, before the anchor unless ``both``, and after a text's own rows."""
        if self._rows is None:
            anchors, largest = self.anchors[:, None], reduce(torch.maximum, self.maxima).mT  # [B, T, R], as it lies
            own = largest.gather(1, anchors)
            rows = (largest * 0.5 if largest.requires_grad else largest.mul_(0.5)).scatter_(1, anchors, own)
            self._rows = rows.masked_fill_(~self.summed[:, :, None], 0.0).masked_fill_(~self.valid[:, None], 0.0).mT
            self.maxima = []
        return self._rows
