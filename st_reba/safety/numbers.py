"""A limit on the numbers that a model takes while a library constructs it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as torch_module
from torch.utils.weak import WeakTensorKeyDictionary

from .repository import JsonValue, Repository
from .weights import PICKLE_SUFFIXES, read_headers

# What small models have besides their weights: tables of positions, masks.
_FREE_NUMBERS = 1 << 20
_FREE_TABLE_NUMBERS = 1 << 24
_FREE_MODULES = 4096
# The most numbers per byte of a GGUF file, whose smallest types have 1.5 bits per number.
_GGUF_NUMBERS_PER_BYTE = 6


class NumberLimit:
    """Counts the numbers that a model in construction takes, and refuses more than a few times those stored.

    transformers first makes a model without memory, on the device "meta", where some weights that
    are stored once are made several times (T5's embeddings). In memory, each is counted once.
    """

    def __init__(
        self,
        repository: Repository,
        stored_numbers: float,
        stored_tensors: float,
        file_name: str = "config.json",
    ) -> None:
        self.repository = repository
        self.file_name = file_name
        self.stored_numbers = stored_numbers
        self.meta_budget = 3 * stored_numbers + _FREE_NUMBERS
        self.real_budget = 1.4 * stored_numbers + _FREE_NUMBERS
        self.table_budget = 2 * stored_numbers + _FREE_TABLE_NUMBERS
        self.module_budget = 20 * stored_tensors + _FREE_MODULES
        self.counted = WeakTensorKeyDictionary()
        self.thread = threading.get_ident()

    def count_weight(self, module: Module, name: str, weight: Tensor | None) -> None:
        """Called by torch before a module takes a weight."""
        if weight is None or threading.get_ident() != self.thread:
            return
        if weight.is_meta:
            self.meta_budget -= weight.numel()
        elif weight not in self.counted:
            self.counted[weight] = True
            self.real_budget -= weight.numel()
        self._refuse_beyond(min(self.meta_budget, self.real_budget))

    def count_table(self, module: Module, name: str, table: Tensor | None) -> None:
        """Called by torch before a module takes a buffer."""
        if table is None or threading.get_ident() != self.thread:
            return
        if table.is_meta:
            self.table_budget -= table.numel()
        self._refuse_beyond(self.table_budget)

    def count_module(self, module: Module, name: str, submodule: Module | None) -> None:
        """Called by torch before a module takes another."""
        if threading.get_ident() == self.thread:
            self.module_budget -= 1
        self._refuse_beyond(self.module_budget)

    def _refuse_beyond(self, budget: float) -> None:
        if budget < 0:
            reason = (
                f"it asks for far more than the {self.stored_numbers:,} numbers of the weights."
            )
            raise self.repository.refusal(self.file_name, reason)


@contextmanager
def limit_numbers(*folders: Repository) -> Iterator[None]:
    """Inside the ``with`` block, refuse a model that is larger than its stored weights.

    Args:
        *folders: Those of its modules.
    """
    stored_numbers = 0.0
    stored_tensors = 0.0
    for numbers, tensors in map(_stored, dict.fromkeys(folders)):
        stored_numbers += numbers
        stored_tensors += tensors
    with _limited(NumberLimit(folders[0], stored_numbers, stored_tensors)):
        yield


@contextmanager
def limit_adapter(repository: Repository, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the ``with`` block, refuse an adapter that is made larger than its weights are."""
    stored_numbers = float(sum(weight.numel() for weight in weights.values()))
    # Besides each of its matrices there are several modules without weights.
    tensor_count = 8.0 * len(weights)
    limit = NumberLimit(repository, stored_numbers, tensor_count, "adapter_config.json")
    with _limited(limit):
        yield


@contextmanager
def _limited(limit: NumberLimit) -> Iterator[None]:
    with (
        torch_module.register_module_parameter_registration_hook(limit.count_weight),
        torch_module.register_module_buffer_registration_hook(limit.count_table),
        torch_module.register_module_module_registration_hook(limit.count_module),
    ):
        yield


def _stored(repository: Repository) -> tuple[float, float]:
    """Numbers and tensors that the files of a module hold, with those of the model that it adapts."""
    numbers, tensors = _stored_in_files(repository)
    adapter_config = repository.configuration("adapter_config.json")
    base_path = adapter_config.values.get("base_model_name_or_path")
    if not isinstance(base_path, str):
        return numbers, tensors
    base_numbers, base_tensors = _stored_in_files(adapted_base(repository, base_path))
    # An adapter's ranks, which are checked with its file, determine how many numbers it has.
    return base_numbers + numbers, 8 * base_tensors + tensors


def _stored_in_files(repository: Repository) -> tuple[float, float]:
    headers = read_headers(repository)
    if headers is not None:
        is_quantized = bool(quantization(repository))
        stored_numbers = 0
        for tensor in headers.values():
            stored_numbers += tensor.unpacked_size if is_quantized else tensor.size
        return float(stored_numbers), float(len(headers))
    if repository.local_folder is None:
        # On the Hub, without safetensors: nothing is known before it is fetched.
        return math.inf, math.inf
    numbers = 0.0
    for weights_path in repository.local_folder.iterdir():
        if weights_path.suffix in PICKLE_SUFFIXES:
            numbers += weights_path.stat().st_size
        elif weights_path.suffix == ".gguf":
            numbers += weights_path.stat().st_size * _GGUF_NUMBERS_PER_BYTE
    return numbers, numbers


def quantization(repository: Repository) -> JsonValue:
    """How weights are packed, according to config.json."""
    model_config = repository.configuration("config.json").values
    return model_config.get("quantization_config") or model_config.get("compression_config")


def adapted_base(repository: Repository, path: str) -> Repository:
    """The repository of the model that an adapter adapts; the adapter's revision is dropped."""
    hub_options = dict(repository.hub_options)
    hub_options.pop("revision", None)
    return Repository(path, hub_options)
