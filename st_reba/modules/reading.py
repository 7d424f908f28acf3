"""The stage that reads inner layers: the hidden states of one or several; no layer above them runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from .options import MOST_LAYERS, option, shown
from .stages import Bound, Decoder, LayerCall, Pass, Stage

if TYPE_CHECKING:
    from torch import Tensor

# A state is zero only where it is padding, and masked.
_TINY = 1e-30


@dataclass(frozen=True)
class ReadLayers(Stage):
    """Read the hidden states of an inner layer, or of several; layers above are not run.

    Of several, each token's vectors are scaled to length 1 before they are joined.

    Example:
        >>> print(ReadLayers([1, -4]).resolve(6))
        mean of layers 1 to 3 of 6, after the final norm
    """

    name: ClassVar[str] = "read"
    order: ClassVar[int] = 30

    layers: int | tuple[int, ...] = option(
        -1,
        "layer to read, 0 (embeddings) to L, or -1 (L) downwards; or the first and the last of several",
        least=-MOST_LAYERS,
        most=MOST_LAYERS,
    )
    join: Literal["mean", "concat"] = option("mean", "of several layers: their mean, or side by side")
    final_norm: bool = option(True, "read behind the backbone's final norm, each layer by itself; else before it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.layers, tuple) and len(self.layers) != 2:
            raise ValueError(f"read: layers={list(self.layers)} must name the first and the last layer, as [2, 4].")

    def resolve(self, depth: int) -> Reading:
        """The reading of a backbone with ``depth`` layers.

        Raises:
            ValueError: There is no such layer, or the first of two stands above the last.
        """
        ends = self.layers if isinstance(self.layers, tuple) else (self.layers,)
        given = f"read: layers={shown(self.layers)}"
        for number in ends:
            if not -depth - 1 <= number <= depth:
                raise ValueError(
                    f"{given}: the backbone has no {number}, but 0 (embeddings) to {depth}, or -1 to {-depth - 1} "
                    "counted from the end."
                )
        first, last = (number % (depth + 1) for number in (ends[0], ends[-1]))
        if first > last:
            raise ValueError(f"{given}: {first} stands above {last}. Give the lower one first.")
        return Reading(tuple(range(first, last + 1)), self.final_norm, depth, self.join)

    def runs(self, depth: int) -> int:
        return self.resolve(depth).runs

    def bind(self, decoder: Decoder) -> Bound:
        return ReadingPass(decoder, self.resolve(decoder.depth))


@dataclass(frozen=True)
class Reading:
    """The layers whose hidden states are read from a backbone of ``depth`` layers, by ascending numbers."""

    layers: tuple[int, ...]
    final_norm: bool
    depth: int
    join: Literal["mean", "concat"] = "mean"

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
        joined = {"mean": "mean", "concat": "concatenation"}[self.join]
        name = f"layer {last}" if first == last else f"{joined} of layers {first} to {last}"
        return f"{name} of {self.depth}, {'after' if self.final_norm else 'before'} the final norm"


class ReadingPass(Bound):
    """Reads layers in a decoder's passes; an error where they cannot be read."""

    def __init__(self, decoder: Decoder, reading: Reading) -> None:
        self.reading = reading
        self.width = len(reading.layers) if reading.join == "concat" else 1
        if reading.is_plain:
            return
        stack, given = decoder.stack, f"read: layers={list(reading.layers)}"
        if stack is not None and stack.second and (len(reading.layers) > 1 or reading.layers == (0,)):
            raise ValueError(
                f"{given}: the layer plan runs layers twice, so no one hidden state stands between or in front of "
                "them. Read one layer from 1 on, or use a plan of architecture 'inplace'."
            )
        from .layer_list import cut_short, layers_of

        try:
            cut_short(layers_of(decoder.backbone))
        except ValueError as error:
            raise ValueError(f"{given}: {error}. Drop the stage.") from None

    def begin(self, run: Pass) -> None:
        run.kept[self] = {}
        run.runs = self.reading.runs

    def after_layer(self, run: Pass, call: LayerCall) -> Tensor:
        """Keep what is read; behind the last layer that runs, hand all of it to the final norm as further rows."""
        reading, hidden, states = self.reading, call.hidden, run.kept[self]
        if reading.is_plain:
            return hidden
        name = type(call.module).__name__
        if call.index >= reading.runs:
            raise ValueError(
                f"read: {name} ran as layer {call.index + 1} of {reading.depth}, though only {reading.runs} are "
                "needed: this backbone cannot be cut short. Drop the stage."
            )
        if hidden.ndim != 3:
            raise ValueError(f"read: {name} passes on {hidden.ndim}-dimensional states, not [B, T, d]. Drop the stage.")
        if call.index == 0 and reading.layers[0] == 0:
            states[0] = call.entered
        if call.index + 1 in reading.layers:
            states[call.index + 1] = hidden
        if call.index + 1 < reading.runs or not reading.final_norm or reading.layers == (reading.runs,):
            return hidden
        import torch

        return torch.cat([states[layer] for layer in reading.layers])

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """The states that are read, [B, T, d]; of several their mean or these side by side, [B, T, layers · d]."""
        states = list(self.states(run, hidden).values())
        if len(states) == 1:
            return states[0]
        import torch
        from torch import nn

        precision = torch.promote_types(hidden.dtype, torch.float32)
        units = [nn.functional.normalize(state.to(precision), dim=-1, eps=_TINY) for state in states]
        joined = torch.stack(units).mean(dim=0) if self.reading.join == "mean" else torch.cat(units, dim=-1)
        return joined.to(hidden.dtype)

    def states(self, run: Pass, hidden: Tensor) -> dict[int, Tensor]:
        """By layer, what is read; ``hidden`` is what the backbone handed out."""
        layers = self.reading.layers
        if self.reading.final_norm:
            # Not by chunk, of whose parts an exporter does not know the number.
            return dict(zip(layers, hidden.reshape(len(layers), -1, *hidden.shape[1:]), strict=True))
        if missing := [layer for layer in layers if layer not in run.kept[self]]:
            raise ValueError(f"read: layer {missing[0]} of the backbone was not seen to run. Drop the stage.")
        return {layer: run.kept[self][layer] for layer in layers}
