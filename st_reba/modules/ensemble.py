"""PromptEnsemble: the weighted sum of the vectors that one text has in several templates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from .layout import published


@published
class PromptEnsemble(Module):
    """Joins the vectors of a text's rows, one for each template of the RepeatTransformer.

    Equal weights are MetaEOL, the average over prompts that ask for different things. A negative weight is contrastive:
    it takes away what the text's vector shares with that in an auxiliary prompt.

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
        self.weights, self.equal_norms = [float(weight) for weight in weights], equal_norms
        if not any(self.weights) or not all(map(math.isfinite, self.weights)):
            raise ValueError(f"weights={self.weights}: give numbers, at least one of them not 0.")

    def on_model_ready(self, model: Any) -> None:
        """Check that there is a weight for each template."""
        if (rows := getattr(model[0], "rows", 1)) != len(self.weights):
            raise ValueError(f"weights={self.weights} do not fit the {rows} templates of {type(model[0]).__name__}.")

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Join.

        Args:
            features: ``sentence_embedding`` [B·P, d], the P vectors of a text one after another; not changed.
            **kwargs: Ignored.

        Returns:
            ``sentence_embedding`` [B, d] alone; zero for a text one of whose vectors is zero.
        """
        vectors: Tensor = features["sentence_embedding"]
        if len(vectors) % len(self.weights):
            raise ValueError(f"{len(vectors)} vectors for {len(self.weights)} templates: a text was split.")
        each = vectors.view(-1, len(self.weights), vectors.shape[-1])
        given = each.any(dim=2).all(dim=1, keepdim=True)
        each = each.to(torch.promote_types(each.dtype, torch.float32))
        if self.equal_norms:
            each = nn.functional.normalize(each, dim=-1)
        weights = torch.tensor(self.weights, dtype=each.dtype).to(each.device, non_blocking=True)
        return {
            "sentence_embedding": torch.einsum("p,bpd->bd", weights, each).masked_fill(~given, 0.0).to(vectors.dtype)
        }

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the configuration; there are no weights."""
        self.save_config(output_path)
