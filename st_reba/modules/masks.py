"""The masks that a layer may have in place of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class AttentionView(NamedTuple):
    """What masks are made of, for one layer; in [T, T], a row is a query and a column a key.

    Padding follows the text, and is always hidden. A mask that ignores the native one also ignores
    the layer's window.
    """

    native_mask: Tensor  # [B or 1, 1, T, T] bool, what the layer sees by itself, within its window
    positions: Tensor  # [T], 0 to T − 1
    sink_for_others: Tensor  # [T, T], the key is one of the first m tokens, and the query is not
    last_token: Tensor  # [B or 1, 1, 1, T], the key is the text's last token


@dataclass(frozen=True)
class AttentionMask:
    """Declaration of a mask."""

    name: str  # as layer_masks has it
    inplace_setting: str  # the value of setting that gives this mask to the k converted layers
    description: str  # completes "token i sees …", for cards; {m}: the number of sink tokens
    visible_tokens: Callable[[AttentionView], Tensor]  # to [B or 1, 1, T, T] bool
    is_causal: bool = False  # a token sees no later one, unless the layer itself lets it
    hides_sink: bool = False  # the option m is allowed


MASKS: dict[str, AttentionMask] = {}


def declare_mask(name: str, **declaration: Any) -> None:
    """Register a mask, by AttentionMask's arguments; models, settings and checks then know it."""
    MASKS[name] = AttentionMask(name, **declaration)


declare_mask(
    "forward",
    inplace_setting="baseline",
    description="the tokens up to i, as in the base",
    visible_tokens=lambda view: view.native_mask,
    is_causal=True,
)
declare_mask(
    "backward",
    inplace_setting="inplace-back",
    description="the tokens from i on",
    visible_tokens=lambda view: view.native_mask.mT,
)
declare_mask(
    "bidirectional",
    inplace_setting="inplace-bidir",
    description="all tokens",
    visible_tokens=lambda view: view.native_mask | view.native_mask.mT,
)
declare_mask(
    "nosink-forward",
    inplace_setting="mask0-for",
    description="the tokens up to i, except that the sink is hidden from all later tokens",
    visible_tokens=lambda view: view.native_mask & ~view.sink_for_others,
    is_causal=True,
    hides_sink=True,
)
declare_mask(
    "nosink-bidirectional",
    inplace_setting="mask0-bidir",
    description="all tokens, except that the sink is hidden from all later tokens",
    visible_tokens=lambda view: (view.native_mask | view.native_mask.mT) & ~view.sink_for_others,
    hides_sink=True,
)
declare_mask(
    "rerouted",  # KV-Embedding (2026)
    inplace_setting="rerouted",
    description="the tokens up to i and the very last one, past any window",
    visible_tokens=lambda view: view.native_mask | view.last_token,
)
