"""One forward pass: what the sections do in it, and how the attention of every layer finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor


class ForwardPass:
    """State of one forward pass."""

    def __init__(self, transformer: Any, features: Mapping[str, Any]) -> None:
        self.transformer, self.spans = transformer, features["spans"]  # on the host, so that no layer waits for it
        self.real, self.copies = features["attention_mask"].bool(), features["copy_ids"]  # [B, T] each
        self.padded = any(span.total < self.real.shape[1] for span in self.spans)
        self.arguments: dict[str, Any] = {}  # for the decoder, beside ids and mask
        self.masks: Any = None  # LayerMasks, where layers see other tokens than in the base
        self.backward: Any = None  # BackwardAttention, where rows of A^new are kept
        # Called after every layer: its index, the states before and after it, how to run it again; gives the states.
        self.after_layer: list[Callable[..., Tensor]] = []
        # Called after every layer's attention: index, output.
        self.after_attention: list[Callable[[int, Tensor], object]] = []
        self.kept: dict[Any, Any] = {}  # by hooks, until the end of the pass
        self.features: dict[str, Any] = {}  # what hooks hand to the pooling


# A context variable, so that threads and models never meet.
_current: ContextVar[ForwardPass | None] = ContextVar("st_reba_pass", default=None)


def current_pass() -> ForwardPass | None:
    """The running pass, if it is one of ours."""
    return _current.get()


@contextmanager
def running(state: ForwardPass) -> Iterator[None]:
    """Make ``state`` the running pass inside the ``with`` block."""
    token = _current.set(state)
    try:
        yield
    finally:
        _current.reset(token)
