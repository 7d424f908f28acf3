"""The shared base of st_reba's input modules: an ST Transformer around a decoder that captures its attention."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args

import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .attention import ATTENTION_NAME, capturing, switch_on
from .capture import BackwardAttention, CaptureSpec

NonFinite = Literal["error", "zeros"]

# Pinned, so that a backbone with a chat template is not wrapped in chat turns.
TEXT_ONLY: dict[str, Any] = {
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


class DecoderTransformer(Transformer):
    """An ST Transformer whose forward pass can capture the rows of A^new that a later module asked for.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        non_finite: What to do with a text for which the backbone gives NaN or infinity: ``"error"`` names the text;
            ``"zeros"`` gives it zero vectors (as the published ReBA code does).
        base_model: Name of the base model, for the record.
        base_revision: Its revision, for the record.
        **kwargs: All that sentence-transformers' own ``Transformer`` takes.
    """

    config_keys = [*Transformer.config_keys, "non_finite", "base_model", "base_revision"]

    def __init__(
        self,
        model_name_or_path: str,
        *,
        non_finite: NonFinite = "error",
        base_model: str | None = None,
        base_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        if non_finite not in get_args(NonFinite):
            raise ValueError(f"non_finite={non_finite!r} is not known: choose one of {list(get_args(NonFinite))}.")
        super().__init__(model_name_or_path, **{**TEXT_ONLY, **kwargs})
        self.non_finite: NonFinite = non_finite
        self.base_model = base_model
        self.base_revision = base_revision
        self._capture: CaptureSpec | None = None
        if getattr(self.config.get_text_config(), "attn_logit_softcapping", None):
            # Some versions of transformers run these models with SDPA, which drops the soft cap.
            switch_on(self.model)
        self._forward_parameters = frozenset(inspect.signature(self.model.forward).parameters)
        self.takes_left_padding = self._takes_left_padding()

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
            switch_on(self.model)
        self._capture = spec

    def forward(self, features: dict[str, Any], *, capture: CaptureSpec | None = None, **kwargs: Any) -> dict[str, Any]:
        """Run the backbone.

        Args:
            features: ``input_ids``, ``attention_mask`` and ``copy_ids``, each [B, T]; not changed.
            capture: Captured in this pass instead of :attr:`capture`.
            **kwargs: Ignored: they concern the input's layout.

        Returns:
            A new dict: ``features`` with ``token_embeddings`` [B, T, d] (last hidden states, zero at padding) and,
            where captured, ``backward_attention`` [B, R, T] (:meth:`BackwardAttention.matrix`) and ``captured``, the
            spec that says which rows these are.

        Raises:
            ValueError: The backbone gave NaN or infinity, or not every layer's attention could be captured.
        """
        spec = capture or self._capture
        attention_mask: Tensor = features["attention_mask"]
        accumulator = None
        if spec is not None:
            first, count = spec.anchors(features["copy_ids"], attention_mask)
            accumulator = BackwardAttention(first, count, attention_mask.shape[1], both=spec.both)
        with capturing(accumulator):
            outputs = super().forward(self._model_inputs(features["input_ids"], attention_mask, spec))
        hidden: Tensor = outputs["token_embeddings"].masked_fill(~attention_mask.bool()[:, :, None], 0.0)
        finite = torch.isfinite(hidden).flatten(1).all(dim=1)
        if not bool(finite.all()):
            hidden = self._without(hidden, finite, features)
        result = {**features, "token_embeddings": hidden}
        if accumulator is not None:
            self._check_layers(accumulator.layers)
            matrix = accumulator.matrix()
            result["backward_attention"] = matrix.masked_fill(~finite[:, None, None], 0.0)
            result["captured"] = spec
        return result

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.get_config_dict(), architecture=type(self.model).__name__)})"

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

    def _model_inputs(self, input_ids: Tensor, attention_mask: Tensor, spec: CaptureSpec | None) -> dict[str, Any]:
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        accepted = self._forward_parameters
        if "use_cache" in accepted:
            inputs["use_cache"] = False
        if "position_ids" in accepted and not bool(attention_mask[:, 0].all()):
            # Left padding: without these most backbones would count the padding as text.
            inputs["position_ids"] = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        if spec is not None and self.model.config._attn_implementation != ATTENTION_NAME:
            inputs["output_attentions"] = True
        return inputs

    def _without(self, hidden: Tensor, finite: Tensor, features: dict[str, Any]) -> Tensor:
        """Zero the texts that are not finite, or name the first of them."""
        if self.non_finite == "zeros":
            return hidden.masked_fill(~finite[:, None, None], 0.0)
        row = int((~finite).nonzero()[0])
        text = str(self.text_tokenizer.decode(features["input_ids"][row][features["copy_ids"][row] == 1].tolist()))
        raise ValueError(
            f"The backbone gave NaN or infinity ({hidden.dtype}) for the text {text[:80]!r}. "
            "Load it with dtype='float32' (or 'bfloat16', whose range is wider than float16's), or build with "
            "non_finite='zeros' to give such texts a zero vector."
        )

    def _check_layers(self, captured: int) -> None:
        """A layer that was not captured would change the vectors silently."""
        if kinds := self._layer_kinds():
            expected = sum("attention" in kind and "linear" not in kind for kind in kinds)
        else:
            expected = int(self.model.config.get_text_config().num_hidden_layers)
        if captured == 0 or captured < expected:
            raise ValueError(
                f"{type(self.model).__name__} handed out the attention of {captured} of its {expected} attention "
                "layers, so backward attention cannot be computed. Use a decoder whose every layer computes softmax "
                "attention, or method='classical' or 'echo', which need none."
            )
