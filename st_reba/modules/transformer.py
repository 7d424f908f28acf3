"""The shared base of st_reba's input modules: an ST Transformer around a decoder, with a layer plan and a capture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .alignment import moved, padding_in_front, shifted
from .attention import hook_in, switch_on
from .backbone import (
    forward_parameters,
    found_to_look_back,
    is_marked,
    is_trained,
    limit_length,
    looks_back_only,
    probe,
    takes_left_padding,
    turns_by_length,
)
from .capture import BackwardAttention, Capture, CaptureSpec
from .checkpointing import prepare_checkpointing
from .conversion import check_captured, check_convertible, check_readable, not_finite
from .depth import Join, Layer, Reading, ReadingPass, check_layer, resolve_reading
from .differentiable import DifferentiableAttention
from .hooks import decoder_layers, install
from .limits import MOST_LAYERS, check_whole
from .plan import LayerPlan, Stack
from .record import check_record
from .running import RunningTransformer
from .state import ForwardState

NonFinite = Literal["error", "zeros"]

# Pinned, so that a backbone with a chat template is not wrapped in chat turns.
TEXT_ONLY: dict[str, Any] = {
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


class DecoderTransformer(RunningTransformer):
    """An ST Transformer whose layers see what a plan says, and whose attention can be captured.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        layers: What each layer sees: a :class:`LayerPlan`, or a mapping of its fields; None: the backbone as it is.
        layer: The layer whose hidden states are read: a number from 0 (embeddings) to L, or from -1 (L) downwards; or
            the first and the last of several as ``[2, 4]``, each token's vectors of each scaled to length 1. None: the
            last. Layers above are not run, and ``layers`` counts from the top of those that run.
        join: How several make one: ``"mean"``, or ``"concat"``: side by side, in more dimensions.
        final_norm: Whether inner layers are read behind the backbone's final norm, or before it.
        non_finite: What to do with a text for which the backbone gives NaN or infinity: ``"error"`` names the text;
            ``"zeros"`` gives it zero vectors (as the published ReBA code does), which a post-filter then moves.
        base_model: Name of the base model, for the record.
        base_revision: Its revision, for the record.
        postfilter: What the ``Dense`` behind the pooling was fitted on, for the record (see :func:`check_record`).
        base_layers: The base model's number of layers, where this backbone holds the lowest of them alone, for the
            record.
        **kwargs: All that :class:`StoredTransformer` and sentence-transformers' own ``Transformer`` take.
    """

    config_keys = [
        *Transformer.config_keys,
        "layers",
        "layer",
        "join",
        "final_norm",
        "non_finite",
        "base_model",
        "base_revision",
        "postfilter",
        "base_layers",
    ]

    postfilter: dict[str, Any] | None = None
    base_layers: int | None = None

    def __init__(
        self,
        model_name_or_path: str,
        *,
        layers: LayerPlan | Mapping[str, Any] | None = None,
        layer: Layer | None = None,
        join: Join = "mean",
        final_norm: bool = True,
        non_finite: NonFinite = "error",
        base_model: str | None = None,
        base_revision: str | None = None,
        postfilter: Mapping[str, Any] | None = None,
        base_layers: int | None = None,
        **kwargs: Any,
    ) -> None:
        record = check_record(postfilter)
        if base_layers is not None:
            check_whole("base_layers", base_layers, MOST_LAYERS, also=", or None")
        if non_finite not in get_args(NonFinite):
            raise ValueError(f"non_finite={non_finite!r} is not known: choose one of {list(get_args(NonFinite))}.")
        check_layer(layer, final_norm, join)
        plan = _plan(layers)
        given = {**TEXT_ONLY, **kwargs}
        super().__init__(model_name_or_path, base_model=base_model, base_revision=base_revision, **given)
        if "model_max_length" not in (kwargs.get("processor_kwargs") or {}):
            limit_length(self.tokenizer, self.config)
        self._equip(plan, layer, join, final_norm, non_finite, base_model, base_revision)
        self.postfilter = record
        self.base_layers = base_layers

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
        adopted._equip(_plan(layers), None, "mean", True, "error", base_model, base_revision)
        return adopted

    def _equip(
        self,
        plan: LayerPlan,
        layer: Layer | None,
        join: Join,
        final_norm: bool,
        non_finite: NonFinite,
        base_model: str | None,
        base_revision: str | None,
    ) -> None:
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
        self._set_layers(plan, layer, join, final_norm)
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

    def renew(self, layer: Layer | None, *, base_layers: int) -> None:
        """Set up what depends on the backbone, after it was replaced by one of its lower layers alone.

        Args:
            layer: The layer of the new backbone that is read.
            base_layers: The number of layers before.
        """
        shares = self.shares_prefix
        self._equip(self._plan, layer, self.join, self.final_norm, self.non_finite, self.base_model, self.base_revision)
        self.base_layers = base_layers
        if shares is False:
            self.shares_prefix = False

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
        self._set_layers(_plan(plan), self._layer, self.join, self.final_norm)

    @property
    def layer(self) -> Layer | None:
        """The layer, or the first and the last of several, whose hidden states are read; None: the last."""
        return self._layer if self._layer is None or isinstance(self._layer, int) else list(self._layer)

    @layer.setter
    def layer(self, layer: Layer | None) -> None:
        self._set_layers(self._plan, layer, self.join, self.final_norm)

    @property
    def join(self) -> Join:
        """How several layers make one."""
        return self._reading.join

    @join.setter
    def join(self, join: Join) -> None:
        self._set_layers(self._plan, self._layer, join, self.final_norm)

    @property
    def final_norm(self) -> bool:
        """Whether inner layers are read behind the final norm."""
        return self._reading.final_norm

    @final_norm.setter
    def final_norm(self, final_norm: bool) -> None:
        self._set_layers(self._plan, self._layer, self.join, final_norm)

    def get_embedding_dimension(self) -> int:
        """Dimension of the hidden states that are read."""
        several = len(self._reading.layers) if self.join == "concat" else 1
        return several * int(super().get_embedding_dimension())

    @property
    def reading(self) -> Reading:
        """The layers of this backbone that are read, and how many run."""
        return self._reading

    @property
    def is_causal(self) -> bool:
        """Whether the backbone's layers look back only."""
        return looks_back_only(self.model)

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
        for name in ("postfilter", "base_layers"):
            if getattr(self, name) is None:
                # Older versions load a model without one too.
                config.pop(name, None)
        return config

    def forward(
        self,
        features: dict[str, Any],
        *,
        capture: CaptureSpec | Capture | None = None,
        reading: ReadingPass | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Run the backbone.

        Args:
            features: ``input_ids``, ``attention_mask`` and, for a capture, ``copy_ids``, each [B, T]; not changed.
            capture: Captured in this pass instead of :attr:`capture`; a :class:`Capture` is shown all attention
                itself, and nothing of it is returned.
            reading: Read in this pass instead of :attr:`layer`, with padding behind the texts; no beginning is shared.
            **kwargs: Ignored: they concern the input's layout.

        Returns:
            A new dict: ``features`` with ``token_embeddings`` [B, T, d] (hidden states, zero at padding) and,
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
        plain = stack is None and observer is None and reading is None and self._reading.is_plain
        if learning and self.model.training and not plain:
            prepare_checkpointing(self.model, twice=bool(self._stack.second))
        state = ForwardState(attention_mask, capture=observer, stack=stack)
        hidden = self._run(given["input_ids"], state, unmasked, reading)
        hidden = hidden.masked_fill(~attention_mask.bool()[:, :, None], 0.0)
        finite = torch.isfinite(hidden).flatten(1).all(dim=1)
        if not bool(finite.all()):
            hidden = self._without(hidden, finite, given)
        if observer is not None:
            check_captured(
                self.model, self._stack, self.depth if self._layer is None else self._reading.runs, observer.layers
            )
        result = {**features, "token_embeddings": hidden if start is None else shifted(hidden, -start, 1)}
        if accumulator is not None:
            matrix = accumulator.matrix()
            if not bool(finite.all()):
                matrix = matrix.masked_fill(~finite[:, None, None], 0.0)
            result["backward_attention"] = matrix if start is None else shifted(matrix, -start, 2)
            result["captured"] = spec
        return result

    def __repr__(self) -> str:
        shown = {**self.get_config_dict(), "layers": str(self._stack), "architecture": type(self.model).__name__}
        return f"{type(self).__name__}({shown})"

    def _set_layers(self, plan: LayerPlan, layer: Layer | None, join: Join, final_norm: bool) -> None:
        reading = resolve_reading(layer, final_norm, self.depth, join)
        try:
            stack = plan.resolve(reading.runs)
        except ValueError as error:
            if reading.runs == self.depth:
                raise
            raise ValueError(f"layer={layer!r} runs {reading.runs} of {self.depth} layers. Of these: {error}") from None
        if not reading.is_plain:
            check_readable(self.model, reading, plan, stack)
        if not stack.is_plain:
            check_convertible(self.model, plan, stack, is_causal=self.is_causal)
            if stack.second:
                install(decoder_layers(self.model, self.depth))
        self._plan, self._stack, self._layer, self._reading = plan, stack, layer, reading

    def _without(self, hidden: Tensor, finite: Tensor, features: dict[str, Any]) -> Tensor:
        """Zero the texts that are not finite, or name the first of them."""
        if self.non_finite == "zeros":
            return hidden.masked_fill(~finite[:, None, None], 0.0)
        row = int((~finite).nonzero()[0])
        shown = features["copy_ids"][row] == 1 if "copy_ids" in features else features["attention_mask"][row].bool()
        text = str(self.text_tokenizer.decode(features["input_ids"][row][shown].tolist()))
        raise not_finite(text, hidden.dtype)


def _plan(layers: object) -> LayerPlan:
    if layers is None:
        return LayerPlan()
    return layers if isinstance(layers, LayerPlan) else LayerPlan.from_dict(layers)  # type: ignore[arg-type]
