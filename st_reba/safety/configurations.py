"""What configurations of transformers and of tokenizers may say, and what they may not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto import modeling_auto
from transformers.utils import DummyObject, is_flash_attn_2_available

from .numbers import adapted_base, quantization
from .repository import COPY_AGAIN, Repository
from .weights import check_number_types, read_header, read_headers

# Whole numbers, by the ends of their names: each takes time or memory before weights are compared.
_MOST_LAYERS = 1000
_MOST_POSITIONS = 1 << 24
_MOST_PARTS = 1 << 17
_MOST_SIZE = 1 << 24
_MOST_SETTING = 1 << 20
_COUNTS_OF_TRAINING = ("tokens", "params", "parameters", "steps", "samples", "examples", "epochs")
# Tasks of models that read text; each is a table of model types in transformers.
_TEXT_TASKS = ("CAUSAL_LM", "MASKED_LM", "TEXT_ENCODING", "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT")
_TEXT_TASKS += ("ZERO_SHOT_IMAGE_CLASSIFICATION", "SEQUENCE_CLASSIFICATION", "QUESTION_ANSWERING")
# Types that load other models by the names in their configuration, from wherever.
_MODEL_TYPES_OF_MODELS = {"timm_backbone", "timm_wrapper", "vision-encoder-decoder"}
_MODEL_TYPES_OF_MODELS |= {"vision-text-dual-encoder", "encoder-decoder", "rag"}
_MODEL_TYPES_OF_MODELS |= {"speech-encoder-decoder"}
# Settings by which transformers reads other files than those that are checked, or replaces classes.
_UNCHECKED = {"configuration_files", "transformers_weights", "fusion_config", "megatron_config"}
_UNCHECKED |= {"use_timm_backbone", "use_pretrained_backbone", "audio_tokenizer", "init_inputs"}
_UNCHECKED |= {"use_kernels", "kernel_config", "gguf_file", "layer_replication"}
_OWN_NAMES = {"name_or_path", "_name_or_path", "_model_name_or_path", "base_model_name_or_path"}
_ATTENTION = {"", "eager", "sdpa", "flex_attention"}
_EXPERTS = {"", "eager", "grouped_mm", "batched_mm"}
_QUANTIZATIONS = {"bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit", "gptq", "awq", "torchao"}
_QUANTIZATIONS |= {"compressed-tensors", "fp8", "fbgemm_fp8", "mxfp4", "hqq", "quanto", "eetq"}
_QUANTIZATIONS |= {"auto-round", "aqlm", "bitnet"}
# What a stored configuration may pass on to transformers; all else is the caller's to say.
_STORABLE = {"dtype", "torch_dtype", "attn_implementation", "low_cpu_mem_usage", "use_cache"}
_STORABLE |= {"add_pooling_layer", "reference_compile", "output_hidden_states", "is_causal"}
_STORABLE |= {"output_attentions", "is_decoder", "padding_side", "truncation_side", "max_length"}
_STORABLE |= {"model_max_length", "do_lower_case", "use_fast", "add_eos_token", "add_bos_token"}
_STORABLE |= {"add_prefix_space", "clean_up_tokenization_spaces", "strip_accents", "min_pixels"}
_STORABLE |= {"tokenize_chinese_chars", "max_pixels", "fix_mistral_regex", "unpad_inputs"}
_PASSED_ON = ("model_kwargs", "processor_kwargs", "config_kwargs")
_PASSED_ON += ("model_args", "tokenizer_args", "config_args", "processor_args")
_TASKS = {"feature-extraction", "fill-mask", "text-generation", "sequence-classification"}
_TASKS |= {"any-to-any"}
_METHOD = re.compile(r"forward|get_(text|image|vision|audio|video|multimodal)_features")
_CLASS_NAME = re.compile(r"\w*(tokenizer|processor|extractor)\w*_(class|type)")
_PROCESSOR_FILES = ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_PROCESSOR_FILES += ("video_preprocessor_config.json", "special_tokens_map.json")
_PROCESSOR_FILES += ("audio_tokenizer_config.json",)
_RANKS = ("r", "rank", "init_r", "target_r")
# A group that repeats, and more repetitions than this, can take a regular expression for ever.
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_MOST_REPETITIONS = 4


def walk(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a configuration at any depth, with the names that they have."""
    waiting = [(name, values)]
    while waiting:
        name, value = waiting.pop()
        yield name, value
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(name, item) for item in value]


def check_transformer(repository: Repository, folder: str, settings_files: list[str]) -> None:
    """Check all that a Transformer reads: its settings, its configuration, its tokenizer, its base.

    Args:
        repository: The files.
        folder: Where its configuration and its weights are.
        settings_files: Those that sentence-transformers reads, of which the first that says anything counts.
    """
    for file in settings_files:
        _check_settings(repository, file)
    check_model_files(repository, folder)


