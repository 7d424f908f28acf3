"""A prefix that a batch's rows share runs once.

A row is p · x · s: prefix (special tokens, and what a template puts before the text), content, and
the rest. Where every layer is causal, keys and values of p depend on p alone, so p runs as one row,
and all rows continue from there. Each stage is a pass of its own, and begins at one position in all of
its rows, so no padding lies between tokens. Rows run whole where that is not exact, or no faster:
layers that look both ways, or whose masks were changed; other states than keys and values; captured
attention; gradients, training, tracing; few positions in common.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from .extensions import extensions
from .layout import Features, decoder_of

# What a stage costs beyond its own positions, in positions; the number for GPUs is an estimate.
STAGE_COST = {"cpu": 32}
_GPU_STAGE_COST = 512


def stage_cost(device: torch.device) -> int:
    """What a stage costs on a device."""
    return STAGE_COST.get(device.type, _GPU_STAGE_COST)


class BranchLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Cache of one layer in a stage, whose row i continues row ``source_rows[i]`` of an earlier stage."""

    def __init__(self, source: DynamicLayer, source_rows: Tensor, start: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source
        self.source_rows = source_rows
        self.start = start

    def get_seq_length(self) -> int:
        """Positions before the stage, whenever a model asks."""
        return self.start

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values that the stage sees, [B, H, start + T, D]; not kept, to save memory."""
        joined_keys = self.join(self.source.keys, key_states)  # type: ignore[arg-type]
        return joined_keys, self.join(self.source.values, value_states)  # type: ignore[arg-type]

    def join(self, source_states: Tensor, added_states: Tensor) -> Tensor:
        """States of the earlier stage, and those after them."""
        source_rows = self.source_rows.to(added_states.device)
        prefix_states = source_states[:, :, : self.start]
        row_states = prefix_states.index_select(0, source_rows)
        return torch.cat([row_states, added_states], dim=2)


def continue_cache(
    cache: Cache,
    source_rows: Sequence[int],
    start: int,
    layer_class: type[BranchLayer] = BranchLayer,
) -> Cache:
    """The cache of a stage whose rows continue rows of an earlier one."""
    branch_cache = DynamicCache()
    row_index = torch.tensor(source_rows)
    for source in cache.layers:
        branch_layer = layer_class(source, row_index, start)  # type: ignore[arg-type]
        branch_cache.layers.append(branch_layer)
    return branch_cache


def select_positions(features: Features, rows: Sequence[int], start: int, end: int) -> Features:
    """The features of some positions of some rows."""
    selection: Features = {}
    for name in ("input_ids", "attention_mask", "copy_ids"):
        selection[name] = features[name][rows, start:end]
    selection["spans"] = [features["spans"][row] for row in rows]
    return selection


def run_stage(
    transformer: Any,
    features: Features,
    hooks: Sequence[object],
    cache: Cache,
) -> Tensor:
    """Hidden states [B, T, d] of the positions that follow the cached ones."""
    token_ids = features["input_ids"]
    visible_length = cache.get_seq_length() + token_ids.shape[1]
    visible = token_ids.new_ones(len(token_ids), visible_length)
    model_arguments: dict[str, object] = {"attention_mask": visible, "use_cache": True}
    model_parameters = inspect.signature(decoder_of(transformer.model).forward).parameters
    if "cache" in model_parameters:
        model_arguments["cache"] = cache
    else:
        model_arguments["past_key_values"] = cache  # as older releases of transformers call it
    stage_states: Tensor = transformer.run_pass(features, hooks, model_arguments)
    if not cache.layers:
        raise ValueError(
            f"{type(transformer.model).__name__} hides the cache of its layers. Set shares_prefix=False."
        )
    return stage_states


class PrefixMemory(NamedTuple):
    """A prefix that has run: of all batches of an `encode` call, the first one runs it."""

    key: tuple[object, ...]  # its ids, the hooks of a pass, and the state of the weights
    cache: Cache
    hidden_states: Tensor  # [1, P, d]


# Not in the module, which may be copied, pickled and saved.
_memories: WeakKeyDictionary[torch.nn.Module, PrefixMemory] = WeakKeyDictionary()


def weights_state(transformer: Any, token_ids: Tensor) -> tuple[object, ...]:
    """What changes whenever a prefix's states may: `encode` begins with a change of mode."""
    weights: list[tuple[int, int]] = []
    for weight in transformer.model.parameters():
        version = 0 if weight.is_inference() else weight._version
        weights.append((weight.data_ptr(), version))
    adapters: list[tuple[object, ...]] = []
    for module in transformer.model.modules():
        # A layer of PEFT. Its type is asked, as a module searches its weights for what it lacks.
        if isinstance(getattr(type(module), "active_adapters", None), property):
            adapters.append((*module.active_adapters, module.disable_adapters))
    return transformer.mode_changes, token_ids.device, weights, adapters


def run_prefix(
    transformer: Any,
    features: Features,
    row: int,
    prefix_length: int,
    hooks: Sequence[object],
) -> tuple[Cache, Tensor]:
    """Keys and values, and hidden states [1, P, d], of a row's prefix."""
    prefix_features = select_positions(features, [row], 0, prefix_length)
    token_ids = prefix_features["input_ids"]
    key = (token_ids.cpu().numpy().tobytes(), hooks, weights_state(transformer, token_ids))
    memory = _memories.get(transformer)
    # In a call of the model outside of `encode`, weights may have changed without a trace.
    is_encoding = torch.is_inference_mode_enabled()
    if is_encoding and memory is not None and memory.key == key:
        return memory.cache, memory.hidden_states
    prefix_cache = DynamicCache()
    prefix_states = run_stage(transformer, prefix_features, hooks, prefix_cache)
    if is_encoding:
        _memories[transformer] = PrefixMemory(key, prefix_cache, prefix_states)
    return prefix_cache, prefix_states


def run_shared(transformer: Any, features: Features, hooks: Sequence[object]) -> Tensor | None:
    """Hidden states [B, T, d] of a batch that runs in stages; None: its rows have to run whole."""
    if torch.is_grad_enabled() or transformer.training:
        return None
    if torch.compiler.is_compiling() or not transformer.can_share(hooks):
        return None
    if transformer.template_count > 1:
        hidden_states: Tensor | None = extensions.question_batch(transformer, features, hooks).run()
        return hidden_states
    token_ids = features["input_ids"]
    row_count, row_length = token_ids.shape
    prefix_length = features["spans"][0].start
    if prefix_length * (row_count - 1) < stage_cost(token_ids.device):
        return None
    prefix_ids = token_ids[:, :prefix_length]
    first_prefix = prefix_ids[:1].expand_as(prefix_ids)
    if not torch.equal(prefix_ids, first_prefix):
        return None
    prefix_cache, prefix_states = run_prefix(transformer, features, 0, prefix_length, hooks)
    branch_cache = continue_cache(prefix_cache, [0] * row_count, prefix_length)
    all_rows = range(row_count)
    text_features = select_positions(features, all_rows, prefix_length, row_length)
    text_states = run_stage(transformer, text_features, hooks, branch_cache)
    all_prefixes = prefix_states.expand(row_count, -1, -1)
    return torch.cat([all_prefixes, text_states], dim=1)


extensions.run_shared = run_shared
