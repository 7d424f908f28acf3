"""What a backbone is: which part of it texts go through, what its layers are, where it looks, what it takes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

TEXT_TOWER = (
    "Save the text tower as a model of its own, its tokenizer beside it, and build on that folder: "
    "AutoModel.from_pretrained(base).get_decoder().save_pretrained(folder)."
)
# What a text gives a backbone, or what is set for every text.
_GIVEN = ("input_ids", "attention_mask", "position_ids", "use_cache")


def text_decoder(model: PreTrainedModel) -> PreTrainedModel:
    """The decoder that a backbone's texts go through.

    Args:
        model: The backbone.

    Returns:
        The decoder beside a vision or audio tower; the backbone itself where there is no other tower.
    """
    body = model.get_decoder()  # type: ignore[no-untyped-call]
    return body if isinstance(body, PreTrainedModel) else model


def has_towers(model: PreTrainedModel) -> bool:
    """Whether a backbone is composed: a decoder of its own configuration, with towers beside it."""
    return text_decoder(model).config is not model.config


def forward_parameters(model: PreTrainedModel) -> frozenset[str]:
    """Names of the arguments that a backbone's forward takes, ``use_cache`` also where only its decoder names it.

    Args:
        model: The backbone.

    Raises:
        ValueError: It takes no text alone; the argument that it needs is named.
    """
    parameters = inspect.signature(model.forward).parameters
    names = set(parameters)
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            # What is handed on to the decoder. Unless told, that would cache, and find its own keys in a second pass.
            names |= {"use_cache"} & set(inspect.signature(text_decoder(model).forward).parameters)
        elif parameter.kind is parameter.VAR_POSITIONAL or parameter.default is not parameter.empty:
            continue
        elif name not in _GIVEN:
            raise ValueError(
                f"{type(model).__name__} needs {name!r} beside a text, and st_reba embeds text only. {TEXT_TOWER}"
            )
    return frozenset(names)


def limit_length(tokenizer: PreTrainedTokenizerBase | None, config: PretrainedConfig) -> None:
    """Bound a tokenizer by the backbone's positions, which a composed configuration keeps with its decoder's."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if tokenizer is not None and isinstance(positions, int) and positions > 0:
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)


def number_of_layers(model: PreTrainedModel) -> int:
    """A backbone's number of layers L.

    Raises:
        ValueError: It is no single stack of layers.
    """
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(layers, int):
        raise ValueError(
            f"{type(model).__name__} is no single stack of layers (its configuration says no "
            "num_hidden_layers), so it cannot be embedded with. Use a decoder-only base model."
        )
    return layers


def looks_back_only(model: PreTrainedModel) -> bool:
    """Whether a backbone's layers look back only, by what it says of itself."""
    # A vision tower beside the decoder looks both ways, but no text goes through it.
    marks = (bool(module.is_causal) for module in text_decoder(model).modules() if hasattr(module, "is_causal"))
    return all(marks) and getattr(model.config.get_text_config(), "is_causal", True) is not False


def layer_kinds(model: PreTrainedModel) -> list[str]:
    """What a backbone's configuration says of each layer; empty where it says nothing."""
    config = model.config.get_text_config()
    return list(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or [])


def takes_left_padding(model: PreTrainedModel) -> bool:
    """Whether padding in front of a text changes nothing but positions.

    Every other backbone is padded on the right, to equal effect: encoders and models with towers, some of which count
    positions in a way of their own, and recurrent layers, which would take the padding for text.
    """
    if has_towers(model):
        return False
    marks = {bool(module.is_causal) for module in model.modules() if hasattr(module, "is_causal")}
    return marks == {True} and all("attention" in kind and "linear" not in kind for kind in layer_kinds(model))


def turns_by_length(model: PreTrainedModel) -> bool:
    """Whether rotary embeddings turn every token by an angle that depends on the sequence's length."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    return any(kind in str(rope) for kind in ("dynamic", "longrope"))


def is_marked(model: PreTrainedModel) -> bool:
    """Whether a backbone's attention says of itself where it looks."""
    return any(hasattr(module, "is_causal") for module in text_decoder(model).modules())


def probe(device: torch.device) -> tuple[Tensor, Tensor]:
    """Two texts that differ in their last token, and their attention mask, [2, 4] each."""
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 0]], device=device)
    return ids, torch.ones_like(ids)


def found_to_look_back(model: PreTrainedModel, inputs: dict[str, Any]) -> bool:
    """Whether no token sees a later one, by trial: XLNet, Megatron-BERT and others do not say.

    Args:
        model: The backbone.
        inputs: What it takes, of :func:`probe`.
    """
    training = model.training
    model.train(False)
    try:
        with torch.inference_mode():
            hidden: Tensor = model(**inputs)[0].float()
    finally:
        model.train(training)
    tolerance = 1e-2 * float(hidden.abs().max())
    return torch.allclose(hidden[0, :-1], hidden[1, :-1], atol=tolerance, rtol=0)


def is_trained(model: torch.nn.Module) -> bool:
    """Whether a backbone has weights to learn; a replica of torch's DataParallel, which hides its weights, has."""
    weights = list(model.parameters())
    return not weights or any(each.requires_grad for each in weights)
