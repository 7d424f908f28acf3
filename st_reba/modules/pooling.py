"""ReBAPooling: weighted sums of hidden states, by the attention that a token receives from what follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor

from .capture import Capture, show
from .lazy import TOKENS, LazyFeatures
from .options import Options, option
from .poolings import POOLINGS, rows_of
from .repeat import RepeatTransformer
from .vendoring import leave_code, published

MOST_DIMENSIONS = 1 << 20
_TOGETHER = (
    "put st_reba.RepeatTransformer there and hand both to SentenceTransformer(modules=[…]) together (a module appended "
    "to a ready model asks for nothing)."
)


@dataclass(frozen=True)
class _Settings(Options):
    embedding_dimension: int = option(1, "dimension d of the hidden states", least=1, most=MOST_DIMENSIONS)
    pooling: str = option("last", "sentence vector", choices=POOLINGS)
    variant: Literal["paper", "published"] = option("paper", "the paper's formulas, or the authors' code")
    include_special: bool = option(False, "sum over template and special positions too")
    normalize_weights: bool = option(False, "divide each token's weights by their sum")


@published
class ReBAPooling(Module):
    """Backward-attention pooling: e_i = Σ_t A^new[pos(1, i), t] · v_t over the content positions t from pos(1, i) on.

    The module in front, RepeatTransformer, hands over the hidden states v_t and the rows of A^new that are asked for.

    Args:
        embedding_dimension: Dimension d of the hidden states, at most 1,048,576.
        pooling: Sentence vector: ``"last"``: e_n; ``"mean"``: the mean of e_1 .. e_n; or another of ``POOLINGS``.
        variant: ``"paper"``: the formulas above. ``"published"``: what the authors' code computes: for ``last`` the
            row of the very last position over all positions; for ``mean`` the upper triangle of A^new, first half of
            the rows; for words their rows over all columns; weights divided by their sum; zeros for a text that is not
            finite.
        include_special: Sum over template and special positions too, not only over content (always so in
            ``"published"``).
        normalize_weights: Divide the weights of each e_i by their sum. Cosine does not see it for ``last``.

    Source:
        ReBA, section 3.3 (symmetrized maximum attention, backward attention, sentence and word vectors).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", pooling="mean", normalize=False)
        >>> model.encode("你好，世界").shape
        (192,)
    """

    config_keys = ["embedding_dimension", "pooling", "variant", "include_special", "normalize_weights"]

    def __init__(
        self,
        embedding_dimension: int,
        pooling: str = "last",
        variant: Literal["paper", "published"] = "paper",
        include_special: bool = False,
        normalize_weights: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        _Settings(embedding_dimension, pooling, variant, include_special, normalize_weights)
        self.embedding_dimension = embedding_dimension
        self.pooling = pooling
        self.variant = variant
        self.include_special = include_special
        self.normalize_weights = normalize_weights
        rows_of(pooling, variant)
        # In a tuple, so that torch does not take the neighbour for a submodule.
        self._source: tuple[RepeatTransformer, ...] = ()

    @property
    def capture(self) -> Capture:
        """The rows of A^new that the sentence vector needs."""
        rows = rows_of(self.pooling, self.variant)
        return Capture(rows, both=self.variant == "published" and rows == "end")

    @property
    def token_capture(self) -> Capture:
        """The rows of A^new that the token vectors e_i need."""
        return Capture("copy", both=self.variant == "published")

    @property
    def source(self) -> Any:
        """The module in front; an error where there is none, as the module was appended to a ready model."""
        if not self._source:
            raise ValueError(f"{type(self).__name__} knows no module in front: {_TOGETHER}")
        return self._source[0]

    def on_model_ready(self, model: Any) -> None:
        """Ask the module in front for the rows."""
        source = model[0]
        if not isinstance(source, RepeatTransformer):
            raise ValueError(
                f"{type(self).__name__} needs the attention of a repeated input, but the pipeline starts with "
                f"{type(source).__name__}. Put st_reba.RepeatTransformer in front."
            )
        show(source.model)
        source.watchers = [self.capture]
        source.zeros = self.variant == "published"
        self._source = (source,)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Pool.

        Args:
            features: ``token_embeddings`` [B, T, d], ``backward_attention`` [B, R, T], ``copy_ids``, ``real_mask``
                [B, T] and ``places``, from RepeatTransformer; not changed.
            **kwargs: Ignored.

        Returns:
            ``features`` with ``sentence_embedding`` [B, d]; ``token_embeddings`` is then [B, n, d], the e_i
            (computed on demand), and ``attention_mask`` [B, n] says which are real.

        Raises:
            ValueError: The module in front did not capture what is needed.
        """
        width = features[TOKENS].shape[-1]
        if width != self.embedding_dimension:
            raise ValueError(
                f"embedding_dimension={self.embedding_dimension}, but the hidden states have {width} dimensions. Give "
                f"{type(self).__name__} the latter."
            )
        pooled = LazyFeatures(features, lambda: self.token_vectors(features), listed=True)
        del pooled[TOKENS]
        pooled["sentence_embedding"] = self.sentence(features)
        tokens, counts = token_counts(features)
        pooled["attention_mask"] = (tokens < counts).long()
        return pooled

    def sentence(self, features: dict[str, Any]) -> Tensor:
        """The sentence vectors [B, d], of what :meth:`forward` takes."""
        if "backward_attention" not in features:
            raise ValueError(f"ReBAPooling found no 'backward_attention': {_TOGETHER}")
        if features["captured"] != self.capture:
            raise ValueError(
                f"ReBAPooling needs {self.capture}, but RepeatTransformer captured {features['captured']}: it serves "
                "another model too, or a setting was changed since. Build the model anew, with modules of its own."
            )
        rows: Tensor = features["backward_attention"]
        if self.variant == "published":
            weights = normalized(rows.sum(dim=1) * self._summed(features))
        else:
            # Weights are restricted rather than rows, of which that would make a second matrix.
            rows = self._rows(features, True) if self.normalize_weights else rows
            weights = POOLINGS[self.pooling].weights(rows, token_counts(features)[1]) * self._summed(features)
        return weighted_sum(weights[:, None], features[TOKENS]).squeeze(1)

    def span_embeddings(self, features: dict[str, Any], spans: Tensor, *, normalize: bool = False) -> Tensor:
        """Vectors of words or spans.

        Args:
            features: What RepeatTransformer gave with ``watch=[self.token_capture]``.
            spans: [B, n] bool: the content tokens of each row's span.
            normalize: Divide each sum of weights to 1 (always so in ``"published"``).

        Returns:
            [B, d]: the mean of the span's e_i, or in ``"published"`` the sum of their rows of A^new, divided to 1.

        Source:
            ReBA, section 3.3 (word embedding).
        """
        spans = spans.to(features["copy_ids"].device)
        weights = self._rows(features, normalize or self.normalize_weights)
        rows = weights[:, : spans.shape[1]] * spans[:, :, None]
        if self.variant == "published":
            combined = normalized(rows.sum(dim=1))
        else:
            combined = rows.sum(dim=1) / spans.sum(dim=1, keepdim=True)
        return weighted_sum(combined[:, None], features[TOKENS]).squeeze(1)

    def token_vectors(self, features: dict[str, Any]) -> Tensor:
        """The e_i, [B, n, d]; one more forward pass where the sentence vector needed fewer rows."""
        if features.get("captured") != self.token_capture:
            given = {**features, "attention_mask": features["real_mask"]}
            features = self.source(given, watch=[self.token_capture])
        weights = self._rows(features, self.normalize_weights)
        if self.variant == "published":
            weights = normalized(weights)
        return weighted_sum(weights, features[TOKENS])

    def get_embedding_dimension(self) -> int:
        return self.embedding_dimension

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the configuration and the code; there are no weights."""
        self.save_config(output_path)
        hooked = bool(self._source) and self.source.backbone.attention == "eager"
        leave_code(output_path, type(self), files=["eager"] if hooked else [])

    def _summed(self, features: dict[str, Any]) -> Tensor:
        """The positions that are summed over, [B, T] bool."""
        everywhere = self.include_special or self.variant == "published"
        summed: Tensor = features["real_mask"].bool() if everywhere else features["copy_ids"] > 0
        return summed

    def _rows(self, features: dict[str, Any], normalize: bool) -> Tensor:
        """The captured rows of A^new, [B, R, T], restricted to the positions that are summed over."""
        rows: Tensor = features["backward_attention"] * self._summed(features)[:, None]
        return normalized(rows) if normalize and self.variant == "paper" else rows


def column(numbers: list[int], device: torch.device) -> Tensor:
    """Numbers of the host as a tensor [B, 1] on a device, without waiting for it."""
    return torch.tensor(numbers, dtype=torch.long)[:, None].to(device, non_blocking=True)


def token_counts(features: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The numbers [n] of a text's tokens from 0 on, n the most that a text has, and how many each has, [B, 1]."""
    counts, device = [count for _, count, _ in features["places"]], features["copy_ids"].device
    return torch.arange(max(counts), device=device), column(counts, device)


def normalized(weights: Tensor) -> Tensor:
    """Weights divided by their sum over the last dimension; all-zero rows stay zero."""
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def weighted_sum(weights: Tensor, hidden: Tensor) -> Tensor:
    """[B, R, T] weights and [B, T, d] hidden states → [B, R, d], summed in float32 at least."""
    precision = torch.promote_types(hidden.dtype, weights.dtype)
    return torch.bmm(weights.to(precision), hidden.to(precision)).to(hidden.dtype)
