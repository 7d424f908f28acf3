"""Tiny random models of every causal language model that transformers knows, made from their configurations.

A default configuration says which sizes a type has, and a size is made small by its name;
``OVERRIDES`` holds what names alone cannot say. Of a multimodal type, the text decoder is made.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from architectures import POSITIONS, ROPE, TOKENIZERS, VOCABULARY, random_model
from transformers import (
    AutoModel,
    GraniteMoeHybridConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.image_processing_auto import (
    IMAGE_PROCESSOR_MAPPING_NAMES,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

# Model type → class, as transformers says.
CAUSAL_LMS: dict[str, str] = {}
for _model_type, _class_names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
    CAUSAL_LMS[_model_type] = _class_names if isinstance(_class_names, str) else _class_names[0]
# Types that have a class for AutoModel, but no model here.
NO_MODEL = {
    "musicgen": "reads the codes of audio, not text",
    "musicgen_melody": "reads the codes of audio, not text",
    "whisper": "reads audio, not text",
    "emu3": "its tokenizer must have image tokens: not made here",
    "phi4_multimodal": "its processor needs torchvision: not made here",
}
# Types that a release of transformers cannot load, or computes wrongly.
if transformers.__version__ == "5.0.0":
    NO_MODEL |= {
        "apertus": "transformers 5.0.0 cannot load one",
        "bert-generation": "AutoTokenizer of transformers 5.0.0 needs sentencepiece for it",
        "marian": "AutoTokenizer of transformers 5.0.0 needs sentencepiece for it",
        "moshi": "transformers 5.0.0 forgets its window where no mask is passed",
        "recurrent_gemma": "transformers 5.0.0 loads it with a factor that is whatever stood in memory",
        "zamba2": "its states change with later tokens in transformers 5.0.0",
    }

WINDOW = 6
# Small value → the sizes that get it, by their whole names; the first pattern that fits counts.
SIZES: dict[int, str] = {
    VOCABULARY: r"vocab_size(_per_layer_input)?|unpadded_vocab_size",
    POSITIONS: r"(original_)?max_position_embeddings|n_positions|n_ctx|max_seq_len|context_length|model_max_length"
    r"|max_(source|target)_positions|rel_extent|position_bias_max_distance",
    32: r"hidden_size(_global)?|n_embd|d_model|emb_dim|((in|out)put_)?embedding_size|word_embed_proj_dim|lru_width"
    r"|attention_hidden_size|embedding_dim|base_channels|nemo_conv_channels",
    48: r".*(intermediate|ffn|feed_forward|mlp)(_hidden)?(_size|_dim|_size_mlp)|dff|d_inner|n_inner|dim_ff",
    8: r"(swa_|attention_|index_|linear_((key|value)_)?|v_|qk_nope_)?head_dim|d_head|dim_head|attention_head_size"
    r"|kv_channels|index_topk|index_n_heads|.*_rank|hidden_size_per_layer_input|d_rel|.*(chunk_size|d_state|state_size)",
    4: r"((swa_)?num_|n_|(num_)?(en|de)coder_)?(attention_)?heads|n_head|linear_num_.*heads|qk_rope_head_dim|rotary_dim"
    r"|(num|n|moe_num)(_routed|_local)?_experts",
    2: r"(swa_)?num_(key_value|kv)_heads|num_query_groups|num_experts_per_tok(en)?|moe_k|moe_top_?k",
    1: r"(n|num|moe_num)_shared_experts|n_group|topk_group|num_expert_group|(mamba_)?n_?groups|first_k_dense_replace"
    r"|num_dense_layers",
    WINDOW: r"sliding_window(_size)?|attention_window_size|window_size|attention_chunk_size|local_attention",
}
DEPTH = r"(num_(hidden_|(en|de)coder_)?|n_|(en|de)coder_)layers?|n_layer|num_blocks"
# What each layer is, where a configuration says so: every kind is kept.
KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types")
# Kinds that share something need two layers each to share it (and early releases tie Zamba 2's to
# its first layer).
SHARING = ("gemma3n_text", "zamba", "zamba2")

_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64}
_ALL_AND_WINDOW = ["full_attention", "sliding_attention"]
# Early releases have other names for the two kinds of its layers.
_HYBRID = ["mamba", "attention"]
if GraniteMoeHybridConfig().layer_types:
    _HYBRID = ["linear_attention", "full_attention"]
# Model type of the (text) configuration → settings.
OVERRIDES: dict[str, dict[str, Any]] = {
    # Its sparse attention begins beyond 700 tokens only.
    "big_bird": {"attention_type": "original_full"},
    "cohere_compass_text": {
        "layer_types": _ALL_AND_WINDOW,
        "rope_parameters": dict.fromkeys(_ALL_AND_WINDOW, ROPE),
    },
    "dbrx": {
        "attn_config": {
            "rope_theta": 10000.0,
            "kv_n_heads": 2,
            "clip_qkv": 8.0,
        },
        "ffn_config": {
            "hidden_size": 32,
            "ffn_hidden_size": 32,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "dots1": {
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    },
    # Every other entry is the MLP of the layer before it; the middle layer runs twice. The range
    # divides its scales.
    "dory": {
        "layer_types": [
            "sliding_attention",
            "mlp",
            "full_attention",
            "mlp",
            "sliding_attention",
            "mlp",
        ],
        "num_hidden_layers": 6,
        "n_input_layers": 2,
        "n_output_layers": 2,
        "initializer_range": 1.0,
    },
    # The layers of one kind have sizes of their own.
    "dots3_note_text": {
        "head_dim": 12,
        "per_layer_config": {
            1: {
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "kv_lora_rank": 8,
                "qk_nope_head_dim": 8,
            },
        },
    },
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "intermediate_size": 48,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {**_MAMBA, "layer_types": _HYBRID},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_hidden_layers": 4,
        "use_mamba_kernels": False,
    },
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_block_size": 4,
        "index_topk_blocks": 2,
    },
    # Of few heads, all scores of a block may be 0, and which of such blocks are chosen is chance.
    "qwen4_exp_text": {
        "indexer_n_heads": 8,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 12,
        "indexer_compress_ratio": 2,
    },
    "reformer": {
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "num_buckets": 4,
    },
    "roc_bert": {
        "pronunciation_embed_dim": 8,
        "pronunciation_vocab_size": 16,
        "shape_embed_dim": 8,
        "shape_vocab_size": 16,
    },
    "zamba": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        "attention_hidden_size": 64,
        "mamba_headdim": 8,
        "use_mem_rope": True,
        "use_mamba_kernels": False,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "zaya": {"num_experts_per_tok": 1},
    "falcon_h1": _MAMBA,
    "mamba2": {"num_heads": 8},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8},
    "xlstm": {"chunk_size": 64},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "longcat_flash": {"zero_expert_num": 2},
    "xmod": {"default_language": "en_XX"},
}
# Other seeds, for types whose first weights bring rounding near the tolerance or by chance hide a
# fault.
SEEDS = {
    "longcat_flash": 3,
    "qwen3_5_text": 2,
    "qwen4_exp_text": 1,
    "zamba2": 1,
}


class NoModelError(Exception):
    """There is no model of a type, for a reason."""


def config_of(model_type: str, *, decoder: bool = True) -> PreTrainedConfig:
    """The tiny configuration of a model type, or of its text decoder; an encoder that can be a decoder is one."""
    if model_type in NO_MODEL or model_type not in MODEL_MAPPING_NAMES:
        raise NoModelError(NO_MODEL.get(model_type, "AutoModel has no class for it"))
    default_config = CONFIG_MAPPING[model_type]()
    text_config = default_config.get_text_config()
    has_text_model = text_config.model_type in MODEL_MAPPING_NAMES
    if has_text_model and not default_config.is_encoder_decoder:
        small_config = _shrink(text_config)
    else:
        small_config = _shrink(default_config)
    for name in ("is_decoder", "causal"):
        if getattr(default_config, name, None) is False and not default_config.is_encoder_decoder:
            setattr(small_config, name, decoder)
    return small_config


def _shrink(default_config: PreTrainedConfig) -> PreTrainedConfig:
    """A default configuration, and those within it, with small sizes."""
    small_settings = _small_settings(default_config)
    for name in getattr(default_config, "sub_configs", {}):
        sub_config = getattr(default_config, name, None)
        if isinstance(sub_config, PreTrainedConfig):
            small_settings[name] = _shrink(sub_config).to_dict()
    small_settings |= OVERRIDES.get(default_config.model_type, {})
    return type(default_config)(**small_settings)


def _small_settings(default_config: PreTrainedConfig) -> dict[str, Any]:
    stored = default_config.to_dict()
    small_settings = _small_sizes(stored)
    small_settings |= _sizes_that_depend_on_others(stored, small_settings)
    small_settings |= _few_layers(default_config.model_type, stored, small_settings)
    small_settings |= _special_tokens_in_vocabulary(default_config, stored)
    return small_settings


def _small_sizes(stored: dict[str, Any]) -> dict[str, Any]:
    """Sizes that a name alone tells."""
    small_settings: dict[str, Any] = {}
    for name, value in stored.items():
        size = _size_by_name(name)
        if size and type(value) is int and value > 0:
            may_grow = name == "vocab_size" or "expert" in name
            small_settings[name] = size if may_grow else min(size, value)
        elif value is None and name in ("head_dim", "num_key_value_heads"):
            small_settings[name] = size
    return small_settings


def _size_by_name(name: str) -> int:
    for size, pattern in SIZES.items():
        if re.fullmatch(pattern, name):
            return size
    return 0


def _sizes_that_depend_on_others(
    stored: dict[str, Any], small_settings: dict[str, Any]
) -> dict[str, Any]:
    dependent: dict[str, Any] = {}
    # Latent attention: as many keys as queries, and rotary angles for a part of each.
    if "kv_lora_rank" in stored and stored["num_key_value_heads"] == stored["num_attention_heads"]:
        dependent["num_key_value_heads"] = small_settings["num_attention_heads"]
    if "qk_rope_head_dim" in stored and stored["qk_rope_head_dim"] == stored.get("head_dim"):
        dependent["head_dim"] = small_settings["qk_rope_head_dim"]
    if "max_window_layers" in stored:
        # Off by default: here the first layer sees all, the second a window.
        dependent["use_sliding_window"] = True
        dependent["sliding_window"] = WINDOW
        dependent["max_window_layers"] = 1
        dependent["layer_types"] = _ALL_AND_WINDOW
    return dependent


def _few_layers(
    model_type: str, stored: dict[str, Any], small_settings: dict[str, Any]
) -> dict[str, Any]:
    """As few layers as hold every kind, and two at least; lists that name a kind for each layer."""
    layer_kinds: dict[str, list[str]] = {}
    for name in KINDS:
        if stored.get(name):
            kinds = list(dict.fromkeys(small_settings.get(name) or stored[name]))
            if model_type in SHARING:
                kinds = kinds[::-1] * 2 if model_type == "zamba2" else kinds * 2
            layer_kinds[name] = kinds
    depth = max([2, *map(len, layer_kinds.values())])
    few_layers: dict[str, Any] = {}
    for name in stored:
        if re.fullmatch(DEPTH, name):
            few_layers[name] = depth
    for name, kinds in layer_kinds.items():
        repeated_last = kinds[-1:] * (depth - len(kinds))
        few_layers[name] = kinds + repeated_last
    return few_layers


def _special_tokens_in_vocabulary(
    default_config: PreTrainedConfig, stored: dict[str, Any]
) -> dict[str, Any]:
    """A special token beyond the small vocabulary becomes one of its last."""
    token_ids: dict[str, Any] = {}
    for index, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id"), 1):
        token_id = stored.get(name)
        is_beyond = isinstance(token_id, int) and token_id >= VOCABULARY
        if is_beyond or isinstance(token_id, list):
            token_ids[name] = VOCABULARY - index
        elif "vocab_size" in stored and not hasattr(default_config, name):
            token_ids[name] = None
    return token_ids


def make(model_type: str, *, decoder: bool = True) -> PreTrainedModel:
    """The tiny model of a type, by ``random_model``; NoModelError where it has a size that is not known here."""
    config = config_of(model_type, decoder=decoder)
    _check_size(config)
    seed = zlib.crc32(model_type.encode()) + SEEDS.get(model_type, 0)
    model = random_model(config, seed)
    for name, weight in model.named_parameters():
        # A recurrence adds up over the text: as large as the rest, it would blow up float32's
        # rounding.
        if weight.ndim > 1 and re.search("linear_attn|mamba|temporal_block|conv", name):
            weight.data.mul_(0.3 if "mamba" in name else 0.5)
    return model


def _check_size(config: PreTrainedConfig) -> None:
    # A model that computes with its own values while it is made cannot be made without them.
    with contextlib.suppress(NotImplementedError), torch.device("meta"):
        model = AutoModel.from_config(config)
        size, name = max((weight.numel(), name) for name, weight in model.named_parameters())
        if size > 3e6:
            raise NoModelError(
                f"not small: {name} holds {size} numbers; give its size a small value"
            )


def save(model_type: str, folder: Path, *, decoder: bool = True) -> PreTrainedModel:
    """Write the tiny model of a type and a tokenizer as a checkpoint has them."""
    model = make(model_type, decoder=decoder)
    model.save_pretrained(folder)
    TOKENIZERS["bos"]().save_pretrained(folder)
    class_names = IMAGE_PROCESSOR_MAPPING_NAMES.get(model.config.model_type)
    if class_names is not None:
        # sentence-transformers loads a multimodal model with all of its processors.
        if isinstance(class_names, dict):
            class_names = class_names.values()
        processor_settings = {"image_processor_type": next(iter(class_names))}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor_settings))
    return model