def check_model_files(repository: Repository, folder: str, *, is_adapted: bool = False) -> None:
    """Check the files of a model of transformers, or of an adapter and the model that it adapts."""
    file = os.path.join(folder, "config.json")
    values = repository.read_object(file)
    _check_configuration(repository, file, values)
    if values:
        _check_model_type(repository, file, values)
    tensors = read_headers(repository, folder)
    if tensors and not quantization(repository, folder):
        check_number_types(repository, folder, tensors)
    check_processors(repository, folder)
    file = os.path.join(folder, "adapter_config.json")
    adapter = repository.read_object(file)
    if adapter and is_adapted:
        raise repository.refusal(file, "an adapter of an adapter is not read. Merge it first.")
    if adapter:
        _check_adapter(repository, folder, file, adapter)


def _check_settings(repository: Repository, file: str) -> None:
    """Settings of sentence-transformers' Transformer, and what they pass on to transformers."""
    values = repository.read_object(file)
    if values.get("tokenizer_name_or_path"):
        reason = "tokenizer_name_or_path names files elsewhere. Remove it."
        raise repository.refusal(file, reason)
    _check_configuration(repository, file, values)
    for name, value in walk(values):
        is_large = isinstance(value, int) and abs(value) > _MOST_SETTING
        if is_large and name not in ("max_seq_length", "model_max_length"):
            raise repository.refusal(file, f"{name}={value:.4g}: at most {_MOST_SETTING}. Correct it.")
    with repository.explaining(file):
        for name in _PASSED_ON:
            for option, value in (values.get(name) or {}).items():
                is_storable = option in _STORABLE and not isinstance(value, (dict, list))
                if not is_storable and value is not None:
                    reason = f"{name}: {option} may not be stored. Pass it to load."
                    raise repository.refusal(file, reason)
        task = values.get("transformer_task", "feature-extraction")
        if task not in _TASKS:
            reason = f"transformer_task={task!r:.80} is none of {sorted(_TASKS)}. Correct it."
            raise repository.refusal(file, reason)
        for modality in (values.get("modality_config") or {}).values():
            method = modality["method"]
            if not _METHOD.fullmatch(method):
                reason = f"method={method!r:.80} is none that embeds. Correct it."
                raise repository.refusal(file, reason)


def _check_configuration(repository: Repository, file: str, values: Mapping[str, Any]) -> None:
    for name, value in walk(values):
        if isinstance(value, int) and abs(value) > largest_number(name):
            reason = f"{name}={value}: at most {largest_number(name)}. Correct it."
            raise repository.refusal(file, reason)
        if value and _is_unchecked(name):
            reason = f"{name}={value!r:.80} names code or files elsewhere. Remove it."
            raise repository.refusal(file, reason)
        _check_implementation(repository, file, name, value)
        _check_class_name(repository, file, name, value)


def _is_unchecked(name: str) -> bool:
    return name in _UNCHECKED or (name.endswith("name_or_path") and name not in _OWN_NAMES)


def largest_number(name: str) -> float:
    """The largest number that a configuration may give this name."""
    if name.endswith(("layer", "layers")):
        return _MOST_LAYERS
    if name.endswith(("positions", "position_embeddings", "n_ctx", "max_seq_len")):
        return _MOST_POSITIONS
    if name.endswith(_COUNTS_OF_TRAINING):
        return float("inf")
    if name.startswith(("num_", "n_")) or name.endswith(("heads", "experts", "labels")):
        return _MOST_PARTS
    if name.endswith(("size", "dim", "rank", "length", "repeats", "chunk")) and "max" not in name:
        return _MOST_SIZE
    return float("inf")


def _check_implementation(repository: Repository, file: str, name: str, value: Any) -> None:
    """transformers would fetch and run a kernel that stands in place of an implementation's name."""
    if "attn_implementation" in name:
        allowed = _ATTENTION
        if is_flash_attn_2_available():
            allowed = _ATTENTION | {"flash_attention_2"}
    elif "experts_implementation" in name:
        allowed = _EXPERTS
    else:
        return
    for _, choice in walk(value):
        if choice is not None and not isinstance(choice, (dict, list)) and choice not in allowed:
            reason = f"{name}={choice!r:.80} may name code elsewhere. Use one of {sorted(allowed)[1:]}."
            raise repository.refusal(file, reason)


def _check_class_name(repository: Repository, file: str, name: str, value: Any) -> None:
    """A class of transformers that is named as a tokenizer or processor must be one: others load more."""
    if not _CLASS_NAME.fullmatch(name):
        return
    if isinstance(value, str) and not is_processor_name(value):
        reason = f"{name}={value!r:.80} is no tokenizer or processor of transformers. Correct it."
        raise repository.refusal(file, reason)


def is_processor_name(name: str) -> bool:
    """Whether transformers knows no class of this name, or one that prepares inputs."""
    for spelling in (name, name.removesuffix("Fast"), name + "Fast"):
        kind = getattr(transformers, spelling, None)
        # A class whose packages are not installed stands for an error that names them.
        if kind is None or isinstance(kind, DummyObject):
            continue
        if not isinstance(kind, type) or not issubclass(kind, _processor_classes()):
            return False
        # It loads a whole repository of parts.
        if kind.__name__.startswith("Rag"):
            return False
    return True


