"""What the configurations of transformers and of tokenizers may say, and what they may not."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path

import transformers
from transformers.models.auto import modeling_auto
from transformers.utils.import_utils import DummyObject, is_flash_attn_2_available

from . import names
from .numbers import adapted_base, quantization
from .repository import (
    COPY_AGAIN,
    Configuration,
    JsonObject,
    JsonValue,
    Repository,
    RepositoryRefused,
)
from .weights import (
    StoredTensors,
    check_half_type,
    check_number_types,
    read_header,
    read_headers,
)

_MAX_SETTING = 1 << 20
# What `st-reba onnx` stores as the file of the model.
_EXPORTED_GRAPH = "onnx/model.onnx"
# With a repeated group, or more repetitions than this, a regular expression can run forever.
_REPEATED_GROUP = re.compile(r"\)[*+{]")
# This includes "?" for "maybe", but not where it makes a repetition lazy or follows "(".
_REPETITION = re.compile(r"[*+{]|(?<![(*+?}])\?")
_MAX_REPETITIONS = 4
_INNERMOST_GROUP = re.compile(r"\(([^()]*)\)")
# The most ways through a regular expression whose groups list alternatives.
_MAX_WAYS = 100_000
_NUMBER = re.compile(r"\d+")
_MAX_ITERATIONS = 1000
# The most tokens that a text may be padded to: memory grows with their square, however short it is.
_MAX_PADDING = 4096


def check_transformer(repository: Repository, settings_file: str) -> None:
    """Check all that a Transformer reads: settings, configuration, tokenizer, weights, base.

    Args:
        repository: The files.
        settings_file: The first file that sentence-transformers reads settings from.
    """
    for file_name in (settings_file, *names.OLDER_SETTINGS_FILES):
        _check_settings(repository.configuration(file_name))
    check_base(repository)


def check_base(repository: Repository, *, is_adapted: bool = False) -> None:
    """Refuse a plain model, or an adapter, whose files ask for code or for what it may not have.

    Args:
        repository: The files.
        is_adapted: Whether an adapter named it.
    """
    repository.check_files()
    model_config = repository.configuration("config.json")
    _check_values(model_config)
    if model_config.values:
        _check_model_type(model_config)
    tensors = read_headers(repository)
    if tensors and not quantization(repository):
        check_number_types(repository, tensors)
        dtype = model_config.values.get("dtype") or model_config.values.get("torch_dtype")
        check_half_type(repository, tensors, str(dtype))
    check_processors(repository)
    adapter_config = repository.configuration("adapter_config.json")
    if not adapter_config.values:
        return
    if is_adapted:
        raise adapter_config.refusal("an adapter of an adapter is not read. Merge it first.")
    _check_adapter(adapter_config)


def check_gguf_folder(repository: Repository) -> None:
    """Refuse a GGUF file's folder if other files that transformers reads there are not allowed.

    Subfolders are not checked, as the file may lie in a folder that is not a model's.
    """
    repository.check_files(with_subfolders=False)
    _check_values(repository.configuration("config.json"))
    check_processors(repository)
    adapter_config = repository.configuration("adapter_config.json")
    if repository.find(adapter_config.file_name) is not None:
        raise adapter_config.refusal(
            "transformers would take it for an adapter of the GGUF file beside it. Move one of them."
        )


def check_tokenizer(repository: Repository) -> None:
    """Refuse tokenizer files that ask for more than a tokenizer may have."""
    repository.check_files()
    check_processors(repository)


def check_processors(repository: Repository) -> None:
    """Check the configurations of a tokenizer and of what prepares images and sounds."""
    for file_name in names.PROCESSOR_FILES:
        _check_values(repository.configuration(file_name))


def _check_settings(settings: Configuration) -> None:
    """Settings of sentence-transformers' Transformer, and what they pass on to transformers."""
    if settings.values.get("tokenizer_name_or_path"):
        raise settings.refusal("tokenizer_name_or_path names files elsewhere. Remove it.")
    _check_values(settings)
    for setting, value in settings.walk():
        is_large = isinstance(value, int) and abs(value) > _MAX_SETTING
        if is_large and setting not in ("max_seq_length", "model_max_length"):
            reason = f"must be from -{_MAX_SETTING} to {_MAX_SETTING}. Correct it."
            raise settings.refusal_of(setting, value, reason)
    with settings.explaining():
        _check_passed_on(settings)
        task = settings.values.get("transformer_task", "feature-extraction")
        if task not in names.TRANSFORMER_TASKS:
            reason = f"is none of {sorted(names.TRANSFORMER_TASKS)}. Correct it."
            raise settings.refusal_of("transformer_task", task, reason)
        _check_text(settings, "module_output_name", settings.values.get("module_output_name"))
        longest_input = settings.values.get("max_seq_length")
        if longest_input is not None and not isinstance(longest_input, (int, float)):
            raise settings.refusal_of(
                "max_seq_length", longest_input, "is not a number. Correct it."
            )
        _check_methods(settings, settings.values.get("modality_config") or {})
        _check_padding(settings)


