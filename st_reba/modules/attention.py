"""The attention function that transformers calls in every layer, registered under a name of ours.

It computes what the model's own attention does, by SDPA where it can, with the running pass's masks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from .extensions import extensions
from .layout import IS_INSTALLED, decoder_of
from .passes import current_pass

# A repository's copy of this code has a name of its own: each knows only its own forward passes.
ATTENTION_NAME = "st_reba" if IS_INSTALLED else __name__.replace(".", "_")
_SDPA: Any = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call]


def install_attention(model: PreTrainedModel) -> bool:
    """Make a model's decoder call :func:`attention`; False: it cannot, so the package observes its eager attention."""
    decoder: Any = decoder_of(model)
    if getattr(decoder, "is_observed", False):  # by the package's hooks
        return False
    if decoder.config._attn_implementation == ATTENTION_NAME:
        return True
    # Only warns where an architecture ignores the interface.
    decoder.set_attn_implementation(ATTENTION_NAME)
    if decoder.config._attn_implementation == ATTENTION_NAME:
        return True
    if not extensions.has("observe_eager_attention"):
        raise ValueError(
            f"{type(decoder).__name__} has an attention of its own: pip install st-reba, import it."
        )
    extensions.observe_eager_attention(decoder)
    return False


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention of one layer, [B, T, H, D'], as transformers calls it.

    An ``attention_mask`` of None means causal if the module is. ``indices`` [B, T, n] are the keys
    chosen for each query. Of other arguments, those that are known to change the scores are
    refused.
    """
    for name in ("block_indices", "sinks"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} passes {name!r} to its attention, which is not supported. Use method 'echo'."
            )
    forward_pass = current_pass()
    masks = None if forward_pass is None else forward_pass.masks
    observer = None if forward_pass is None else forward_pass.observer
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    looks_ahead = not causal
    mask = _native_mask(attention_mask, key.shape[2])
    if indices is not None:
        if masks is not None:
            raise ValueError(
                f"{type(module).__name__} chooses its keys by an indexer, so its masks cannot be changed."
            )
        mask = extensions.mask_of_chosen_keys(mask, indices, key.shape[2])
    if masks is not None:
        layer_mask = masks.mask_for_layer(module, mask, causal)
        mask, causal = layer_mask.mask, layer_mask.is_causal
        looks_ahead = layer_mask.looks_ahead
    hide_later = causal and mask is None  # a mask says itself what is hidden
    if observer is None and softcap is None and s_aux is None and position_bias is None:
        output = _SDPA(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=hide_later
        )
        return output[0], None
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    terms = extensions.score_terms(
        mask, hide_later, scaling, softcap, s_aux, position_bias, dropout
    )
    if observer is None:
        return extensions.attend_in_blocks(query, key, value, terms), None
    if looks_ahead and masks is None:
        raise ValueError(
            f"{type(module).__name__} looks both ways: ReBA needs a causal decoder. Use method 'classical'."
        )
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{type(module).__name__} attends to more keys than tokens (a cache or a learned prefix)."
        )
    return observer.attend(query, key, value, terms, looks_ahead), None


def _native_mask(attention_mask: Tensor | None, key_count: int) -> Tensor | None:
    """The mask that transformers made, without an extra column, and once if the batch shares it."""
    if attention_mask is None:
        return None
    mask = attention_mask[..., :key_count]
    return mask[:1] if mask.stride(0) == 0 else mask


def as_booleans(mask: Tensor) -> Tensor:
    """A mask, boolean or added to scores, as booleans: True where a key is visible."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


AttentionInterface.register(ATTENTION_NAME, attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
extensions.install_attention = install_attention
