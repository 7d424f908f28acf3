"""The module that is traced: tokens as the stock tokenizer gives them → vectors that stock pooling averages."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers.base.modules import Dense
from torch import Tensor, nn

from ...modules.repeat import RepeatTransformer
from ...modules.stages import Pass, running
from .attention import GraphState, tracing
from .method import Method

# By which the graph's products with a dense layer's weights are known.
DENSE_WEIGHT = "dense_weight"


class EmbeddingGraph(nn.Module):
    """Takes the tokenizer's special tokens off, places the copies, runs the backbone, pools, and spreads the result.

    Texts are laid out from column 0 on, whichever side they were padded on. What comes out stands where the tokens
    came in, so that the mean over ``attention_mask`` is the sentence vector: of ``mean`` methods e_i at content token
    i, and the sentence vector at special tokens; of all others, and where a dense layer stands behind the pooling, the
    sentence vector everywhere.

    Args:
        transformer: The model's first module.
        method: What is computed.
        captures: Whether the backbone calls :func:`~st_reba.hub.onnx.attention.attend`.
    """

    literals: Tensor

    def __init__(self, transformer: RepeatTransformer, method: Method) -> None:
        super().__init__()
        self.model = transformer.model
        self.method = method
        # Readings of inner layers; a plan is in the attention.
        self._decoder = (transformer,)
        self._bound = [
            bound for stage, bound in zip(transformer.stages, transformer.bound, strict=True) if stage.name == "read"
        ]
        self.behind = nn.ModuleList(Affine(each) if isinstance(each, Dense) else each for each in method.behind)
        self._takes = transformer.backbone.parameters
        literals = [token for piece in method.frame.pieces if piece is not None for token in piece]
        # The last one stands for a text without any token.
        self.register_buffer("literals", torch.tensor([*literals, method.stand_in or 0]), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed.

        Args:
            input_ids: [B, L] int64, as the tokenizer gives them.
            attention_mask: [B, L] int64, 1 at real tokens, which are one run in each row.

        Returns:
            ``last_hidden_state`` [B, L, d].
        """
        method = self.method
        given = attention_mask.long()
        width = input_ids.shape[1]
        count = given.sum(dim=1, keepdim=True) - method.before - method.after
        # A text without any token is one token long.
        tokens = count.clamp(min=1)
        columns = torch.arange(width, device=given.device)[None]
        start = ((given.cumsum(dim=1) == 0) & (columns < width)).long().sum(dim=1, keepdim=True) + method.before
        room: int = torch.sym_max(width - method.before - method.after, 1)  # type: ignore[no-untyped-call]
        length = method.frame.overhead + method.copies * room
        place = torch.arange(length, device=given.device)[None]
        ids, copies, offsets = self._placed(input_ids, start, count, tokens, place)
        total = method.frame.overhead + method.copies * tokens
        real = place < total
        # Positions behind a text are masked, but must be some that the backbone knows.
        positions = torch.minimum(place, total - 1)
        state = GraphState(real, method.stack, captures=method.reba is not None)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": real.long()}
        if "position_ids" in self._takes:
            inputs["position_ids"] = positions
        if "use_cache" in self._takes:
            inputs["use_cache"] = False
        run = Pass(self._decoder[0], real, [], self._bound)
        for bound in self._bound:
            bound.begin(run)
        with tracing(state), running(run):
            hidden: Tensor = self.model(**inputs).last_hidden_state
        for bound in self._bound:
            hidden = bound.finish(run, hidden)
        each, sentence = self._pooled(hidden, state, place, real, copies, offsets, tokens, total, room)
        if method.zeros:
            finite = (hidden.abs() <= torch.finfo(torch.float32).max) | ~real[:, :, None]
            sentence = torch.where(finite.all(dim=2).all(dim=1)[:, None], sentence, 0.0)
        for module in self.behind:
            sentence, each = module({"sentence_embedding": sentence})["sentence_embedding"], None
        spread = sentence[:, None].expand(-1, width, -1)
        if each is None:
            return spread + torch.zeros_like(columns, dtype=hidden.dtype)[:, :, None]
        index = columns - start
        inside = (index >= 0) & (index < count)
        picked = _rows(each, torch.minimum(index.clamp(min=0), tokens - 1))
        if method.zeros:
            picked = torch.where(finite.all(dim=2).all(dim=1)[:, None, None], picked, 0.0)
        return torch.where(inside[:, :, None], picked, spread)

    def _placed(
        self, input_ids: Tensor, start: Tensor, count: Tensor, tokens: Tensor, place: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Token ids [B, T], copy ids [B, T] and each copy's first position [B, 1]."""
        width = input_ids.shape[1]
        table = torch.cat([input_ids, self.literals[None].expand(input_ids.shape[0], -1)], dim=1)
        stand_in = width + len(self.literals) - 1
        source = torch.zeros_like(place + tokens) + stand_in
        copies = torch.zeros_like(source)
        offsets: list[Tensor] = []
        offset, literal = torch.zeros_like(tokens), width
        for piece in self.method.frame.pieces:
            inner = place - offset
            if piece is None:
                inside = (inner >= 0) & (inner < tokens)
                content = torch.where(count > 0, start + inner, stand_in)
                source = torch.where(inside, content, source)
                copies = torch.where(inside, len(offsets) + 1, copies)
                offsets.append(offset)
                offset = offset + tokens
            elif piece:
                inside = (inner >= 0) & (inner < len(piece))
                source = torch.where(inside, literal + inner, source)
                literal, offset = literal + len(piece), offset + len(piece)
        return table.gather(1, source), copies, offsets

    def _pooled(
        self,
        hidden: Tensor,
        state: GraphState,
        place: Tensor,
        real: Tensor,
        copies: Tensor,
        offsets: list[Tensor],
        tokens: Tensor,
        total: Tensor,
        room: int,
    ) -> tuple[Tensor | None, Tensor]:
        """Token vectors e_i [B, n, d], where their mean is the sentence vector, and sentence vectors [B, d]."""
        index = torch.arange(room, device=place.device)[None]
        if self.method.reba is not None:
            return self._reba(hidden, state, place, real, copies, offsets[0], tokens, total, index)
        span = self._span(place, real, copies, total)
        if self.method.pooling == "mean":
            sentence = _mean(hidden, span)
            chosen = {"last_copy": offsets[-1:], "repeats": offsets[1:] or offsets}.get(self.method.span)
            if chosen is None:
                return None, sentence
            at = torch.minimum(index, tokens - 1)
            return torch.stack([_rows(hidden, offset + at) for offset in chosen]).mean(dim=0), sentence
        if self.method.pooling == "lasttoken":
            wanted = (place * span).amax(dim=1, keepdim=True)
        else:
            wanted = torch.where(span, place, place.shape[1]).amin(dim=1, keepdim=True)
        return None, _rows(hidden, wanted)[:, 0]

    def _span(self, place: Tensor, real: Tensor, copies: Tensor, total: Tensor) -> Tensor:
        """The positions that are pooled, [B, T] bool; see RepeatTransformer."""
        span, last = self.method.span, copies == self.method.copies
        if span == "all":
            return real
        if span == "end":
            return place == total - 1
        if span == "repeats" and self.method.copies > 1:
            return copies >= 2
        if span == "last_copy_and_end":
            return last | ((place >= total - self.method.after) & real)
        return last

    def _reba(
        self,
        hidden: Tensor,
        state: GraphState,
        place: Tensor,
        real: Tensor,
        copies: Tensor,
        first: Tensor,
        tokens: Tensor,
        total: Tensor,
        index: Tensor,
    ) -> tuple[Tensor | None, Tensor]:
        """Backward attention; see ReBAPooling."""
        assert self.method.reba is not None
        matrix = state.matrix()
        summed = real if self.method.reba["include_special"] else copies > 0
        if self.method.reba["variant"] == "published":
            if self.method.pooling == "last":
                weights = _rows(matrix, total - 1)[:, 0] * real
            else:
                half = (total // 2).clamp(min=1)
                upper = (place[:, :, None] <= place[:, None, :]) & (place < half)[:, :, None]
                weights = (matrix * upper).sum(dim=1) * real
            return None, torch.matmul(_normalized(weights)[:, None], hidden)[:, 0]
        last = tokens - 1
        anchors = first + (last if self.method.pooling == "last" else torch.minimum(index, last))
        later = place[:, None, :] >= anchors[:, :, None]
        weights = _rows(matrix, anchors) * (later & summed[:, None, :])
        if self.method.reba["normalize_weights"]:
            weights = _normalized(weights)
        each = torch.matmul(weights, hidden)
        if self.method.pooling == "last":
            return None, each[:, 0]
        return each, _mean(each, index < tokens)


class Affine(nn.Module):
    """A ``Dense`` as a product and a sum: runtimes' tools know these better than one operator for both.

    Args:
        dense: The layer.
    """

    dense_weight: Tensor
    dense_bias: Tensor

    def __init__(self, dense: Dense) -> None:
        super().__init__()
        weight = dense.linear.weight.detach()
        bias = torch.zeros(len(weight)) if dense.linear.bias is None else dense.linear.bias.detach()
        self.register_buffer(DENSE_WEIGHT, weight.T.contiguous(), persistent=False)
        self.register_buffer("dense_bias", bias, persistent=False)
        self.activation = dense.activation_function

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Apply the layer to the sentence vector [B, d]."""
        product = torch.matmul(features["sentence_embedding"], self.dense_weight)
        return {"sentence_embedding": self.activation(product + self.dense_bias)}


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """[B, T, d] values at [B, n] positions of dimension 1."""
    return values.gather(1, index[:, :, None].expand(-1, -1, values.shape[2]))


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """[B, T, d] values → their mean [B, d] over the positions [B, T] that are True."""
    weights = where.to(values.dtype) / where.to(values.dtype).sum(dim=1, keepdim=True)
    return torch.matmul(weights[:, None], values)[:, 0]


def _normalized(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
