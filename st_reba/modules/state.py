"""The state of one forward pass.

It lives in a context variable, so that two models, or two threads, in one process do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from .capture import Capture
from .masks import LayerMasks, additive
from .plan import LayerKind, Stack


class ForwardState:
    """What the attention function and the layers' hooks know of the pass they run in.

    Args:
        attention_mask: [B, T], 1 at real positions.
        capture: Observes every layer's attention.
        stack: What each layer sees; None: what it sees by itself.
    """

    def __init__(
        self,
        attention_mask: Tensor,
        *,
        capture: Capture | None = None,
        stack: Stack | None = None,
    ) -> None:
        self.real = attention_mask.bool()
        self.capture = capture
        self.stack = stack
        self.masks = None if stack is None else LayerMasks(self.real, stack.m)
        # Tokens in front of those that run, whose keys and values are known already.
        self.prefix = 0
        # Further passes that ran.
        self.further = 0
        # The second stream of hidden states [B, T, d], where there is one.
        self.stream: Tensor | None = None
        # The attention module that ran last, and what it saw.
        self.last: tuple[nn.Module, LayerKind] | None = None
        self._further: LayerKind | None = None
        self._additive: dict[Any, tuple[Tensor, Tensor]] = {}

    def kind(self, module: nn.Module) -> LayerKind:
        """What the attention module that runs now sees.

        Raises:
            ValueError: The module does not say which layer it belongs to.
        """
        kind = self._kind(module)
        self.last = (module, kind)
        return kind

    def _kind(self, module: nn.Module) -> LayerKind:
        if self.stack is None:
            return "forward"
        if self._further is not None:
            return self._further
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or not 0 <= layer < len(self.stack.kinds):
            raise ValueError(
                f"{type(module).__name__} says layer_idx={layer!r}, so its place among {len(self.stack.kinds)} layers "
                "is not known, and its layers cannot be converted. Use layers=None."
            )
        return self.stack.kinds[layer]

    def additive(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """A mask as numbers to add to scores, made once for all layers that share it."""
        key = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, dtype)
        if key not in self._additive:
            self._additive[key] = (mask, additive(mask, dtype))  # mask is kept, so that its address stays its own
        return self._additive[key][1]

    @contextmanager
    def further_pass(self, kind: LayerKind) -> Iterator[None]:
        """Inside the ``with`` block, whichever layer runs sees what ``kind`` says."""
        before, self._further = self._further, kind
        try:
            yield
        finally:
            self._further = before


_state: ContextVar[ForwardState | None] = ContextVar("st_reba_forward", default=None)


def current() -> ForwardState | None:
    """The state of the forward pass that runs now, if it is one of ours."""
    return _state.get()


@contextmanager
def running(state: ForwardState) -> Iterator[None]:
    """Make ``state`` the current one inside the ``with`` block."""
    token = _state.set(state)
    try:
        yield
    finally:
        _state.reset(token)