def _processor_classes() -> tuple[type, ...]:
    from transformers.feature_extraction_utils import FeatureExtractionMixin
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.processing_utils import ProcessorMixin
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    return FeatureExtractionMixin, ImageProcessingMixin, ProcessorMixin, PreTrainedTokenizerBase


@cache
def text_model_types() -> frozenset[str]:
    """The model types that read text, and that AutoModel makes of their own weights alone."""
    known_types = set(modeling_auto.MODEL_MAPPING_NAMES)
    text_types = {name for name in known_types if "text" in name or "embedding" in name}
    text_types.add("dpr")
    for task in _TEXT_TASKS:
        # Releases of transformers differ in the tasks that they know.
        text_types |= set(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", ()))
    return frozenset(text_types & known_types - _MODEL_TYPES_OF_MODELS)


def _check_model_type(repository: Repository, file: str, values: Mapping[str, Any]) -> None:
    model_type = values.get("model_type")
    has_code = isinstance(values.get("auto_map"), dict)
    is_known = isinstance(model_type, str) and model_type in text_model_types()
    if not is_known and not has_code:
        reason = f"model_type={model_type!r:.80} reads no text with a tokenizer. Use another model."
        raise repository.refusal(file, reason)
    for name, value in walk(values):
        if name == "model_type" and value in _MODEL_TYPES_OF_MODELS:
            reason = f"model_type={value!r} puts models together from elsewhere. Use a single model."
            raise repository.refusal(file, reason)
        if name == "quantization_config" and isinstance(value, dict):
            _check_quantization(repository, file, value)


def _check_quantization(repository: Repository, file: str, values: Mapping[str, Any]) -> None:
    method = values.get("quant_method")
    is_bitsandbytes = values.get("load_in_4bit") or values.get("load_in_8bit")
    if method is None and is_bitsandbytes:
        return
    if method not in _QUANTIZATIONS:
        reason = f"quant_method={method!r:.80} is none of {sorted(_QUANTIZATIONS)}. Correct it."
        raise repository.refusal(file, reason)


def check_processors(repository: Repository, folder: str) -> None:
    """Check the configurations of a tokenizer and of what prepares images and sounds."""
    for name in _PROCESSOR_FILES:
        file = os.path.join(folder, name)
        for key, value in walk(repository.read_object(file)):
            _check_class_name(repository, file, key, value)
            if value and _is_unchecked(key):
                reason = f"{key}={value!r:.80} names code or files elsewhere. Remove it."
                raise repository.refusal(file, reason)
            if key.endswith("_file") and isinstance(value, str) and _leads_elsewhere(value):
                reason = f"{key}={value!r:.80} is a file elsewhere on this machine. Remove it."
                raise repository.refusal(file, reason)


def _leads_elsewhere(name: str) -> bool:
    path = Path(name)
    return (path.is_absolute() or ".." in path.parts) and path.exists()


def _check_adapter(repository: Repository, folder: str, file: str, values: Mapping[str, Any]) -> None:
    _check_configuration(repository, file, values)
    for name, value in walk(values):
        is_pattern = name in ("target_modules", "exclude_modules") and isinstance(value, str)
        if is_pattern or name.endswith("_pattern"):
            _check_patterns(repository, file, name, value)
    _check_ranks(repository, folder, file, values)
    base_path = values.get("base_model_name_or_path")
    if isinstance(base_path, str):
        base = adapted_base(repository, base_path)
        base.check_files()
        check_model_files(base, "", is_adapted=True)


def _check_patterns(repository: Repository, file: str, name: str, value: Any) -> None:
    """Regular expressions that peft searches the names of all layers for."""
    patterns = list(value) if isinstance(value, (dict, list)) else [value]
    for pattern in patterns:
        text = str(pattern)
        repetitions = len(re.findall(r"[*+{]", text))
        if _REPEATED_GROUP.search(text) or repetitions > _MOST_REPETITIONS:
            reason = f"{name}={text!r:.80} can take for ever. List the names."
            raise repository.refusal(file, reason)


def _check_ranks(repository: Repository, folder: str, file: str, values: Mapping[str, Any]) -> None:
    """An adapter is made as large as its ranks say; the smaller side of its matrices is a rank."""
    weights_file = os.path.join(folder, "adapter_model.safetensors")
    if repository.find(weights_file) is None:
        return
    tensors = read_header(repository, weights_file)
    check_number_types(repository, folder, tensors)
    stored_rank = max((min(t.shape) for t in tensors.values() if t.shape), default=0)
    ranks = [values.get(name) for name in _RANKS]
    with repository.explaining(file):
        ranks += (values.get("rank_pattern") or {}).values()
    for rank in ranks:
        if isinstance(rank, int) and rank > stored_rank:
            reason = f"r={rank:.4g} is more than the rank of the weights, {stored_rank}. {COPY_AGAIN}"
            raise repository.refusal(file, reason)
