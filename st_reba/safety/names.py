"""Names that configurations may hold, and names that they may not."""

from __future__ import annotations

import re

# Tasks of models that read text; each is a table of model types in transformers.
TEXT_TASKS = (
    "CAUSAL_LM",
    "MASKED_LM",
    "TEXT_ENCODING",
    "MULTIMODAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
    "QUESTION_ANSWERING",
)
# Types that load other models by the names in their configuration, from wherever.
TYPES_OF_SEVERAL_MODELS = {
    "encoder-decoder",
    "rag",
    "speech-encoder-decoder",
    "timm_backbone",
    "timm_wrapper",
    "vision-encoder-decoder",
    "vision-text-dual-encoder",
}
# Settings by which libraries read other files than those that are checked, or replace classes.
UNCHECKED_SETTINGS = {
    "attribute_map",  # renames settings, so that the checks would miss them
    "audio_tokenizer",
    "configuration_files",
    "fusion_config",
    "gguf_file",
    "init_inputs",
    "kernel_config",
    "layer_replication",
    "megatron_config",
    "transformers_weights",
    "use_kernels",
    "use_pretrained_backbone",
    "use_timm_backbone",
}
# Settings ending in name_or_path that say where a model came from, and are not read again.
ORIGINS = {
    "_model_name_or_path",
    "_name_or_path",
    "base_model_name_or_path",
    "name_or_path",
}
ATTENTION_IMPLEMENTATIONS = {"", "eager", "flex_attention", "sdpa"}
EXPERTS_IMPLEMENTATIONS = {"", "batched_mm", "eager", "grouped_mm"}
QUANTIZATIONS = {
    "aqlm",
    "auto-round",
    "awq",
    "bitnet",
    "bitsandbytes",
    "bitsandbytes_4bit",
    "bitsandbytes_8bit",
    "compressed-tensors",
    "eetq",
    "fbgemm_fp8",
    "fp8",
    "gptq",
    "hqq",
    "mxfp4",
    "quanto",
    "torchao",
}
# What stored settings may pass on to transformers; all else is the caller's to say.
STORABLE_OPTIONS = {
    "add_bos_token",
    "add_eos_token",
    "add_pooling_layer",
    "add_prefix_space",
    "attn_implementation",
    "clean_up_tokenization_spaces",
    "do_lower_case",
    "dtype",
    "fix_mistral_regex",
    "is_causal",
    "is_decoder",
    "low_cpu_mem_usage",
    "max_length",
    "max_pixels",
    "min_pixels",
    "model_max_length",
    "output_attentions",
    "output_hidden_states",
    "padding_side",
    "reference_compile",
    "strip_accents",
    "tokenize_chinese_chars",
    "torch_dtype",
    "truncation_side",
    "unpad_inputs",
    "use_cache",
    "use_fast",
}
# The settings that hold such options.
PASSED_ON = (
    "config_args",
    "config_kwargs",
    "model_args",
    "model_kwargs",
    "processor_args",
    "processor_kwargs",
    "tokenizer_args",
)
# Names under which sentence-transformers also finds the settings of a Transformer.
OLDER_SETTINGS_FILES = (
    "sentence_albert_config.json",
    "sentence_camembert_config.json",
    "sentence_distilbert_config.json",
    "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
TRANSFORMER_TASKS = {
    "any-to-any",
    "feature-extraction",
    "fill-mask",
    "sequence-classification",
    "text-generation",
}
# Methods of a model that give the features of an input.
FEATURE_METHOD = re.compile(r"forward|get_(text|image|vision|audio|video|multimodal)_features")
PROCESSOR_CLASS_SETTING = re.compile(r"\w*(tokenizer|processor|extractor)\w*_(class|type)")
PROCESSOR_FILES = (
    "audio_tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
)
# Adapters whose sizes follow from ranks and from the model's own, and those of prompts, which
# `build` refuses with a reason of its own.
ADAPTER_TYPES = {
    "ADALORA",
    "ADAPTION_PROMPT",
    "IA3",
    "LN_TUNING",
    "LOHA",
    "LOKR",
    "LORA",
    "MULTITASK_PROMPT_TUNING",
    "OFT",
    "PREFIX_TUNING",
    "PROMPT_TUNING",
    "P_TUNING",
    "VERA",
}
# Adapter settings that peft takes as a regular expression: if they are a string, and always.
PATTERN_OR_NAMES = ("exclude_modules", "target_modules")
PATTERNS = ("modules_to_save",)
# Settings of a quantization that transformers takes for regular expressions.
PATTERNS_OF_QUANTIZATION = ("llm_int8_skip_modules", "modules_to_not_convert")
# Settings that determine an adapter's size.
RANK_SETTINGS = ("init_r", "r", "rank", "target_r")
# Settings ending in these may be of any size.
COUNTS_OF_TRAINING = (
    "epochs",
    "examples",
    "parameters",
    "params",
    "samples",
    "steps",
    "tokens",
)


def largest_number(setting: str) -> float:
    """The largest number that a configuration may give a setting.

    Larger ones would take time or memory before a model's size is compared with its weights.

    Args:
        setting: Its name.
    """
    if setting.endswith(("layer", "layers")):
        return 1000
    if setting.endswith(("positions", "position_embeddings", "n_ctx", "max_seq_len")):
        return 1 << 24
    if setting.endswith(COUNTS_OF_TRAINING):
        return float("inf")
    if setting.startswith(("num_", "n_")) or setting.endswith(("heads", "experts", "labels")):
        return 1 << 17
    is_length = "max" in setting
    if setting.endswith(("size", "dim", "rank", "length", "chunk")) and not is_length:
        return 1 << 24
    return float("inf")
