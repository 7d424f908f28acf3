"""The attention function that transformers calls for every layer, registered under a name of ours.

A backbone switched to it computes what its own attention computes (grouped keys, masks, soft caps, attention sinks,
position biases), or what the running plan makes of it, and shows it to the observer of the running pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from .backbone import Backbone
from .scores import Scores, additive, blocked_attention, identity
from .stages import Bound, Pass, current
from .vendoring import extra

# A copy of this code, from a repository, has a name of its own: each knows of its own forward passes only.
ATTENTION_NAME = "st_reba" if __name__.startswith("st_reba.") else __name__.replace(".", "_")
# Keyword arguments by which an architecture changes its attention in ways this function does not know.
UNKNOWN_ARGUMENTS = ("block_indices", "sinks")
# Under which a pass keeps additive masks, made once for all layers that share one.
_ADDITIVE = Bound()
_SDPA: Any = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call]


def attend(
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
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, by its plan, shown to an observer.

    Args:
        module: The attention module that calls.
        query, key, scaling, softcap, position_bias: See :class:`Scores`.
        value: [B, H', S, D'].
        attention_mask: [B, 1 or H, T, S], boolean (True: visible) or additive; None: causal where the module is.
        dropout: Dropout rate on the probabilities (training only).
        is_causal: Overrides the module's own ``is_causal``.
        s_aux: [H] attention sinks: one more logit in every softmax, without a value.
        indices: [B, T, n] keys that an indexer chose for each query, which sees no other.
        **kwargs: What else the architecture passes; refused where it would change the result.

    Returns:
        The output [B, T, H, D'] and None, as transformers expects.

    Raises:
        ValueError: An argument is not known here, or the layer cannot be converted or observed.
    """
    for name in UNKNOWN_ARGUMENTS:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} passes {name!r} to its attention, which st_reba does not know: this "
                "architecture can be neither captured nor converted exactly. Use method='classical' or 'echo'."
            )
    run = current()
    kinds, observer = (None, None) if run is None else (run.kinds, run.observer)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    kind = "forward" if kinds is None else kinds.kind(module)
    if indices is not None and kind != "forward":
        raise ValueError(
            f"{type(module).__name__} chooses its keys by an indexer that looks back, so its layers cannot run as "
            f"{kind!r}. Drop the plan."
        )
    fusable = softcap is None and position_bias is None
    plain = fusable and observer is None and s_aux is None
    mask = _own(attention_mask, indices, key.shape[2])
    ahead = not causal
    if kinds is not None:
        # Only plain attention knows of kinds, but that a query of a forward layer sees no later key.
        mask = kinds.masks.mask(kind, mask, causal=causal, dense=not plain)
        ahead = ahead or kinds.masks.kind(kind).looks_ahead
    if mask is not None and fusable:
        mask = _additive(run, mask, query)
    if not plain:
        scores = Scores(query, key, mask, causal, scaling, softcap, position_bias)
        if observer is not None:
            defined = causal or kinds is not None
            return observer.attend(module, scores, value, s_aux, dropout, defined=defined, ahead=ahead), None
        # Only repositories of models with sinks, or that capture, carry the kernels.
        kernels = extra("kernels", needed=False) if s_aux is not None else None
        fused = None if kernels is None else kernels.attention_with_totals(scores, value, s_aux, dropout)
        return (fused or blocked_attention(scores, value, sinks=s_aux, dropout=dropout))[0], None

    def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        given: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": causal}
        output: Tensor = _SDPA(module, query, key, value, mask, **given)[0]
        return output

    if kinds is not None and mask is None:
        return kinds.masks.kind(kind).fast(attention, query, key, value, kinds.masks.m, causal), None
    return attention(query, key, value, causal and mask is None), None


def _own(mask: Tensor | None, indices: Tensor | None, keys: int) -> Tensor | None:
    """A layer's own mask [B or 1, 1 or H, T, S], without the keys that an indexer did not choose."""
    if mask is not None:
        # Some masks are made a column wider than what is there.
        mask = mask[..., :keys]
        if mask.stride(0) == 0:
            # The same for all texts: whatever is made of it is made once.
            mask = mask[:1]
    if indices is None:
        return mask
    batch, queries, _ = indices.shape
    chosen = torch.zeros(batch, 1, queries, keys, dtype=torch.bool, device=indices.device)
    chosen.scatter_(3, indices.long()[:, None], True)
    if mask is None:
        return chosen.tril(keys - queries)
    return chosen & (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)


def _additive(run: Pass | None, mask: Tensor, query: Tensor) -> Tensor:
    """A mask as numbers to add to scores, made once for all layers of a pass that share it."""
    made: Any = {} if run is None else run.kept.setdefault(_ADDITIVE, {})
    name = (*identity(mask), query.dtype)
    if name not in made:
        made[name] = (mask, additive(mask, query.dtype))  # mask is kept, so that its identity stays its own
    numbers: Tensor = made[name][1]
    return numbers


def own_mask(*arguments: Any, **keywords: Any) -> Tensor | None:
    """transformers' boolean mask; the host reads no padding that it knows not to be there."""
    run, padding = current(), keywords.get("attention_mask")
    if run is not None and (run.unmasked or not run.padded) and getattr(padding, "shape", None) == run.real.shape:
        keywords["attention_mask"] = None
    mask: Tensor | None = sdpa_mask(*arguments, **keywords)
    return mask


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, own_mask)


def switch_on(model: PreTrainedModel) -> bool:
    """Make a backbone, as loaded, call :func:`attend`; False, and nothing changed, where it calls no interface."""
    # Towers beside the decoder see no text, and may call no interface where the decoder does, or the other way round.
    decoder = Backbone(model).decoder
    if decoder.config._attn_implementation == ATTENTION_NAME:
        return True
    return ask_for(decoder, ATTENTION_NAME)


def ask_for(decoder: PreTrainedModel, name: str) -> bool:
    """Ask a decoder for an implementation of attention; whether it takes it."""
    # transformers only warns where an architecture ignores the interface; the caller knows what to do about it.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        decoder.set_attn_implementation(name)
    finally:
        logging.set_verbosity(verbosity)
    return bool(decoder.config._attn_implementation == name)
