"""The masks that a layer may have in place of its own: each is declared once, here, without torch.

All that depends on a mask follows from its declaration: settings, options, self-check, the card, the ONNX graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AttentionView:
    """What masks are made of, for one layer; in [T, T], a row is a query and a column a key.

    Args:
        native_mask: [B or 1, 1, T, T] bool, what the layer sees by itself; it holds the layer's window.
        positions: [T], 0 to T − 1.
        last_position: [B or 1, 1, 1, 1], position of each text's last token.
        sink_length: Number m of sink tokens.
    """

    native_mask: Tensor
    positions: Tensor
    last_position: Tensor
    sink_length: int

    @property
    def mirrored(self) -> Tensor:
        """[B or 1, 1, T, T], later tokens in place of earlier ones."""
        return self.native_mask.mT

    @property
    def sink_for_others(self) -> Tensor:
        """[T, T], where the key is one of the first m tokens, and the query is not."""
        return (self.positions < self.sink_length) & (self.positions[:, None] >= self.sink_length)

    @property
    def last_token(self) -> Tensor:
        """[B or 1, 1, 1, T], where the key is the text's last token."""
        return self.positions == self.last_position


@dataclass(frozen=True)
class AttentionMask:
    """Declaration of a mask.

    Args:
        name: As ``layer_masks`` has it.
        inplace_setting: The value of the option ``setting`` that gives this mask to the k converted layers.
        description: What token i sees, for cards; ``{m}`` stands for the number of sink tokens.
        is_causal: A token sees no later one, unless the layer itself lets it.
        hides_sink: The option m is allowed.
        visible_tokens: From an AttentionView to [B or 1, 1, T, T] bool.
    """

    name: str
    inplace_setting: str
    description: str
    is_causal: bool
    hides_sink: bool
    visible_tokens: Callable[[AttentionView], Tensor]


MASKS: dict[str, AttentionMask] = {}


def declare_mask(mask: AttentionMask) -> None:
    """Enter a mask: from here on models, settings and checks know it."""
    MASKS[mask.name] = mask


declare_mask(
    AttentionMask(
        name="forward",
        inplace_setting="baseline",
        description="the tokens up to i, as in the base",
        is_causal=True,
        hides_sink=False,
        visible_tokens=lambda view: view.native_mask,
    )
)
declare_mask(
    AttentionMask(
        name="backward",
        inplace_setting="inplace-back",
        description="the tokens from i on",
        is_causal=False,
        hides_sink=False,
        visible_tokens=lambda view: view.mirrored,
    )
)
declare_mask(
    AttentionMask(
        name="bidirectional",
        inplace_setting="inplace-bidir",
        description="all tokens",
        is_causal=False,
        hides_sink=False,
        visible_tokens=lambda view: view.native_mask | view.mirrored,
    )
)
declare_mask(
    AttentionMask(
        name="nosink-forward",
        inplace_setting="mask0-for",
        description="the tokens up to i, but not the first {m} (the sink), which later tokens do not see",
        is_causal=True,
        hides_sink=True,
        visible_tokens=lambda view: view.native_mask & ~view.sink_for_others,
    )
)
declare_mask(
    AttentionMask(
        name="nosink-bidirectional",
        inplace_setting="mask0-bidir",
        description="all tokens, but not the first {m} (the sink), which later tokens do not see",
        is_causal=False,
        hides_sink=True,
        visible_tokens=lambda view: (view.native_mask | view.mirrored) & ~view.sink_for_others,
    )
)
declare_mask(
    AttentionMask(
        name="rerouted",  # KV-Embedding (2026)
        inplace_setting="rerouted",
        description="the tokens up to i and the very last one, past any window",
        is_causal=False,
        hides_sink=False,
        visible_tokens=lambda view: view.native_mask | view.last_token,
    )
)