def _check_passed_on(settings: Configuration) -> None:
    for passed_on in names.PASSED_ON:
        options = settings.values.get(passed_on) or {}
        if options.get("file_name") == _EXPORTED_GRAPH:
            raise RepositoryRefused(
                f"{settings.repository.path!r} is an ONNX export, without weights for torch. Load it with "
                "SentenceTransformer(…, backend='onnx'), as docs/how-to/onnx.md shows; check it with st-reba verify."
            )
        for option, value in options.items():
            is_scalar = not isinstance(value, (dict, list))
            is_storable = option in names.STORABLE_OPTIONS and is_scalar
            if value is not None and not is_storable:
                raise settings.refusal(f"{passed_on}: {option} may not be stored. Pass it to load.")


def _check_methods(settings: Configuration, modalities: JsonObject) -> None:
    """Check names of methods: sentence-transformers calls the model's methods by name."""
    for modality in modalities.values():
        method = modality["method"]
        if not names.FEATURE_METHOD.fullmatch(method):
            raise settings.refusal_of("method", method, "is none that embeds. Correct it.")
        output_names = modality.get("method_output_name")
        if not isinstance(output_names, list):
            output_names = [output_names]
        for output_name in output_names:
            _check_text(settings, "method_output_name", output_name)


def _check_text(settings: Configuration, setting: str, value: JsonValue) -> None:
    if value is not None and not isinstance(value, str):
        raise settings.refusal_of(setting, value, "is not a text. Correct it.")


def _check_padding(settings: Configuration) -> None:
    """Check the padding that sentence-transformers asks the tokenizer for with every text."""
    expansion = settings.values.get("query_expansion") or {}
    processing = settings.values.get("processing_kwargs") or {}
    options = {**processing.get("common", {}), **processing.get("text", {})}
    lengths = {
        "length": expansion.get("length"),
        "pad_to_multiple_of": options.get("pad_to_multiple_of"),
    }
    if options.get("padding") == "max_length":
        lengths["max_length"] = options.get("max_length")
        if lengths["max_length"] is None:
            tokenizer_config = settings.repository.configuration("tokenizer_config.json")
            longest_input = tokenizer_config.values.get("model_max_length", math.inf)
            lengths["max_length"] = settings.values.get("max_seq_length") or longest_input
    for setting, length in lengths.items():
        if length is not None and length > _MAX_PADDING:
            reason = f"pads every text to more than {_MAX_PADDING} tokens. Correct it."
            raise settings.refusal_of(setting, length, reason)


def _check_values(configuration: Configuration) -> None:
    """Check numbers, origins, paths, implementations and classes at any depth."""
    for setting, value in configuration.walk():
        for reason_against in (
            _reason_against_number,
            _reason_against_origin,
            _reason_against_path,
            _reason_against_implementation,
            _reason_against_class,
        ):
            reason = reason_against(setting, value)
            if reason is not None:
                raise configuration.refusal_of(setting, value, reason)


def _reason_against_number(setting: str, value: JsonValue) -> str | None:
    largest_number = names.largest_number(setting)
    if isinstance(value, int) and abs(value) > largest_number:
        return f"must be at most {largest_number}. Correct it."
    return None


