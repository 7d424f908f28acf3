"""ReBAPooling: weighted sums of hidden states, by the attention that a token receives from what follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor

from .capture import CaptureSpec
from .limits import MOST_DIMENSIONS, check_whole, shown
from .transformer import DecoderTransformer

PoolingMode = Literal["last", "mean"]
Variant = Literal["paper", "published"]


class LazyFeatures(dict[str, Any]):
    """A feature dictionary that computes ``token_embeddings`` when it is first asked for.

    A sentence vector needs one row of A^new (or the sum of n), the token vectors e_i need all n; whoever wants only
    sentences shall not pay for them.

    Args:
        features: All other features.
        token_embeddings: Computes them; None in copies that others make of such a dictionary, as accelerate does of
            what a model gives in mixed precision: these hold what had been computed.
    """

    def __init__(self, features: Any = (), token_embeddings: Callable[[], Tensor] | None = None) -> None:
        super().__init__(features)
        self._token_embeddings = token_embeddings

    def __missing__(self, key: str) -> Any:
        if key != "token_embeddings" or self._token_embeddings is None:
            raise KeyError(key)
        self[key] = self._token_embeddings()
        return self[key]


class ReBAPooling(Module):
    """Backward-attention pooling: e_i = Σ_t A^new[pos(1, i), t] · v_t over the content positions t from pos(1, i) on.

    The module in front, RepeatTransformer, hands over the hidden states v_t and the rows of A^new that
    this module asks for.

    Args:
        embedding_dimension: Dimension d of the hidden states, at most 1,048,576.
        pooling: Sentence vector: ``"last"``: e_n; ``"mean"``: the mean of e_1 .. e_n.
        variant: ``"paper"``: the formulas above. ``"published"``: what the authors' code computes: for ``last`` the
            row of the very last position over all positions; for ``mean`` the upper triangle of A^new, first half of
            the rows; for words their rows over all columns; weights divided by their sum.
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
        pooling: PoolingMode = "last",
        variant: Variant = "paper",
        include_special: bool = False,
        normalize_weights: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        check_whole("embedding_dimension", embedding_dimension, MOST_DIMENSIONS)
        for name, value, allowed in (
            ("pooling", pooling, get_args(PoolingMode)),
            ("variant", variant, get_args(Variant)),
            ("include_special", include_special, (True, False)),
            ("normalize_weights", normalize_weights, (True, False)),
        ):
            if value not in allowed or (isinstance(value, int) and not isinstance(value, bool)):
                raise ValueError(f"{name}={shown(value)} is not known: choose one of {list(allowed)}.")
        self.embedding_dimension = embedding_dimension
        self.pooling: PoolingMode = pooling
        self.variant: Variant = variant
        self.include_special = include_special
        self.normalize_weights = normalize_weights
        # In a tuple, so that torch does not take the neighbour for a submodule.
        self._source: tuple[DecoderTransformer, ...] = ()

    @property
    def capture(self) -> CaptureSpec:
        """The rows of A^new that the sentence vector needs."""
        if self.variant == "published":
            return CaptureSpec("end", both=True) if self.pooling == "last" else CaptureSpec("half")
        return CaptureSpec("last" if self.pooling == "last" else "copy")

    @property
    def token_capture(self) -> CaptureSpec:
        """The rows of A^new that the token vectors e_i need."""
        return CaptureSpec("copy", both=self.variant == "published")

    def on_model_ready(self, model: Any) -> None:
        """Ask the module in front for the capture."""
        source = model[0]
        if not isinstance(source, DecoderTransformer):
            raise ValueError(
                f"ReBAPooling needs the attention of a repeated input, but the pipeline starts with "
                f"{type(source).__name__}. Put st_reba.RepeatTransformer in front."
            )
        source.capture = self.capture
        self._source = (source,)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Pool.

        Args:
            features: ``token_embeddings`` [B, T, d], ``backward_attention`` [B, R, T], ``copy_ids`` and
                ``real_mask`` [B, T], from RepeatTransformer; not changed.
            **kwargs: Ignored.

        Returns:
            ``features`` with ``sentence_embedding`` [B, d]; ``token_embeddings`` is then [B, n, d], the e_i
            (computed on demand), and ``attention_mask`` [B, n] says which are real.

        Raises:
            ValueError: The module in front did not capture.
        """
        if "backward_attention" not in features:
            raise ValueError(
                "ReBAPooling found no 'backward_attention': put st_reba.RepeatTransformer in front and hand both to "
                "SentenceTransformer(modules=[…]) together (a module appended to a ready model asks for nothing)."
            )
        if features["captured"] != self.capture:
            raise ValueError(
                f"ReBAPooling needs {self.capture}, but RepeatTransformer captured {features['captured']}: it serves "
                "another model too, or a setting was changed since. Build the model anew, with modules of its own."
            )
        count = (features["copy_ids"] == 1).sum(dim=1)
        if self.normalize_weights and self.variant == "paper":
            sentence_weights = self._weights(features).sum(dim=1)
        else:
            # Summed first: no second matrix [B, n, T].
            sentence_weights = features["backward_attention"].sum(dim=1) * self._summed(features)
        if self.pooling == "mean" and self.variant == "paper":
            sentence_weights = sentence_weights / count[:, None]
        if self.variant == "published":
            sentence_weights = normalized(sentence_weights)
        hidden = features["token_embeddings"]
        if hidden.shape[-1] != self.embedding_dimension:
            raise ValueError(
                f"embedding_dimension={self.embedding_dimension}, but the hidden states have {hidden.shape[-1]} "
                "dimensions. Give ReBAPooling the latter."
            )
        pooled = LazyFeatures(
            {name: value for name, value in features.items() if name != "token_embeddings"},
            lambda: self._token_embeddings(features),
        )
        pooled["sentence_embedding"] = weighted_sum(sentence_weights[:, None], hidden).squeeze(1)
        pooled["attention_mask"] = (torch.arange(int(count.max()), device=count.device) < count[:, None]).long()
        return pooled

    def span_embeddings(self, features: dict[str, Any], spans: Tensor, *, normalize: bool = False) -> Tensor:
        """Vectors of words or spans.

        Args:
            features: What RepeatTransformer gave with ``capture=self.token_capture``.
            spans: [B, n] bool: the content tokens of each row's span.
            normalize: Divide each sum of weights to 1 (always so in ``"published"``).

        Returns:
            [B, d]: the mean of the span's e_i, or in ``"published"`` the sum of their rows of A^new, divided to 1.

        Source:
            ReBA, section 3.3 (word embedding).
        """
        weights = self._weights(features, normalize=normalize or self.normalize_weights)
        rows = weights[:, : spans.shape[1]] * spans[:, :, None]
        if self.variant == "published":
            combined = normalized(rows.sum(dim=1))
        else:
            combined = rows.sum(dim=1) / spans.sum(dim=1, keepdim=True)
        return weighted_sum(combined[:, None], features["token_embeddings"]).squeeze(1)

    def get_embedding_dimension(self) -> int:
        """Dimension of the vectors."""
        return self.embedding_dimension

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the configuration; there are no weights."""
        self.save_config(output_path)

    def _summed(self, features: dict[str, Any]) -> Tensor:
        """The positions that are summed over, [B, T] bool."""
        if self.include_special or self.variant == "published":
            return cast(Tensor, features["real_mask"]).bool()
        return cast(Tensor, features["copy_ids"]) > 0

    def _weights(self, features: dict[str, Any], *, normalize: bool | None = None) -> Tensor:
        """The captured rows of A^new, [B, R, T], restricted to the positions that are summed over."""
        weights: Tensor = features["backward_attention"] * self._summed(features)[:, None]
        if normalize is None:
            normalize = self.normalize_weights
        return normalized(weights) if normalize and self.variant == "paper" else weights

    def _token_embeddings(self, features: dict[str, Any]) -> Tensor:
        """The e_i, [B, n, d]; one more forward pass where the sentence vector needed fewer rows."""
        if self.capture != self.token_capture:
            if not self._source:
                raise ValueError("Token vectors need the pipeline's first module: build the model from both modules.")
            given = {**features, "attention_mask": features["real_mask"]}
            features = self._source[0](given, capture=self.token_capture)
        weights = self._weights(features)
        if self.variant == "published":
            weights = normalized(weights)
        return weighted_sum(weights, features["token_embeddings"])


def normalized(weights: Tensor) -> Tensor:
    """Weights divided by their sum over the last dimension; all-zero rows stay zero."""
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def weighted_sum(weights: Tensor, hidden: Tensor) -> Tensor:
    """[B, R, T] weights and [B, T, d] hidden states → [B, R, d], summed in float32 at least."""
    precision = torch.promote_types(hidden.dtype, weights.dtype)
    return torch.bmm(weights.to(precision), hidden.to(precision)).to(hidden.dtype)
