"""What files of weights hold, by their headers alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open

from .repository import COPY_AGAIN, Repository

WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (
    ".bin",
    ".ckpt",
    ".joblib",
    ".pickle",
    ".pkl",
    ".pt",
    ".pth",
)
_FLOATS = ("F64", "F32", "F16", "BF16")
# Tables of whole numbers that models keep beside their weights.
_INTEGER_TABLES = {
    "mapping",
    "num_batches_tracked",
    "position_ids",
    "relative_position_index",
    "tid2eid",
    "token_type_ids",
}
# Attention masks, [1, 1, T, T], which are named like a bias.
_MASKS = {"bias", "masked_bias"}
# If a weight's 16-bit numbers are read as the right type, their median lies between these; if they
# are read as the other 16-bit type, it lies far outside.
_USUAL_WEIGHTS = (1e-7, 0.4)
_HALF_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16}
_SAMPLED_ROWS = 8
# A header, like an index of shards, has about a hundred bytes per tensor; one that is far longer
# would take minutes to read.
_FREE_HEADER_BYTES = 1 << 20
_MAX_HEADER_BYTES = 32 << 20
_WEIGHT_BYTES_OF_A_HEADER_BYTE = 64


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the header of its file describes it."""

    dtype: str
    shape: tuple[int, ...]
    path: str

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def unpacked_size(self) -> int:
        """The most numbers it can hold if whole numbers are packed, down to 2 bits per number."""
        if self.dtype[0] not in "IU":
            return self.size
        return self.size * int(self.dtype[1:]) // 2

    def is_integer_table(self, name: str) -> bool:
        """Whether a tensor of this name may hold whole numbers."""
        last_name = name.rpartition(".")[2]
        is_mask = last_name in _MASKS and len(self.shape) == 4
        return is_mask or last_name in _INTEGER_TABLES


StoredTensors = dict[str, StoredTensor]


def read_headers(repository: Repository) -> StoredTensors | None:
    """The tensors of a module's safetensors files by name; None: it has no such file."""
    if repository.find(WEIGHTS_FILE) is not None:
        return read_header(repository, WEIGHTS_FILE)
    shard_names = _shard_names(repository)
    if not shard_names:
        return None
    tensors: StoredTensors = {}
    for shard_name in shard_names:
        tensors |= read_header(repository, shard_name)
    return tensors


def required_headers(repository: Repository) -> StoredTensors:
    """The tensors of the weights of a module, which must have some."""
    tensors = read_headers(repository)
    if tensors is None:
        raise repository.refusal(WEIGHTS_FILE, f"it is missing. {COPY_AGAIN}")
    return tensors


def _check_index_length(repository: Repository) -> None:
    folder = repository.local_folder
    if folder is None or not (folder / _INDEX_FILE).is_file():
        return
    index_length = (folder / _INDEX_FILE).stat().st_size
    shards = [file for file in folder.glob("*.safetensors") if file.is_file()]
    limit = _longest_header(sum(file.stat().st_size for file in shards))
    if index_length > limit:
        reason = f"{index_length:,} bytes: at most {limit:,} for these weights. {COPY_AGAIN}"
        raise repository.refusal(_INDEX_FILE, reason)


def _shard_names(repository: Repository) -> list[str]:
    _check_index_length(repository)
    index = repository.configuration(_INDEX_FILE, is_list=True)
    if not index.values:
        return []
    with index.explaining():
        shard_names = sorted(set(index.values["weight_map"].values()))
        for shard_name in shard_names:
            is_beside = os.path.basename(shard_name) == shard_name
            if not is_beside or not shard_name.endswith(".safetensors"):
                reason = f"{shard_name!r:.80} is not a safetensors file beside it. {COPY_AGAIN}"
                raise index.refusal(reason)
    return shard_names


def read_header(repository: Repository, file_name: str) -> StoredTensors:
    """The tensors of one safetensors file by name."""
    path = repository.find(file_name)
    if path is None:
        raise repository.refusal(file_name, f"it is missing. {COPY_AGAIN}")
    _check_header_length(repository, file_name, path)
    tensors: StoredTensors = {}
    try:
        # Sizes, and offsets that overlap or lead out of the file, are checked here.
        with safe_open(path, framework="numpy") as stored:
            for name in sorted(stored.keys()):
                header = stored.get_slice(name)
                tensors[name] = StoredTensor(header.get_dtype(), tuple(header.get_shape()), path)
    except (SafetensorError, OSError) as error:
        reason = f"it is not a safetensors file, or cut ({str(error)[:200]})."
        raise repository.refusal(file_name, reason) from error
    return tensors


