"""The attention function that transformers calls for every layer, and its counterpart for older architectures.

It is registered with transformers' ``AttentionInterface`` under one name. A backbone switched to it computes what its
own attention computes (grouped keys, masks, soft caps, attention sinks, position biases), or what the running plan
makes of it, and shows it to the observer of the running pass.
"""

from __future__ import annotations

import logging as python_logging
import re
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from .backbone import Backbone
from .kernels import attention_with_totals
from .scores import Scores, additive, blocked_attention, identity, selected
from .stages import Bound, Pass, current

# A copy of this code, from a repository, has a name of its own: each knows of its own forward passes only.
ATTENTION_NAME = "st_reba" if __name__.startswith("st_reba.") else __name__.replace(".", "_")
# Keyword arguments by which an architecture changes its attention in ways this function does not know.
UNKNOWN_ARGUMENTS = ("block_indices", "sinks")
# Under which a pass keeps additive masks, made once for all layers that share one.
_ADDITIVE = Bound()
_SDPA: Any = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call]

logger = python_logging.getLogger(__name__)


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
        ValueError: The layer is not causal while backward attention is captured without a plan, or uses an argument
            that is not known here.
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
    if observer is not None:
        _begin(observer, module, query, key, defined=causal or kinds is not None)
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
        return _shown(scores, value, s_aux, dropout, observer, ahead), None

    def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        given: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": causal}
        output: Tensor = _SDPA(module, query, key, value, mask, **given)[0]
        return output

    if kinds is not None and mask is None:
        return kinds.masks.kind(kind).fast(attention, query, key, value, kinds.masks.m, causal), None
    return attention(query, key, value, causal and mask is None), None


def _begin(observer: Any, module: nn.Module, query: Tensor, key: Tensor, *, defined: bool) -> None:
    """Tell an observer of a layer, if it can be captured."""
    # Backward attention of a base that looks both ways by itself is not defined; under a plan it is.
    if observer.needs_causal and not defined:
        raise ValueError(looks_both_ways(type(module).__name__))
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{type(module).__name__} attends to more keys than tokens (a cache or a learned prefix): its attention "
            "cannot be captured. Pass use_cache=False, and merge adapters into the base model first."
        )
    observer.begin_layer()


def _shown(scores: Scores, value: Tensor, sinks: Tensor | None, dropout: float, observer: Any, ahead: bool) -> Tensor:
    """Attention of one layer, [B, T, H, D'], and the observer, if any, raised by it."""
    # Whoever takes a whole layer computes from its scores what it needs; others are shown every probability.
    whole = getattr(observer, "update_layer", None)
    see = None if observer is None or whole is not None else observer.update
    computed = None
    if scores.softcap is None and scores.bias is None and not dropout and see is None:
        computed = attention_with_totals(scores, value, sinks)
    output, totals = computed or blocked_attention(scores, value, sinks=sinks, dropout=dropout, see=see)
    if whole is not None:
        whole(replace(scores, causal=False), totals, both_ways=ahead)
    if observer is not None:
        observer.end_layer()
    return output


def _own(mask: Tensor | None, indices: Tensor | None, keys: int) -> Tensor | None:
    """A layer's own mask [B or 1, 1 or H, T, S]."""
    if mask is not None and mask.shape[-1] != keys:
        # Some masks are made a column wider than what is there.
        mask = mask[..., :keys]
    if mask is not None and len(mask) > 1 and mask.stride(0) == 0:
        # The same for all texts: whatever is made of it is made once.
        mask = mask[:1]
    return mask if indices is None else selected(mask, indices, keys)


def _additive(run: Pass | None, mask: Tensor, query: Tensor) -> Tensor:
    """A mask as numbers to add to scores, made once for all layers of a pass that share it."""
    if run is None:
        return additive(mask, query.dtype)
    made = run.kept.setdefault(_ADDITIVE, {})
    name = (*identity(mask), query.dtype)
    if name not in made:
        made[name] = (mask, additive(mask, query.dtype))  # mask is kept, so that its identity stays its own
    numbers: Tensor = made[name][1]
    return numbers


def looks_both_ways(module: str) -> str:
    """The error for attention that backward attention is not defined on."""
    return (
        f"{module} looks both ways, but backward attention is defined on a causal decoder. Use a decoder-only base "
        "model, or method='classical'."
    )


def own_mask(*arguments: Any, **keywords: Any) -> Tensor | None:
    """transformers' boolean mask; the host reads no padding that it knows not to be there."""
    run, padding = current(), keywords.get("attention_mask")
    known = run is not None and (run.unmasked or not run.padded)
    if run is not None and known and isinstance(padding, Tensor) and padding.shape == run.real.shape:
        keywords["attention_mask"] = None
    mask: Tensor | None = sdpa_mask(*arguments, **keywords)
    return mask


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, own_mask)


def show(model: PreTrainedModel) -> None:
    """Make the attention of a backbone, as loaded, visible to observers, one way or the other."""
    if not switch_on(model):
        hook_in(model)


def switch_on(model: PreTrainedModel) -> bool:
    """Make a backbone, as loaded, call :func:`attend`.

    Returns:
        Whether it does; False where its architecture calls no interface: it is then as it was.
    """
    # Towers beside the decoder see no text, and may call no interface where the decoder does, or the other way round.
    decoder = Backbone(model).decoder
    if decoder.config._attn_implementation == ATTENTION_NAME:
        return True
    # transformers only warns where an architecture ignores the interface; the caller knows what to do about it.
    verbosity = logging.get_verbosity()
    logging.set_verbosity(python_logging.ERROR)
    try:
        decoder.set_attn_implementation(ATTENTION_NAME)
    finally:
        logging.set_verbosity(verbosity)
    return bool(decoder.config._attn_implementation == ATTENTION_NAME)


def hook_in(model: PreTrainedModel) -> None:
    """Reduce a backbone's eager attention by hooks, where its architecture calls no interface.

    The numbers are equal, but one layer's [B, H, T, T] is held at a time.
    """
    decoder = Backbone(model).decoder
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
    """Forward hook: show an eager attention module's probabilities to the observer and drop them from its output."""
    run = current()
    if run is None or run.observer is None or not isinstance(output, (tuple, list)):
        return output
    batch, length = run.real.shape
    kept: list[Any] = []
    for value in output:
        if isinstance(value, Tensor) and value.ndim == 4 and value.shape == (batch, value.shape[1], length, length):
            run.observer.begin_layer()
            if run.observer.needs_causal:
                ahead = value.detach().amax(dim=1).triu(1).amax(dim=2) * run.real
                run.doubts.append((~(ahead > 1e-6).any(), looks_both_ways(type(module).__name__)))
            run.observer.update(value, 0)
            run.observer.end_layer()
            kept.append(None)
        else:
            kept.append(value)
    return type(output)(*kept) if hasattr(output, "_fields") else type(output)(kept)
