"""Tiny random models of every causal language model that transformers knows, made from their configurations.

A default configuration says which sizes a type has, and a size is made small by its name; ``OVERRIDES`` holds what
names alone cannot say. Of a multimodal type, the text decoder is made.
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
from architectures import POSITIONS, ROPE, TOKENIZERS, VOCABULARY, made
from transformers import AutoModel, GraniteMoeHybridConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

# Model type → class, as transformers says.
CAUSAL_LMS: dict[str, str] = {
    name: (each if isinstance(each, str) else each[0]) for name, each in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
}
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
# Kinds that share something need two layers each to share it (and early releases tie Zamba 2's to its first layer).
SHARING = ("gemma3n_text", "zamba", "zamba2")

_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64}
_ALL_AND_WINDOW = ["full_attention", "sliding_attention"]
# Early releases have other names for the two kinds of its layers.
_HYBRID = ["linear_attention", "full_attention"] if GraniteMoeHybridConfig().layer_types else ["mamba", "attention"]
# Model type of the (text) configuration → settings.
OVERRIDES: dict[str, dict[str, Any]] = {
    # Its sparse attention begins beyond 700 tokens only.
    "big_bird": {"attention_type": "original_full"},
    "cohere_compass_text": {"layer_types": _ALL_AND_WINDOW, "rope_parameters": dict.fromkeys(_ALL_AND_WINDOW, ROPE)},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    # Every other entry is the MLP of the layer before it; the middle layer runs twice. The range divides its scales.
    "dory": {
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"],
        "num_hidden_layers": 6, "n_input_layers": 2, "n_output_layers": 2, "initializer_range": 1.0,
    },
    # The layers of one kind have sizes of their own.
    "dots3_note_text": {"head_dim": 12, "per_layer_config": {
        1: {"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 8, "qk_nope_head_dim": 8},
    }},
    "gemma3n_text": {"num_kv_shared_layers": 2, "intermediate_size": 48, "activation_sparsity_pattern": [0.0] * 4},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]}, "granitemoehybrid": {**_MAMBA, "layer_types": _HYBRID},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4, "use_mamba_kernels": False},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"], "index_block_size": 4, "index_topk_blocks": 2,
    },
    # Of few heads, all scores of a block may be 0, and which of such blocks are chosen is chance.
    "qwen4_exp_text": {
        "indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 12,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"], "num_buckets": 4},
    "roc_bert": {
        "pronunciation_embed_dim": 8, "pronunciation_vocab_size": 16, "shape_embed_dim": 8, "shape_vocab_size": 16,
    },
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16, "use_mamba_kernels": False},
    "zamba2": {"attention_hidden_size": 64, "mamba_headdim": 8, "use_mem_rope": True, "use_mamba_kernels": False},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]}, "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "deepseek_v2": {"num_experts_per_tok": 2}, "zaya": {"num_experts_per_tok": 1}, "falcon_h1": _MAMBA,
    "mamba2": {"num_heads": 8}, "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8}, "xlstm": {"chunk_size": 64},
    "blt": {"encoder_hash_byte_group_vocab": 64}, "longcat_flash": {"zero_expert_num": 2},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip
# Other values than the first, where those bring rounding near the tolerance or, by chance, show nothing.
SEEDS = {"longcat_flash": 3, "qwen3_5_text": 2, "qwen4_exp_text": 1, "zamba2": 1}


class NoModelError(Exception):
    """There is no model of a type, for a reason."""


def config_of(model_type: str, *, decoder: bool = True) -> PreTrainedConfig:
    """The tiny configuration of a model type, or of its text decoder; an encoder that can be a decoder is one."""
    if model_type in NO_MODEL or model_type not in MODEL_MAPPING_NAMES:
        raise NoModelError(NO_MODEL.get(model_type, "AutoModel has no class for it"))
    default = CONFIG_MAPPING[model_type]()
    text = default.get_text_config()
    small = _shrunk(default if default.is_encoder_decoder or text.model_type not in MODEL_MAPPING_NAMES else text)
    for name in ("is_decoder", "causal"):
        if getattr(default, name, None) is False and not default.is_encoder_decoder:
            setattr(small, name, decoder)
    return small


def _shrunk(default: PreTrainedConfig) -> PreTrainedConfig:
    """A default configuration, and those within it, with small sizes."""
    parts = {name: getattr(default, name, None) for name in getattr(default, "sub_configs", {})}
    within = {name: _shrunk(part).to_dict() for name, part in parts.items() if isinstance(part, PreTrainedConfig)}
    return type(default)(**{**_sizes(default), **within, **OVERRIDES.get(default.model_type, {})})


def _sizes(default: PreTrainedConfig) -> dict[str, Any]:
    stored = default.to_dict()
    small: dict[str, Any] = {}
    for name, value in stored.items():
        size = next((size for size, pattern in SIZES.items() if re.fullmatch(pattern, name)), 0)
        if size and type(value) is int and value > 0:
            small[name] = size if name == "vocab_size" or "expert" in name else min(size, value)
        elif value is None and name in ("head_dim", "num_key_value_heads"):
            small[name] = size
    # Latent attention: as many keys as queries, and rotary angles for a part of each.
    if "kv_lora_rank" in stored and stored["num_key_value_heads"] == stored["num_attention_heads"]:
        small["num_key_value_heads"] = small["num_attention_heads"]
    if "qk_rope_head_dim" in stored and stored["qk_rope_head_dim"] == stored.get("head_dim"):
        small["head_dim"] = small["qk_rope_head_dim"]
    if "max_window_layers" in stored:
        # Off by default: here the first layer sees all, the second a window.
        small |= {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
        small["layer_types"] = _ALL_AND_WINDOW
    kinds = {name: list(dict.fromkeys(small.get(name) or stored[name])) for name in KINDS if stored.get(name)}
    if default.model_type in SHARING:
        kinds = {name: each[::-1] * 2 if default.model_type == "zamba2" else each * 2 for name, each in kinds.items()}
    depth = max([2, *map(len, kinds.values())])
    small |= {name: depth for name in stored if re.fullmatch(DEPTH, name)}
    small |= {name: (each + each[-1:] * depth)[:depth] for name, each in kinds.items()}
    # A special token beyond the small vocabulary becomes one of its last.
    for place, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id"), 1):
        value = stored.get(name)
        if isinstance(value, list) or isinstance(value, int) and value >= VOCABULARY:
            small[name] = VOCABULARY - place
        elif "vocab_size" in stored and not hasattr(default, name):
            small[name] = None
    return small


def make(model_type: str, *, decoder: bool = True) -> PreTrainedModel:
    """The tiny model of a type, as ``made`` makes it; NoModelError where it has a size that is not known here."""
    config = config_of(model_type, decoder=decoder)
    # A model that computes with its own values while it is made cannot be made without them.
    with contextlib.suppress(NotImplementedError), torch.device("meta"):
        size, name = max((each.numel(), name) for name, each in AutoModel.from_config(config).named_parameters())
        if size > 3e6:
            raise NoModelError(f"not small: {name} holds {size} numbers; give its size a small value")
    model = made(config, zlib.crc32(model_type.encode()) + SEEDS.get(model_type, 0))
    for name, parameter in model.named_parameters():
        # A recurrence adds up over the text: as large as the rest, it would blow up float32's rounding.
        if parameter.ndim > 1 and re.search("linear_attn|mamba|temporal_block|conv", name):
            parameter.data.mul_(0.3 if "mamba" in name else 0.5)
    return model


def save(model_type: str, folder: Path, *, decoder: bool = True) -> PreTrainedModel:
    """Write the tiny model of a type and a tokenizer as a checkpoint has them."""
    model = make(model_type, decoder=decoder)
    model.save_pretrained(folder)
    TOKENIZERS["bos"]().save_pretrained(folder)
    classes = IMAGE_PROCESSOR_MAPPING_NAMES.get(model.config.model_type)
    if classes is not None:
        # sentence-transformers loads a multimodal model with all of its processors.
        name = next(iter(classes.values() if isinstance(classes, dict) else classes))
        (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": name}))
    return model
