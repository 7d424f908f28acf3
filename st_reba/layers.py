"""Hidden states of inner layers, out of the pass that gives the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .modules.layer_list import layers_of
from .modules.repeat import RepeatTransformer
from .modules.stages import Bound, LayerCall, Pass

Layers = Literal["last", "all"] | Sequence[int]


def layer_numbers(layers: Layers, depth: int) -> list[int]:
    """The layers that are meant, numbers from 0 to ``depth``, each once, in their order."""
    if isinstance(layers, str):
        if layers not in ("last", "all"):
            raise ValueError(f"layers={layers!r} is not known: give 'last', 'all', or a list of numbers.")
        return [depth] if layers == "last" else list(range(depth + 1))
    numbers = []
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -depth - 1 <= layer <= depth:
            raise ValueError(
                f"layers={list(layers)}: {layer!r} is no layer of this model, which has 0 (embeddings) to {depth}, or "
                f"-1 to {-depth - 1} counted from the end."
            )
        numbers.append(layer % (depth + 1))
    if not numbers:
        raise ValueError("layers=[]: name one at least, or 'last'.")
    return list(dict.fromkeys(numbers))


class InnerStates(Bound):
    """What a pass watches where the hidden states of several layers, of numbers from 0 to L, are wanted.

    (A backbone's own ``output_hidden_states`` does not come through sentence-transformers, and keeps every layer.)
    """

    def __init__(self, transformer: RepeatTransformer, layers: list[int]) -> None:
        self.transformer, self.layers = transformer, layers
        stack = transformer.stack
        if stack is not None and stack.second:
            raise ValueError(
                f"layers={layers}: the layer plan ({stack}) runs layers twice, so there is no one hidden state between "
                "two of them. Use layers='last', or a plan of architecture 'inplace'."
            )
        if (read := transformer.stage("read")) is not None:
            raise ValueError(
                f"layers={layers}: this model reads inner layers itself ({read}). Use layers='last', or build without "
                "ReadLayers."
            )
        try:
            layers_of(transformer.backbone)
        except ValueError as error:
            raise ValueError(f"layers={layers}: {error}, so only its last can be had. Use layers='last'.") from None

    def begin(self, run: Pass) -> None:
        run.kept[self] = {}

    def after_layer(self, run: Pass, call: LayerCall) -> Tensor:
        """Keep what entered the first layer, and what a layer that is asked for hands on."""
        here = {0: call.entered} if call.index == 0 else {}
        here[call.index + 1] = call.hidden
        run.kept[self] |= {layer: hidden for layer, hidden in here.items() if layer in self.layers}
        return call.hidden

    def features(self, run: Pass) -> dict[str, Any]:
        """``inner_states``: by layer, its hidden states [B, T, d]."""
        return {"inner_states": run.kept[self]}

    def outputs(self, output: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What the transformer gave, with each layer's hidden states for ``token_embeddings`` in turn.

        The last layer's are those behind the final norm, all others' those before it.

        Raises:
            ValueError: A layer hands on something else than hidden states, or gave NaN or infinity.
        """
        for layer in self.layers:
            yield output if layer == self.transformer.depth else {**output, **self._checked(layer, output)}

    def _checked(self, layer: int, output: dict[str, Any]) -> dict[str, Tensor]:
        last: Tensor = output["token_embeddings"]
        hidden: Tensor | None = output["inner_states"].get(layer)
        name = self.transformer.backbone.name
        if hidden is None or hidden.shape != last.shape:
            found = "nothing" if hidden is None else list(hidden.shape)
            raise ValueError(
                f"layers={self.layers}: what layer {layer} of {name} hands on is {found}, not hidden states "
                f"{list(last.shape)}. Use layers='last'."
            )
        hidden = hidden.masked_fill(~output["real_mask"].bool()[:, :, None], 0.0)
        finite = torch.isfinite(hidden).flatten(1).all(dim=1)
        if not self.transformer.zeros and not bool(finite.all()):
            raise ValueError(
                f"layers={self.layers}: layer {layer} of {name} gave NaN or infinity ({hidden.dtype}). Load it in "
                "float32 or bfloat16, or leave this layer out."
            )
        # What such a layer's attention gave the weights is not finite either.
        weights = {name: output[name] for name in ("backward_attention",) if name in output}
        given = {"token_embeddings": hidden, **weights}
        return {name: each.masked_fill(~finite[:, None, None], 0.0) for name, each in given.items()}
