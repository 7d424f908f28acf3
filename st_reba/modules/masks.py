"""NoSinkTransformer: layers see what their masks say, in place of what they see by themselves.

Every mask follows from the layer's own, which transformers made and which holds its window, by mirroring or by hiding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .attention import show_attention
from .layout import PARTS, _tokenizing, published, spans_of
from .passes import ForwardPass
from .transformer import RepeatTransformer


def _sink(place: Tensor, m: int) -> Tensor:
    """Where the key is one of the first m tokens, and the query is not."""
    return (place < m) & (place[:, None] >= m)


# Own mask [B or 1, 1, T, T], positions 0 … T − 1, those of last tokens [B or 1, 1, 1, 1], m → what is visible.
MASKS: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    "forward": lambda own, place, last, m: own,
    "backward": lambda own, place, last, m: own.mT,
    "bidirectional": lambda own, place, last, m: own | own.mT,
    "nosink-forward": lambda own, place, last, m: own & ~_sink(place, m),
    "nosink-bidirectional": lambda own, place, last, m: (own | own.mT) & ~_sink(place, m),
    # KV-Embedding: every token also sees the last one, past any window.
    "rerouted": lambda own, place, last, m: own | (place == last),
}


class LayerMasks:
    """The masks of one forward pass of a NoSinkTransformer; a hook of that pass."""

    def __init__(self, transformer: Any) -> None:
        self.names, self.second, self.m = transformer.layer_masks, transformer.second, transformer.m
        self.further: str | None = None  # the mask of a layer's second run
        # For checks: the attention module that ran last with its mask's name, and its own mask.
        self.last: tuple[nn.Module, str] | None = None
        self.own: Tensor | None = None

    def begin(self, state: ForwardPass) -> None:
        """Let attention ask for the masks."""
        self.real, self.padded, state.masks = state.real, state.padded, self

    def finish(self, state: ForwardPass, hidden: Tensor) -> Tensor:
        """Refuse a pass in which no attention asked for a mask."""
        if self.last is None:
            raise ValueError("The masks were not used: the attention implementation was changed. Build the model anew.")
        return hidden

    def of(self, module: nn.Module, own: Tensor | None, causal: bool) -> tuple[Tensor | None, bool, bool]:
        """Mask of the attention module that runs now, which knows its layer by its ``layer_idx``.

        ``own`` is its own mask; None: causal, or all. Returns the mask, or None: causal or all, as the second value
        says; and whether a token may see a later one.
        """
        name, layer = self.further, getattr(module, "layer_idx", None)
        if name is None:
            if not isinstance(layer, int) or not 0 <= layer < len(self.names):
                raise ValueError(f"{type(module).__name__} says layer_idx={layer!r}, so its mask cannot be changed.")
            name = self.names[layer]
        self.last, self.own = (module, name), own
        looks_ahead = name not in ("forward", "nosink-forward") or not causal
        if name == "forward":
            return own, causal, looks_ahead
        if name == "bidirectional" and own is None and not self.padded:
            return None, False, True
        real = self.real if self.padded else None
        return visible(name, self._own(own, causal), real, self.m), causal, looks_ahead

    def _own(self, own: Tensor | None, causal: bool) -> Tensor:
        length = self.real.shape[1]
        if own is None:
            seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=self.real.device)
            return seen.tril() if causal else seen
        if own.shape[-2:] != (length, length):
            raise ValueError(f"A layer's mask of shape {tuple(own.shape)} for {length} tokens cannot be changed.")
        return own if own.dtype == torch.bool else own > torch.finfo(own.dtype).min / 2


def visible(name: str, own: Tensor, real: Tensor | None = None, m: int = 1) -> Tensor:
    """What a layer sees, [B or 1, 1, T, T] bool; a padding position sees itself, as a row without a key has no softmax.

    Args:
        name: One of ``MASKS``.
        own: [B or 1, 1, T, T] bool, what it sees by itself: row: query, column: key.
        real: [B, T] bool, False at padding, which follows every text; None: there is none.
        m: Number of sink tokens.

    Example:
        >>> own = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
        >>> visible("nosink-bidirectional", own)[0, 0].int().tolist()
        [[1, 1, 1], [0, 1, 1], [0, 1, 1]]
    """
    place = torch.arange(own.shape[-1], device=own.device)
    last = place[-1:] if real is None else real.sum(dim=1) - 1
    seen = MASKS[name](own, place, last[:, None, None, None], m)
    return seen if real is None else seen & real.to(own.device)[:, None, None, :] | (place[:, None] == place)


@published
class NoSinkTransformer(RepeatTransformer):
    """RepeatTransformer whose layers see what their masks say.

    Args:
        layer_masks: A name of ``MASKS`` for each layer, from the bottom; see ``st_reba.modules.settings.masks_of``.
        second: Layers that run a second time, each with its mask, in order.
        architecture: How the second runs join: ``"inter"``, ``"extra"``, ``"extend"``; ``"inplace"``: there are none.
        m: Number of sink tokens that nosink masks hide.
        implementation: Of inter and extra: the paper's, or that of its authors' code.
        own_input: Keep the input of a sentence-transformers model as it is: no copies, no template.
        **kwargs: As for RepeatTransformer; a text stands once where nothing else is said.

    Source:
        NoSink, section 3 and appendix D.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2)
        >>> model[0].layer_masks[-2:]
        ['nosink-bidirectional', 'nosink-bidirectional']
    """

    config_keys = [
        *RepeatTransformer.config_keys,
        *("layer_masks", "second", "architecture", "m", "implementation", "own_input"),
    ]

    def __init__(
        self,
        model_name_or_path: Any,
        *,
        layer_masks: Sequence[str],
        second: Sequence[Sequence[Any]] = (),
        architecture: str = "inplace",
        m: int = 1,
        implementation: str = "paper",
        own_input: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("repeats", 1)
        super().__init__(model_name_or_path, **kwargs)
        self.layer_masks, self.second = list(layer_masks), [tuple(each) for each in second]
        self.architecture, self.m, self.implementation, self.own_input = architecture, m, implementation, own_input
        if unknown := {*self.layer_masks, *(name for _, name in self.second)} - MASKS.keys():
            raise ValueError(f"layer_masks: {min(unknown)!r} is not known. Choose from {', '.join(MASKS)}.")
        if len(self.layer_masks) != self.depth or m < 0 or {layer for layer, _ in self.second} - {*range(self.depth)}:
            raise ValueError(f"layer_masks={len(self.layer_masks)} names, second={second}: {self.depth} layers; m={m}.")
        self.second_runs: Any = PARTS["second"](self) if self.second else None
        self.changed = bool(self.second) or set(self.layer_masks) != {"forward"}
        if self.changed and not show_attention(self.model):
            raise ValueError(f"{type(self.model).__name__} does not call transformers' attention interface: no masks.")

    def _hooks(self, capture: Any) -> list[Any]:
        hooks = [LayerMasks(self)] if self.changed else []
        return [*hooks, *([self.second_runs] if self.second else []), *super()._hooks(capture)]

    def preprocess(self, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Tokenize as RepeatTransformer does; with ``own_input`` as sentence-transformers does, padded on the right."""
        if not self.own_input:
            return super().preprocess(inputs, *args, **kwargs)
        self.tokenizer.padding_side = "right"  # type: ignore[union-attr]
        with _tokenizing:
            features: dict[str, Any] = super(RepeatTransformer, self).preprocess(inputs, *args, **kwargs)
        return {**features, "spans": spans_of(features), "copy_ids": features["attention_mask"]}