def _reason_against_origin(setting: str, value: JsonValue) -> str | None:
    names_repository = setting.endswith("name_or_path") and setting not in names.ORIGINS
    is_unchecked = setting in names.UNCHECKED_SETTINGS
    # timm fetches what follows a colon.
    is_fetched = setting == "architecture" and ":" in str(value)
    if value and (is_unchecked or names_repository or is_fetched):
        return "can lead to code or files that are not checked. Remove it."
    return None


def _reason_against_path(setting: str, value: JsonValue) -> str | None:
    if not setting.endswith("_file") or not isinstance(value, str):
        return None
    file_path = Path(value)
    leaves_folder = file_path.is_absolute() or ".." in file_path.parts
    if leaves_folder and file_path.exists():
        return "is a file elsewhere on this machine. Remove it."
    return None


def _reason_against_implementation(setting: str, value: JsonValue) -> str | None:
    """For a kernel in place of an implementation's name: transformers would fetch and run it."""
    if "attn_implementation" in setting:
        allowed_names = set(names.ATTENTION_IMPLEMENTATIONS)
        if is_flash_attn_2_available():
            allowed_names.add("flash_attention_2")
    elif "experts_implementation" in setting:
        allowed_names = names.EXPERTS_IMPLEMENTATIONS
    else:
        return None
    implementations = value.values() if isinstance(value, dict) else [value]
    for implementation in implementations:
        if implementation is not None and str(implementation) not in allowed_names:
            return f"may name code elsewhere. Use one of {sorted(allowed_names)[1:]}."
    return None


def _reason_against_class(setting: str, value: JsonValue) -> str | None:
    """For classes other than tokenizers and processors where these belong: they load more."""
    if not names.PROCESSOR_CLASS_SETTING.fullmatch(setting):
        return None
    if isinstance(value, str) and not is_processor_name(value):
        return "is not a tokenizer or processor of transformers. Correct it."
    return None


def is_processor_name(class_name: str) -> bool:
    """Whether transformers knows no class of this name, or one that prepares inputs."""
    for spelling in (class_name, class_name.removesuffix("Fast"), class_name + "Fast"):
        named_class = getattr(transformers, spelling, None)
        # A class whose packages are missing is a dummy that raises an error naming them.
        if named_class is None or isinstance(named_class, DummyObject):
            continue
        if not isinstance(named_class, type) or not issubclass(named_class, _processor_classes()):
            return False
    return True


@cache
def _processor_classes() -> tuple[type, ...]:
    from transformers.feature_extraction_utils import FeatureExtractionMixin
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.processing_utils import ProcessorMixin
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    return (
        FeatureExtractionMixin,
        ImageProcessingMixin,
        PreTrainedTokenizerBase,
        ProcessorMixin,
    )


