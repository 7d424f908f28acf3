"""The attention function that transformers calls for every layer, and its counterpart for older architectures.

It is registered with transformers' ``AttentionInterface`` under one name. A backbone switched to it computes what its
own attention computes (grouped keys, masks, soft caps, attention sinks, position biases), or what the running plan
makes of it, and hands the probabilities to the capture of the running forward pass.
"""

from __future__ import annotations

import re
from logging import ERROR, getLogger
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from .backbone import text_decoder
from .blocked import blocked_attention
from .capture import AnchorCapture, BackwardAttention
from .fused import fused_attention, fused_with_totals
from .masks import additive, selected
from .scores import Scores
from .state import current

# A copy of this code, from a repository, has a name of its own: each knows of its own forward passes only.
ATTENTION_NAME = "st_reba" if __name__.startswith("st_reba.") else __name__.replace(".", "_")
# Keyword arguments by which an architecture changes its attention in ways this function does not know.
UNKNOWN_ARGUMENTS = ("block_indices", "sinks")

logger = getLogger(__name__)


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
    """Attention of one layer, by its plan, with capture.

    Args:
        module: The attention module that calls.
        query: [B, H, T, D].
        key: [B, H', S, D], H' dividing H (grouped-query attention: keys are not repeated).
        value: [B, H', S, D'].
        attention_mask: [B, 1 or H, T, S], boolean (True: visible) or additive; None: causal where the module is.
        scaling: Factor on query·key; None: 1/sqrt(D).
        dropout: Dropout rate on the probabilities (training only).
        is_causal: Overrides the module's own ``is_causal``.
        softcap: Scores become softcap · tanh(score / softcap).
        s_aux: [H] attention sinks: one more logit in every softmax, without a value.
        position_bias: [1 or B, H, T, S], added to the scores.
        indices: [B, T, n] keys that an indexer chose for each query, which sees no other.
        **kwargs: What else the architecture passes; refused where it would change the result.

    Returns:
        The attention's output [B, T, H, D'] and None, as transformers expects.

    Raises:
        ValueError: The layer is not causal while a capture runs without a plan, or uses an argument that is not known
            here.
    """
    for name in UNKNOWN_ARGUMENTS:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} passes {name!r} to its attention, which st_reba does not know: this "
                "architecture can be neither captured nor converted exactly. Use method='classical' or 'echo'."
            )
    if attention_mask is not None:
        # Some masks are made a column wider than what is there.
        attention_mask = attention_mask[..., : key.shape[2]]
    if indices is not None:
        attention_mask = selected(attention_mask, indices, key.shape[2])
    state = current()
    capture = None if state is None else state.capture
    backward = capture if isinstance(capture, BackwardAttention) else None
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if capture is not None:
        # Backward attention of a base that looks both ways by itself is not defined; under a plan it is.
        defined = causal or not isinstance(capture, AnchorCapture) or (state is not None and state.stack is not None)
        known = 0 if state is None else state.prefix
        _check_capturable(module, causal=defined, square=query.shape[2] + known == key.shape[2])
        capture.begin()
    kind = "forward" if state is None else state.kind(module)
    if indices is not None and kind != "forward":
        raise ValueError(
            f"{type(module).__name__} chooses its keys by an indexer that looks back, so its layers cannot run as "
            f"{kind!r}. Use layers=None."
        )
    fusable = softcap is None and position_bias is None
    plain = fusable and capture is None and s_aux is None
    mask, m = attention_mask, 0
    if state is not None and state.masks is not None:
        m = state.masks.m
        # Only plain attention knows of kinds, but that a query of a forward layer sees no later key.
        make = state.masks.mask if plain or kind == "forward" else state.masks.dense
        mask = make(kind, attention_mask, causal=causal)
    if mask is not None and fusable:
        mask = additive(mask, query.dtype) if state is None else state.additive(mask, query.dtype)
    if plain:
        return fused_attention(
            module, query, key, value, mask, kind, m=m, causal=causal, scaling=scaling, dropout=dropout
        ), None
    computed = None
    if fusable and not dropout and (capture is None or backward is not None):
        computed = fused_with_totals(query, key, value, mask, causal=causal, scaling=scaling, sinks=s_aux)
    if computed is None:
        scores = Scores(query, key, mask, causal, scaling, softcap, position_bias)
        see = None if capture is None or backward is not None else capture.update
        computed = blocked_attention(scores, value, sinks=s_aux, dropout=dropout, see=see)
    output, totals = computed
    if backward is not None:
        shown = Scores(query, key, mask, False, scaling, softcap, position_bias)
        backward.update_layer(shown, totals, both_ways=not (causal and kind == "forward"))
    elif capture is not None:
        capture.end()
    return output, None


