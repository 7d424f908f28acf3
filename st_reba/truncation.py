"""Models that hold no more layers than they run."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from .modules import DecoderTransformer, RepeatTransformer
from .modules.adapters import has_adapter
from .modules.backbone import TEXT_TOWER, has_towers
from .modules.hooks import layer_list
from .modules.prepending import prepare_prepending

__all__ = ["truncate_layers"]

# Tokens whose hidden states are compared.
_TOKENS = 8
_TOLERANCE = 1e-6
# Lists of a configuration that may happen to be as long as there are layers.
_NOT_LAYERS = ("architectures", "bos_token_id", "eos_token_id", "pad_token_id")
# Counted from the top layer, which goes.
_FROM_THE_TOP = ("num_kv_shared_layers",)
_REMEDY = "Save it with all its layers: those above are not run in any case."


def truncate_layers(model: SentenceTransformer) -> SentenceTransformer:
    """A model that holds only the layers that run, where ``layer=`` reads an inner one.

    Its vectors are the same. It takes less memory, and ``save_pretrained`` writes fewer weights.

    Args:
        model: A model whose ``layer`` is not the last; not changed. Its weights are shared, not copied.

    Returns:
        A new model; all else of ``model`` is carried over.

    Raises:
        ValueError: There is nothing to cut, or the lower layers by themselves would give other hidden states.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", layer=3)
        >>> short = st_reba.truncate_layers(model)
        >>> short[0].depth, short[0].layer, bool((short.encode("你好") == model.encode("你好")).all())
        (3, None, True)
    """
    first = model[0]
    if not isinstance(first, DecoderTransformer):
        raise ValueError(
            f"truncate_layers: the model starts with {type(first).__name__}, not with a module of st_reba."
        )
    _check(first)
    short = _shortened(first)
    difference = _difference(first, short)
    if not difference <= _TOLERANCE:
        raise ValueError(
            f"truncate_layers: by themselves, the {first.reading.runs} lower layers of {type(first.model).__name__} "
            f"give hidden states that differ by {difference:.1%}: {_why(first.model, short.model)}. {_REMEDY}"
        )
    # Copies of the outer objects: what follows is bound to the new transformer, and not taken from the old one.
    modules = [short, *(copy.copy(module) for module in list(model)[1:])]
    truncated = copy.copy(model)
    truncated._modules = {str(number): module for number, module in enumerate(modules)}
    truncated.prompts = dict(model.prompts)
    truncated.model_card_data = copy.copy(model.model_card_data)
    truncated.model_card_data.register_model(truncated)
    for module in modules:
        if isinstance(module, Module):
            module.on_model_ready(truncated)
    return truncated


def _check(first: DecoderTransformer) -> None:
    backbone: Any = first.model
    if first.reading.runs == first.depth:
        raise ValueError(
            f"truncate_layers: layer={first.layer!r} runs all {first.depth} layers, so there is nothing to cut. Build "
            "with layer=…, or leave this out."
        )
    if has_adapter(backbone):
        raise ValueError(
            "truncate_layers: the model has an adapter of all its layers. Merge it before: "
            "st_reba.bases.merge_adapter(model[0].model)."
        )
    if getattr(backbone, "hf_quantizer", None) is not None:
        raise ValueError(
            "truncate_layers: the weights are quantized, and cannot be handed to another backbone. Build from the base "
            "without quantization, truncate, save, and quantize the saved folder."
        )
    if has_towers(backbone):
        raise ValueError(f"truncate_layers: {type(backbone).__name__} has towers beside its decoder. {TEXT_TOWER}")
    if len(set((getattr(backbone, "hf_device_map", None) or {}).values())) > 1:
        raise ValueError(
            "truncate_layers: the weights lie on several devices (device_map). Build on one, as device='cpu'."
        )


def _shortened(first: DecoderTransformer) -> DecoderTransformer:
    """The module around a backbone of its own, which has the layers that run."""
    reading = first.reading
    short = copy.copy(first)
    short._modules = {**first._modules, "model": _backbone(first.model, first.depth, reading.runs)}
    layer: int | list[int] | None = list(reading.layers[:: max(1, len(reading.layers) - 1)])
    if len(reading.layers) == 1:
        layer = None if reading.layers == (reading.runs,) and reading.final_norm else reading.layers[0]
    short.renew(layer, base_layers=first.base_layers or first.depth)
    if isinstance(short, RepeatTransformer) and short.prepend:
        prepare_prepending(short.model, short.depth)
    return short


def _backbone(whole: PreTrainedModel, depth: int, runs: int) -> PreTrainedModel:
    """The lowest layers as a model by itself, of the same tensors."""
    config = _config(whole.config, depth, runs)
    try:
        # As when a checkpoint is loaded: without numbers, which come from the whole model.
        with torch.device("meta"):
            model = type(whole)(config)
        _take(model, _kept(whole, depth, runs))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            f"truncate_layers: {type(whole).__name__} cannot be made with {runs} of its {depth} layers: {error}. "
            f"{_REMEDY}"
        ) from error
    modules = dict(whole.named_modules())
    for name, module in model.named_modules():
        module.training = modules[name].training
    return model


def _config(whole: PretrainedConfig, depth: int, runs: int) -> PretrainedConfig:
    config = copy.deepcopy(whole)
    lists = {
        name: value[:runs]
        for name, value in vars(config).items()
        if isinstance(value, (list, tuple)) and len(value) == depth and name not in _NOT_LAYERS
    }
    counted = {
        name: max(0, value - (depth - runs))
        for name in _FROM_THE_TOP
        if isinstance(value := getattr(config, name, None), int)
    }
    # By the common name; some architectures have one of their own, which stands for it.
    for name, value in {"num_hidden_layers": runs, **lists, **counted}.items():
        setattr(config, name, value)
    return config


def _kept(whole: PreTrainedModel, depth: int, runs: int) -> dict[str, Tensor]:
    """Weights and buffers of a backbone, but for its upper layers', by their names."""
    layers = layer_list(whole, depth)
    within = next(name for name, module in whole.named_modules() if module is layers)
    above = tuple(f"{within}.{index}." for index in range(runs, depth))
    each = (whole.named_parameters(remove_duplicate=False), whole.named_buffers(remove_duplicate=False))
    found: dict[str, Tensor] = dict(chain(*each))
    return {name: tensor for name, tensor in found.items() if not name.startswith(above)}


