"""PromptEnsemble: the weighted sum of the vectors that one text has in several templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from .layout import Features, published

# Larger weights would give vectors whose lengths float32 cannot hold.
MAX_WEIGHT = 1e15


@published
class PromptEnsemble(Module):
    """Joins the vectors of a text's rows, one for each template of the RepeatTransformer.

    Equal weights are MetaEOL, the average over prompts that ask for different things. A negative
    weight is contrastive: it takes away what the text's vector shares with that in an auxiliary
    prompt.

    Args:
        weights: One for each template.
        equal_norms: Divide each vector by its length first, so that no template outweighs others.

    Source:
        MetaEOL (Lei et al., 2024). Contrastive prompting, here on the finished vectors.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "prompteol", template="contrastive")
        >>> model[2].weights
        [1.0, -0.25]
    """

    config_keys = ["weights", "equal_norms"]

    def __init__(self, weights: Sequence[float], equal_norms: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights, self.equal_norms = list(map(float, weights)), equal_norms
        if not any(self.weights) or not all(abs(weight) <= MAX_WEIGHT for weight in self.weights):
            raise ValueError(
                f"weights={self.weights}: give numbers of at most {MAX_WEIGHT:.0e}, one of them not 0."
            )

    def on_model_ready(self, model: Any) -> None:
        """Check that there is a weight for each template."""
        template_count = getattr(model[0], "template_count", 1)
        if template_count != len(self.weights):
            raise ValueError(
                f"weights={self.weights} do not fit the {template_count} templates of {type(model[0]).__name__}."
            )

    def forward(self, features: Features, **kwargs: object) -> Features:
        """Join.

        Args:
            features: ``sentence_embedding`` [B·P, d], the P vectors of a text one after another;
                not changed.
            **kwargs: Ignored.

        Returns:
            ``sentence_embedding`` [B, d], zero for a text one of whose vectors is zero; and
            ``content_ids`` [B, C], where they are there.
        """
        vectors: Tensor = features["sentence_embedding"]
        template_count = len(self.weights)
        if len(vectors) % template_count:
            raise ValueError(
                f"{len(vectors)} vectors for {template_count} templates: a text was split. Give batches (of a cached "
                f"loss, its mini_batch_size) of a multiple of {template_count} rows."
            )
        by_template = vectors.view(-1, template_count, vectors.shape[-1])
        has_all = by_template.any(dim=2).all(dim=1, keepdim=True)
        by_template = by_template.to(torch.promote_types(vectors.dtype, torch.float32))
        if self.equal_norms:
            by_template = nn.functional.normalize(by_template, dim=-1)
        weights = torch.tensor(self.weights, dtype=by_template.dtype).to(
            vectors.device, non_blocking=True
        )
        weighted_sum = torch.einsum("p,bpd->bd", weights, by_template)
        joined: Features = {
            "sentence_embedding": weighted_sum.masked_fill(~has_all, 0.0).to(vectors.dtype)
        }
        if "content_ids" in features:
            joined["content_ids"] = features["content_ids"]  # one row per text, like the vectors
        return joined

    def save(
        self, output_path: str, *args: object, safe_serialization: bool = True, **kwargs: object
    ) -> None:
        """Save the configuration; there are no weights."""
        self.save_config(output_path)
