"""Which hidden states a pass reads: one layer's or several layers', and no layer above them is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .limits import shown

Layer = int | Sequence[int]
Join = Literal["mean", "concat"]


@dataclass(frozen=True)
class Reading:
    """The layers whose hidden states are read from a backbone of known depth.

    Args:
        layers: Their numbers, ascending: 0 are the embeddings, l what the l-th layer gives.
        final_norm: Read them after the backbone's final norm, each by itself.
        depth: The backbone's number of layers L.
        join: How several make one.
    """

    layers: tuple[int, ...]
    final_norm: bool
    depth: int
    join: Join = "mean"

    @property
    def runs(self) -> int:
        """How many layers run, from the bottom; one at least, as embeddings alone come through no backbone."""
        return max(1, self.layers[-1])

    @property
    def is_plain(self) -> bool:
        """Whether this is what a backbone hands out by itself."""
        return self.layers == (self.depth,) and self.final_norm

    def __str__(self) -> str:
        first, last = self.layers[0], self.layers[-1]
        joined = "mean" if self.join == "mean" else "concatenation"
        name = f"layer {last}" if first == last else f"{joined} of layers {first} to {last}"
        norm = "after" if self.final_norm else "before"
        return f"{name} of {self.depth}, {norm} the final norm"


def resolve_reading(layer: Layer | None, final_norm: bool, depth: int, join: Join = "mean") -> Reading:
    """The reading that an option ``layer`` means.

    Args:
        layer: A number from 0 (embeddings) to L, or from -1 (L) to -L - 1; or the first and the last of several; None:
            the last.
        final_norm: Whether they are read after the final norm.
        depth: The backbone's number of layers L.
        join: ``"mean"`` or ``"concat"``: how several make one.

    Raises:
        ValueError: There is no such layer, or the first of two stands above the last.

    Example:
        >>> print(resolve_reading([1, -4], True, 6))
        mean of layers 1 to 3 of 6, after the final norm
    """
    check_layer(layer, final_norm, join)
    if layer is None:
        return Reading((depth,), final_norm, depth, join)
    ends = [layer] if isinstance(layer, int) else list(layer)
    for number in ends:
        if not -depth - 1 <= number <= depth:
            raise ValueError(
                f"layer={shown(layer)}: the backbone has 0 (embeddings) to {depth} (its last layer), or -1 to "
                f"{-depth - 1} counted from the end, and no {number}."
            )
    first, *_, last = [number if number >= 0 else depth + 1 + number for number in (ends[0], ends[-1])]
    if first > last:
        raise ValueError(f"layer={shown(layer)}: {first} stands above {last}. Give the lower layer first.")
    return Reading(tuple(range(first, last + 1)), final_norm, depth, join)


def check_layer(layer: Any, final_norm: object = True, join: object = "mean") -> None:
    """Raise unless options ``layer``, ``final_norm`` and ``join`` are such that some backbone could have."""
    if not isinstance(join, str) or join not in get_args(Join):
        raise ValueError(f"join={shown(join)} is not known: choose one of {list(get_args(Join))}.")
    if not isinstance(final_norm, bool):
        raise ValueError(f"final_norm={shown(final_norm)} must be True or False.")
    if layer is None:
        return
    several = isinstance(layer, Sequence) and not isinstance(layer, (str, bytes))
    if several and len(layer) != 2:
        raise ValueError(f"layer={shown(layer)} must name the first and the last of several layers, as [2, 4].")
    for number in layer if several else [layer]:
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(
                f"layer={shown(layer)} must be a layer's number, the first and the last of several as [2, 4], or None."
            )


class ReadingPass:
    """What one forward pass reads; its hooks stand behind every layer.

    Args:
        reading: What is read.
    """

    # What asked for it, and what asks for nothing: for messages.
    option = "layer"
    plain = "layer=None"

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        # By layer: hidden states [B, T, d] before the final norm; and behind it, once read.
        self.states: dict[int, Tensor] = {}
        self.normed: dict[int, Tensor] = {}

    def after_layer(self, module: nn.Module, index: int, entered: Tensor, hidden: Tensor) -> Tensor:
        """See what a layer takes and gives.

        Args:
            module: The layer.
            index: Its index, from 0.
            entered: Hidden states that it took, [B, T, d].
            hidden: What it gave, [B, T, d].

        Returns:
            What goes on in the backbone: behind the last layer that runs all that is read, as further rows of the
            batch, where the final norm is to take it.

        Raises:
            ValueError: A layer ran that should not, or passes on something else than hidden states.
        """
        reading = self.reading
        if index >= reading.runs:
            raise ValueError(
                f"{self.option}: {type(module).__name__} ran as layer {index + 1} of {reading.depth}, though only "
                f"{reading.runs} are needed: this backbone finds its layers in a way that cannot be cut short. Use "
                f"{self.plain}."
            )
        if hidden.ndim != 3:
            raise ValueError(
                f"{self.option}: {type(module).__name__} passes on {hidden.ndim}-dimensional hidden states in place of "
                f"[B, T, d], so none can be read between its layers. Use {self.plain}."
            )
        if index == 0 and reading.layers[0] == 0:
            self.states[0] = entered
        if index + 1 in reading.layers:
            self.states[index + 1] = hidden
        if index + 1 < reading.runs or not reading.final_norm or reading.layers == (reading.runs,):
            return hidden
        return torch.cat([self.states[layer] for layer in reading.layers])

    def read(self, last: Tensor) -> Tensor:
        """The hidden states that are read.

        Args:
            last: What the backbone hands out.

        Returns:
            [B, T, d], of several layers the mean, each token's vectors scaled to length 1 before; or these side by
            side, [B, T, layers · d].
        """
        states = self.each(last)
        if len(states) == 1:
            return states[0]
        precision = torch.promote_types(last.dtype, torch.float32)
        units = [nn.functional.normalize(state.to(precision), dim=-1, eps=_TINY) for state in states]
        joined = torch.stack(units).mean(dim=0) if self.reading.join == "mean" else torch.cat(units, dim=-1)
        return joined.to(last.dtype)

    def each(self, last: Tensor) -> list[Tensor]:
        """Each layer's hidden states by themselves; as for :meth:`read`."""
        layers = self.reading.layers
        if self.reading.final_norm:
            # Not by chunk, of whose parts an exporter does not know the number.
            self.normed = dict(zip(layers, last.reshape(len(layers), -1, *last.shape[1:]), strict=True))
            return list(self.normed.values())
        if missing := [layer for layer in layers if layer not in self.states]:
            raise ValueError(f"layer: layer {missing[0]} of the backbone was not seen to run. Use layer=None.")
        return [self.states[layer] for layer in layers]


