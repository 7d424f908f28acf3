"""One forward pass of a backbone: what it is given, what all texts begin with, which layer is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import ATTENTION_NAME
from .backbone import TEXT_TOWER, number_of_layers, text_decoder
from .capture import AnchorCapture, Capture
from .conversion import check_obeyed
from .depth import Reading, ReadingPass, begin, reading_pass
from .plan import LayerPlan
from .prefix import WORTHWHILE, common_prefix, is_exact, run_prefix
from .state import ForwardState, running
from .stored import StoredTransformer


class RunningTransformer(StoredTransformer):
    """Runs a backbone in a :class:`ForwardState`; what that state holds is for the class behind it to say."""

    shares_prefix: bool | None
    _forward_parameters: frozenset[str]
    _plan: LayerPlan
    _reading: Reading

    @property
    def depth(self) -> int:
        """The backbone's number of layers L."""
        return number_of_layers(self.model)

    @property
    def _attention_name(self) -> str:
        """The implementation of attention that texts run through."""
        return str(text_decoder(self.model).config._attn_implementation)

    def _run(self, input_ids: Tensor, state: ForwardState, unmasked: bool, reading: ReadingPass | None) -> Tensor:
        """The hidden states that are read, [B, T, d]."""
        mask = torch.ones_like(input_ids) if unmasked else state.real.long()
        inputs = self._model_inputs(input_ids, mask, state.capture)
        beginning = None
        if reading is None and unmasked and (shared := self._shared_prefix(input_ids, state)):
            beginning = self._beginning(input_ids[:1, :shared], state.real[:1, :shared])
        if beginning is not None:
            inputs.update(input_ids=input_ids[:, shared:], past_key_values=beginning[0], use_cache=True)
            state.prefix = shared
        reading = reading or begin(self._reading)
        with running(state), reading_pass(reading):
            try:
                hidden: Tensor = super().forward(inputs)["token_embeddings"]
            except AttributeError as error:
                if "last_hidden_state" not in str(error):
                    raise
                raise ValueError(
                    f"{type(self.model).__name__} hands out no last hidden states, but what a head makes of them. "
                    f"{TEXT_TOWER}"
                ) from error
        if reading is not None:
            hidden = reading.read(hidden)
        if beginning is not None:
            hidden = torch.cat([beginning[1].expand(len(hidden), -1, -1), hidden], dim=1)
        if state.stack is not None:
            check_obeyed(self.model, self._plan, state, self._attention_name)
            if state.stack.side_by_side:
                hidden = hidden.reshape(2, len(input_ids), *hidden.shape[1:]).sum(dim=0)
        return hidden

    def _beginning(self, input_ids: Tensor, real: Tensor) -> tuple[Any, Tensor] | None:
        """Cache and hidden states of what all texts begin with, where it can be run by itself."""
        reading = begin(self._reading)
        with running(ForwardState(real)), reading_pass(reading):
            beginning = run_prefix(self.model, input_ids, self._reading.runs)
        if beginning is None or reading is None:
            return beginning
        return beginning[0], reading.read(beginning[1])

    def _shared_prefix(self, input_ids: Tensor, state: ForwardState) -> int:
        """How many tokens that all texts begin with are run once for all; 0: none."""
        known = self._attention_name in (ATTENTION_NAME, "sdpa")
        if torch.is_grad_enabled() or not known or self.shares_prefix is False or state.stack is not None:
            return 0
        shared = common_prefix(input_ids, state.real)
        if isinstance(state.capture, AnchorCapture):
            # Anchors and all that may follow them are run with their text.
            shared = min(shared, int(state.capture.first.min()))
        if shared * (len(input_ids) - 1) < WORTHWHILE:
            return 0
        if self.shares_prefix is None:
            self.shares_prefix = is_exact(self.model, input_ids[:, : shared + 2], self.depth)
        return shared if self.shares_prefix else 0

    def _model_inputs(self, input_ids: Tensor, attention_mask: Tensor, observer: Capture | None) -> dict[str, Any]:
        # A mask of ones is none to newer models; some older ones forget their windows without it.
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        accepted = self._forward_parameters
        if "use_cache" in accepted:
            inputs["use_cache"] = False
        if "position_ids" in accepted and not bool(attention_mask[:, 0].all()):
            # Left padding: without these most backbones would count the padding as text.
            inputs["position_ids"] = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        if observer is not None and self._attention_name != ATTENTION_NAME:
            inputs["output_attentions"] = True
        return inputs
