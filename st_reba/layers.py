"""Hidden states of inner layers, out of the pass that gives the last ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from .modules import RepeatTransformer
from .modules.alignment import moved, padding_in_front
from .modules.hooks import decoder_layers

Layers = Literal["last", "all"] | Sequence[int]


def layer_numbers(layers: Layers, depth: int) -> list[int]:
    """Which layers are meant.

    Args:
        layers: ``"last"``, ``"all"``, or numbers from −L − 1 to L.
        depth: The model's number of layers L.

    Returns:
        Numbers from 0 to L, each once, in their order.

    Raises:
        ValueError: There is no such layer, or none is named.

    Example:
        >>> layer_numbers("all", 2), layer_numbers([-1, 0, 2], 2)
        ([0, 1, 2], [2, 0])
    """
    if isinstance(layers, str):
        if layers not in ("last", "all"):
            raise ValueError(f"layers={layers!r} is not known: give 'last', 'all', or a list of numbers.")
        return [depth] if layers == "last" else list(range(depth + 1))
    numbers = []
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -depth - 1 <= layer <= depth:
            raise ValueError(
                f"layers={list(layers)}: {layer!r} is no layer of this model, which has 0 (embeddings) to {depth} (the "
                f"last hidden states), or -1 to {-depth - 1} counted from the end."
            )
        numbers.append(layer if layer >= 0 else depth + 1 + layer)
    if not numbers:
        raise ValueError("layers=[]: name one at least, or 'last'.")
    return list(dict.fromkeys(numbers))


class InnerStates:
    """The hidden states of several layers, out of one pass.

    Hooks on the layers see what enters them. (A backbone's own ``output_hidden_states`` does not come through
    sentence-transformers, and keeps every layer.)

    Args:
        transformer: The module that runs.
        layers: Numbers of layers from 0 to L.

    Raises:
        ValueError: This model has no hidden states between its layers, or none that can be looked at.

    Example:
        >>> import st_reba
        >>> transformer = st_reba.build("mini", "echo")[0]
        >>> features = transformer.preprocess(["你好", "Hello, world"])
        >>> [each["token_embeddings"].shape for each in InnerStates(transformer, [0, 6]).run(features)]
        [torch.Size([2, 11, 192]), torch.Size([2, 11, 192])]
    """

    def __init__(self, transformer: RepeatTransformer, layers: list[int]) -> None:
        self.transformer, self.layers = transformer, layers
        if transformer.stack.second:
            raise ValueError(
                f"layers={layers}: {transformer.layers!r} runs layers twice, so that there is no one hidden state "
                "between two of them. Use layers='last', or a plan of architecture 'inplace'."
            )
        if not transformer.reading.is_plain:
            raise ValueError(
                f"layers={layers}: this model reads {transformer.reading}, and runs no layer above. Use layers='last', "
                "or a model that was built without layer=…."
            )
        try:
            self.modules = decoder_layers(transformer.model, transformer.depth)
        except ValueError:
            raise ValueError(
                f"layers={layers}: {type(transformer.model).__name__} has no list of {transformer.depth} layers that "
                "say their layer_idx, so only its last hidden states can be had. Use layers='last'."
            ) from None

    def run(self, features: dict[str, Any], **capture: Any) -> Iterator[dict[str, Any]]:
        """Run the transformer once.

        Args:
            features: What it takes.
            **capture: Its ``capture``.

        Yields:
            What it gives, padding behind the texts, with each layer's hidden states for ``token_embeddings`` in turn.

        Raises:
            ValueError: A layer takes something else than hidden states, or gave NaN or infinity.
        """
        # Padding behind the texts, as the pass itself would move it: what the hooks see then stands where it belongs.
        start = padding_in_front(features["attention_mask"])
        if start is not None:
            features = moved(features, start)
        with self._watched() as states:
            output = self.transformer(features, **capture)
        last = output["token_embeddings"]
        for layer in self.layers:
            hidden = last if layer == self.transformer.depth else self._checked(states.pop(layer, None), layer, output)
            yield {**output, "token_embeddings": hidden}

    @contextmanager
    def _watched(self) -> Iterator[dict[int, torch.Tensor]]:
        """What enters the layers that are asked for, inside the ``with`` block; a beginning is not run apart."""
        states: dict[int, torch.Tensor] = {}
        thread = threading.get_ident()

        def keep(module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            # Another thread may be running the same backbone.
            if threading.get_ident() == thread:
                states[self.modules[module]] = arguments[0] if arguments else keywords["hidden_states"]

        wanted = [module for module, layer in self.modules.items() if layer in self.layers]
        handles = [module.register_forward_pre_hook(keep, with_kwargs=True) for module in wanted]
        shares, self.transformer.shares_prefix = self.transformer.shares_prefix, False
        try:
            yield states
        finally:
            self.transformer.shares_prefix = shares
            for handle in handles:
                handle.remove()

    def _checked(self, hidden: torch.Tensor | None, layer: int, output: dict[str, Any]) -> torch.Tensor:
        last: torch.Tensor = output["token_embeddings"]
        name = type(self.transformer.model).__name__
        if not isinstance(hidden, torch.Tensor) or hidden.shape != last.shape:
            found = f"{list(hidden.shape)}" if isinstance(hidden, torch.Tensor) else "nothing"
            raise ValueError(
                f"layers={self.layers}: what enters the layer behind layer {layer} of {name} is {found}, not hidden "
                f"states {list(last.shape)}. Use layers='last'."
            )
        hidden = hidden.masked_fill(~output["real_mask"].bool()[:, :, None], 0.0)
        finite = torch.isfinite(hidden).flatten(1).all(dim=1)
        if self.transformer.non_finite == "error" and not bool(finite.all()):
            raise ValueError(
                f"layers={self.layers}: layer {layer} of {name} gave NaN or infinity ({hidden.dtype}). Load it with "
                "dtype='float32' (or 'bfloat16'), or leave this layer out."
            )
        return hidden.masked_fill(~finite[:, None, None], 0.0)
