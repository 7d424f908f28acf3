"""ReBAPooling: e_i, the sum of the hidden states from token i on, weighted by its row of A^new."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor

from .capture import Capture
from .layout import Features, published
from .transformer import RepeatTransformer


@published
class ReBAPooling(Module):
    """Backward-attention pooling: e_i = Σ_t A^new[p_i, t] · v_t over the content positions t ≥ p_i.

    p_i is the position of token i in copy 1.

    Args:
        embedding_dimension: Dimension d of the hidden states v_t.
        pooling: ``"last"``: e_n, of the last token in copy 1; ``"mean"``: the mean of e_1 … e_n.
        include_special: Sum over template and special positions too.
        normalize_weights: Divide the weights of each e_i by their sum.

    Source:
        ReBA, section 3.3.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "reba", pooling="mean", normalize=False)
        >>> model.encode("你好，世界").shape
        (192,)
    """

    config_keys = ["embedding_dimension", "pooling", "include_special", "normalize_weights"]
    has_row_sums = False  # whether `row_sums` tells how much each token counts in a word

    def __init__(
        self,
        embedding_dimension: int,
        pooling: str = "last",
        include_special: bool = False,
        normalize_weights: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if pooling not in ("last", "mean"):
            raise ValueError(f"pooling={pooling!r} is not known. Choose from last, mean.")
        self.embedding_dimension = embedding_dimension
        self.pooling = pooling
        self.include_special = include_special
        self.normalize_weights = normalize_weights

    @property
    def capture(self) -> Capture:
        """The rows of A^new that the sentence vector needs."""
        return Capture(
            "last" if self.pooling == "last" else "copy", special_columns=self.include_special
        )

    @property
    def token_capture(self) -> Capture:
        """The rows of A^new that words and tokens need."""
        return Capture("copy", special_columns=self.include_special)

    def on_model_ready(self, model: Any) -> None:
        """Ask the first module for rows of A^new."""
        if not isinstance(model[0], RepeatTransformer):
            raise ValueError(
                f"ReBAPooling follows a st_reba.RepeatTransformer, not a {type(model[0]).__name__}."
            )
        model[0].requested_capture = self.capture

    def forward(self, features: Features, **kwargs: object) -> Features:
        """Pool what RepeatTransformer gives.

        Returns:
            ``features`` with ``sentence_embedding`` [B, d]. With ``mean``, ``token_embeddings`` [B,
            n, d] are the e_i, and ``attention_mask`` is theirs; otherwise they stay the hidden
            states, and ``st_reba.encode_tokens`` gives the e_i.
        """
        self._check(features)
        vectors = self.token_vectors(features)  # [B, R, d]
        if self.pooling == "last":
            return {**features, "sentence_embedding": vectors[:, 0]}
        text_lengths = torch.tensor([[span.text_length] for span in features["spans"]])
        text_lengths = text_lengths.to(vectors.device, non_blocking=True)
        is_token = torch.arange(vectors.shape[1], device=vectors.device) < text_lengths
        # After a text's own rows there are zeros.
        vector_sum = vectors.sum(dim=1, dtype=torch.promote_types(vectors.dtype, torch.float32))
        sentence_vectors = (vector_sum / text_lengths).to(vectors.dtype)
        token_features = {"token_embeddings": vectors, "attention_mask": is_token.long()}
        return {**features, **token_features, "sentence_embedding": sentence_vectors}

    def token_vectors(self, features: Features, normalize: bool = False) -> Tensor:
        """The e_i of the captured rows, [B, R, d]; ``normalize``: divide the weights of each by their sum."""
        return weighted_sums(self._weights(features, normalize), features)

    def _weights(self, features: Features, normalize: bool) -> Tensor:
        """The captured rows, [B, R, T]."""
        rows: Tensor = features["backward_attention"]
        return divide_by_sum(rows) if normalize or self.normalize_weights else rows

    def _check(self, features: Features) -> None:
        """Refuse rows that were not asked for, for example because two pipelines share a transformer."""
        if features.get("capture") != self.capture:
            raise ValueError(
                "The captured attention is not this pooling's. Give each pipeline a RepeatTransformer of its own."
            )

    def get_embedding_dimension(self) -> int:
        """Dimension d of the vectors."""
        return self.embedding_dimension

    def save(
        self, output_path: str, *args: object, safe_serialization: bool = True, **kwargs: object
    ) -> None:
        """Save the configuration; there are no weights."""
        self.save_config(output_path)


def divide_by_sum(weights: Tensor) -> Tensor:
    """Weights divided by their sum over the last dimension; rows of zeros stay zero."""
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def weighted_sums(weights: Tensor, features: Features) -> Tensor:
    """[B, R, T] weights and [B, T, d] hidden states → [B, R, d], summed in float32 at least."""
    hidden = features["token_embeddings"]
    precision = torch.promote_types(hidden.dtype, weights.dtype)
    return torch.bmm(weights.to(precision), hidden.to(precision)).to(hidden.dtype)
