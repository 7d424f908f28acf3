"""Attention function that transformers calls for every layer, registered under a name of ours.

It computes what the model's own attention does (grouped keys, masks, soft caps, sinks, position biases), with the masks
of the running pass, and shows the probabilities to what the pass captures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging as transformers_logging

from .layout import PARTS, decoder_of

# A copy of this code, in a repository, has a name of its own: each knows its own forward passes only.
ATTENTION_NAME = "st_reba" if __name__.startswith("st_reba.") else __name__.replace(".", "_")
_SDPA: Any = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call]


class ForwardPass:
    """State of one forward pass; in a context variable, so that threads and models never meet."""

    def __init__(self, transformer: Any, features: Mapping[str, Any]) -> None:
        self.transformer, self.spans = transformer, features["spans"]  # on the host, so that no layer waits for it
        self.real: Tensor = features["attention_mask"].bool()  # [B, T]
        self.padded = any(span.total < self.real.shape[1] for span in self.spans)
        self.masks: Any = None  # LayerMasks
        self.capture: Any = None  # BackwardAttention
        # Called after every layer: its index, the states before and after it, how to run it again; gives the states.
        self.after_layer: list[Callable[..., Tensor]] = []
        # Called after every layer's attention: index, output.
        self.after_attention: list[Callable[[int, Tensor], object]] = []
        # What parts of the pass keep until its end, what they give the model, and what they add to the features.
        self.kept: dict[Any, Any] = {}
        self.arguments: dict[str, Any] = {}
        self.features: dict[str, Any] = {}


_current: ContextVar[ForwardPass | None] = ContextVar("st_reba_pass", default=None)


@contextmanager
def running(state: ForwardPass | None) -> Iterator[None]:
    """Make ``state`` the running pass inside the ``with`` block."""
    token = _current.set(state)
    try:
        yield
    finally:
        _current.reset(token)


class Scores(NamedTuple):
    """Everything but query · key that decides a layer's scores; query [B, H, T, D], key [B, G, S, D], G divides H."""

    mask: Tensor | None = None  # [B or 1, 1 or H, T, S], boolean (True: visible) or additive
    causal: bool = False  # without a mask: a query sees no later key
    scaling: float = 1.0
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    sinks: Tensor | None = None  # [H], one more logit in every softmax, without a value
    bias: Tensor | None = None  # [B or 1, H, T, S], added
    dropout: float = 0.0


def show_attention(model: Any) -> bool:
    """Make a model's decoder call :func:`attention`; False: it cannot, so the package observes its eager attention."""
    decoder = decoder_of(model)
    if decoder.config._attn_implementation == ATTENTION_NAME:
        return True
    # transformers only warns where an architecture ignores the interface.
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        decoder.set_attn_implementation(ATTENTION_NAME)
    finally:
        transformers_logging.set_verbosity(verbosity)
    if decoder.config._attn_implementation != ATTENTION_NAME:
        if "eager" not in PARTS:
            raise ValueError(f"{type(decoder).__name__} has an attention of its own: pip install st-reba, import it.")
        PARTS["eager"](decoder)
    return bool(decoder.config._attn_implementation == ATTENTION_NAME)


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
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, [B, T, H, D'], as transformers calls it.

    An ``attention_mask`` of None means causal if the module is. ``indices`` [B, T, n] are the keys chosen for each
    query. Of other arguments, those that are known to change the scores are refused.
    """
    for name in ("block_indices", "sinks"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{type(module).__name__} passes an unknown {name!r} to its attention. Use Echo.")
    state = _current.get()
    masks, capture = (None, None) if state is None else (state.masks, state.capture)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    # Some masks have an extra column.
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]]
    if mask is not None and mask.stride(0) == 0:
        mask = mask[:1]
    if indices is not None:
        mask = PARTS["chosen_keys"](mask, indices, key.shape[2])
    looks_ahead = not causal
    if masks is not None:
        if indices is not None:
            raise ValueError(f"{type(module).__name__} chooses its keys by an indexer, so its masks cannot be changed.")
        mask, causal, looks_ahead = masks.of(module, mask, causal)
    if capture is None and softcap is None and s_aux is None and position_bias is None:
        options: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": causal and mask is None}
        return _SDPA(module, query, key, value, mask, **options)[0], None
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = Scores(mask, causal and mask is None, factor, softcap, s_aux, position_bias, dropout)
    if capture is None:
        fused = PARTS["fused"](query, key, value, scores) if "fused" in PARTS else None
        return blocked_attention(query, key, value, scores) if fused is None else fused[0], None
    if looks_ahead and masks is None:
        raise ValueError(f"{type(module).__name__} looks both ways: ReBA needs a causal decoder. Use 'classical'.")
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{type(module).__name__} attends to more keys than tokens (a cache or a learned prefix).")
    return capture.attend(query, key, value, scores, looks_ahead), None


def blocked_attention(
    query: Tensor, key: Tensor, value: Tensor, terms: Scores, observe: Callable[[Tensor, int], object] | None = None
) -> Tensor:
    """Attention [B, T, H, D'] by blocks of queries; ``observe`` gets each block's probabilities and its first query."""
    batch, heads, length, width = query.shape
    groups, keys = key.shape[1:3]
    key, value = key.contiguous(), value.contiguous()  # else every block copies them
    precision = torch.promote_types(query.dtype, torch.float32)
    numbers = 1 << (20 if query.device.type == "cpu" else 24)  # in a block of probabilities
    size = max(16, numbers // (batch * heads * keys))
    blocks = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        # A causal block needs no keys after its last query.
        seen = keys - length + stop if terms.causal else keys
        rows = (query[:, :, start:stop] * terms.scaling).reshape(batch, groups, -1, width)
        scores = (rows @ key[:, :, :seen].mT).view(batch, heads, stop - start, seen).to(precision)
        if terms.softcap is not None:
            scores = torch.tanh(scores / terms.softcap) * terms.softcap
        if terms.bias is not None:
            scores = scores + terms.bias[:, :, start:stop, :seen]
        if terms.mask is not None:
            mask = terms.mask[:, :, start:stop, :seen]
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        elif terms.causal:
            later = torch.ones(stop - start, seen, dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(later.triu(seen - stop + start + 1), -torch.inf)
        if terms.sinks is not None:
            sink = terms.sinks.to(precision)[None, :, None, None].expand(batch, -1, stop - start, 1)
            scores = torch.cat([scores, sink], dim=-1)
        probabilities = scores.softmax(dim=-1)[..., :seen]
        if observe is not None:
            observe(probabilities, start)
        weights = nn.functional.dropout(probabilities.to(value.dtype), terms.dropout, training=terms.dropout > 0)
        mixed = weights.reshape(batch, groups, -1, seen) @ value[:, :, :seen]
        blocks.append(mixed.view(batch, heads, stop - start, -1).transpose(1, 2))
    return torch.cat(blocks, dim=1)


AttentionInterface.register(ATTENTION_NAME, attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
PARTS |= {"pass": ForwardPass, "running": running, "show": show_attention}
