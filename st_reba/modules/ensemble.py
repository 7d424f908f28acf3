"""PromptEnsemble: the vectors that one text has in several prompts, put together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from .limits import MOST_PROMPTS, shown
from .pooling import LazyFeatures
from .repeat import RepeatTransformer
from .templates import ENSEMBLES, WEIGHTS


def check_weights(weights: object) -> list[float]:
    """The weights of an ensemble, as numbers.

    Args:
        weights: From 2 to 64 finite numbers, not all zero.

    Raises:
        ValueError: They are not.
    """
    if isinstance(weights, (str, bytes)) or not isinstance(weights, Sequence):
        raise ValueError(f"weights={shown(weights)} must be a list of numbers, one a template, as [1.0, -0.5].")
    if not 2 <= len(weights) <= MOST_PROMPTS:
        raise ValueError(
            f"weights={shown(weights)} has {len(weights)} numbers: an ensemble has from 2 to {MOST_PROMPTS} templates, "
            "and a weight for each."
        )
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not _is_finite(weight):
            raise ValueError(f"weights={shown(weights)}: {shown(weight)} must be a finite number.")
    if not any(weights):
        raise ValueError(f"weights={shown(weights)} are all 0, so every vector would be. Give one that is not.")
    return [float(weight) for weight in weights]


class PromptEnsemble(Module):
    """The weighted sum of the vectors that a text has in the templates of an ensemble.

    :class:`RepeatTransformer` with a list of templates makes as many rows of every text, which run and are pooled each
    by itself; this module, behind the pooling, makes one vector of them. Equal weights are MetaEOL, the average over
    prompts that ask for different things; a negative weight is contrastive: what a text's vector has in common with
    that in an auxiliary prompt is taken away.

    Args:
        weights: One a template, in their order.
        equal_norms: Divide each prompt's vector by its length before the sum, so that no prompt outweighs the others
            by its longer vectors.

    Raises:
        ValueError: Weights that are none.

    Source:
        MetaEOL (Lei et al., 2024: meta-task prompting, average). Contrastive prompting, here on the finished vectors:
        the published one subtracts inside a layer's attention.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "prompteol", template="metaeol")
        >>> model[2]
        PromptEnsemble({'weights': [0.2, 0.2, 0.2, 0.2, 0.2], 'equal_norms': True})
        >>> model.encode("Hello, world").shape
        (192,)
    """

    config_keys = ["weights", "equal_norms"]

    def __init__(self, weights: Sequence[float], equal_norms: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(equal_norms, bool):
            raise ValueError(f"equal_norms={shown(equal_norms)} is not known: choose one of [True, False].")
        self.weights = check_weights(weights)
        self.equal_norms = equal_norms

    def on_model_ready(self, model: Any) -> None:
        """See that the module in front makes as many rows of a text as there are weights."""
        first = model[0]
        rows = first.rows if isinstance(first, RepeatTransformer) else 1
        if rows != len(self.weights):
            raise ValueError(
                f"weights={self.weights}: PromptEnsemble puts {len(self.weights)} vectors of a text together, but "
                f"{type(first).__name__} in front lays a text out in {rows} templates. Give as many of both."
            )

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Put a text's vectors together.

        Args:
            features: ``sentence_embedding`` [B·P, d], the P vectors of a text one after another; not changed.
            **kwargs: Ignored.

        Returns:
            ``sentence_embedding`` [B, d], and what is no tensor; the features of B·P rows are left out. A text one of
            whose vectors is zero (as of states that are not finite) has a zero vector.

        Raises:
            ValueError: B·P is no multiple of P: the batch was split inside a text.
        """
        vectors: Tensor = features["sentence_embedding"]
        number = len(self.weights)
        if len(vectors) % number:
            raise ValueError(
                f"PromptEnsemble got {len(vectors)} vectors, which is no multiple of its {number} weights: the batch "
                f"was split inside a text. Split it at multiples of {number} rows."
            )
        each = vectors.view(-1, number, vectors.shape[-1])
        precision = torch.promote_types(each.dtype, torch.float32)
        given = each.any(dim=2).all(dim=1, keepdim=True)
        each = each.to(precision)
        if self.equal_norms:
            each = nn.functional.normalize(each, dim=-1)
        weights = torch.tensor(self.weights, dtype=precision, device=each.device)
        summed = torch.einsum("p,bpd->bd", weights, each).masked_fill(~given, 0.0)
        kept = {name: value for name, value in features.items() if not isinstance(value, Tensor)}
        folded = LazyFeatures(kept, _no_tokens)
        folded["sentence_embedding"] = summed.to(vectors.dtype)
        return folded

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the configuration; there are no weights of a network."""
        self.save_config(output_path)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def _no_tokens() -> Tensor:
    raise ValueError(
        "An ensemble of templates has sentence vectors only: its texts' tokens stand in several rows. Ask for "
        "output_value='sentence_embedding', or build with one template."
    )


def ensemble_weights(
    template: str | Mapping[str, str] | Sequence[str | Mapping[str, str]] | None, weights: Sequence[float] | None
) -> list[float] | None:
    """The weights of an ensemble's templates.

    Args:
        template: As for :class:`RepeatTransformer`.
        weights: One a template; None: those that a named ensemble has, else the same for all, 1 together.

    Returns:
        The weights; None where there is one template.

    Raises:
        ValueError: Weights without an ensemble, or not one a template.

    Example:
        >>> ensemble_weights("contrastive", None)
        [1.0, -0.25]
    """
    named = isinstance(template, str) and template in ENSEMBLES
    listed = ENSEMBLES[template] if named else template  # type: ignore[index]
    if not isinstance(listed, (list, tuple)):
        if weights is not None:
            raise ValueError(
                f"weights={shown(weights)} belong to an ensemble of templates: give template=[…], or the name of one "
                f"({sorted(ENSEMBLES)}). Drop them."
            )
        return None
    if weights is None:
        own = WEIGHTS.get(template) if named else None  # type: ignore[arg-type]
        weights = own or [1 / max(1, len(listed))] * len(listed)
        return [float(weight) for weight in weights]
    if len(found := check_weights(weights)) != len(listed):
        raise ValueError(f"weights={shown(weights)} are {len(found)} for {len(listed)} templates. Give one a template.")
    return found
