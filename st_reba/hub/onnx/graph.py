"""The module that is traced: tokens as the stock tokenizer gives them → vectors that stock pooling averages."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from sentence_transformers.base.modules import Dense
from torch import Tensor, nn

from ...modules.repeat import RepeatTransformer
from ...modules.stages import Pass, running
from .attention import GraphState
from .method import Method

# By which the graph's products with a dense layer's weights are known.
DENSE_WEIGHT = "dense_weight"


class _Layout(NamedTuple):
    """Texts as the backbone takes them, from column 0 on."""

    ids: Tensor  # [B, T]
    place: Tensor  # [1, T]: 0, 1, …
    real: Tensor  # [B, T] bool
    copies: Tensor  # [B, T]: c in copy c, 0 elsewhere
    offsets: list[Tensor]  # each copy's first position, [B, 1]
    tokens: Tensor  # of a copy, [B, 1]
    total: Tensor  # real positions, [B, 1]
    inner: Tensor  # [1, n]: 0, 1, … in a copy of the longest text


class EmbeddingGraph(nn.Module):
    """Takes the tokenizer's special tokens off, places the copies, runs the backbone, pools, and spreads the result.

    Texts may be padded on either side. What comes out stands where the tokens came in, so that the mean over
    ``attention_mask`` is the sentence vector: of ``mean`` methods e_i at content token i, and the sentence vector at
    special tokens; of all others, and where a dense layer stands behind the pooling, the sentence vector everywhere.

    Args:
        transformer: The model's first module; its backbone calls :func:`~st_reba.hub.onnx.attention.attend`.
        method: What is computed.
    """

    literals: Tensor

    def __init__(self, transformer: RepeatTransformer, method: Method) -> None:
        super().__init__()
        self.model = transformer.model
        self.method = method
        self._first = (transformer,)  # not one more submodule
        # Readings of inner layers; a plan is in the attention.
        stages = zip(transformer.stages, transformer.bound, strict=True)
        self._bound = [bound for stage, bound in stages if stage.name == "read"]
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
        method, (first,) = self.method, self._first
        given = attention_mask.long()
        width = input_ids.shape[1]
        columns = torch.arange(width, device=given.device)[None]
        count = given.sum(dim=1, keepdim=True) - method.before - method.after
        start = ((given.cumsum(dim=1) == 0) & (columns < width)).long().sum(dim=1, keepdim=True) + method.before
        at = self._placed(input_ids, start, count)
        inputs: dict[str, Any] = {"input_ids": at.ids, "attention_mask": at.real.long()}
        if "position_ids" in self._takes:
            # Positions behind a text are masked, but must be some that the backbone knows.
            inputs["position_ids"] = torch.minimum(at.place, at.total - 1)
        if "use_cache" in self._takes:
            inputs["use_cache"] = False
        run = Pass(first, at.real, [], self._bound)
        run.kinds = state = GraphState(at.real, first.stack, captures=method.reba is not None)
        for bound in self._bound:
            bound.begin(run)
        with running(run):
            hidden: Tensor = self.model(**inputs).last_hidden_state
        for bound in self._bound:
            hidden = bound.finish(run, hidden)
        each, sentence = self._pooled(hidden, at) if method.reba is None else self._reba(hidden, at, state.matrix())
        if first.zeros:
            known = (hidden.abs() <= torch.finfo(torch.float32).max) | ~at.real[:, :, None]
            finite = known.all(dim=2).all(dim=1)[:, None]
            sentence = torch.where(finite, sentence, 0.0)
        for module in self.behind:
            sentence, each = module({"sentence_embedding": sentence})["sentence_embedding"], None
        spread = sentence[:, None].expand(-1, width, -1)
        if each is None:
            return spread + torch.zeros_like(columns, dtype=hidden.dtype)[:, :, None]
        index = columns - start
        inside = (index >= 0) & (index < count)
        picked = _rows(each, torch.minimum(index.clamp(min=0), at.tokens - 1))
        if first.zeros:
            picked = torch.where(finite[:, None], picked, 0.0)
        return torch.where(inside[:, :, None], picked, spread)

    def _placed(self, input_ids: Tensor, start: Tensor, count: Tensor) -> _Layout:
        """Lay out texts whose ``count`` content tokens begin in column ``start``, both [B, 1]."""
        frame = self.method.frame
        width = input_ids.shape[1]
        tokens = count.clamp(min=1)  # a text without any token is one token long
        room: int = torch.sym_max(width - self.method.before - self.method.after, 1)  # type: ignore[no-untyped-call]
        place = torch.arange(frame.overhead + frame.copies * room, device=input_ids.device)[None]
        total = frame.overhead + frame.copies * tokens
        table = torch.cat([input_ids, self.literals[None].expand(input_ids.shape[0], -1)], dim=1)
        stand_in = width + len(self.literals) - 1
        source = torch.zeros_like(place + tokens) + stand_in
        copies = torch.zeros_like(source)
        offsets: list[Tensor] = []
        offset, literal = torch.zeros_like(tokens), width
        for piece in frame.pieces:
            inner = place - offset
            if piece is None:
                inside = (inner >= 0) & (inner < tokens)
                source = torch.where(inside, torch.where(count > 0, start + inner, stand_in), source)
                copies = torch.where(inside, len(offsets) + 1, copies)
                offsets.append(offset)
                offset = offset + tokens
            elif piece:
                inside = (inner >= 0) & (inner < len(piece))
                source = torch.where(inside, literal + inner, source)
                literal, offset = literal + len(piece), offset + len(piece)
        steps = torch.arange(room, device=input_ids.device)[None]
        return _Layout(table.gather(1, source), place, place < total, copies, offsets, tokens, total, steps)

    def _pooled(self, hidden: Tensor, at: _Layout) -> tuple[Tensor | None, Tensor]:
        """Token vectors e_i [B, n, d], where their mean is the sentence vector, and sentence vectors [B, d]."""
        span = self._span(at)
        if self.method.pooling == "mean":
            sentence = _mean(hidden, span)
            chosen = {"last_copy": at.offsets[-1:], "repeats": at.offsets[1:] or at.offsets}.get(
                self._first[0].layout.span
            )
            if chosen is None:
                return None, sentence
            within = torch.minimum(at.inner, at.tokens - 1)
            return torch.stack([_rows(hidden, offset + within) for offset in chosen]).mean(dim=0), sentence
        if self.method.pooling == "lasttoken":
            position = (at.place * span).amax(dim=1, keepdim=True)
        else:
            position = torch.where(span, at.place, at.place.shape[1]).amin(dim=1, keepdim=True)
        return None, _rows(hidden, position)[:, 0]

    def _span(self, at: _Layout) -> Tensor:
        """The positions that are pooled, [B, T] bool; see RepeatTransformer."""
        last = at.copies == self.method.frame.copies
        spans = {
            "all": at.real,
            "end": at.place == at.total - 1,
            "repeats": at.copies >= min(2, self.method.frame.copies),
            "last_copy_and_end": last | ((at.place >= at.total - self.method.after) & at.real),
        }
        return spans.get(self._first[0].layout.span, last)

    def _reba(self, hidden: Tensor, at: _Layout, matrix: Tensor) -> tuple[Tensor | None, Tensor]:
        """Backward attention, by its matrix A^new [B, T, T]; see ReBAPooling. Returns as :meth:`_pooled` does."""
        reba: Any = self.method.reba
        if reba.variant == "published":
            if reba.pooling == "last":
                weights = _rows(matrix, at.total - 1)[:, 0] * at.real
            else:
                half = (at.total // 2).clamp(min=1)
                upper = (at.place[:, :, None] <= at.place[:, None, :]) & (at.place < half)[:, :, None]
                weights = (matrix * upper).sum(dim=1) * at.real
            return None, torch.matmul(_normalized(weights)[:, None], hidden)[:, 0]
        last = at.tokens - 1
        anchors = at.offsets[0] + (last if reba.pooling == "last" else torch.minimum(at.inner, last))
        summed = at.real if reba.include_special else at.copies > 0
        weights = _rows(matrix, anchors) * ((at.place[:, None, :] >= anchors[:, :, None]) & summed[:, None, :])
        if reba.normalize_weights:
            weights = _normalized(weights)
        each = torch.matmul(weights, hidden)
        return (None, each[:, 0]) if reba.pooling == "last" else (each, _mean(each, at.inner < at.tokens))


class Affine(nn.Module):
    """A ``Dense`` as a product and a sum: runtimes' tools know these better than one operator for both."""

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