class TopReading(ReadingPass):
    """Reads the highest of several layers, and keeps the others' states for whoever asks for them."""

    option = "layers"
    plain = "layers='last'"

    def read(self, last: Tensor) -> Tensor:
        """Its hidden states [B, T, d]."""
        return self.each(last)[-1]


# A state is zero only where it is padding, and masked.
_TINY = 1e-30

_pass: ContextVar[ReadingPass | None] = ContextVar("st_reba_reading", default=None)


def current_reading() -> ReadingPass | None:
    """What the forward pass that runs now reads, if it is not the last layer."""
    return _pass.get()


@contextmanager
def reading_pass(reading: ReadingPass | None) -> Iterator[None]:
    """Inside the ``with`` block, the backbone runs as many layers as ``reading`` needs."""
    token = _pass.set(reading)
    try:
        yield
    finally:
        _pass.reset(token)


def begin(reading: Reading) -> ReadingPass | None:
    """A pass that reads; None where the backbone hands out by itself what is read."""
    return None if reading.is_plain else ReadingPass(reading)


class LayerList(nn.ModuleList):
    """A backbone's list of layers, which shows as many as the running pass needs, and all of them to everyone else.

    The backbone's own forward then goes through these only, and on to its final norm.
    """

    def __iter__(self) -> Iterator[nn.Module]:
        return islice(super().__iter__(), _shown_layers())

    def __len__(self) -> int:
        shown_layers = _shown_layers()
        length = super().__len__()
        return length if shown_layers is None else min(length, shown_layers)

    def __getitem__(self, index: Any) -> Any:
        # By number every layer is found: one that should not run then says so itself.
        with reading_pass(None):
            return super().__getitem__(index)


def _shown_layers() -> int | None:
    reading = current_reading()
    return None if reading is None else reading.reading.runs


def cut_short(layers: Any) -> None:
    """Let passes run fewer layers of a backbone.

    Args:
        layers: Its list of layers; a plain ``nn.ModuleList``.

    Raises:
        ValueError: It is another kind of list.
    """
    if type(layers) is nn.ModuleList:
        # In place: parents, hooks, replicas and whoever shares the backbone keep the same list.
        layers.__class__ = LayerList
    elif not isinstance(layers, LayerList):
        raise ValueError(
            f"layer: the backbone keeps its layers in a {type(layers).__name__}, not in a ModuleList, so passes cannot "
            "be cut short. Use layer=None."
        )
