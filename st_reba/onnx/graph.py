"""The module that is traced: tokens of a stock tokenizer → vectors that stock pooling averages."""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..encode import Role, saved_prompt, transformer_of
from ..graph_rules import GraphTask, problems_of_graph
from ..modules.layout import (
    empty_text_token,
    pooled_positions,
    special_tokens,
)
from ..modules.nosink import LayerMasks
from ..modules.passes import ForwardPass, running
from ..modules.placement import PlacedRows, literal_ids, place_rows
from ..modules.shift import QueryShift
from ..modules.token_part import TokenPart
from ..modules.transformer import RepeatTransformer
from .attention import GraphCapture, GraphMasks

# The first part of the names of weights after the pooling: those of a filter.
FILTER_PREFIX = "filter_modules."


class EmbeddingGraph(nn.Module):
    """Takes the tokenizer's special tokens off, places the copies, runs the model and pools.

    Texts may be padded on either side. The sentence vector stands at every position of the output,
    so that stock pooling, whatever its kind, gives it.

    Args:
        model: A model that st_reba built; while it is traced, its base calls
            :func:`~st_reba.onnx.attention.attend`.
        task: Whose template and prompt are placed, ``"similarity"`` for those of ``encode``; None:
            all are the same.

    Raises:
        ValueError: The model holds something that no graph can.
    """

    transformer: RepeatTransformer
    literals: Tensor

    def __init__(self, model: SentenceTransformer, task: GraphTask = None) -> None:
        super().__init__()
        _check_model(model, task)
        transformer, self.pooling, *modules_behind = model
        assert isinstance(transformer, RepeatTransformer)
        self.__dict__["transformer"] = transformer  # not a submodule, as its model is one already
        self.requested_task = task
        self.task: Role | None = None if task == "similarity" else task
        self.prompt = saved_prompt(model, self.task)
        self.layout = transformer.row_layouts(self.prompt, self.task)[0]
        # The rows of A^new that a pooling by backward attention needs.
        self.capture = getattr(self.pooling, "capture", None)
        prefix, suffix = special_tokens(transformer.text_tokenizer)
        self.prefix_length = len(prefix)
        self.special_suffix_length = len(suffix)
        self.special_token_count = len(prefix) + len(suffix)
        self.budget = transformer.budget(self.prompt, self.task)
        self.max_length: int | None = None
        if self.budget is not None:
            self.max_length = self.budget + self.special_token_count
        self.empty_text_id: int | None = None
        with suppress(ValueError):
            self.empty_text_id = empty_text_token(transformer.text_tokenizer)
        self.dimension = model.get_embedding_dimension()
        self.model = transformer.model
        if self.task != "query":
            modules_behind = [
                module for module in modules_behind if not isinstance(module, QueryShift)
            ]
        self.filter_modules = nn.ModuleList(modules_behind)
        self._model_arguments = set(signature(self.model.forward).parameters)
        literals = torch.tensor(literal_ids(self.layout, self.empty_text_id or 0))
        self.register_buffer("literals", literals, persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embed.

        Args:
            input_ids: [B, L] int64, as the tokenizer gives them.
            attention_mask: [B, L] int64, 1 at real tokens, which are one run in each row.

        Returns:
            ``last_hidden_state`` [B, L, d].
        """
        attention_mask = attention_mask.long()
        token_counts = attention_mask.sum(dim=1, keepdim=True)
        is_left_padding = attention_mask.cumsum(dim=1) == 0
        padding_lengths = is_left_padding.long().sum(dim=1, keepdim=True)
        max_text_length = torch.sym_max(  # type: ignore[no-untyped-call]
            input_ids.shape[1] - self.special_token_count, 1
        )
        text_starts = padding_lengths + self.prefix_length
        text_lengths = token_counts - self.special_token_count
        rows = place_rows(
            self.layout,
            self.literals,
            input_ids,
            text_starts=text_starts,
            text_lengths=text_lengths,
            max_text_length=max_text_length,
        )
        hidden_states, attention_rows = self._run(rows)
        if attention_rows is None:
            sentence_vectors = self._pool(hidden_states, rows)
        else:
            sentence_vectors = self._pool_by_attention(hidden_states, attention_rows, rows)
        for module in self.filter_modules:
            if isinstance(module, TokenPart):
                means = self._mean_embeddings(
                    input_ids, text_starts, text_lengths, module.get_buffer("token_weights")
                )
                sentence_vectors = module.join(sentence_vectors, means, self.task)
                continue
            options = {"task": self.task} if isinstance(module, QueryShift) else {}
            features = module({"sentence_embedding": sentence_vectors}, **options)
            sentence_vectors = features["sentence_embedding"]
        zeros = torch.zeros_like(input_ids, dtype=sentence_vectors.dtype)
        return sentence_vectors[:, None] + zeros[:, :, None]

    def _mean_embeddings(
        self,
        input_ids: Tensor,
        text_starts: Tensor,
        text_lengths: Tensor,
        token_weights: Tensor,
    ) -> Tensor:
        """TokenPart's `mean_embeddings` of the texts' own tokens, [B, e], as a graph can do it.

        Every token has a row here, not only the distinct ones, which a graph cannot count.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        is_text = (positions >= text_starts) & (positions < text_starts + text_lengths)
        embeddings = self.model.get_input_embeddings()(input_ids)
        weights = token_weights[input_ids] * is_text
        weighted_sums = weights[:, None] @ normalize(embeddings, dim=-1)
        return normalize(weighted_sums[:, 0], dim=-1)

    def _run(self, rows: PlacedRows) -> tuple[Tensor, Tensor | None]:
        """Like RepeatTransformer: hidden states [B, T, d]; for ReBA, rows of A^new [B, R, T]."""
        model_inputs: dict[str, object] = {
            "input_ids": rows.token_ids,
            "attention_mask": rows.real_tokens.long(),
        }
        if "position_ids" in self._model_arguments:
            # Positions after a text are masked, but must be ones that the model knows.
            model_inputs["position_ids"] = torch.minimum(rows.positions, rows.row_lengths - 1)
        if "use_cache" in self._model_arguments:
            model_inputs["use_cache"] = False
        features = {
            "attention_mask": rows.real_tokens,
            "copy_ids": rows.copy_ids,
            "spans": [],
        }
        state: Any = ForwardPass(self.model, features)
        GraphMasks(self.transformer).before_layers(state)
        hooks = [
            hook for hook in self.transformer.pass_hooks(None) if not isinstance(hook, LayerMasks)
        ]
        for hook in hooks:
            hook.before_layers(state)
        if self.capture is not None:
            state.observer = GraphCapture(self.capture, rows)
            state.hook_data[self.capture] = state.observer
        with running(state):
            hidden_states: Tensor = self.model(**model_inputs).last_hidden_state
        for hook in reversed(hooks):
            hidden_states = hook.after_layers(state, hidden_states)
        hidden_states = torch.where(rows.real_tokens[:, :, None], hidden_states, 0.0)
        if self.capture is None:
            return hidden_states, None
        self.capture.after_layers(state, hidden_states)
        return hidden_states, state.pooling_features["backward_attention"]

    def _pool(self, hidden_states: Tensor, rows: PlacedRows) -> Tensor:
        is_pooled = pooled_positions(
            self.transformer.pooled,
            self.layout.copies,
            rows.copy_ids,
            rows.real_tokens,
            rows.row_lengths,
            self.special_suffix_length,
        )
        features = {
            "token_embeddings": hidden_states,
            "attention_mask": is_pooled.long(),
        }
        sentence_vectors: Tensor = self.pooling(features)["sentence_embedding"]
        return sentence_vectors

    def _pool_by_attention(
        self, hidden_states: Tensor, attention_rows: Tensor, rows: PlacedRows
    ) -> Tensor:
        features = {
            "backward_attention": attention_rows,
            "capture": self.capture,
            "token_embeddings": hidden_states,
        }
        pooling: Any = self.pooling
        if pooling.has_row_sums or pooling.pooling == "last":
            sentence_vectors: Tensor = pooling(features)["sentence_embedding"]
            return sentence_vectors
        # After a text's own rows there are zeros.
        token_vectors: Tensor = pooling.token_vectors(features)
        return token_vectors.sum(dim=1) / rows.text_lengths


def _check_model(model: SentenceTransformer, task: GraphTask) -> None:
    for problem in problems_of_graph(model, task):
        raise ValueError(problem)
    base = transformer_of(model).model
    if base.dtype != torch.float32:
        name = type(base).__name__
        raise ValueError(
            f"{name} cannot be exported, as it is loaded as {base.dtype}, and a graph is float32. "
            "Give dtype='float32'."
        )
