"""Token Prepending: a placeholder in front of the text takes over, layer by layer, the last token's hidden state.

In a causal decoder only the last token has seen the whole text; in front, every token of the next layer sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .layout import Frame, TokenLayout
from .options import MOST_LAYERS, option
from .stages import Bound, Decoder, LayerCall, Pass, Stage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Prepend(Stage):
    """A placeholder directly in front of the first copy takes over the very last token's hidden state.

    The placeholder is the token that stands for an empty text; it is not pooled.

    Source:
        Token Prepending (Fu et al., 2024).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "classical", stages=[st_reba.Prepend(2)])
        >>> model[0].preprocess(["你好"])["input_ids"].shape
        torch.Size([1, 4])
    """

    name: ClassVar[str] = "prepend"
    order: ClassVar[int] = 10

    layers: int = option(
        4, "layers, from the bottom, behind which the placeholder is replaced", least=1, most=MOST_LAYERS
    )

    def framed(self, frame: Frame, layout: TokenLayout) -> Frame:
        if (token := layout.stand_in()) is None:
            raise ValueError("prepend: the tokenizer has no special token that could be the placeholder. Give it one.")
        first = frame.pieces.index(None)
        return Frame((*frame.pieces[:first], (token,), *frame.pieces[first:]))

    def bind(self, decoder: Decoder) -> Bound:
        return Prepending(decoder, self)


class Prepending(Bound):
    """Replaces the placeholders of a decoder's passes; an error where that cannot be done."""

    def __init__(self, decoder: Decoder, stage: Prepend) -> None:
        from .layer_list import layers_of

        self.layers = stage.layers
        if stage.layers >= decoder.runs:
            raise ValueError(
                f"prepend: layers={stage.layers}, but {decoder.runs} layers run, and none sees what the last gives. "
                f"Give 1 to {decoder.runs - 1}."
            )
        try:
            layers_of(decoder.backbone)
        except ValueError as error:
            raise ValueError(f"prepend: {error}, so no token can be replaced between them. Drop the stage.") from None

    def begin(self, run: Pass) -> None:
        """Where the placeholders and the last tokens stand."""
        import torch

        from .backbone import is_trained

        model, stack = run.decoder.model, run.decoder.stack
        if stack is not None and stack.second:
            raise ValueError(
                "prepend: the layer plan has a second pass, in which nothing is replaced. Use a plan of architecture "
                "'inplace', or drop the stage."
            )
        again = model.training and any(getattr(each, "gradient_checkpointing", False) for each in model.modules())
        if again and torch.is_grad_enabled() and is_trained(model):
            raise ValueError(
                "prepend: it does not go with gradient checkpointing, whose second run replaces nothing. Call "
                "model[0].model.gradient_checkpointing_disable()."
            )
        device = run.real.device
        first, _, length = torch.tensor(run.places).to(device, non_blocking=True)[:, :, None].unbind(dim=1)
        placeholder = torch.arange(run.length, device=device) == first - 1
        run.kept[self] = [placeholder[:, :, None], (length - 1)[:, :, None], 0]

    def after_layer(self, run: Pass, call: LayerCall) -> Tensor:
        """Hidden states with each row's last real one in the placeholder's place."""
        hidden = call.hidden
        if call.index >= self.layers:
            return hidden
        if hidden.ndim != 3 or hidden.shape[:2] != run.real.shape:
            raise ValueError(
                f"prepend: {type(call.module).__name__} passes on states of shape {tuple(hidden.shape)}, not "
                f"{tuple(run.real.shape)} and d, so no token can be replaced between its layers. Drop the stage."
            )
        placeholder, last, ran = run.kept[self]
        run.kept[self][2] = ran + 1
        import torch

        return torch.where(placeholder, hidden.gather(1, last.expand(-1, 1, hidden.shape[2])), hidden)

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """Raise unless every layer replaced them."""
        if run.kept[self][2] < self.layers:
            raise ValueError(
                f"prepend: the placeholder was replaced behind {run.kept[self][2]} of {self.layers} layers, as layers "
                "were replaced or left out. Build the model anew."
            )
        return hidden
