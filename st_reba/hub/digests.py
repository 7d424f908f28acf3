"""Digests of all that determines a saved model's vectors: weights, tokenizer, settings; by value, not by byte.

Golden vectors cover what twenty texts touch. Digests cover the rest: tokens that none of these
holds, settings that matter only for long texts. The same weights in other shards, under a prefix,
or in another number type have the same digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..modules.code import is_exact_as
from ..safety import Repository

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | float | bool | None"

WEIGHTS = "weights"
# This is to detect damage only: whoever can change the weights can change golden.json too.
_HEX_DIGITS = 16
_CHUNK_LENGTH = 1 << 22
_MOST_SETTINGS_BYTES = 64 << 20
# From narrow to wide: values get the digest of the first type that holds them exactly.
_FLOAT_TYPES = (torch.bfloat16, torch.float16, torch.float32)
# Files that do not affect any vector, or that are read in a special way.
_SKIPPED_FILES = {
    "added_tokens.json",
    "generation_config.json",
    "golden.json",
    "modules.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "vocab.json",
}
# Settings that change when another version or number type saves the model, and mere records.
_SKIPPED_SETTINGS = {
    "__version__",
    "_name_or_path",
    "architectures",
    "base_model",
    "base_revision",
    "dtype",
    "recipe",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
_VERSION_SETTINGS = {
    "config.json": "transformers_version",
    "config_sentence_transformers.json": "__version__",
}
_SPECIAL_TOKENS = {
    "bos_token",
    "cls_token",
    "eos_token",
    "pad_token",
    "sep_token",
    "unk_token",
}
# In these files, only some settings affect vectors.
_COMPARED_SETTINGS = {
    "tokenizer_config.json": {
        "add_bos_token",
        "add_eos_token",
        "do_lower_case",
        "model_max_length",
        "split_special_tokens",
        *_SPECIAL_TOKENS,
    },
    "config_sentence_transformers.json": {
        "default_prompt_name",
        "prompts",
        "similarity_fn_name",
        "truncate_dim",
    },
}
_SKIPPED_TOKENIZER_STATE = {"decoder", "padding", "truncation", "version"}
# Read where a folder has no tokenizer.json.
_VOCABULARY_FILES = ("vocab.json", "merges.txt", "vocab.txt", "*.model")


@dataclass(frozen=True)
class FileComparison:
    """Lines about what differs between a folder and its digests.

    Args:
        damage: What was changed.
        harmless: What another library version or number type changed.
    """

    damage: list[str]
    harmless: list[str]


def digests_of(folder: Path, *, with_rounded_weights: bool = False) -> dict[str, str]:
    """Digests of a saved model, by ``file: setting``, and by ``weights: tensor``.

    Args:
        folder: A saved or exported model.
        with_rounded_weights: Append, after a space, digests of the weights rounded to bfloat16 and
            to float16.

    Raises:
        ValueError: A file cannot be read.

    Example:
        >>> import st_reba
        >>> from st_reba import hub
        >>> hub.save(st_reba.build("mini"), "my_model")
        >>> digests = digests_of(Path("my_model"))
        >>> [name for name in digests if name.startswith("tokenizer.json")][:2]
        ['tokenizer.json: added_tokens', 'tokenizer.json: merges']
    """
    digests: dict[str, str] = {}
    for module_path in _module_paths(folder):
        module_folder = folder / module_path
        prefix = f"{module_path}/" if module_path else ""
        for file in sorted(module_folder.glob("*.json")):
            digests |= _settings_digests(file, prefix)
        digests |= _tokenizer_digests(module_folder, prefix)
        for file in sorted(module_folder.glob("*.safetensors")):
            digests |= _weights_digests(file, prefix, with_rounded_weights)
    for file in sorted(folder.glob("onnx/model.onnx*")):
        digests[f"onnx/{file.name}"] = _file_digest(file)
    if (folder / "modules.json").is_file():
        digests["modules.json: modules"] = _json_digest(_listed_modules(folder))
    return digests


def files_of(digests: Iterable[str]) -> list[str]:
    """Files other than weights that have digests."""
    files = {_file_of(name) for name in digests}
    return sorted(files - {WEIGHTS})


def writers_of(folder: Path) -> str:
    """Versions of the libraries that wrote a folder's configurations, as recorded there."""
    versions: list[JsonValue] = []
    for file_name, setting in _VERSION_SETTINGS.items():
        file = folder / file_name
        if file.is_file():
            versions.append(_read_settings(file).get(setting))
    return json.dumps(versions, sort_keys=True)