def _check_capturable(module: nn.Module, *, causal: bool, square: bool) -> None:
    if not causal:
        raise ValueError(
            f"{type(module).__name__} looks both ways, but backward attention is defined on a causal decoder. "
            "Use a decoder-only base model, or method='classical'."
        )
    if not square:
        raise ValueError(
            f"{type(module).__name__} attends to more keys than tokens (a cache or a learned prefix): backward "
            "attention cannot be captured. Pass use_cache=False, and merge adapters into the base model first."
        )


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


def switch_on(model: PreTrainedModel) -> bool:
    """Make a backbone call :func:`attend`.

    Args:
        model: The backbone, as loaded.

    Returns:
        Whether it does; False where its architecture calls no interface: it is then as it was.
    """
    # Towers beside the decoder see no text, and may call no interface where the decoder does, or the other way round.
    decoder = text_decoder(model)
    if decoder.config._attn_implementation == ATTENTION_NAME:
        return True
    # transformers only warns where an architecture ignores the interface; the caller knows what to do about it.
    verbosity = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        decoder.set_attn_implementation(ATTENTION_NAME)
    finally:
        logging.set_verbosity(verbosity)
    return bool(decoder.config._attn_implementation == ATTENTION_NAME)


def hook_in(model: PreTrainedModel) -> None:
    """Reduce a backbone's eager attention by hooks, where its architecture calls no interface.

    The numbers are equal, but one layer's [B, H, T, T] is held at a time.

    Args:
        model: The backbone, as loaded.
    """
    decoder = text_decoder(model)
    if decoder.config._attn_implementation == "eager" and any(
        reduce_output in module._forward_hooks.values() for module in decoder.modules()
    ):
        return
    decoder.config._attn_implementation = "eager"
    for module in decoder.modules():
        if re.search("attention", type(module).__name__, re.IGNORECASE):
            module.register_forward_hook(reduce_output)
    logger.warning(
        f"{type(decoder).__name__} does not call transformers' attention interface: its eager attention is captured "
        "layer by layer instead. The vectors are the same; time and memory are those of eager attention."
    )


def reduce_output(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
    """Forward hook: hand an eager attention module's probabilities to the capture and drop them from its output."""
    state = current()
    if state is None or state.capture is None or not isinstance(output, (tuple, list)):
        return output
    batch, length = state.real.shape
    shape = (batch, length, length)
    kept: list[Any] = []
    for value in output:
        if isinstance(value, Tensor) and value.ndim == 4 and (value.shape[0], *value.shape[2:]) == shape:
            if isinstance(state.capture, AnchorCapture):
                _check_capturable(module, causal=_is_triangular(value, state.real), square=True)
            state.capture.begin()
            state.capture.update(value, 0)
            state.capture.end()
            kept.append(None)
        else:
            kept.append(value)
    return type(output)(*kept) if hasattr(output, "_fields") else type(output)(kept)


def _is_triangular(probabilities: Tensor, real: Tensor) -> bool:
    """Whether no query from the first real one on looks ahead; masked padding before it may weigh anything."""
    ahead = probabilities.detach().amax(dim=1).triu(1).amax(dim=2)
    started = real.long().cumsum(dim=1) > 0
    return not bool((ahead * started > 1e-6).any())


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
