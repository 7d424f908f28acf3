"""Attention as a graph can hold it: written out, without a branch that depends on the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import ERROR
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from ...modules.attention import UNKNOWN_ARGUMENTS
from ...modules.backbone import Backbone
from ...modules.kinds import KINDS, kind_of
from ...modules.plan import Stack

GRAPH_ATTENTION = "st_reba_graph"
# Larger than any score, small enough for every runtime's float16.
_HIDDEN = -1e9


class GraphState:
    """What the attention function knows of the pass that is traced, and what it captures.

    Args:
        real: [B, T] bool, False at padding, which stands behind every text.
        stack: What each layer sees; None: what it sees by itself.
        captures: Whether A^new is accumulated.
    """

    def __init__(self, real: Tensor, stack: Stack | None, *, captures: bool) -> None:
        self.real, self.stack, self.captures = real, stack, captures
        self.layers = 0
        self._one_way: Tensor | None = None
        self._both_ways: Tensor | None = None
        # Each mask is kept beside what was made of it, so that its identity stays its own.
        self._made: dict[tuple[str, int], tuple[Tensor | None, Tensor]] = {}

    def kind(self, module: nn.Module) -> str:
        """What the layer that an attention module belongs to sees."""
        if self.stack is None:
            return "forward"
        layer = module.layer_idx
        assert isinstance(layer, int)
        return self.stack.kinds[layer]

    def mask(self, kind: str, own: Tensor | None, *, causal: bool) -> Tensor:
        """A layer's mask as numbers to add to its scores, [B, 1, T, T]; see :class:`PassMasks`."""
        key = (kind, id(own))
        if key not in self._made:
            self._made[key] = (own, self._make(kind, own, causal=causal))
        return self._made[key][1]

    def _make(self, kind: str, own: Tensor | None, *, causal: bool) -> Tensor:
        if own is not None and own.dtype != torch.bool:
            if kind != "forward":
                raise ValueError("The backbone adds position biases to its mask: its layers cannot be converted.")
            return own.clamp(min=_HIDDEN)
        place = torch.arange(self.real.shape[1], device=self.real.device)
        query, key = place[:, None], place[None, :]
        seen = own
        if seen is None:
            seen = (key <= query)[None, None] if causal else (key == key)[None, None] | (query == query)[None, None]
        seen = kind_of(kind).sees(seen, self.real, 0 if self.stack is None else self.stack.m)
        return torch.where(seen, 0.0, _HIDDEN)

    def see(self, probabilities: Tensor, *, both_ways: bool) -> None:
        """Raise the maxima by one layer's probabilities [B, H, T, T]."""
        self.layers += 1
        if not self.captures:
            return
        if both_ways:
            values = (probabilities + probabilities.mT).amax(dim=1) / 2
            self._both_ways = values if self._both_ways is None else torch.maximum(self._both_ways, values)
        else:
            values = probabilities.amax(dim=1)
            self._one_way = values if self._one_way is None else torch.maximum(self._one_way, values)

    def matrix(self) -> Tensor:
        """A^new, [B, T, T].

        Raises:
            ValueError: No layer's attention was seen.
        """
        both = self._both_ways
        if self._one_way is not None:
            # Below the diagonal there is nothing else, so the maximum may be taken before both halves are added.
            halves = (self._one_way + self._one_way.mT) / 2
            both = halves if both is None else torch.maximum(both, halves)
        if both is None:
            raise ValueError("No layer handed out its attention, so backward attention cannot be exported.")
        return both


_state: ContextVar[GraphState | None] = ContextVar("st_reba_graph", default=None)


@contextmanager
def tracing(state: GraphState) -> Iterator[None]:
    """Make ``state`` the one of the pass that runs inside the ``with`` block."""
    token = _state.set(state)
    try:
        yield
    finally:
        _state.reset(token)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, by its plan, with capture; arguments as in :func:`st_reba.modules.attention.attend`.

    Raises:
        ValueError: The layer looks both ways by itself while backward attention is captured, or uses an argument that
            is not known here.
    """
    for name in (*UNKNOWN_ARGUMENTS, "indices"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{type(module).__name__} passes {name!r} to its attention, which no graph is made for.")
    state = _state.get()
    assert state is not None
    kind = state.kind(module)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if state.captures and not causal and state.stack is None:
        raise ValueError(f"{type(module).__name__} looks both ways, and backward attention needs a causal decoder.")
    batch, heads, length, width = query.shape
    groups = key.shape[1]
    factor = width**-0.5 if scaling is None else scaling
    grouped = (query * factor).reshape(batch, groups, -1, width)
    scores = torch.matmul(grouped, key.mT).reshape(batch, heads, length, key.shape[2])
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if position_bias is not None:
        scores = scores + position_bias
    scores = scores + state.mask(kind, attention_mask, causal=causal)
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype).reshape(1, heads, 1, 1).expand(batch, heads, length, 1)
        probabilities = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        probabilities = scores.softmax(dim=-1)
    state.see(probabilities, both_ways=not causal or KINDS[kind].looks_ahead)
    mixed = torch.matmul(probabilities.reshape(batch, groups, -1, key.shape[2]), value)
    return mixed.reshape(batch, heads, length, -1).transpose(1, 2), None


def _whole_mask(*arguments: Any, **keywords: Any) -> Tensor | None:
    """The mask that says all, also where a kernel could do without."""
    keywords.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    make: Callable[..., Tensor | None] = sdpa_mask
    return make(*arguments, **keywords)


AttentionInterface.register(GRAPH_ATTENTION, attend)
AttentionMaskInterface.register(GRAPH_ATTENTION, _whole_mask)


@contextmanager
def graph_attention(model: PreTrainedModel) -> Iterator[bool]:
    """Inside the ``with`` block a backbone calls :func:`attend`.

    Args:
        model: The backbone; afterwards it is as it was.

    Yields:
        Whether it does; False where its architecture calls no interface.
    """
    decoder = Backbone(model).decoder
    before = decoder.config._attn_implementation
    verbosity = logging.get_verbosity()
    # transformers only warns where an architecture ignores the interface; the caller knows what to do about it.
    logging.set_verbosity(ERROR)
    try:
        decoder.set_attn_implementation(GRAPH_ATTENTION)
        logging.set_verbosity(verbosity)
        yield decoder.config._attn_implementation == GRAPH_ATTENTION
    finally:
        logging.set_verbosity(ERROR)
        decoder.set_attn_implementation(before)
        logging.set_verbosity(verbosity)