def compare_digests(
    stored: Mapping[str, str], current: Mapping[str, str], *, has_same_writers: bool
) -> FileComparison:
    """Compare a model's digests with those that it had when it was saved.

    Args:
        stored: As `digests_of` gave them then, with rounded weights.
        current: As it gives them now.
        has_same_writers: The same versions of libraries wrote the configurations. Others may add or
            drop settings.
    """
    damage: dict[str, list[str]] = {}
    harmless: dict[str, list[str]] = {}
    stored_files = {_file_of(name) for name in stored}
    for name in sorted(stored.keys() | current.keys()):
        file = _file_of(name)
        if file not in stored_files:
            continue
        accepted = stored.get(name, "").split()
        digest = current.get(name)
        if accepted and digest == accepted[0]:
            continue
        is_harmless = digest in accepted
        if file.endswith(".json") and not has_same_writers:
            is_harmless = not accepted or digest is None
        group = harmless if is_harmless else damage
        group.setdefault(file, []).append(name.removeprefix(f"{file}: "))
    return FileComparison(_describe(damage, stored), _describe(harmless, stored))


def _describe(names_by_file: Mapping[str, list[str]], stored: Mapping[str, str]) -> list[str]:
    lines = []
    for file, names in names_by_file.items():
        if names == [file]:
            lines.append(f"{file} differs")
            continue
        total = [_file_of(name) for name in stored].count(file)
        examples = ", ".join(names[:3])
        if len(names) > 3:
            examples += ", …"
        lines.append(f"{file}: {len(names)} of {total} differ ({examples})")
    return lines


def _file_of(name: str) -> str:
    return name.partition(": ")[0]


def _module_paths(folder: Path) -> list[str]:
    """Folders of the modules; a Router has more of them inside its own."""
    paths = {""}
    for module in _listed_modules(folder):
        path = module["path"]
        paths.add(path)
        router_config = folder / path / "router_config.json"
        if router_config.is_file():
            routes = _read_settings(router_config).get("types")
            for name in routes if isinstance(routes, dict) else ():
                paths.add(f"{path}/{name}".lstrip("/"))
    return sorted(paths)


def _listed_modules(folder: Path) -> list[dict[str, str]]:
    """Folders and class names; where a class is defined changes with the library's version."""
    file = folder / "modules.json"
    if not file.is_file():
        return []
    modules = []
    repository = Repository(str(folder))
    for module in repository.read_list(file.name):
        with repository.explaining(file.name):
            path = repository.check_folder_name(module["path"], file.name)
            class_name = module["type"].rpartition(".")[2]
        modules.append({"path": path, "type": class_name})
    return modules


def _settings_digests(file: Path, prefix: str) -> dict[str, str]:
    if file.name in _SKIPPED_FILES or file.name.endswith(".index.json"):
        return {}
    settings = _read_settings(file)
    compared = settings.keys() - _SKIPPED_SETTINGS
    compared &= _COMPARED_SETTINGS.get(file.name, compared)
    digests = {}
    for name in sorted(compared):
        value = settings[name]
        if name in _SPECIAL_TOKENS and isinstance(value, dict):
            value = value.get("content")
        # A missing setting may mean yes, so an explicit no gets a digest.
        if value is False or not _is_empty(value):
            digests[f"{prefix}{file.name}: {name}"] = _json_digest(value)
    return digests


