"""GGUF files: what their metadata says, and whether weights and tokenizer can be read exactly.

llama.cpp splits a text by a rule that a file names as ``tokenizer.ggml.pre``. transformers knows
some of these rules, and takes GPT-2's for all others, silently. Here the rule is applied, or the
file is refused.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tokenizers import Regex, pre_tokenizers

from .optional import required

# How many metadata values may be read one by one, in Python: a vocabulary has a few per token. The
# larger a file's weights, the more values are allowed.
_FREE_READS = 1_000_000
_BYTES_OF_A_READ = 256
_SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
# What llama.cpp itself needs of every file.
_REQUIRED = ("context_length", "embedding_length", "block_count")
_NORM_EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")

# Rules of splitting, as patterns that are applied one after another; a match is a piece, and so is
# what lies between two matches.
_GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
_SINGLE_DIGITS = (r"\p{N}", *_GPT2)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",)
_QWEN2 = (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",)
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_WITH_SLASH}",)
_GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}",
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", *_GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

_NAMES_BY_PATTERNS = {
    _DEFAULT: "default",
    _GPT2: "exaone4 gigachat gpt-2 gpt2 jais mellum mpt olmo phi-2",
    _SINGLE_DIGITS: "codeshell command-r exaone minerva-7b refact smollm starcoder",
    _LLAMA3: "chatglm-bpe dbrx falcon-h1 falcon3 glm4 jina-v5-nano lfm2 llama-bpe llama-v3 llama3 "
    "midm-2.0 pixtral smaug-bpe",
    _QWEN2: "deepseek-r1-qwen f2llmv2 kormo megrez qwen2 stablelm2",
    _QWEN35: "qwen35",
    _TEKKEN: "tekken",
    _GPT4O: "gpt-4o kanana2 llama4 talkie",
}
PATTERNS = {
    name: patterns for patterns, names in _NAMES_BY_PATTERNS.items() for name in names.split()
}
# Their vocabularies take a whole piece as a token, whatever the merges say, and begin with a BOS
# unless the file says otherwise.
_WHOLE_PIECES = {
    "falcon-h1",
    "falcon3",
    "jina-v5-nano",
    "lfm2",
    "llama-bpe",
    "llama-v3",
    "llama3",
    "midm-2.0",
    "pixtral",
    "tekken",
}


@dataclass(frozen=True)
class GgufFile:
    """What a GGUF file says.

    Args:
        path: The file.
        quantization: Such as Q4_K_M.
        metadata: All fields; of a list, only its length.
        shapes: Of the tensors, by name, in llama.cpp's order.
    """

    path: str
    quantization: str
    metadata: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    @property
    def pre_tokenizer(self) -> str | None:
        """Name of the rule by which a byte-level tokenizer splits a text."""
        return self.metadata.get("tokenizer.ggml.pre")


def read_gguf(path: str) -> GgufFile:
    """Read what a GGUF file says; an error if it is truncated, or holds anything unreadable."""
    status = os.stat(path)
    return _read_gguf(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _read_gguf(path: str, modified: int, size: int) -> GgufFile:
    gguf: Any = required("gguf", "gguf", f"base={path!r}")

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        # gguf's own hangs on sizes beyond the file's end, and keeps an array for each value.
        remaining_reads = _FREE_READS + size // _BYTES_OF_A_READ

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            self.remaining_reads -= 1
            if self.remaining_reads < 0:
                raise ValueError("its metadata hold more values than its weights can need")
            if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("a part reaches beyond its end")
            return super()._get(offset, dtype, count, override_order)

    try:
        reader = Reader(path)
        file_metadata = _read_metadata(gguf, reader)
        file_type = _name_of_file_type(gguf, file_metadata.get("general.file_type"))
    except (ValueError, TypeError, IndexError, KeyError, RecursionError) as error:
        raise ValueError(
            f"base={path!r} is not a complete GGUF file ({error}). Download it again."
        ) from error
    tensor_shapes = {tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors}
    matrix_types = Counter(tensor.tensor_type for tensor in reader.tensors if len(tensor.shape) > 1)
    _check_readable(gguf, matrix_types, path)
    if file_type is None:
        file_type = matrix_types.most_common(1)[0][0].name if matrix_types else "unknown"
    return GgufFile(path, file_type, file_metadata, tensor_shapes)


def _read_metadata(gguf: Any, reader: Any) -> dict[str, Any]:
    metadata = {}
    for name, field in reader.fields.items():
        is_list = field.types[:1] == [gguf.GGUFValueType.ARRAY]
        metadata[name] = len(field.data) if is_list else field.contents()
    return metadata


def _name_of_file_type(gguf: Any, number: Any) -> str | None:
    """The quantization that a file says it has; None: it says none."""
    if number is None:
        return None
    name = str(gguf.LlamaFileType(int(number)).name)
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _check_readable(gguf: Any, matrix_types: Iterable[Any], path: str) -> None:
    """Refuse a file with tensors of a type that gguf cannot make dense."""

    def is_readable(tensor_type: Any) -> bool:
        try:
            quantized_block = np.zeros((1, gguf.GGML_QUANT_SIZES[tensor_type][1]), dtype=np.uint8)
            gguf.quants.dequantize(quantized_block, tensor_type)
        except (NotImplementedError, ValueError, KeyError):
            return False
        return True

    for tensor_type in matrix_types:
        if not is_readable(tensor_type):
            readable = ", ".join(
                known.name for known in gguf.GGMLQuantizationType if is_readable(known)
            )
            problem = f"holds tensors of type {tensor_type.name}, which cannot be read"
            raise ValueError(f"base={path!r} {problem}. Readable: {readable}.")


def check_gguf(file: GgufFile, *, has_other_tokenizer: bool) -> None:
    """Refuse a shard, a file with gaps, and a tokenizer that would split texts in another way.

    transformers fills gaps with the defaults of its configurations, and missing weights with random
    numbers.
    """
    _check_is_whole(file)
    _check_metadata(file)
    _check_tensors(file)
    if not has_other_tokenizer:
        _check_tokenizer(file)


def _check_is_whole(file: GgufFile) -> None:
    shard_count = _whole_number(file, "split.count", default=1)
    match = _SHARD_NAME.fullmatch(os.path.basename(file.path))
    if match and not shard_count > 1:
        shard_count = int(match[3])
    if shard_count > 1:
        stem = match[1] if match else "model"
        first = f"{stem}-00001-of-{shard_count:05d}.gguf"
        raise ValueError(
            f"base={file.path!r} is one of {shard_count} shards of a model. Join them, by "
            f"llama.cpp's `llama-gguf-split --merge {first} {stem}.gguf`, and give {stem}.gguf."
        )


def _check_metadata(file: GgufFile) -> None:
    if not file.metadata.get("general.architecture"):
        _refuse(file, "its metadata name no general.architecture")
    for field_name in _REQUIRED:
        _require_field(file, field_name)
    if not any(".attn_q" in name for name in file.shapes):
        return
    _require_field(file, "attention.head_count")
    _require_field(file, *_NORM_EPSILONS)
    # transformers' own default for the key heads is not the number of query heads.
    if file.shapes.get("blk.0.attn_q.weight") != file.shapes.get("blk.0.attn_k.weight"):
        _require_field(file, "attention.head_count_kv")


def _require_field(file: GgufFile, *names: str) -> None:
    """Refuse a file whose architecture has none of these fields."""
    architecture = file.metadata["general.architecture"]
    field_names = [f"{architecture}.{name}" for name in names]
    if file.metadata.keys().isdisjoint(field_names):
        _refuse(file, f"its metadata lack {field_names[0]}")


def _check_tensors(file: GgufFile) -> None:
    if "token_embd.weight" not in file.shapes:
        _refuse(file, "it holds no token_embd.weight")
    block_count = _whole_number(file, f"{file.metadata['general.architecture']}.block_count")
    block_numbers = set(re.findall(r"blk\.(\d+)\.", " ".join(file.shapes)))
    for number in range(block_count):
        if str(number) not in block_numbers:
            _refuse(file, f"it holds no tensor of layer {number} of {block_count}")


def _whole_number(file: GgufFile, field_name: str, default: int = 0) -> int:
    value = file.metadata.get(field_name, default)
    if not isinstance(value, int):
        _refuse(file, f"{field_name}={value!r:.80} is not a whole number")
    return int(value)


def _refuse(file: GgufFile, problem: str) -> None:
    raise ValueError(
        f"base={file.path!r} is not a complete model: {problem}. Download or convert it again."
    )


def _check_tokenizer(file: GgufFile) -> None:
    remedy = "Give tokenizer=, the folder or Hub id of the original model"
    is_byte_level = file.metadata.get("tokenizer.ggml.model") == "gpt2"
    required_fields = ["model", "tokens"]
    if is_byte_level:
        required_fields.append("merges")
    for field_name in required_fields:
        if f"tokenizer.ggml.{field_name}" not in file.metadata:
            raise ValueError(f"base={file.path!r} holds no tokenizer.ggml.{field_name}. {remedy}.")
    # Only byte-level tokenizers are split by a rule.
    if is_byte_level and file.pre_tokenizer not in PATTERNS:
        rule = f"tokenizer.ggml.pre={file.pre_tokenizer!r}"
        raise ValueError(
            f"base={file.path!r} splits texts by a rule that is not known, {rule}. {remedy}."
        )


def complete_tokenizer(tokenizer: Any, file: GgufFile) -> None:
    """Make the tokenizer that transformers read from a file split texts as the file says."""
    backend = tokenizer.backend_tokenizer
    if file.metadata["tokenizer.ggml.model"] == "gpt2":
        split_rule = str(file.pre_tokenizer)
        split_steps: list[Any] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[split_rule]
        ]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*split_steps, byte_level])
        if split_rule in _WHOLE_PIECES:
            backend.model.ignore_merges = True
            if "tokenizer.ggml.add_bos_token" not in file.metadata:
                tokenizer.add_bos_token = True
        return
    has_space = backend.encode("a", add_special_tokens=False).tokens[0].startswith("\u2581")
    if has_space and file.metadata.get("tokenizer.ggml.add_space_prefix") is False:
        raise ValueError(
            f"base={file.path!r} puts no space before a text (tokenizer.ggml.add_space_prefix), but "
            "transformers does. Give tokenizer=, the folder or Hub id of the original model."
        )
