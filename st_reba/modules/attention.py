"""The attention function that transformers calls for every layer, and its counterpart for older architectures.

It is registered with transformers' ``AttentionInterface`` under one name; a backbone switched to it computes what
its own attention computes (grouped keys, masks, soft caps, attention sinks, position biases), block by block over
the queries, and hands each block's probabilities to the capture of the running forward pass before it drops them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import ERROR, getLogger
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from .capture import BackwardAttention

ATTENTION_NAME = "st_reba"
# Keyword arguments by which an architecture changes its attention in ways this function does not know.
UNKNOWN_ARGUMENTS = ("block_indices", "indices", "sinks")
# A block of probabilities holds about this many numbers at most, but never fewer than 16 rows.
BLOCK_NUMBERS = 1 << 20

logger = getLogger(__name__)

# State of one forward pass. A context variable, so that two models, or two threads, in one process do not meet.
_capture: ContextVar[BackwardAttention | None] = ContextVar("st_reba_capture", default=None)


@contextmanager
def capturing(capture: BackwardAttention | None) -> Iterator[None]:
    """Hand the attention of every layer that runs inside the ``with`` block to ``capture``."""
    token = _capture.set(capture)
    try:
        yield
    finally:
        _capture.reset(token)


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
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, blocked over the queries, with capture.

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
        **kwargs: What else the architecture passes; refused where it would change the result.

    Returns:
        The attention's output [B, T, H, D'] and None, as transformers expects.

    Raises:
        ValueError: The layer is not causal while a capture runs, or uses an argument that is not known here.
    """
    for name in UNKNOWN_ARGUMENTS:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} passes {name!r} to its attention, which st_reba does not know: "
                "this architecture cannot be captured exactly. Use method='classical' or 'echo'."
            )
    capture = _capture.get()
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    if capture is not None:
        _check_capturable(module, causal=bool(causal), square=queries == keys)
        capture.layers += 1
    scaling = width**-0.5 if scaling is None else scaling
    precision = torch.promote_types(query.dtype, torch.float32)
    triangular = attention_mask is None and bool(causal) and queries == keys
    positions = torch.arange(keys, device=query.device)

    output = value.new_empty(batch, queries, heads, value.shape[-1])
    rows = max(16, BLOCK_NUMBERS // (batch * heads * keys))
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        visible = stop if triangular else keys
        block = (query[:, :, start:stop] * scaling).reshape(batch, groups, -1, width)
        scores = torch.matmul(block, key[:, :, :visible].transpose(2, 3)).view(batch, heads, stop - start, visible)
        # The scores' own type: under autocast it is not the queries'.
        lowest = torch.finfo(scores.dtype).min
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if position_bias is not None:
            scores = scores + position_bias[:, :, start:stop, :visible]
        if triangular:
            scores = scores.masked_fill(positions[:visible] > positions[start:stop, None], lowest)
        elif attention_mask is not None and attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask[:, :, start:stop], lowest)
        elif attention_mask is not None:
            scores = scores + attention_mask[:, :, start:stop]
        if s_aux is None:
            probabilities = torch.softmax(scores, dim=-1, dtype=precision)
        else:
            sinks = s_aux.reshape(1, -1, 1, 1).expand(batch, -1, stop - start, 1).to(scores.dtype)
            probabilities = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1, dtype=precision)[..., :-1]
        if capture is not None:
            capture.update(probabilities, start)
        probabilities = nn.functional.dropout(probabilities.to(value.dtype), dropout, training=dropout > 0)
        mixed = torch.matmul(probabilities.reshape(batch, groups, -1, visible), value[:, :, :visible])
        output[:, start:stop] = mixed.view(batch, heads, stop - start, -1).transpose(1, 2)
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
    """Make a backbone call :func:`attend`, or install hooks where its architecture calls no interface.

    Args:
        model: The backbone, as loaded.

    Returns:
        True where the backbone calls :func:`attend`; False where hooks reduce its eager attention, which gives
        equal numbers but holds one layer's [B, H, T, T] at a time.
    """
    if model.config._attn_implementation == ATTENTION_NAME:
        return True
    # transformers only warns where an architecture ignores the interface: that warning is replaced by ours below.
    verbosity = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        model.set_attn_implementation(ATTENTION_NAME)
    finally:
        logging.set_verbosity(verbosity)
    if model.config._attn_implementation == ATTENTION_NAME:
        return True
    model.config._attn_implementation = "eager"
    for module in model.modules():
        if re.search("attention", type(module).__name__, re.IGNORECASE) and reduce_output not in (
            module._forward_hooks.values()
        ):
            module.register_forward_hook(reduce_output)
    logger.warning(
        f"{type(model).__name__} does not call transformers' attention interface: its eager attention is captured "
        "layer by layer instead. The vectors are the same; time and memory are those of eager attention."
    )
    return False


def reduce_output(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
    """Forward hook: hand an eager attention module's probabilities to the capture and drop them from its output."""
    capture = _capture.get()
    if capture is None or not isinstance(output, (tuple, list)):
        return output
    shape = (capture.first.shape[0], capture.length, capture.length)
    kept: list[Any] = []
    for value in output:
        if isinstance(value, Tensor) and value.ndim == 4 and (value.shape[0], *value.shape[2:]) == shape:
            _check_capturable(module, causal=_is_triangular(value, capture.first), square=True)
            capture.layers += 1
            capture.update(value, 0)
            kept.append(None)
        else:
            kept.append(value)
    return type(output)(kept)


def _is_triangular(probabilities: Tensor, first: Tensor) -> bool:
    """Whether no query from the first anchor on looks ahead; masked padding before it may weigh anything."""
    ahead = probabilities.detach().amax(dim=1).triu(1).amax(dim=2)
    real = torch.arange(ahead.shape[1], device=ahead.device) >= first[:, None]
    return not bool((ahead * real > 1e-6).any())
