"""What a backbone is: which part of it texts go through, what its layers are, where it looks, what it takes."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

TEXT_TOWER = (
    "Save the text tower as a model of its own, its tokenizer beside it, and build on that folder: "
    "AutoModel.from_pretrained(base).get_decoder().save_pretrained(folder)."
)
# What a text gives a backbone, or what is set for every text.
_GIVEN = ("input_ids", "attention_mask", "position_ids", "use_cache")


class Backbone:
    """The traits of a backbone, each found out once."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.name = type(model).__name__
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(
                f"{self.name} is an encoder-decoder: its decoder reads the text shifted, beside an encoder that sees "
                "all of it. Use a decoder-only base model."
            )
        self.depth, self.parameters  # noqa: B018 - what has no layers, or needs more than a text, is refused now
        if model.get_output_embeddings() is not None:  # type: ignore[no-untyped-call]
            raise ValueError(
                f"{self.name} hands out no last hidden states, but what a head makes of them. {TEXT_TOWER}"
            )

    @property
    def decoder(self) -> PreTrainedModel:
        """The decoder beside a vision or audio tower; the backbone itself where there is no other tower."""
        body = self.model.get_decoder()  # type: ignore[no-untyped-call]
        return body if isinstance(body, PreTrainedModel) else self.model

    @property
    def text_config(self) -> Any:
        """The configuration of the part that texts go through."""
        return self.model.config.get_text_config()

    @property
    def has_towers(self) -> bool:
        """Whether it is composed: a decoder of its own configuration, with towers beside it."""
        return self.decoder.config is not self.model.config

    @property
    def depth(self) -> int:
        """Number of layers L."""
        layers = getattr(self.text_config, "num_hidden_layers", None)
        if not isinstance(layers, int):
            raise ValueError(
                f"{self.name} is no single stack of layers (its configuration says no num_hidden_layers), so it cannot "
                "be embedded with. Use a decoder-only base model."
            )
        return layers

    @property
    def layer_types(self) -> list[str]:
        """What its configuration says of each layer; empty where it says nothing."""
        config = self.text_config
        return list(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or [])

    @property
    def capped(self) -> bool:
        """Whether it caps attention's scores, which transformers' SDPA forgets in some versions."""
        return bool(getattr(self.text_config, "attn_logit_softcapping", None))

    @property
    def attention(self) -> str:
        """Name of the implementation of attention that texts run through."""
        return str(self.decoder.config._attn_implementation)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Names of the arguments that its forward takes, ``use_cache`` also where only its decoder names it."""
        parameters = inspect.signature(self.model.forward).parameters
        names = set(parameters)
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                # Handed on to the decoder, which would cache unless told, and find its own keys in a second pass.
                names |= {"use_cache"} & set(inspect.signature(self.decoder.forward).parameters)
            elif parameter.kind is parameter.VAR_POSITIONAL or parameter.default is not parameter.empty:
                continue
            elif name not in _GIVEN:
                raise ValueError(
                    f"{self.name} needs {name!r} beside a text, and st_reba embeds text only. {TEXT_TOWER}"
                )
        return frozenset(names)

    @property
    def is_causal(self) -> bool:
        """Whether its layers look back only, by what it says of itself."""
        # A vision tower beside the decoder looks both ways, but no text goes through it.
        marks = (bool(module.is_causal) for module in self.decoder.modules() if hasattr(module, "is_causal"))
        return all(marks) and getattr(self.text_config, "is_causal", True) is not False

    @cached_property
    def looks_back(self) -> bool:
        """Whether no hidden state depends on a later token, so that padding behind a text concerns nobody.

        XLNet, Megatron-BERT and others do not say: these are tried on two texts that differ in their last token.
        """
        if not self.is_causal:
            return False
        if any(hasattr(module, "is_causal") for module in self.decoder.modules()):
            return True
        ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 0]], device=self.model.device)
        training = self.model.training
        self.model.train(False)
        try:
            with torch.inference_mode():
                hidden: Tensor = self.model(**self.inputs(ids, torch.ones_like(ids)))[0].float()
        finally:
            self.model.train(training)
        return torch.allclose(hidden[0, :-1], hidden[1, :-1], atol=1e-2 * float(hidden.abs().max()), rtol=0)

    def inputs(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor | bool]:
        """What its forward is called with, for ids and mask [B, T]."""
        # A mask of ones is none to newer models; some older ones forget their windows without it.
        inputs: dict[str, Tensor | bool] = {"input_ids": input_ids, "attention_mask": attention_mask}
        return {**inputs, "use_cache": False} if "use_cache" in self.parameters else inputs


def is_trained(model: nn.Module) -> bool:
    """Whether a backbone has weights to learn; a replica of torch's DataParallel, which hides its weights, has."""
    weights = list(model.parameters())
    return not weights or any(each.requires_grad for each in weights)
