"""PromptEnsemble: the weighted sum of the vectors that one text has in several prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from .ensemble import MOST_PROMPTS, check_weights
from .options import Options, option
from .pooling import LazyFeatures
from .repeat import RepeatTransformer
from .vendoring import leave_code, published


@dataclass(frozen=True)
class _Settings(Options):
    weights: tuple[float, ...] = option((), "one a template, in their order")
    equal_norms: bool = option(True, "divide each prompt's vector by its length first")


@published
class PromptEnsemble(Module):
    """The weighted sum of the vectors that a text has in the templates of an :class:`Ensemble`.

    The input module makes as many rows of every text as there are templates, which run and are pooled each by itself;
    this module, behind the pooling, makes one vector of them.

    Args:
        weights: One a template, in their order, 2 to 64, not all zero.
        equal_norms: Divide each prompt's vector by its length before the sum.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "prompteol", stages=[st_reba.Ensemble("contrastive")])
        >>> model[2]
        PromptEnsemble({'weights': [1.0, -0.25], 'equal_norms': True})
        >>> model.encode("Hello, world").shape
        (192,)
    """

    config_keys = ["weights", "equal_norms"]

    def __init__(self, weights: Sequence[float], equal_norms: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        given: Any = tuple(weights) if isinstance(weights, (list, tuple)) else weights
        settings = _Settings(given, equal_norms)
        check_weights(settings.weights)
        if not 2 <= len(settings.weights) <= MOST_PROMPTS:
            raise ValueError(f"weights={list(weights)} has {len(weights)} numbers: give from 2 to {MOST_PROMPTS}.")
        self.weights = list(map(float, settings.weights))
        self.equal_norms = equal_norms

    def on_model_ready(self, model: Any) -> None:
        """See that the module in front makes as many rows of a text as there are weights."""
        first = model[0]
        rows, number = first.rows if isinstance(first, RepeatTransformer) else 1, len(self.weights)
        if rows != number:
            raise ValueError(
                f"weights={self.weights}: PromptEnsemble joins {number} vectors of a text, but {type(first).__name__} "
                f"lays it out in {rows} templates. Give as many of both."
            )

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Put a text's vectors together.

        Args:
            features: ``sentence_embedding`` [B·P, d], the P vectors of a text one after another; not changed.
            **kwargs: Ignored.

        Returns:
            ``sentence_embedding`` [B, d] alone. A text one of whose vectors is zero (as of states that are not finite)
            has a zero vector.

        Raises:
            ValueError: B·P is no multiple of P: the batch was split inside a text.
        """
        vectors: Tensor = features["sentence_embedding"]
        number = len(self.weights)
        if len(vectors) % number:
            raise ValueError(
                f"PromptEnsemble got {len(vectors)} vectors, no multiple of its {number} weights: the batch was split "
                f"inside a text. Split it at multiples of {number} rows."
            )
        each = vectors.view(-1, number, vectors.shape[-1])
        given = each.any(dim=2).all(dim=1, keepdim=True)
        each = each.to(torch.promote_types(each.dtype, torch.float32))
        if self.equal_norms:
            each = nn.functional.normalize(each, dim=-1)
        weights = torch.tensor(self.weights, dtype=each.dtype).to(each.device, non_blocking=True)
        summed = torch.einsum("p,bpd->bd", weights, each).masked_fill(~given, 0.0)
        return LazyFeatures({"sentence_embedding": summed.to(vectors.dtype)}, _no_tokens)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the configuration and the code; there are no weights of a network."""
        self.save_config(output_path)
        leave_code(output_path, type(self))


def _no_tokens() -> Tensor:
    raise ValueError(
        "An ensemble of templates has sentence vectors only, as its texts' tokens stand in several rows. Ask for "
        "output_value='sentence_embedding', or build with one template."
    )