def _longest_header(weight_bytes: int) -> int:
    proportionate_length = weight_bytes // _WEIGHT_BYTES_OF_A_HEADER_BYTE
    return min(max(_FREE_HEADER_BYTES, proportionate_length), _MAX_HEADER_BYTES)


def _check_header_length(repository: Repository, file_name: str, path: str) -> None:
    with open(path, "rb") as file:
        header_length = int.from_bytes(file.read(8), "little")
    file_length = os.path.getsize(path)
    limit = _longest_header(file_length)
    if limit < header_length < file_length:
        reason = f"its header has {header_length:,} bytes: at most {limit:,} here. {COPY_AGAIN}"
        raise repository.refusal(file_name, reason)


def check_number_types(repository: Repository, tensors: StoredTensors) -> None:
    """Refuse weights that would be misread: whole numbers without a quantization."""
    for name, tensor in tensors.items():
        if tensor.dtype in _FLOATS or tensor.is_integer_table(name):
            continue
        reason = f"{name} is stored as {tensor.dtype}, but config.json has no quantization_config."
        raise repository.refusal(WEIGHTS_FILE, f"{reason} {COPY_AGAIN}")


def check_half_type(repository: Repository, tensors: StoredTensors, dtype: str) -> None:
    """Refuse weights stored as one 16-bit type whose bits are numbers of the other.

    Args:
        repository: The files.
        tensors: The tensors of its weights.
        dtype: The number type that its configuration names. Many models are stored in another, so
            the numbers of the largest matrix decide.
    """
    matrices = {name: tensor for name, tensor in tensors.items() if len(tensor.shape) == 2}
    if not matrices:
        return
    name = max(matrices, key=lambda name: matrices[name].size)
    tensor = matrices[name]
    stored_type = _HALF_TYPES.get(tensor.dtype)
    named_type = getattr(torch, dtype.removeprefix("torch."), None)
    is_other_half = named_type in _HALF_TYPES.values() and named_type != stored_type
    if stored_type is None or not is_other_half or tensor.size == 0:
        return
    with safe_open(tensor.path, framework="pt") as stored:
        sample = stored.get_slice(name)[:_SAMPLED_ROWS]
    if not _are_usual_weights(sample) and _are_usual_weights(sample.view(named_type)):
        reason = (
            f"{name} is stored as {tensor.dtype}, but its numbers are {dtype}, as config.json says."
        )
        raise repository.refusal(os.path.basename(tensor.path), f"{reason} {COPY_AGAIN}")


def _are_usual_weights(sample: torch.Tensor) -> bool:
    smallest, largest = _USUAL_WEIGHTS
    median = sample.float().abs().median().item()
    return smallest < median < largest


def check_shapes(
    repository: Repository, tensors: StoredTensors, expected: Mapping[str, torch.Tensor]
) -> None:
    """Refuse a module's weights if they are not those that its configuration asks for."""
    stored_shapes = {name: tensor.shape for name, tensor in tensors.items()}
    expected_shapes = {name: tuple(weight.shape) for name, weight in expected.items()}
    for name in sorted(stored_shapes.keys() | expected_shapes.keys()):
        stored_shape = stored_shapes.get(name)
        expected_shape = expected_shapes.get(name)
        if stored_shape != expected_shape:
            reason = f"{name} is {stored_shape}, but the configuration asks for {expected_shape}."
            raise repository.refusal(WEIGHTS_FILE, f"{reason} {COPY_AGAIN}")


def check_pickles(repository: Repository) -> None:
    """Refuse weights of a module that exist as pickles only."""
    if repository.local_folder is None:
        return
    file_names = os.listdir(repository.local_folder)
    for file_name in file_names:
        is_openvino = file_name.startswith("openvino_model")
        if not file_name.lower().endswith(PICKLE_SUFFIXES) or is_openvino:
            continue
        safe_suffix = ".safetensors"
        if file_name == "adapter_model.bin":
            safe_suffix = "adapter_model.safetensors"
        if not any(safe_name.endswith(safe_suffix) for safe_name in file_names):
            reason = "it is a pickle, which can run code. Ask for safetensors."
            raise repository.refusal(file_name, reason)
