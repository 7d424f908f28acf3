"""Models that hold no more layers than they run."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import chain
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from .modules.backbone import TEXT_TOWER
from .modules.decoder import DecoderTransformer, has_adapter
from .modules.reading import ReadLayers
from .pipelines import copied, rebuilt

# Tokens whose hidden states are compared, and how far they may be apart, in parts of the largest.
_TOKENS = 8
_TOLERANCE = 1e-6
# Lists of a configuration that may happen to be as long as there are layers.
_NOT_LAYERS = ("architectures", "bos_token_id", "eos_token_id", "pad_token_id")
# Counted from the top layer, which goes.
_FROM_THE_TOP = ("num_kv_shared_layers",)
_REMEDY = "Save it with all its layers: those above are not run in any case."


def truncate_layers(model: SentenceTransformer) -> SentenceTransformer:
    """A model with the same vectors that holds only the layers that run, where :class:`ReadLayers` reads inner ones.

    It takes less memory, and ``save_pretrained`` writes fewer weights.

    Args:
        model: A model that does not run all its layers; not changed. Its weights are shared, not copied.

    Returns:
        A new model; all else of ``model`` is carried over.

    Raises:
        ValueError: There is nothing to cut, or the lower layers by themselves would give other hidden states.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", stages=[st_reba.ReadLayers(-4)])
        >>> short = st_reba.truncate_layers(model)
        >>> short[0].depth, short[0].stage("read").layers, bool((short.encode("你好") == model.encode("你好")).all())
        (3, 3, True)
    """
    first = model[0]
    if not isinstance(first, DecoderTransformer):
        raise ValueError(f"truncate_layers: the model starts with {type(first).__name__}, not a module of st_reba.")
    _check(first)
    read = cast(ReadLayers, first.stage("read"))
    numbers = read.resolve(first.depth).layers
    # Counted from the bottom, so that they mean the same layers of fewer.
    kept = replace(read, layers=numbers[0] if len(numbers) == 1 else (numbers[0], numbers[-1]))
    short = copied(first)
    short.rebind([kept if stage is read else stage for stage in first.stages], _backbone(first.model, first.runs))
    whole, less = _hidden(first), _hidden(short)
    difference = float((whole - less).abs().max() / whole.abs().max())
    if not difference <= _TOLERANCE:
        raise ValueError(
            f"truncate_layers: by themselves, the {first.runs} lower layers of {first.backbone.name} give hidden "
            f"states that differ by {difference:.1%}, as something in them depends on the number of layers. {_REMEDY}"
        )
    return rebuilt(model, [short, *list(model)[1:]])


def _check(first: DecoderTransformer) -> None:
    backbone: Any = first.model
    reason = ""
    if first.runs == first.depth:
        reason = (
            f"all {first.depth} layers run, so there is nothing to cut. Build with stages=[st_reba.ReadLayers(…)] of "
            "an inner layer, or leave this out."
        )
    elif has_adapter(backbone):
        reason = (
            "the model has an adapter of all its layers. Merge it before: st_reba.bases.merge_adapter(model[0].model)."
        )
    elif getattr(backbone, "hf_quantizer", None) is not None:
        reason = (
            "the weights are quantized, and cannot be handed to another backbone. Build from the base without "
            "quantization, truncate, save, and quantize the saved folder."
        )
    elif first.backbone.has_towers:
        reason = f"{first.backbone.name} has towers beside its decoder. {TEXT_TOWER}"
    elif len(set((getattr(backbone, "hf_device_map", None) or {}).values())) > 1:
        reason = "the weights lie on several devices (device_map). Build on one of them."
    if reason:
        raise ValueError(f"truncate_layers: {reason}")


def _backbone(whole: PreTrainedModel, runs: int) -> PreTrainedModel:
    """The lowest layers as a model by itself, of the same tensors: what loading them with fewer layers would give."""
    tensors: dict[str, Tensor] = dict(
        chain(whole.named_parameters(remove_duplicate=False), whole.named_buffers(remove_duplicate=False))
    )
    modules = dict(whole.named_modules(remove_duplicate=False))
    try:
        # Without numbers, which come from the whole model; a buffer that no checkpoint holds does too.
        with torch.device("meta"):
            model = type(whole)(_config(whole.config, runs))
        for name, module in model.named_modules(remove_duplicate=False):
            module.training = modules[name].training
            for kind in (module._parameters, module._buffers):
                for own in [own for own, tensor in kind.items() if tensor is not None]:
                    tensor = tensors[f"{name}.{own}" if name else own]
                    # Another object on the same numbers: moving one model leaves the other where it is.
                    trained = tensor.requires_grad
                    kind[own] = nn.Parameter(tensor.detach(), trained) if isinstance(tensor, nn.Parameter) else tensor
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        reason = f"it has a new {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"truncate_layers: {type(whole).__name__} cannot be made with {runs} of its layers: {reason}. {_REMEDY}"
        ) from error
    return model


def _config(whole: PretrainedConfig, runs: int) -> PretrainedConfig:
    config = copy.deepcopy(whole)
    depth = config.num_hidden_layers
    for name, value in dict(vars(config)).items():
        if isinstance(value, (list, tuple)) and len(value) == depth and name not in _NOT_LAYERS:
            setattr(config, name, value[:runs])
        elif name in _FROM_THE_TOP and isinstance(value, int):
            setattr(config, name, max(0, value - (depth - runs)))
    # By the common name; some architectures have one of their own, which stands for it.
    config.num_hidden_layers = runs
    return config


def _hidden(first: DecoderTransformer) -> Tensor:
    """Hidden states of a few tokens."""
    ids = torch.arange(1, _TOKENS + 1, device=first.model.device)[None]
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "copy_ids": torch.ones_like(ids)}
    training = {each: each.training for each in first.modules()}
    first.eval()
    try:
        with torch.inference_mode():
            hidden: Tensor = DecoderTransformer.forward(first, features, watch=[])["token_embeddings"]
            return hidden.float()
    finally:
        for each, before in training.items():
            each.training = before