def _take(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Put tensors in the places of a model's own, buffers that no checkpoint holds among them."""
    places = {
        f"{within}.{name}" if within else name: (module, name)
        for within, module in model.named_modules(remove_duplicate=False)
        for name in (*module._parameters, *module._buffers)
        if getattr(module, name) is not None
    }
    # A buffer fewer may belong to a kind of layer that is no longer there; a weight fewer or a new one may not.
    weights = {name for name, tensor in tensors.items() if isinstance(tensor, nn.Parameter)}
    if wrong := sorted(set(places) - set(tensors) | weights - set(places)):
        raise ValueError(f"it has {'no' if wrong[0] in tensors else 'a new'} {wrong[0]}")
    for place, (module, name) in places.items():
        tensor = tensors[place]
        if name in module._parameters:
            # Another object on the same numbers: moving one model to another device leaves the other where it is.
            module._parameters[name] = nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
        else:
            module._buffers[name] = tensor


def _difference(first: DecoderTransformer, short: DecoderTransformer) -> float:
    """The largest difference of both modules' hidden states of a few tokens, relative to the largest state."""
    ids = torch.arange(1, _TOKENS + 1, device=first.model.device)[None]
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "copy_ids": torch.ones_like(ids)}
    states = []
    for module in (first, short):
        training = {each: each.training for each in module.modules()}
        module.eval()
        try:
            with torch.inference_mode():
                states.append(DecoderTransformer.forward(module, features)["token_embeddings"].float())
        finally:
            for each, before in training.items():
                each.training = before
    return float((states[0] - states[1]).abs().max() / states[0].abs().max())


def _why(whole: PreTrainedModel, short: PreTrainedModel) -> str:
    """The first setting in which a layer differs from what it was."""
    modules = dict(whole.named_modules())
    for name, module in short.named_modules():
        for key, value in vars(module).items():
            before = vars(modules[name]).get(key)
            if name and isinstance(value, (bool, int, float, str)) and before != value:
                return f"{name}.{key} depends on the number of layers ({before!r} of all, {value!r} of these)"
    return "something in it depends on the number of layers"
