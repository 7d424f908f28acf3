"""The state of one forward pass, which its hooks share, and how the attention of every layer finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from .layout import Features, Span

if TYPE_CHECKING:

    class PassHook(Protocol):
        """Takes part in a forward pass: a capture, a reader, or masks.

        A hook may set ``by_position = True``: what it computes at a position depends on that
        position alone, so a pass may hold part of a row.
        """

        def before_layers(self, forward_pass: ForwardPass) -> None:
            """Prepare the pass, before its layers run."""

        def after_layers(self, forward_pass: ForwardPass, hidden_states: Tensor) -> Tensor:
            """Read the hidden states [B, T, d] that the model hands out, and return them, changed or not."""

    class MaskSource(Protocol):
        """Gives the masks of layers that see other tokens than in the base."""

        @property
        def second(self) -> Sequence[tuple[int, str]]: ...

        def mask_for_layer(
            self,
            module: nn.Module,
            native_mask: Tensor | None,
            is_causal: bool,
        ) -> LayerMask:
            """The mask of the layer whose attention module runs."""

    class AttentionObserver(Protocol):
        """Computes the attention of layers, and keeps some of it."""

        def attend(
            self,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            terms: Any,
            looks_ahead: bool,
        ) -> Tensor:
            """Attention of one layer, [B, T, H, D']."""


class LayerMask(NamedTuple):
    """What a layer sees."""

    mask: Tensor | None
    is_causal: bool  # where mask is None: whether later tokens are hidden
    looks_ahead: bool  # whether any token sees a later one


class ForwardPass:
    """State of one forward pass."""

    def __init__(self, model: PreTrainedModel, features: Features) -> None:
        self.model = model
        # On the host, so that no layer waits for the device.
        self.spans: list[Span] = features["spans"]
        self.real_tokens: Tensor = features["attention_mask"].bool()  # [B, T]
        self.copy_ids: Tensor = features["copy_ids"]  # [B, T]
        row_length = self.real_tokens.shape[1]
        self.is_padded = any(span.row_length < row_length for span in self.spans)
        # Arguments of the decoder besides ids and mask.
        self.model_arguments: dict[str, object] = {}
        self.masks: MaskSource | None = None
        self.observer: AttentionObserver | None = None
        # After every layer: called with its index, call and states; returns these, changed or not.
        self.after_layer: list[Callable[[int, Any, Tensor], Tensor]] = []
        # Called after every layer's attention: its index, its output.
        self.after_attention: list[Callable[[int, Tensor], object]] = []
        # Called after every other module of the layer, with its input and its output.
        self.after_sibling: list[Callable[[object, Tensor], object]] = []
        # What each hook keeps during the pass.
        self.hook_data: dict[PassHook, Any] = {}
        # What hooks hand to the pooling.
        self.pooling_features: Features = {}


# A context variable, so that threads and models never meet.
_active_pass: ContextVar[ForwardPass | None] = ContextVar("st_reba_pass", default=None)


def current_pass() -> ForwardPass | None:
    """The running pass, if it is one of ours."""
    return _active_pass.get()


@contextmanager
def running(forward_pass: ForwardPass) -> Iterator[None]:
    """Make ``forward_pass`` the running pass inside the ``with`` block."""
    token = _active_pass.set(forward_pass)
    try:
        yield
    finally:
        _active_pass.reset(token)