@cache
def text_model_types() -> frozenset[str]:
    """The model types that read text, and that AutoModel makes only of their own weights."""
    known_types = set(modeling_auto.MODEL_MAPPING_NAMES)
    text_types = {name for name in known_types if "text" in name or "embedding" in name}
    text_types.add("dpr")
    for task in names.TEXT_TASKS:
        # Releases of transformers differ in the tasks that they know.
        text_types |= set(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", ()))
    return frozenset(text_types & known_types - names.TYPES_OF_SEVERAL_MODELS)


def _check_model_type(model_config: Configuration) -> None:
    model_type = model_config.values.get("model_type")
    has_code = isinstance(model_config.values.get("auto_map"), dict)
    is_known = isinstance(model_type, str) and model_type in text_model_types()
    if not is_known and not has_code:
        reason = "reads no text with a tokenizer. Use another model."
        raise model_config.refusal_of("model_type", model_type, reason)
    for setting, value in model_config.walk():
        if setting == "model_type" and str(value) in names.TYPES_OF_SEVERAL_MODELS:
            reason = "puts models together from elsewhere. Use a single model."
            raise model_config.refusal_of(setting, value, reason)
        if setting == "quantization_config" and isinstance(value, dict):
            _check_quantization(model_config, value)


def _check_quantization(model_config: Configuration, values: JsonObject) -> None:
    quant_method = values.get("quant_method")
    is_bitsandbytes = values.get("load_in_4bit") or values.get("load_in_8bit")
    is_known = str(quant_method) in names.QUANTIZATIONS
    if not is_known and not (quant_method is None and is_bitsandbytes):
        reason = f"is none of {sorted(names.QUANTIZATIONS)}. Correct it."
        raise model_config.refusal_of("quant_method", quant_method, reason)
    for setting in names.PATTERNS_OF_QUANTIZATION:
        _check_patterns(model_config, setting, values.get(setting) or [])


def _check_adapter(adapter_config: Configuration) -> None:
    repository = adapter_config.repository
    _check_values(adapter_config)
    adapter_type = adapter_config.values.get("peft_type")
    if str(adapter_type) not in names.ADAPTER_TYPES:
        reason = f"is none of {sorted(names.ADAPTER_TYPES)}. Use another adapter."
        raise adapter_config.refusal_of("peft_type", adapter_type, reason)
    for setting, value in adapter_config.walk():
        is_pattern = setting in names.PATTERN_OR_NAMES and isinstance(value, str)
        if is_pattern or setting in names.PATTERNS or setting.endswith("_pattern"):
            _check_patterns(adapter_config, setting, value)
        if setting == "init_lora_weights":
            _check_iterations(adapter_config, str(value))
    weights_file = "adapter_model.safetensors"
    if repository.find(weights_file) is not None:
        tensors = read_header(repository, weights_file)
        check_number_types(repository, tensors)
        _check_ranks(adapter_config, tensors)
    base_path = adapter_config.values.get("base_model_name_or_path")
    if base_path is None:
        return
    if not isinstance(base_path, str):
        reason = "is not a name of a model. Correct it."
        raise adapter_config.refusal_of("base_model_name_or_path", base_path, reason)
    check_base(adapted_base(repository, base_path), is_adapted=True)


def _check_patterns(configuration: Configuration, setting: str, value: JsonValue) -> None:
    """Check regular expressions that libraries match against the names of all layers."""
    patterns = value if isinstance(value, (dict, list)) else [value]
    for pattern in map(str, patterns):
        repetition_count = len(_REPETITION.findall(pattern))
        is_repeated = _REPEATED_GROUP.search(pattern) or repetition_count > _MAX_REPETITIONS
        if is_repeated or _count_ways(pattern) > _MAX_WAYS:
            reason = "can take forever to match. List the names."
            raise configuration.refusal_of(setting, pattern, reason)


def _count_ways(pattern: str) -> int:
    """In how many ways the alternatives of a regular expression can be taken, at most."""
    way_count = 1
    while group := _INNERMOST_GROUP.search(pattern):
        way_count *= 1 + group[1].count("|")
        pattern = pattern[: group.start()] + pattern[group.end() :]
    return way_count


def _check_iterations(adapter_config: Configuration, initial_weights: str) -> None:
    """Check the iterations of PiSSA's initial weights, recomputed when an adapter is loaded."""
    for number in _NUMBER.findall(initial_weights):
        if len(number) > 9 or int(number) > _MAX_ITERATIONS:
            reason = f"asks for more than {_MAX_ITERATIONS} iterations. Correct it."
            raise adapter_config.refusal_of("init_lora_weights", initial_weights, reason)


def _check_ranks(adapter_config: Configuration, tensors: StoredTensors) -> None:
    """Check ranks, which set an adapter's size, against the sides of its stored matrices."""
    smaller_sides = [min(tensor.shape, default=0) for tensor in tensors.values()]
    stored_rank = max(smaller_sides, default=0)
    ranks = [adapter_config.values.get(setting) for setting in names.RANK_SETTINGS]
    with adapter_config.explaining():
        ranks += (adapter_config.values.get("rank_pattern") or {}).values()
    for rank in ranks:
        if isinstance(rank, int) and rank > stored_rank:
            reason = f"is more than the rank of the weights, {stored_rank}. {COPY_AGAIN}"
            raise adapter_config.refusal_of("r", rank, reason)
