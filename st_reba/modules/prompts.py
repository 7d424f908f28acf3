"""PromptEnsemble: the weighted sum of the vectors that one text has in several prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from .lazy import LazyFeatures
from .vendoring import leave_code, published

if TYPE_CHECKING:
    from .ensemble import Ensemble


@published
class PromptEnsemble(Module):
    """The weighted sum of the vectors that a text has in the templates of an :class:`Ensemble`.

    The input module makes as many rows of every text as there are templates, which run and are pooled each by itself;
    this module, behind the pooling, makes one vector of them. Its options are those of the input module's stage.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "prompteol", stages=[st_reba.Ensemble("contrastive")])
        >>> model[2].ensemble.summed
        (1.0, -0.25)
        >>> model.encode("Hello, world").shape
        (192,)
    """

    config_keys: list[str] = []

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ensemble: Ensemble | None = None

    def on_model_ready(self, model: Any) -> None:
        """Find the ensemble of the module in front."""
        stages = getattr(model[0], "stages", ())
        self.ensemble = next((stage for stage in stages if stage.name == "ensemble"), None)
        if self.ensemble is None:
            raise ValueError(
                f"PromptEnsemble joins the vectors of several templates, but {type(model[0]).__name__} has none. Give "
                "it stages=[st_reba.Ensemble(…)], or drop PromptEnsemble."
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
            ValueError: B·P is no multiple of P: the batch was split inside a text. Or the module was appended to a
                ready model.
        """
        if self.ensemble is None:
            raise ValueError(
                "PromptEnsemble knows no ensemble: hand all modules to SentenceTransformer(modules=[…]) together."
            )
        vectors: Tensor = features["sentence_embedding"]
        number = len(self.ensemble.summed)
        if len(vectors) % number:
            raise ValueError(
                f"PromptEnsemble got {len(vectors)} vectors, no multiple of its {number} weights: the batch was split "
                f"inside a text. Split it at multiples of {number} rows."
            )
        each = vectors.view(-1, number, vectors.shape[-1])
        given = each.any(dim=2).all(dim=1, keepdim=True)
        each = each.to(torch.promote_types(each.dtype, torch.float32))
        if self.ensemble.equal_norms:
            each = nn.functional.normalize(each, dim=-1)
        weights = torch.tensor(self.ensemble.summed, dtype=each.dtype).to(each.device, non_blocking=True)
        summed = torch.einsum("p,bpd->bd", weights, each).masked_fill(~given, 0.0)
        return LazyFeatures({"sentence_embedding": summed.to(vectors.dtype)}, _no_tokens)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the code; there are no weights, and the options stand in the first module's configuration."""
        self.save_config(output_path)
        leave_code(output_path, type(self))


def _no_tokens() -> Tensor:
    raise ValueError(
        "An ensemble of templates has sentence vectors only, as its texts' tokens stand in several rows. Ask for "
        "output_value='sentence_embedding', or build with one template."
    )
