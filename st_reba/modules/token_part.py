"""TokenPart: the tokens of a text beside its vector, in dimensions of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize
from transformers import PreTrainedModel

from .extensions import extensions
from .fitted import FittedModule
from .layout import Features, check_token_ids, published


def pad_content(contents: Sequence[Sequence[int]], model: PreTrainedModel) -> Tensor:
    """Tokens of texts, [B, C] int64, with −1 after those of a text; an error for one without an embedding."""
    longest = max(map(len, contents), default=0)
    rows = [[*token_ids, *[-1] * (longest - len(token_ids))] for token_ids in contents]
    content_ids = torch.tensor(rows, dtype=torch.long).reshape(len(contents), longest)
    check_token_ids(content_ids, model)
    return content_ids


def mean_embeddings(
    embeddings: nn.Module,
    token_ids: Tensor,
    token_counts: Tensor,
    token_weights: Tensor,
) -> Tensor:
    """Weighted means of unit embeddings, scaled to length one.

    Args:
        embeddings: Gives the embeddings [n, e] of tokens [n].
        token_ids: The tokens of all texts, one text after another, [n].
        token_counts: How many tokens each text has, [B].
        token_weights: Of each token of the vocabulary, [V] float32.

    Returns:
        [B, e] float32; zero for a text without a token.
    """
    distinct_tokens, rows = torch.unique(token_ids, return_inverse=True)
    unit_embeddings = normalize(embeddings(distinct_tokens).float(), dim=-1)
    weighted_sums = embedding_bag(
        rows,
        unit_embeddings,
        token_counts.cumsum(0) - token_counts,
        mode="sum",
        per_sample_weights=token_weights[token_ids],
    )
    return normalize(weighted_sums, dim=-1)


def append_tokens(vectors: Tensor, token_vectors: Tensor, share: float) -> Tensor:
    """Vectors [B, d] with those of tokens [B, k], as [B, d + k] of length one; ``share``: see :class:`TokenPart`."""
    unit_vectors = normalize(vectors.float(), dim=-1)
    unit_tokens = normalize(token_vectors, dim=-1).float()
    joined_vectors = torch.cat([unit_vectors, unit_tokens * math.sqrt(share)], dim=-1)
    return (joined_vectors / math.sqrt(1 + share)).to(vectors.dtype)


@published
class TokenPart(FittedModule):
    r"""Appends a vector of a text's tokens: the mean of their embeddings, rare ones counting more.

    A vector s becomes (s / \|s\|, √c · t) / √(1 + c), so cosines are means of those of s and t,
    weighted 1 to c. t is W (m − mean of such m), scaled to length one, and m the mean of the
    unit embeddings of all the text's tokens, also of those beyond what the model reads, each
    times its weight, scaled to length one.

    Args:
        in_features: Dimension d of the vectors s.
        vocabulary_size: Number V of tokens.
        embedding_width: Dimension e of the embeddings.
        dimensions: Dimension k of t.
        share: c.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> texts = [f"{name} sells {number} books." for name in ("Ann", "王芳", "Tom", "Li") for number in range(27)]
        >>> search_model = st_reba.fit_filter(model, texts, "whiten", power=0.25, queries=True, tokens=True)
        >>> search_model[-1].get_embedding_dimension()
        384
    """

    config_keys = ["in_features", "vocabulary_size", "embedding_width", "dimensions", "share"]
    forward_kwargs = {"task"}
    # So that the first module hands on the tokens of texts as ``content_ids``.
    reads_content = True

    def __init__(
        self,
        in_features: int,
        vocabulary_size: int,
        embedding_width: int,
        dimensions: int,
        share: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not 0 < share <= 1:
            raise ValueError(f"share={share!r} must be a number above 0, and at most 1.")
        self.in_features = in_features
        self.vocabulary_size = vocabulary_size
        self.embedding_width = embedding_width
        self.dimensions = dimensions
        self.share = share
        # Buffers and no parameters: what was measured is not trained.
        self.register_buffer("token_weights", torch.zeros(vocabulary_size))
        self.register_buffer("document_mean", torch.zeros(embedding_width))
        self.register_buffer("query_mean", torch.zeros(embedding_width))
        self.register_buffer("weight", torch.zeros(dimensions, embedding_width))
        # In a list, so that its weights are not those of this module too.
        self._first_module: list[Any] = []

    def on_model_ready(self, model: Any) -> None:
        """Find the embeddings of the model's tokens; an error where they are not those of the fit."""
        transformer = model[0]
        if not hasattr(transformer, "tokenize_content") or transformer.own_input:
            raise ValueError(
                f"TokenPart: {type(transformer).__name__} hands on no tokens of a text. Remove it."
            )
        self._first_module = [transformer]
        token_count = len(transformer.text_tokenizer)
        width = self._embeddings()(torch.zeros(1, dtype=torch.long, device=model.device)).shape[-1]
        if token_count > self.vocabulary_size or width != self.embedding_width:
            raise ValueError(
                f"TokenPart was fitted for {self.vocabulary_size} tokens of {self.embedding_width} dimensions, and the "
                f"model has {token_count} of {width}. Fit the filter again."
            )

    def _embeddings(self) -> nn.Module:
        embeddings: nn.Module = self._first_module[0].model.get_input_embeddings()
        return embeddings

    def forward(self, features: Features, task: str | None = None, **kwargs: object) -> Features:
        """Append the vectors of tokens.

        Args:
            features: ``sentence_embedding`` [B, d]; ``content_ids`` [B, C] int64, the tokens of
                each text, −1 after them. Not changed.
            task: ``"query"``, as ``encode_query`` says: the mean of queries is taken away; else
                that of documents.
            **kwargs: Ignored.

        Returns:
            The features, with ``sentence_embedding`` [B, d + k], of length one.
        """
        if not self._first_module or "content_ids" not in features:
            raise ValueError(
                "TokenPart: no tokens of the texts are there. Save the model and load it again."
            )
        means = self._mean_embeddings(features["content_ids"])
        joined_vectors = self.join(features["sentence_embedding"], means, task)
        return {**features, "sentence_embedding": joined_vectors}

    @torch.no_grad()
    def _mean_embeddings(self, content_ids: Tensor) -> Tensor:
        """Means [B, e] of the tokens of texts, of length one."""
        is_token = content_ids >= 0
        return mean_embeddings(
            self._embeddings(),
            content_ids[is_token],
            is_token.sum(dim=1),
            self.get_buffer("token_weights").float(),
        )

    def join(self, vectors: Tensor, means: Tensor, task: str | None) -> Tensor:
        """Vectors [B, d] with those of mean embeddings [B, e], as [B, d + k] of length one."""
        mean_name = "query_mean" if task == "query" else "document_mean"
        centered_means = means - self.get_buffer(mean_name).float()
        token_vectors = centered_means @ self.get_buffer("weight").float().T
        return append_tokens(vectors, token_vectors, self.share)

    def get_embedding_dimension(self) -> int:
        """Dimension d + k of the vectors."""
        return self.in_features + self.dimensions


extensions.pad_content = pad_content
