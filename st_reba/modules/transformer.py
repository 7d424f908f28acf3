"""The shared base of st_reba's input modules: an ST Transformer around a decoder, with a layer plan and a capture."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .attention import ATTENTION_NAME, hook_in, switch_on
from .capture import BackwardAttention, Capture, CaptureSpec
from .passes import decoder_layers, install
from .plan import LayerPlan, Stack
from .state import ForwardState, running

NonFinite = Literal["error", "zeros"]

# Pinned, so that a backbone with a chat template is not wrapped in chat turns.
TEXT_ONLY: dict[str, Any] = {
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


class DecoderTransformer(Transformer):
    """An ST Transformer whose layers see what a plan says, and whose attention can be captured.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        layers: What each layer sees: a :class:`LayerPlan`, or a mapping of its fields; None: the backbone as it is.
        non_finite: What to do with a text for which the backbone gives NaN or infinity: ``"error"`` names the text;
            ``"zeros"`` gives it zero vectors (as the published ReBA code does).
        base_model: Name of the base model, for the record.
        base_revision: Its revision, for the record.
        **kwargs: All that sentence-transformers' own ``Transformer`` takes.
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
        super().__init__(model_name_or_path, **{**TEXT_ONLY, **kwargs})
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
        self._set_plan(plan)
        if getattr(self.config.get_text_config(), "attn_logit_softcapping", None):
            # Some versions of transformers run these models with SDPA, which drops the soft cap.
            switch_on(self.model)
        self._forward_parameters = frozenset(inspect.signature(self.model.forward).parameters)
        self.takes_left_padding = self._takes_left_padding()
        self._looks_back = self.is_causal

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer.

        Raises:
            ValueError: The backbone has none.
        """
        if self.tokenizer is None:
            raise ValueError(f"{type(self.processor).__name__} holds no tokenizer, and st_reba embeds text only.")
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
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def is_causal(self) -> bool:
        """Whether the backbone's layers look back only."""
        config = self.model.config.get_text_config()
        # A vision tower beside the language model looks both ways, but no text goes through it.
        body = self.model.get_decoder()  # type: ignore[no-untyped-call]
        marks = (bool(module.is_causal) for module in body.modules() if hasattr(module, "is_causal"))
        return all(marks) and getattr(config, "is_causal", True) is not False

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
        given = features
        observer = capture if isinstance(capture, Capture) else None
        # Where nothing looks ahead, padding behind a text needs no mask, and attention without one is fastest. What
        # looks ahead by a plan gets its mask from the plan. (An observer sees everything where it was given.)
        unmasked = self._looks_back and observer is None
        start = None
        if unmasked:
            start = _padding_in_front(features["attention_mask"])
            features = features if start is None else _moved(features, start)
        attention_mask: Tensor = features["attention_mask"]
        spec = None if isinstance(capture, Capture) else capture or self._capture
        accumulator = None
        if spec is not None:
            first, count = spec.anchors(features["copy_ids"], attention_mask)
            observer = accumulator = BackwardAttention(first, count, attention_mask.shape[1], both=spec.both)
        stack = None if self._stack.is_plain else self._stack
        state = ForwardState(attention_mask, capture=observer, stack=stack)
        if stack is not None and self.training and torch.is_grad_enabled():
            self._check_checkpointing()
        inputs = self._model_inputs(features["input_ids"], None if unmasked else attention_mask, observer)
        with running(state):
            outputs = super().forward(inputs)
        if stack is not None:
            self._check_obeyed(stack, state)
        hidden: Tensor = outputs["token_embeddings"]
        if stack is not None and stack.side_by_side:
            hidden = hidden.reshape(2, attention_mask.shape[0], *hidden.shape[1:]).sum(dim=0)
        hidden = hidden.masked_fill(~attention_mask.bool()[:, :, None], 0.0)
        finite = torch.isfinite(hidden).flatten(1).all(dim=1)
        if not bool(finite.all()):
            hidden = self._without(hidden, finite, features)
        matrix = None if accumulator is None else accumulator.matrix()
        if start is not None:
            hidden = _shifted(hidden, -start, 1)
            matrix = None if matrix is None else _shifted(matrix, -start, 2)
        result = {**given, "token_embeddings": hidden}
        if observer is not None:
            self._check_layers(observer.layers)
        if matrix is not None:
            result["backward_attention"] = matrix.masked_fill(~finite[:, None, None], 0.0)
            result["captured"] = spec
        return result

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
        name = type(self.model).__name__
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

    def _takes_left_padding(self) -> bool:
        """Whether the backbone can be told positions that skip padding on the left.

        Every other backbone is padded on the right, to equal effect: encoders, some of which count positions in a way
        of their own, and recurrent layers, which would take the padding for text.
        """
        marks = {bool(module.is_causal) for module in self.model.modules() if hasattr(module, "is_causal")}
        kinds = self._layer_kinds()
        only_attention = all("attention" in kind and "linear" not in kind for kind in kinds)
        return marks == {True} and only_attention and "position_ids" in self._forward_parameters

    def _layer_kinds(self) -> list[str]:
        """What the configuration says of each layer; empty where it says nothing."""
        config = self.model.config.get_text_config()
        return list(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or [])

    def _model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor | None, observer: Capture | None
    ) -> dict[str, Any]:
        inputs: dict[str, Any] = {"input_ids": input_ids}
        accepted = self._forward_parameters
        if "use_cache" in accepted:
            inputs["use_cache"] = False
        if attention_mask is not None:
            inputs["attention_mask"] = attention_mask
            if "position_ids" in accepted and not bool(attention_mask[:, 0].all()):
                # Left padding: without these most backbones would count the padding as text.
                inputs["position_ids"] = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        if observer is not None and self.model.config._attn_implementation != ATTENTION_NAME:
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

    def _check_checkpointing(self) -> None:
        # The older name warns where the newer one is there.
        names = ("is_activation_checkpointing", "is_gradient_checkpointing")
        name = next((name for name in names if hasattr(type(self.model), name)), None)
        if name is not None and getattr(self.model, name):
            raise ValueError(
                f"layers={self._plan!r}: gradient checkpointing runs layers again after the forward pass, when nothing "
                "tells them what to see, so the gradients would be wrong. Call "
                "model[0].model.gradient_checkpointing_disable(), or set model[0].layers = None."
            )

    def _check_obeyed(self, stack: Stack, state: ForwardState) -> None:
        """A plan that silently does nothing would give the vectors of another model."""
        if state.last is None or state.further != len(stack.second):
            raise ValueError(
                f"layers={self._plan!r}: {type(self.model).__name__} did not run it: its attention implementation is "
                f"{self.model.config._attn_implementation!r} in place of {ATTENTION_NAME!r}, or its layers were "
                "replaced. Set model[0].layers again."
            )

    def _check_layers(self, captured: int) -> None:
        """A layer that was not captured would change the vectors silently."""
        if kinds := self._layer_kinds():
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


def _padding_in_front(attention_mask: Tensor) -> Tensor | None:
    """Each row's first real position [B, 1]; None where all begin at column 0."""
    start = attention_mask.bool().int().argmax(dim=1, keepdim=True)
    return start if bool(start.any()) else None


def _shifted(tensor: Tensor, start: Tensor, dim: int) -> Tensor:
    """A [B, …] tensor whose rows are rotated along ``dim``: position ``start`` [B, 1] comes to stand at 0."""
    length = tensor.shape[dim]
    index = (torch.arange(length, device=tensor.device) + start) % length
    shape = [1] * tensor.ndim
    shape[0], shape[dim] = index.shape
    return tensor.gather(dim, index.view(shape).expand_as(tensor))


def _moved(features: dict[str, Any], start: Tensor) -> dict[str, Any]:
    """Features with all that is of shape [B, T] rotated."""
    shape = features["attention_mask"].shape
    return {
        name: _shifted(value, start, 1) if isinstance(value, Tensor) and value.shape == shape else value
        for name, value in features.items()
    }


def _plan(layers: object) -> LayerPlan:
    if layers is None:
        return LayerPlan()
    return layers if isinstance(layers, LayerPlan) else LayerPlan.from_dict(layers)  # type: ignore[arg-type]
