"""The shared base of st_reba's input modules: an ST Transformer around a decoder, with a layer plan and a capture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .alignment import moved, padding_in_front, shifted
from .attention import ATTENTION_NAME, hook_in, switch_on
from .backbone import (
    TEXT_TOWER,
    forward_parameters,
    found_to_look_back,
    is_marked,
    is_trained,
    layer_kinds,
    limit_length,
    probe,
    takes_left_padding,
    text_decoder,
    turns_by_length,
)
from .capture import AnchorCapture, BackwardAttention, Capture, CaptureSpec
from .checkpointing import prepare_checkpointing
from .differentiable import DifferentiableAttention
from .passes import decoder_layers, install
from .plan import LayerPlan, Stack
from .prefix import WORTHWHILE, common_prefix, is_exact, run_prefix
from .state import ForwardState, running
from .stored import StoredTransformer

NonFinite = Literal["error", "zeros"]

# Pinned, so that a backbone with a chat template is not wrapped in chat turns.
TEXT_ONLY: dict[str, Any] = {
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


class DecoderTransformer(StoredTransformer):
    """An ST Transformer whose layers see what a plan says, and whose attention can be captured.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        layers: What each layer sees: a :class:`LayerPlan`, or a mapping of its fields; None: the backbone as it is.
        non_finite: What to do with a text for which the backbone gives NaN or infinity: ``"error"`` names the text;
            ``"zeros"`` gives it zero vectors (as the published ReBA code does).
        base_model: Name of the base model, for the record.
        base_revision: Its revision, for the record.
        **kwargs: All that :class:`StoredTransformer` and sentence-transformers' own ``Transformer`` take.
    """

    config_keys = [*Transformer.config_keys, "layers", "non_finite", "base_model", "base_revision"]

    def __init__(
        self,
        model_name_or_path: str,
        *,
        layers: LayerPlan | Mapping[str, Any] | None = None,
        non_finite: NonFinite = "error",
        base_model: str | None = None,
        base_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        if non_finite not in get_args(NonFinite):
            raise ValueError(f"non_finite={non_finite!r} is not known: choose one of {list(get_args(NonFinite))}.")
        plan = _plan(layers)
        given = {**TEXT_ONLY, **kwargs}
        super().__init__(model_name_or_path, base_model=base_model, base_revision=base_revision, **given)
        if "model_max_length" not in (kwargs.get("processor_kwargs") or {}):
            limit_length(self.tokenizer, self.config)
        self._equip(plan, non_finite, base_model, base_revision)

    @classmethod
    def adopt(
        cls,
        transformer: Transformer,
        *,
        layers: LayerPlan | Mapping[str, Any] | None = None,
        base_model: str | None = None,
        base_revision: str | None = None,
    ) -> DecoderTransformer:
        """Take over a plain ST Transformer, its backbone, tokenizer and settings, and give its layers a plan.

        Args:
            transformer: The module; its backbone is shared from now on.
            layers: What each layer sees.
            base_model: Name of the base model, for the record.
            base_revision: Its revision, for the record.

        Returns:
            A module that treats its input as ``transformer`` does.
        """
        adopted = cls.__new__(cls)
        adopted.__dict__ = dict(transformer.__dict__)
        adopted._equip(_plan(layers), "error", base_model, base_revision)
        return adopted

    def _equip(self, plan: LayerPlan, non_finite: NonFinite, base_model: str | None, base_revision: str | None) -> None:
        """Set up what this class adds to ST's."""
        self.non_finite: NonFinite = non_finite
        self.base_model = base_model
        self.base_revision = base_revision
        self._capture: CaptureSpec | None = None
        if getattr(self.model.config, "is_encoder_decoder", False):
            raise ValueError(
                f"{type(self.model).__name__} is an encoder-decoder: its decoder reads the text shifted, beside an "
                "encoder that sees all of it. Use a decoder-only base model."
            )
        self._set_plan(plan)
        if getattr(self.config.get_text_config(), "attn_logit_softcapping", None):
            # Some versions of transformers run these models with SDPA, which drops the soft cap.
            switch_on(self.model)
        self._forward_parameters = forward_parameters(self.model)
        self.takes_left_padding = takes_left_padding(self.model) and "position_ids" in self._forward_parameters
        # Found by trial where the backbone does not say it of itself.
        self._looks_back: bool | None = None
        # Whether what all texts of a batch begin with is run once; None: where it is found exact, at first use.
        shareable = self.takes_left_padding and "past_key_values" in self._forward_parameters
        self.shares_prefix: bool | None = None if shareable and not turns_by_length(self.model) else False

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer.

        Raises:
            ValueError: The backbone has none.
        """
        if self.tokenizer is None:
            raise ValueError(
                f"{type(self.processor).__name__} holds no tokenizer, and st_reba embeds text only. Use a base with a "
                "language model, its tokenizer's files beside it."
            )
        return self.tokenizer

    @property
    def capture(self) -> CaptureSpec | None:
        """The rows of A^new that every forward pass captures; set by the module that needs them."""
        return self._capture

    @capture.setter
    def capture(self, spec: CaptureSpec | None) -> None:
        if spec is not None:
            self.show_attention()
        self._capture = spec

    def show_attention(self) -> None:
        """Make the backbone's attention visible to captures."""
        if not switch_on(self.model):
            hook_in(self.model)

    @property
    def layers(self) -> LayerPlan:
        """What each layer sees, counted from the top."""
        return self._plan

    @layers.setter
    def layers(self, plan: LayerPlan | Mapping[str, Any] | None) -> None:
        self._set_plan(_plan(plan))

    @property
    def depth(self) -> int:
        """The backbone's number of layers L."""
        layers = getattr(self.model.config.get_text_config(), "num_hidden_layers", None)
        if not isinstance(layers, int):
            raise ValueError(
                f"{type(self.model).__name__} is no single stack of layers (its configuration says no "
                "num_hidden_layers), so it cannot be embedded with. Use a decoder-only base model."
            )
        return layers

    @property
    def _attention_name(self) -> str:
        """The implementation of attention that texts run through."""
        return str(text_decoder(self.model).config._attn_implementation)

    @property
    def is_causal(self) -> bool:
        """Whether the backbone's layers look back only."""
        config = self.model.config.get_text_config()
        # A vision tower beside the decoder looks both ways, but no text goes through it.
        modules = text_decoder(self.model).modules()
        marks = (bool(module.is_causal) for module in modules if hasattr(module, "is_causal"))
        return all(marks) and getattr(config, "is_causal", True) is not False

    @property
    def looks_back(self) -> bool:
        """Whether no hidden state depends on a later token, so that padding behind a text concerns nobody."""
        if self._looks_back is None:
            inputs = self._model_inputs(*probe(self.model.device), None)
            self._looks_back = self.is_causal and (is_marked(self.model) or found_to_look_back(self.model, inputs))
        return self._looks_back

    @property
    def stack(self) -> Stack:
        """What each layer of this backbone sees."""
        return self._stack

    def get_config_dict(self) -> dict[str, Any]:
        """The module's configuration, JSON-serializable."""
        config: dict[str, Any] = super().get_config_dict()
        if "layers" in config:
            config["layers"] = None if self._plan == LayerPlan() else self._plan.to_dict()
        return config

    def forward(
        self, features: dict[str, Any], *, capture: CaptureSpec | Capture | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Run the backbone.

        Args:
            features: ``input_ids``, ``attention_mask`` and, for a capture, ``copy_ids``, each [B, T]; not changed.
            capture: Captured in this pass instead of :attr:`capture`; a :class:`Capture` is shown all attention
                itself, and nothing of it is returned.
            **kwargs: Ignored: they concern the input's layout.

        Returns:
            A new dict: ``features`` with ``token_embeddings`` [B, T, d] (last hidden states, zero at padding) and,
            where captured, ``backward_attention`` [B, R, T] (:meth:`BackwardAttention.matrix`) and ``captured``, the
            spec that says which rows these are.

        Raises:
            ValueError: The backbone gave NaN or infinity, or not every layer's attention could be captured.
        """
        observer = capture if isinstance(capture, Capture) else None
        spec = None if isinstance(capture, Capture) else capture or self._capture
        # Where nothing looks ahead, padding behind a text need not be masked, and attention without a mask is fastest.
        # What looks ahead by a plan gets its mask from the plan. (An observer sees everything where it was given.)
        unmasked = self.looks_back and observer is None
        start = padding_in_front(features["attention_mask"]) if unmasked else None
        given = features if start is None else moved(features, start)
        attention_mask: Tensor = given["attention_mask"]
        accumulator = None
        learning = torch.is_grad_enabled() and is_trained(self.model)
        if spec is not None:
            first, count = spec.anchors(given["copy_ids"], attention_mask)
            kind = DifferentiableAttention if learning else BackwardAttention
            observer = accumulator = kind(first, count, attention_mask.shape[1], both=spec.both)
        stack = None if self._stack.is_plain else self._stack
        if learning and self.model.training and (stack is not None or observer is not None):
            prepare_checkpointing(self.model, twice=bool(self._stack.second))
        state = ForwardState(attention_mask, capture=observer, stack=stack)
        hidden = self._run(given["input_ids"], state, unmasked)
        hidden = hidden.masked_fill(~attention_mask.bool()[:, :, None], 0.0)
        finite = torch.isfinite(hidden).flatten(1).all(dim=1)
        if not bool(finite.all()):
            hidden = self._without(hidden, finite, given)
        if observer is not None:
            self._check_layers(observer.layers)
        result = {**features, "token_embeddings": hidden if start is None else shifted(hidden, -start, 1)}
        if accumulator is not None:
            matrix = accumulator.matrix()
            if not bool(finite.all()):
                matrix = matrix.masked_fill(~finite[:, None, None], 0.0)
            result["backward_attention"] = matrix if start is None else shifted(matrix, -start, 2)
            result["captured"] = spec
        return result

    def _run(self, input_ids: Tensor, state: ForwardState, unmasked: bool) -> Tensor:
        """The backbone's last hidden states [B, T, d]."""
        mask = torch.ones_like(input_ids) if unmasked else state.real.long()
        inputs = self._model_inputs(input_ids, mask, state.capture)
        beginning = None
        if unmasked and (shared := self._shared_prefix(input_ids, state)):
            with running(ForwardState(state.real[:1, :shared])):
                beginning = run_prefix(self.model, input_ids[:1, :shared])
        if beginning is not None:
            cache, beginning_states = beginning
            inputs.update(input_ids=input_ids[:, shared:], past_key_values=cache, use_cache=True)
            state.prefix = shared
        with running(state):
            try:
                hidden: Tensor = super().forward(inputs)["token_embeddings"]
            except AttributeError as error:
                if "last_hidden_state" not in str(error):
                    raise
                raise ValueError(
                    f"{type(self.model).__name__} hands out no last hidden states, but what a head makes of them. "
                    f"{TEXT_TOWER}"
                ) from error
        if beginning is not None:
            hidden = torch.cat([beginning_states.expand(len(hidden), -1, -1), hidden], dim=1)
        if state.stack is not None:
            self._check_obeyed(state.stack, state)
            if state.stack.side_by_side:
                hidden = hidden.reshape(2, len(input_ids), *hidden.shape[1:]).sum(dim=0)
        return hidden

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
            self.shares_prefix = is_exact(self.model, input_ids[:, : shared + 2])
        return shared if self.shares_prefix else 0

    def __repr__(self) -> str:
        shown = {**self.get_config_dict(), "layers": str(self._stack), "architecture": type(self.model).__name__}
        return f"{type(self).__name__}({shown})"

    def _set_plan(self, plan: LayerPlan) -> None:
        stack = plan.resolve(self.depth)
        if not stack.is_plain:
            self._check_convertible(plan, stack)
            if stack.second:
                install(decoder_layers(self.model, self.depth))
        self._plan, self._stack = plan, stack

    def _check_convertible(self, plan: LayerPlan, stack: Stack) -> None:
        name = type(text_decoder(self.model)).__name__
        shared = getattr(self.model.config.get_text_config(), "num_kv_shared_layers", 0)
        if stack.second and shared:
            raise ValueError(
                f"layers={plan!r}: layers of {name} read the keys and values of layers below, which a second pass "
                "through those would replace. Use a plan of architecture 'inplace'."
            )
        if not self.is_causal and not all("bidirectional" in kind for _, kind in stack.calls):
            raise ValueError(
                f"layers={plan!r}: {name} looks both ways already, so none of its layers can look forward or backward. "
                "Convert all of them to 'bidirectional' or 'nosink-bidirectional' (k='all')."
            )
        if not switch_on(self.model):
            raise ValueError(
                f"layers={plan!r}: {name} does not call transformers' attention interface, so what its layers see "
                "cannot be changed. Use a base model that does (llama, qwen, mistral, gpt2, …), or layers=None."
            )

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

    def _without(self, hidden: Tensor, finite: Tensor, features: dict[str, Any]) -> Tensor:
        """Zero the texts that are not finite, or name the first of them."""
        if self.non_finite == "zeros":
            return hidden.masked_fill(~finite[:, None, None], 0.0)
        row = int((~finite).nonzero()[0])
        shown = features["copy_ids"][row] == 1 if "copy_ids" in features else features["attention_mask"][row].bool()
        text = str(self.text_tokenizer.decode(features["input_ids"][row][shown].tolist()))
        raise ValueError(
            f"The backbone gave NaN or infinity ({hidden.dtype}) for the text {text[:80]!r}. "
            "Load it with dtype='float32' (or 'bfloat16', whose range is wider than float16's), or build with "
            "non_finite='zeros' to give such texts a zero vector."
        )

    def _check_obeyed(self, stack: Stack, state: ForwardState) -> None:
        """A plan that silently does nothing would give the vectors of another model."""
        if state.last is None or state.further != len(stack.second):
            raise ValueError(
                f"layers={self._plan!r}: {type(self.model).__name__} did not run it: its attention implementation is "
                f"{self._attention_name!r} ({ATTENTION_NAME!r} is needed), or layers were replaced or left out. Set "
                "model[0].layers again, or use another plan."
            )

    def _check_layers(self, captured: int) -> None:
        """A layer that was not captured would change the vectors silently."""
        if kinds := layer_kinds(self.model):
            expected = sum("attention" in kind and "linear" not in kind for kind in kinds)
        else:
            expected = self.depth
        expected += len(self._stack.second)
        if captured == 0 or captured < expected:
            raise ValueError(
                f"{type(self.model).__name__} handed out the attention of {captured} of its {expected} attention "
                "layers, so backward attention cannot be computed. Use a decoder whose every layer computes softmax "
                "attention, or method='classical' or 'echo', which need none."
            )


def _plan(layers: object) -> LayerPlan:
    if layers is None:
        return LayerPlan()
    return layers if isinstance(layers, LayerPlan) else LayerPlan.from_dict(layers)  # type: ignore[arg-type]
