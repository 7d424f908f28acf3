"""The module that is traced: tokens as the stock tokenizer gives them → vectors that stock pooling averages."""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import Any, NamedTuple

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn

from ..encode import Task, saved_prompt
from ..modules.attention import ForwardPass, running
from ..modules.layout import empty_text_token, special_tokens
from .attention import GraphCapture, GraphMasks
from .checks import check_model

# By which the graph's products with a dense layer's weights are known.
DENSE_WEIGHT = "dense_weight"


class _Layout(NamedTuple):
    """Texts as the model takes them, from column 0 on."""

    ids: Tensor  # [B, T]
    place: Tensor  # [1, T]: 0, 1, …
    real: Tensor  # [B, T] bool
    copies: Tensor  # [B, T]: c in copy c, 0 elsewhere
    offsets: list[Tensor]  # each copy's first position, [B, 1]
    tokens: Tensor  # of a copy, [B, 1]
    total: Tensor  # real positions, [B, 1]
    inner: Tensor  # [1, n]: 0, 1, … in a copy of the longest text


class EmbeddingGraph(nn.Module):
    """Takes the tokenizer's special tokens off, places the copies, runs the model, pools, and spreads the result.

    Texts may be padded on either side. What comes out stands where the tokens came in, so that the mean over
    ``attention_mask`` is the sentence vector: of ``mean`` methods e_i at content token i, and the sentence vector at
    special tokens; of all others, and where a dense layer stands behind the pooling, the sentence vector everywhere.

    Args:
        model: A model that st_reba built; its base calls :func:`~st_reba.onnx.attention.attend` while it is traced.
        task: Whose template and prompt are placed; None: both tasks have the same.

    Raises:
        ValueError: The model holds something that no graph can.
    """

    first: Any
    literals: Tensor

    def __init__(self, model: SentenceTransformer, task: Task | None = None) -> None:
        super().__init__()
        check_model(model, task)
        first, self.pooling, *rest = model
        self.__dict__["first"] = first  # not one more submodule
        self.capture = getattr(self.pooling, "capture", None)  # of ReBA the rows of A^new that are needed
        self.task, self.prompt = task, saved_prompt(model, task)
        self.frame = self.first.frames(self.prompt, task)[0]
        before, after = special_tokens(model.tokenizer)
        # Special tokens that the tokenizer puts around a text, and tokens that it may hand over.
        self.before, self.after = len(before), len(after)
        self.budget: int | None = self.first.budget(self.prompt, task)
        self.max_length = None if self.budget is None else self.budget + self.before + self.after
        self.empty: int | None = None  # the token of a text without one
        with suppress(ValueError):
            self.empty = empty_text_token(model.tokenizer)
        dense = [number for number, each in enumerate(rest) if isinstance(each, Dense)]
        behind: list[Any] = rest[: dense[-1] + 1] if dense else []
        # A Normalize at the end is not in the graph, but behind it.
        self.normalized = len(rest) > len(behind)
        self.dimension = int(behind[-1].out_features if behind else self.pooling.embedding_dimension)  # type: ignore
        self.model: Any = self.first.model
        self.behind = nn.ModuleList(Affine(each) if isinstance(each, Dense) else each for each in behind)
        self._takes = set(signature(self.model.forward).parameters)
        literals = [token for part in self.frame.parts if part is not None for token in part]
        self.register_buffer("literals", torch.tensor([*literals, self.empty or 0]), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed.

        Args:
            input_ids: [B, L] int64, as the tokenizer gives them.
            attention_mask: [B, L] int64, 1 at real tokens, which are one run in each row.

        Returns:
            ``last_hidden_state`` [B, L, d].
        """
        given, width = attention_mask.long(), input_ids.shape[1]
        columns = torch.arange(width, device=given.device)[None]
        count = given.sum(dim=1, keepdim=True) - self.before - self.after
        start = ((given.cumsum(dim=1) == 0) & (columns < width)).long().sum(dim=1, keepdim=True) + self.before
        at = self._placed(input_ids, start, count)
        hidden, rows = self._run(at)
        each, sentence = self._pooled(hidden, at) if rows is None else self._reba(hidden, rows, at)
        for module in self.behind:
            sentence, each = module({"sentence_embedding": sentence})["sentence_embedding"], None
        spread = sentence[:, None].expand(-1, width, -1)
        if each is None:
            return spread + torch.zeros_like(columns, dtype=hidden.dtype)[:, :, None]
        index = columns - start
        inside = (index >= 0) & (index < count)
        picked = _at(each, torch.minimum(index.clamp(min=0), at.tokens - 1))
        return torch.where(inside[:, :, None], picked, spread)

    def _placed(self, input_ids: Tensor, start: Tensor, count: Tensor) -> _Layout:
        """Lay out texts whose ``count`` content tokens begin in column ``start``, both [B, 1]."""
        frame, width = self.frame, input_ids.shape[1]
        tokens = count.clamp(min=1)  # a text without any token is one token long
        room: int = torch.sym_max(width - self.before - self.after, 1)  # type: ignore[no-untyped-call]
        place = torch.arange(frame.overhead + frame.copies * room, device=input_ids.device)[None]
        table = torch.cat([input_ids, self.literals[None].expand(input_ids.shape[0], -1)], dim=1)
        empty = width + len(self.literals) - 1
        source = torch.zeros_like(place + tokens) + empty
        offsets: list[Tensor] = []
        copies, offset, literal = torch.zeros_like(source), torch.zeros_like(tokens), width
        for part in frame.parts:
            inner, size = place - offset, tokens if part is None else len(part)
            inside = (inner >= 0) & (inner < size)
            if part is None:
                source = torch.where(inside, torch.where(count > 0, start + inner, empty), source)
                copies = torch.where(inside, len(offsets) + 1, copies)
                offsets.append(offset)
            elif part:
                source = torch.where(inside, literal + inner, source)
                literal += len(part)
            offset = offset + size
        steps = torch.arange(room, device=input_ids.device)[None]
        return _Layout(table.gather(1, source), place, place < offset, copies, offsets, tokens, offset, steps)

    def _run(self, at: _Layout) -> tuple[Tensor, Tensor | None]:
        """Hidden states [B, T, d], and of ReBA the rows of A^new [B, R, T]; as RepeatTransformer runs them."""
        inputs: dict[str, Any] = {"input_ids": at.ids, "attention_mask": at.real.long()}
        if "position_ids" in self._takes:
            # Positions behind a text are masked, but must be some that the model knows.
            inputs["position_ids"] = torch.minimum(at.place, at.total - 1)
        if "use_cache" in self._takes:
            inputs["use_cache"] = False
        state = ForwardPass(self.first, {"attention_mask": at.real, "spans": []})
        state.masks = GraphMasks(self.first, state)
        parts, capture = self.first._parts(None), self.capture
        for part in parts:
            if part is not self.first:  # which would put its own masks in
                part.begin(state)
        if capture is not None:
            span = (at.offsets[0], at.tokens, at.total)
            state.capture = GraphCapture(capture, span, at.real, at.inner.shape[1])
        with running(state):
            hidden: Tensor = self.model(**inputs).last_hidden_state
        for part in reversed(parts):
            hidden = part.finish(state, hidden)
        hidden = torch.where(at.real[:, :, None], hidden, 0.0)
        if capture is None:
            return hidden, None
        capture.finish(state, hidden)
        rows: Tensor = state.features["backward_attention"]
        if capture.zeros:
            finite = (hidden.abs() <= torch.finfo(torch.float32).max).all(dim=2).all(dim=1)[:, None, None]
            hidden, rows = torch.where(finite, hidden, 0.0), torch.where(finite, rows, 0.0)
        return hidden, rows

    def _pooled(self, hidden: Tensor, at: _Layout) -> tuple[Tensor | None, Tensor]:
        """Token vectors e_i [B, n, d], where their mean is the sentence vector, and sentence vectors [B, d]."""
        pooled, last = self.first.pooled, at.copies == self.frame.copies
        where = {
            "all": at.real,
            "end": at.place == at.total - 1,
            "repeats": at.copies >= min(2, self.frame.copies),
            "last_copy_and_end": last | ((at.place >= at.total - self.after) & at.real),
        }.get(pooled, last)
        pooling: Pooling = self.pooling  # type: ignore[assignment]
        features = {"token_embeddings": hidden, "attention_mask": where.long()}
        sentence: Tensor = pooling(features)["sentence_embedding"]
        chosen = {"last_copy": at.offsets[-1:], "repeats": at.offsets[1:] or at.offsets}.get(pooled)
        if pooling.pooling_mode != "mean" or chosen is None:
            return None, sentence
        within = torch.minimum(at.inner, at.tokens - 1)
        return torch.stack([_at(hidden, offset + within) for offset in chosen]).mean(dim=0), sentence

    def _reba(self, hidden: Tensor, rows: Tensor, at: _Layout) -> tuple[Tensor | None, Tensor]:
        """Backward attention, by ReBAPooling itself. Returns as :meth:`_pooled` does."""
        features = {"backward_attention": rows, "captured": self.capture, "token_embeddings": hidden}
        features |= {"real_mask": at.real, "copy_ids": at.copies}
        pooling: Any = self.pooling
        if pooling.authors or pooling.pooling == "last":
            return None, pooling(features)["sentence_embedding"]
        each = pooling.token_vectors(features)
        # Behind a text's own rows there are zeros.
        return each, each.sum(dim=1) / at.tokens


class Affine(nn.Module):
    """A ``Dense`` as a product and a sum: runtimes' tools know these better than one operator for both."""

    def __init__(self, dense: Dense) -> None:
        super().__init__()
        self.register_buffer(DENSE_WEIGHT, dense.linear.weight.detach().T.contiguous(), persistent=False)
        self.bias, self.activation = dense.linear.bias, dense.activation_function

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Apply the layer to the sentence vector [B, d]."""
        product = torch.matmul(features["sentence_embedding"], self.get_buffer(DENSE_WEIGHT))
        return {"sentence_embedding": self.activation(product if self.bias is None else product + self.bias)}


def _at(values: Tensor, index: Tensor) -> Tensor:
    """[B, T, d] values at [B, n] positions of dimension 1."""
    return values.gather(1, index[:, :, None].expand(-1, -1, values.shape[2]))
