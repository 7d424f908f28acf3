"""The module that is traced: tokens as the stock tokenizer gives them → vectors that stock pooling averages."""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import Any, Literal, NamedTuple, get_args

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from torch import Tensor, nn

from ..encode import Task, saved_prompt
from ..modules import QueryShift, RepeatTransformer
from ..modules.layout import decoder_of, empty_text_token, pooled_positions, reverses_text, special_tokens
from ..modules.nosink import LayerMasks
from ..modules.passes import ForwardPass, running
from ..poolings import is_exportable
from .attention import GraphCapture, GraphMasks

# How the graph's weights behind the pooling are named: those of a filter.
BEHIND = "behind."


class _Layout(NamedTuple):
    ids: Tensor  # [B, T]
    place: Tensor  # [1, T]: 0, 1, …
    real: Tensor  # [B, T] bool
    copies: Tensor  # [B, T]: c in copy c, 0 elsewhere
    first: Tensor  # first position of copy 1, [B, 1]
    tokens: Tensor  # of a copy, [B, 1]
    total: Tensor  # real positions, [B, 1]
    longest: int  # tokens of a copy of the longest text


class EmbeddingGraph(nn.Module):
    """Takes the tokenizer's special tokens off, places the copies, runs the model and pools.

    Texts may be padded on either side. The sentence vector stands at every position of the output, so that stock
    pooling, whatever its kind, gives it.

    Args:
        model: A model that st_reba built; its base calls :func:`~st_reba.onnx.attention.attend` while it is traced.
        task: Whose template and prompt are placed, ``"similarity"`` for those of ``encode``; None: all are the same.

    Raises:
        ValueError: The model holds something that no graph can.
    """

    first: Any
    literals: Tensor

    def __init__(self, model: SentenceTransformer, task: Task | Literal["similarity"] | None = None) -> None:
        super().__init__()
        _check(model, task)
        self.requested_task = task
        if task == "similarity":
            task = None  # as encode names it
        first: Any = model[0]
        _, self.pooling, *rest = model
        self.__dict__["first"] = first  # not one more submodule
        self.capture = getattr(self.pooling, "capture", None)  # of ReBA the rows of A^new that are needed
        self.task, self.prompt = task, saved_prompt(model, task)
        self.layout = first.row_layouts(self.prompt, task)[0]
        before, after = special_tokens(model.tokenizer)
        # Special tokens that the tokenizer puts around a text, and tokens that it may hand over.
        self.before, self.after = len(before), len(after)
        self.budget: int | None = first.budget(self.prompt, task)
        self.max_length = None if self.budget is None else self.budget + self.before + self.after
        self.empty: int | None = None  # the token of a text without one
        with suppress(ValueError):
            self.empty = empty_text_token(model.tokenizer)
        self.dimension: Any = model.get_embedding_dimension()
        self.model: Any = first.model
        if task != "query":
            rest = [module for module in rest if not isinstance(module, QueryShift)]
        self.behind = nn.ModuleList(rest)
        self._takes = set(signature(self.model.forward).parameters)
        literals = [token for segment in self.layout.segments for token in segment or ()]
        self.register_buffer("literals", torch.tensor([*literals, self.empty or 0]), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed.

        Args:
            input_ids: [B, L] int64, as the tokenizer gives them.
            attention_mask: [B, L] int64, 1 at real tokens, which are one run in each row.

        Returns:
            ``last_hidden_state`` [B, L, d].
        """
        given = attention_mask.long()
        count = given.sum(dim=1, keepdim=True) - self.before - self.after
        start = (given.cumsum(dim=1) == 0).long().sum(dim=1, keepdim=True) + self.before
        at = self._placed(input_ids, start, count)
        hidden, rows = self._run(at)
        sentence = self._pooled(hidden, at) if rows is None else self._reba(hidden, rows, at)
        for module in self.behind:
            options = {"task": self.task} if isinstance(module, QueryShift) else {}
            sentence = module({"sentence_embedding": sentence}, **options)["sentence_embedding"]
        return sentence[:, None] + torch.zeros_like(input_ids, dtype=sentence.dtype)[:, :, None]

    def _placed(self, input_ids: Tensor, start: Tensor, count: Tensor) -> _Layout:
        """Lay out texts whose ``count`` content tokens begin in column ``start``, both [B, 1]."""
        layout, width = self.layout, input_ids.shape[1]
        tokens = count.clamp(min=1)  # a text without any token is one token long
        room: int = torch.sym_max(width - self.before - self.after, 1)  # type: ignore[no-untyped-call]
        place = torch.arange(layout.row_length(room), device=input_ids.device)[None]
        table = torch.cat([input_ids, self.literals[None].expand(input_ids.shape[0], -1)], dim=1)
        empty = width + len(self.literals) - 1
        source = torch.zeros_like(place + tokens) + empty
        copy_ids = torch.zeros_like(source)
        starts: list[Tensor] = []  # of the copies
        literal = width
        for segment, segment_start in layout.segment_starts(tokens):
            inner = place - segment_start
            size = tokens if segment is None else len(segment)
            inside = (inner >= 0) & (inner < size)
            if segment is None:
                source = torch.where(inside, torch.where(count > 0, start + inner, empty), source)
                copy_ids = torch.where(inside, len(starts) + 1, copy_ids)
                starts.append(segment_start)
            elif segment:
                source = torch.where(inside, literal + inner, source)
                literal += len(segment)
        total = layout.row_length(tokens)
        return _Layout(table.gather(1, source), place, place < total, copy_ids, starts[0], tokens, total, room)

    def _run(self, at: _Layout) -> tuple[Tensor, Tensor | None]:
        """Hidden states [B, T, d], and of ReBA the rows of A^new [B, R, T]; as RepeatTransformer runs them."""
        inputs: dict[str, Any] = {"input_ids": at.ids, "attention_mask": at.real.long()}
        if "position_ids" in self._takes:
            # Positions behind a text are masked, but must be some that the model knows.
            inputs["position_ids"] = torch.minimum(at.place, at.total - 1)
        if "use_cache" in self._takes:
            inputs["use_cache"] = False
        state = ForwardPass(self.model, {"attention_mask": at.real, "copy_ids": at.copies, "spans": []})
        GraphMasks(self.first).before_layers(state)
        capture = self.capture
        hooks = [hook for hook in self.first.pass_hooks(None) if not isinstance(hook, LayerMasks)]
        for hook in hooks:
            hook.before_layers(state)
        if capture is not None:
            summed = at.real if capture.special_columns else at.copies > 0
            state.hook_data[capture] = state.attention_reader = GraphCapture(
                capture, (at.first, at.tokens, at.total), summed, at.longest
            )
        with running(state):
            hidden: Tensor = self.model(**inputs).last_hidden_state
        for hook in reversed(hooks):
            hidden = hook.after_layers(state, hidden)
        hidden = torch.where(at.real[:, :, None], hidden, 0.0)
        if capture is None:
            return hidden, None
        capture.after_layers(state, hidden)
        return hidden, state.pooling_features["backward_attention"]

    def _pooled(self, hidden: Tensor, at: _Layout) -> Tensor:
        where = pooled_positions(self.first.pooled, self.layout.copies, at.copies, at.real, at.total, self.after)
        pooled = self.pooling({"token_embeddings": hidden, "attention_mask": where.long()})
        return pooled["sentence_embedding"]  # type: ignore[no-any-return]

    def _reba(self, hidden: Tensor, rows: Tensor, at: _Layout) -> Tensor:
        features = {"backward_attention": rows, "captured": self.capture, "token_embeddings": hidden}
        pooling: Any = self.pooling
        if pooling.authors or pooling.pooling == "last":
            return pooling(features)["sentence_embedding"]  # type: ignore[no-any-return]
        # Behind a text's own rows there are zeros.
        return pooling.token_vectors(features).sum(dim=1) / at.tokens  # type: ignore[no-any-return]


def _check(model: SentenceTransformer, task: str | None = None) -> None:
    first: Any = model[0]
    if not isinstance(first, RepeatTransformer) or getattr(first, "own_input", False):
        raise ValueError(f"{type(first).__name__} keeps the base's own input: no graph. Build with pooling=….")
    pooling = model[1] if len(model) > 1 else None
    if pooling is None or not is_exportable(pooling):
        raise ValueError(f"{pooling} cannot be exported. Build without chunk, with pooling last, mean or cls.")
    base, tasks = first.model, (None, *get_args(Task))
    rope = str(getattr(first.config.get_text_config(), "rope_parameters", None))
    reasons = {
        "runs several templates for a text, and a graph holds one. Give one template": first.rows > 1,
        "reverses a text's words before they are tokenized, which no graph can. Give a template with {text}": any(
            map(reverses_text, first.templates[0].values())
        ),
        "has towers beside its decoder, and a graph holds text only. Save its text decoder alone, and use that": (
            decoder_of(base) is not base
        ),
        "has rotary embeddings that depend on the sequence's length, which a graph fixes": (
            "dynamic" in rope or "longrope" in rope
        ),
        f"is loaded as {base.dtype} or quantized, and a graph is float32. Give dtype='float32'": (
            base.dtype != torch.float32 or getattr(base, "hf_quantizer", None) is not None
        ),
        f"cuts its vectors (truncate_dim={model.truncate_dim}). Set it to None, and cut what the graph gives": (
            model.truncate_dim is not None
        ),
        "treats a query otherwise than a document or than what encode takes, and a graph holds one of these. Give "
        "task='query', 'document' or 'similarity' (--task), into a folder each": (
            task is None
            and (
                len({first.row_layouts(saved_prompt(model, each), each)[0] for each in tasks}) > 1
                or any(isinstance(module, QueryShift) for module in model)
            )
        ),
    }
    for reason, found in reasons.items():
        if found:
            raise ValueError(f"{type(base).__name__} cannot be exported, as it {reason}.")
    for each in list(model)[2:]:
        names = {getattr(each, f"module_{way}_name", None) for way in ("input", "output")}
        plain = names == {"sentence_embedding"} and not vars(each).get("use_residual")
        if isinstance(each, QueryShift):
            continue
        if not isinstance(each, (Normalize, Dense)) or not plain:
            raise ValueError(
                f"{type(each).__name__} behind the pooling cannot be exported: only QueryShift, Normalize, and Dense "
                "without use_residual, from 'sentence_embedding' to 'sentence_embedding'."
            )
