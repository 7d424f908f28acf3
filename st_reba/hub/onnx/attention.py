"""Attention as a graph can hold it: written out, without a branch that depends on the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from ...modules.attention import UNKNOWN_ARGUMENTS, ask_for
from ...modules.backbone import Backbone
from ...modules.kinds import KINDS, kind_of
from ...modules.plan import Stack
from ...modules.stages import current

GRAPH_ATTENTION = "st_reba_graph"
# Larger than any score, small enough for every runtime's float16.
_HIDDEN = -1e9


class GraphState:
    """What :func:`attend` knows of the pass that is traced, as the pass's ``kinds``, and what it captures.

    Args:
        real: [B, T] bool, False at padding, which stands behind every text.
        stack: What each layer sees; None: what it sees by itself.
        captures: Whether A^new is accumulated.
    """

    def __init__(self, real: Tensor, stack: Stack | None, *, captures: bool) -> None:
        self.real, self.stack, self.captures = real, stack, captures
        # Largest probabilities [B, T, T], by whether a layer looks both ways.
        self._largest: dict[bool, Tensor] = {}
        # Each mask is kept beside what was made of it, so that its identity stays its own.
        self._made: dict[tuple[str, int, bool], tuple[Tensor | None, Tensor]] = {}

    def mask(self, kind: str, own: Tensor | None, *, causal: bool) -> Tensor:
        """A layer's mask as numbers to add to its scores, [B, 1, T, T], made once for all layers that share it."""
        key = (kind, id(own), causal)
        if key in self._made:
            return self._made[key][1]
        seen = own
        if seen is None:
            place = torch.arange(self.real.shape[1], device=self.real.device)
            seen = (place <= place[:, None])[None, None]
            seen = seen if causal else torch.ones_like(seen)
        if seen.dtype == torch.bool:
            seen = kind_of(kind).sees(seen, self.real, 0 if self.stack is None else self.stack.m)
            mask = torch.where(seen, 0.0, _HIDDEN)
        elif kind == "forward":
            mask = seen.clamp(min=_HIDDEN)
        else:
            raise ValueError("The backbone adds position biases to its mask: its layers cannot be converted.")
        self._made[key] = (own, mask)
        return mask

    def see(self, probabilities: Tensor, *, both_ways: bool) -> None:
        """Raise the maxima by one layer's probabilities [B, H, T, T]."""
        values = (probabilities + probabilities.mT).amax(dim=1) / 2 if both_ways else probabilities.amax(dim=1)
        known = self._largest.get(both_ways)
        self._largest[both_ways] = values if known is None else torch.maximum(known, values)

    def matrix(self) -> Tensor:
        """A^new, [B, T, T]."""
        both, one = self._largest.get(True), self._largest.get(False)
        if one is not None:
            # Below the diagonal there is nothing else, so the maximum may be taken before both halves are added.
            halves = (one + one.mT) / 2
            both = halves if both is None else torch.maximum(both, halves)
        if both is None:
            raise ValueError("No layer handed out its attention, so backward attention cannot be exported.")
        return both


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
    """Attention of one layer, by its plan, with capture; as :func:`st_reba.modules.attention.attend`."""
    for name in (*UNKNOWN_ARGUMENTS, "indices"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{type(module).__name__} passes {name!r} to its attention, which no graph is made for.")
    run = current()
    assert run is not None
    state: GraphState = run.kinds
    kind = "forward" if state.stack is None else state.stack.kinds[module.layer_idx]  # type: ignore[index]
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
    if state.captures:
        state.see(probabilities, both_ways=not causal or KINDS[kind].looks_ahead)
    mixed = torch.matmul(probabilities.reshape(batch, groups, -1, key.shape[2]), value)
    return mixed.reshape(batch, heads, length, -1).transpose(1, 2), None


def _whole_mask(*arguments: Any, **keywords: Any) -> Tensor | None:
    """The mask that says all, also where a kernel could do without."""
    keywords.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    mask: Tensor | None = sdpa_mask(*arguments, **keywords)
    return mask


AttentionInterface.register(GRAPH_ATTENTION, attend)
AttentionMaskInterface.register(GRAPH_ATTENTION, _whole_mask)


@contextmanager
def graph_attention(model: PreTrainedModel) -> Iterator[bool]:
    """Inside the ``with`` block a backbone calls :func:`attend`; False where its architecture calls no interface."""
    decoder = Backbone(model).decoder
    before = decoder.config._attn_implementation
    try:
        yield ask_for(decoder, GRAPH_ATTENTION)
    finally:
        ask_for(decoder, before)
