"""Hidden states of inner layers, out of the pass that gives the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from .modules import RepeatTransformer
from .modules.alignment import moved, padding_in_front
from .modules.conversion import check_readable
from .modules.depth import Reading, TopReading

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

    (A backbone's own ``output_hidden_states`` does not come through sentence-transformers, and keeps every layer.)

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
        depth = transformer.depth
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
        self._reading = Reading(tuple(range(min(layers), depth + 1)), True, depth)
        try:
            check_readable(transformer.model, self._reading, transformer.layers, transformer.stack)
        except ValueError:
            raise ValueError(
                f"layers={layers}: {type(transformer.model).__name__} has no list of {depth} layers that "
                "say their layer_idx, so only its last hidden states can be had. Use layers='last'."
            ) from None

    def run(self, features: dict[str, Any], **capture: Any) -> Iterator[dict[str, Any]]:
        """Run the transformer once.

        Args:
            features: What it takes.
            **capture: Its ``capture``.

        Yields:
            What it gives, padding behind the texts, with each layer's hidden states for ``token_embeddings`` in turn:
            the last one's behind the final norm, all others' before it.

        Raises:
            ValueError: A layer takes something else than hidden states, or gave NaN or infinity.
        """
        # Padding behind the texts, as the pass itself would move it: what is read then stands where it belongs.
        start = padding_in_front(features["attention_mask"])
        if start is not None:
            features = moved(features, start)
        reading = TopReading(self._reading)
        output = self.transformer(features, reading=reading, **capture)
        for layer in self.layers:
            if layer == self.transformer.depth:
                yield output
            else:
                yield {**output, "token_embeddings": self._checked(reading.states[layer], layer, output)}

    def _checked(self, hidden: torch.Tensor, layer: int, output: dict[str, Any]) -> torch.Tensor:
        last: torch.Tensor = output["token_embeddings"]
        name = type(self.transformer.model).__name__
        if hidden.shape != last.shape:
            raise ValueError(
                f"layers={self.layers}: what layer {layer} of {name} hands on is {list(hidden.shape)}, not hidden "
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
