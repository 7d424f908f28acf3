"""The decoder of a base: check that it can embed, share its weights, cut off its upper layers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from .modules.layers import first_output, layers_of
from .modules.layout import decoder_of
from .modules.selfcheck import run_ids

# Inputs that can be made from a text alone.
_INPUTS_OF_TEXT = {"input_ids", "attention_mask", "position_ids", "use_cache"}
# Settings that are lists, but do not hold one value per layer.
_OTHER_LISTS = ("architectures", "token_id")
_MIN_DIFFERENCE = 1e-6


def check_backbone(model: PreTrainedModel, name: str) -> None:
    """Refuse a model unless it is a single stack of whole layers that takes only texts."""
    problem = _find_problem(model) or _find_quantization_problem(model)
    if problem is None and _has_embeddings_on_disk(model):
        problem = "has its embeddings on disk, because of its device_map. Map them to a device"
    if problem is not None:
        raise ValueError(f"base={name!r}: {type(model).__name__} {problem}.")


def _find_problem(model: PreTrainedModel) -> str | None:
    model_config = model.config
    if model_config.is_encoder_decoder:
        return "is an encoder-decoder. Use a decoder-only base"
    depth = getattr(model_config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(depth, int):
        return "is not a single stack of layers. Use a decoder-only base"
    if model.get_output_embeddings() is not None:  # type: ignore[no-untyped-call]
        return "gives the outputs of a head. Save its decoder alone"
    other_inputs: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        is_optional = parameter.default is not parameter.empty or "VAR" in parameter.kind.name
        if not is_optional and parameter.name not in _INPUTS_OF_TEXT:
            other_inputs.append(parameter.name)
    if other_inputs:
        return f"needs {', '.join(other_inputs)!r} besides a text. Save its text decoder alone"
    return None


def max_exact_positions(model: PreTrainedModel) -> int | None:
    """The most positions with which a text's vector depends on nothing but the text; None: as many as the model has."""
    text_config: Any = model.config.get_text_config()
    rope_parameters = getattr(text_config, "rope_parameters", None) or {}
    # Some models have several, by the type of a layer.
    for rope in (rope_parameters, *rope_parameters.values()):
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            # One longer text gives other rotary factors to its whole batch.
            limit = rope.get("original_max_position_embeddings")
            return limit or getattr(text_config, "original_max_position_embeddings", None)
    if "lsh" in getattr(text_config, "attn_layers", ()):  # Reformer hashes longer texts at random
        return int(text_config.lsh_attn_chunk_length)
    # RoBERTa and its relatives count positions from one after the padding's.
    for name, module in model.named_modules():
        is_table = name.endswith("position_embeddings") and isinstance(module, nn.Embedding)
        if is_table and module.padding_idx is not None:
            return int(module.num_embeddings) - int(module.padding_idx) - 1
    return None


def quantization_settings(model: PreTrainedModel) -> dict[str, Any]:
    """What a model's configuration says of the quantization of its weights; empty: nothing."""
    settings: Any = getattr(model.config, "quantization_config", None) or {}
    return settings if isinstance(settings, dict) else dict(settings.to_dict())


def is_8bit(settings: Mapping[str, Any]) -> bool:
    """Whether quantization settings are bitsandbytes' for 8 bits."""
    return bool(settings.get("load_in_8bit") or settings.get("_load_in_8bit"))


def _find_quantization_problem(model: PreTrainedModel) -> str | None:
    settings = quantization_settings(model)
    quant_method = settings.get("quant_method", "gguf")
    if quant_method != "gguf" and getattr(model, "hf_quantizer", None) is None:
        return f"was loaded without its quantization {quant_method!r}. Use another base"
    int8_threshold = settings.get("llm_int8_threshold")
    if is_8bit(settings) and int8_threshold:
        return (
            f"llm_int8_threshold={int8_threshold} makes vectors depend on their batch. Set it to 0"
        )
    return None


def _has_embeddings_on_disk(model: PreTrainedModel) -> bool:
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return any(embedding.weight.is_meta for embedding in embeddings)


def share_backbone(model: PreTrainedModel) -> PreTrainedModel:
    """A backbone with the same weights in the same memory; modules and configuration are copied."""
    device_map = getattr(model, "hf_device_map", None) or {}
    if len(set(device_map.values())) > 1:
        raise ValueError(
            "base: the loaded model lies on several devices. Give its folder or Hub id."
        )
    backbone: Any = model.base_model
    # What deepcopy finds here, it uses instead of a copy.
    shared_tensors = {
        id(tensor): tensor for tensor in (*backbone.parameters(), *backbone.buffers())
    }
    shared: PreTrainedModel = copy.deepcopy(backbone, shared_tensors)
    shared.config.output_attentions = False  # it would fix how attention is computed
    return shared


def cut_layers(model: PreTrainedModel, layer: int) -> None:
    """Keep only the layers up to one of them, counted from 1; the final norm follows that one.

    Layer 0 means the embeddings, which are the input of layer 1, so layer 1 is kept.
    """
    decoder_layers = layers_of(model)
    depth = len(decoder_layers)
    if layer == depth:
        return
    model_name = type(model).__name__
    if decoder_of(model).config is not model.config:
        raise ValueError(
            f"layer={layer}: {model_name} has towers besides its decoder. Save that alone."
        )
    remaining_count = max(1, layer)
    last_layer = decoder_layers[remaining_count - 1]
    expected_states = _run_through(model, last_layer)
    del decoder_layers[remaining_count:]
    _shorten_config(model.config, depth, remaining_count)
    try:
        hidden_states = _run_through(model, last_layer)
    except (RuntimeError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise ValueError(
            f"layer={layer}: {model_name} cannot run without the layers above it. {problem}"
        ) from error
    difference = float((hidden_states - expected_states).abs().max() / expected_states.abs().max())
    if not difference <= _MIN_DIFFERENCE:  # or not a number
        raise ValueError(
            f"layer={layer}: without the layers above it, hidden states change by {difference:.1%}. Drop it."
        )


def _run_through(model: PreTrainedModel, layer: nn.Module) -> Tensor:
    """Hidden states that a layer gives for eight tokens, [1, 8, d] float32."""
    layer_outputs: list[Tensor] = []

    def keep_output(module: nn.Module, arguments: Any, output: Tensor | tuple[Tensor, ...]) -> None:
        layer_outputs.append(first_output(output).float())

    with layer.register_forward_hook(keep_output):
        run_ids(model, [list(range(1, 9))])
    return layer_outputs[0]


def _shorten_config(model_config: PretrainedConfig, depth: int, remaining_count: int) -> None:
    """Shorten all settings that hold a value for each layer."""
    for setting_name, setting_value in dict(vars(model_config)).items():
        is_list_of_layers = isinstance(setting_value, (list, tuple)) and len(setting_value) == depth
        if is_list_of_layers and not setting_name.endswith(_OTHER_LISTS):
            setattr(model_config, setting_name, setting_value[:remaining_count])
    model_config.num_hidden_layers = remaining_count