def _tokenizer_digests(module_folder: Path, prefix: str) -> dict[str, str]:
    digests = {}
    file = module_folder / "tokenizer.json"
    if not file.is_file():
        for pattern in _VOCABULARY_FILES:
            for vocabulary_file in sorted(module_folder.glob(pattern)):
                digests[f"{prefix}{vocabulary_file.name}"] = _file_digest(vocabulary_file)
        return digests
    settings = _read_settings(file)
    model = settings.get("model")
    if isinstance(model, dict):
        settings["vocabulary"] = model.pop("vocab", None)
        settings["merges"] = _merges_as_text(model.pop("merges", None))
    for name in sorted(settings.keys() - _SKIPPED_TOKENIZER_STATE):
        if not _is_empty(settings[name]):
            digests[f"{prefix}tokenizer.json: {name}"] = _json_digest(settings[name])
    return digests


def _merges_as_text(merges: JsonValue) -> list[JsonValue]:
    """Merges as older versions of tokenizers write them: a pair is one string."""
    if not isinstance(merges, list):
        return []
    lines: list[JsonValue] = []
    for pair in merges:
        if isinstance(pair, list):
            pair = " ".join(map(str, pair))
        lines.append(pair)
    return lines


def _weights_digests(file: Path, prefix: str, with_rounded_weights: bool) -> dict[str, str]:
    digests = {}
    try:
        with safe_open(str(file), framework="pt") as tensors:
            names = list(tensors.keys())
        for name in names:
            # transformers writes the decoder of a model with a head under this prefix.
            short_name = name.removeprefix("model.")
            tensor = _read_tensor(file, name)
            digest = tensor_digest(tensor)
            if with_rounded_weights:
                digest = " ".join([digest, *_rounded_digests(tensor)])
            digests[f"{WEIGHTS}: {prefix}{short_name}"] = digest
    except SafetensorError as error:
        raise ValueError(f"{file.name} cannot be read ({error}). Copy it again.") from error
    return digests


def _read_tensor(file: Path, name: str) -> Tensor:
    """One tensor, from a mapping of its own, as what was read from a mapping stays in memory."""
    with safe_open(str(file), framework="pt") as tensors:
        tensor: Tensor = tensors.get_tensor(name)
    return tensor


def tensor_digest(tensor: Tensor) -> str:
    """Digest of a tensor's shape and values, whatever type holds them."""
    if _has_wide_floats(tensor):
        tensor = _narrowed(tensor)
    header = f"{tensor.dtype} {list(tensor.shape)}"
    sha = hashlib.sha256(header.encode())
    for chunk in torch.split(tensor.contiguous().flatten(), _CHUNK_LENGTH):
        if chunk.numel():
            sha.update(chunk.view(torch.uint8).numpy().data)
    return sha.hexdigest()[:_HEX_DIGITS]


def _rounded_digests(tensor: Tensor) -> list[str]:
    if not _has_wide_floats(tensor):
        return []
    rounded_types = (torch.bfloat16, torch.float16)
    return [tensor_digest(tensor.to(dtype)) for dtype in rounded_types if dtype != tensor.dtype]


def _has_wide_floats(tensor: Tensor) -> bool:
    """Whether values are floats of 16 bits or more; those of 8 bits are quantized weights."""
    return tensor.is_floating_point() and tensor.element_size() > 1


def _narrowed(tensor: Tensor) -> Tensor:
    """The tensor in the narrowest type that holds all its values exactly."""
    for dtype in _FLOAT_TYPES:
        if is_exact_as(tensor, dtype):
            return tensor.to(dtype)
    return tensor


def _file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        sha = hashlib.file_digest(stream, "sha256")
    return sha.hexdigest()[:_HEX_DIGITS]


def _json_digest(value: object) -> str:
    text = json.dumps(_without_empty(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]


def _without_empty(value: object) -> object:
    """A JSON value without what is empty in it: a newer version adds settings that say no."""
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    remaining = {}
    for key, item in value.items():
        if not _is_empty(item):
            remaining[key] = _without_empty(item)
    return remaining


def _is_empty(value: object) -> bool:
    if isinstance(value, (str, list, dict)):
        return not value
    return value is None or value is False


def _read_settings(file: Path) -> dict[str, JsonValue]:
    settings = Repository(str(file.parent)).read_json(file.name, {}, _MOST_SETTINGS_BYTES)
    return settings if isinstance(settings, dict) else {"values": settings}
