"""What files of weights hold, by their headers alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError, safe_open

from .repository import COPY_AGAIN, Repository

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_FLOATS = ("F64", "F32", "F16", "BF16")
# Tables of whole numbers that models keep beside their weights.
_INTEGER_TABLES = {"position_ids", "token_type_ids", "num_batches_tracked", "tid2eid"}
_INTEGER_TABLES |= {"relative_position_index", "mapping"}
# Masks of attention, [1, 1, T, T], which bear the name of a bias.
_MASKS = {"bias", "masked_bias"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the header of its file describes it."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def unpacked_size(self) -> int:
        """How many numbers it holds at most if whole numbers are packed, down to 2 bits a number."""
        if self.dtype[0] not in "IU":
            return self.size
        return self.size * int(self.dtype[1:]) // 2

    def is_integer_table(self, name: str) -> bool:
        """Whether a tensor of this name may hold whole numbers."""
        last_name = name.rpartition(".")[2]
        is_mask = last_name in _MASKS and len(self.shape) == 4
        return is_mask or last_name in _INTEGER_TABLES


StoredTensors = dict[str, StoredTensor]


def read_headers(repository: Repository, folder: str) -> StoredTensors | None:
    """The tensors of a module's safetensors files by name; None: it has no such file."""
    names = [os.path.join(folder, "model.safetensors")]
    if repository.find(names[0]) is None:
        index_file = os.path.join(folder, "model.safetensors.index.json")
        names = [os.path.join(folder, shard) for shard in _shards(repository, index_file)]
    if not names:
        return None
    tensors: StoredTensors = {}
    for name in names:
        tensors |= read_header(repository, name)
    return tensors


def _shards(repository: Repository, index_file: str) -> list[str]:
    values = repository.read_object(index_file)
    if not values:
        return []
    with repository.explaining(index_file):
        shards = sorted(set(values["weight_map"].values()))
        for shard in shards:
            if os.path.basename(shard) != shard or not shard.endswith(".safetensors"):
                reason = f"{shard!r:.80} is no safetensors file beside it. {COPY_AGAIN}"
                raise repository.refusal(index_file, reason)
    return shards


def read_header(repository: Repository, file: str) -> StoredTensors:
    """The tensors of one safetensors file by name."""
    path = repository.find(file)
    if path is None:
        raise repository.refusal(file, f"it is missing. {COPY_AGAIN}")
    tensors: StoredTensors = {}
    try:
        # Sizes, and offsets that overlap or lead out of the file, are checked here.
        with safe_open(path, framework="numpy") as stored:
            for name in sorted(stored.keys()):
                header = stored.get_slice(name)
                tensors[name] = StoredTensor(header.get_dtype(), tuple(header.get_shape()))
    except (SafetensorError, OSError) as error:
        reason = f"it is no safetensors file, or cut ({str(error)[:200]})."
        raise repository.refusal(file, reason) from error
    return tensors


def check_number_types(repository: Repository, folder: str, tensors: StoredTensors) -> None:
    """Refuse weights that would be read as other numbers than they are: whole ones for floating."""
    for name, tensor in tensors.items():
        if tensor.dtype in _FLOATS or tensor.is_integer_table(name):
            continue
        file = os.path.join(folder, "model.safetensors")
        reason = f"{name} is stored as {tensor.dtype}, but config.json has no quantization_config."
        raise repository.refusal(file, f"{reason} {COPY_AGAIN}")


def check_shapes(repository: Repository, folder: str, tensors: StoredTensors, expected: Mapping[str, Any]) -> None:
    """Refuse a module's weights if they are not those that its configuration asks for."""
    file = os.path.join(folder, "model.safetensors")
    stored_shapes = {name: tensor.shape for name, tensor in tensors.items()}
    expected_shapes = {name: tuple(weight.shape) for name, weight in expected.items()}
    for name in sorted(stored_shapes.keys() | expected_shapes.keys()):
        stored = stored_shapes.get(name)
        wanted_shape = expected_shapes.get(name)
        if stored != wanted_shape:
            reason = f"{name} is {stored}, but the configuration asks for {wanted_shape}."
            raise repository.refusal(file, f"{reason} {COPY_AGAIN}")


def check_pickles(repository: Repository, folder: str) -> None:
    """Refuse weights of a module that exist as pickles only."""
    here = repository.local_folder(folder)
    if here is None:
        return
    names = os.listdir(here)
    for name in names:
        if not name.lower().endswith(PICKLE_SUFFIXES) or name.startswith("openvino_model"):
            continue
        safe_suffix = ".safetensors"
        if name == "adapter_model.bin":
            safe_suffix = "adapter_model.safetensors"
        if not any(other.endswith(safe_suffix) for other in names):
            reason = "it is a pickle, which can run code. Ask for safetensors."
            raise repository.refusal(os.path.join(folder, name), reason)
