"""NoSink in plain float64: which token sees which, and tiny models run layer by layer, apart from the package.

A layer's kind says which keys (columns) each query (row) sees; a plan says which kinds the layers
of one model run, and how often. ``run`` computes Llama from its weights alone; ``hooked`` puts the
same masks into transformers' own eager attention, for every other family. Layers and tokens count
from 0.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import torch
from reference import as_double, double_by_default, final_norm_of, forward
from torch import Tensor, nn
from transformers import PreTrainedModel

# Each layer's window; None where the layer sees the whole text.
Windows = Sequence[int | None]
Architecture = Literal["inplace", "inter", "extra", "extend"]


# ---------------------------------------------------------------------------------------------------------------------
# Masks


@lru_cache(maxsize=1024)
def visible(kind: str, length: int, m: int = 1, window: int | None = None) -> Tensor:
    """[T, T], True where row i sees column t.

    nosink hides the first m columns from the rows i >= m; the rows before keep what the kind gives
    without it. A window keeps |i - t| < window, whichever way the layer looks. rerouted shows the
    last column to every row, beyond any window.
    """
    mask = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        for t in range(length):
            is_sink = kind.startswith("nosink-") and t < m <= i
            is_near = window is None or abs(i - t) < window
            mask[i, t] = looks_at(kind, i, t) and is_near and not is_sink
            if kind == "rerouted" and t == length - 1:
                mask[i, t] = True
    return mask


def looks_at(kind: str, i: int, t: int) -> bool:
    """Whether a kind looks from row i in the direction of column t."""
    direction = kind.removeprefix("nosink-")
    if direction == "bidirectional":
        return True
    if direction == "backward":
        return t >= i
    assert direction in ("forward", "rerouted")
    return t <= i


# ---------------------------------------------------------------------------------------------------------------------
# Plans


@dataclass(frozen=True)
class Plan:
    """What runs.

    ``converted`` holds one entry for each layer of the model, bottom first: the kind it is
    converted to, or None. For extend it holds the kinds of the passes added on top instead, in
    their order.
    """

    converted: tuple[str | None, ...]
    architecture: Architecture = "inplace"
    other_kind: str = "forward"  # of the layers that are not converted
    m: int = 1
    variant: Literal["paper", "published"] = "paper"

    @property
    def has_second_stream(self) -> bool:
        """Whether another stream of layers runs beside the whole model."""
        if self.architecture == "extra":
            return True
        return self.variant == "published" and self.architecture != "extend"


def plan_upper_layers(
    depth: int,
    architecture: Any = "inplace",
    kind: str = "bidirectional",
    k: int = 0,
    k0: int = 0,
    **fields: Any,
) -> Plan:
    """The plan that counts k layers (or added passes) from the top; the top k0 of these run nosink-bidirectional."""
    kinds: tuple[str | None, ...] = (kind,) * (k - k0) + ("nosink-bidirectional",) * k0
    if architecture != "extend":
        kinds = (None,) * (depth - k) + kinds
    return Plan(kinds, architecture, **fields)


# ---------------------------------------------------------------------------------------------------------------------
# Layers


class LayerRunner(Protocol):
    """A model that runs layer by layer, for one sequence."""

    embeddings: Tensor

    def __init__(self, model: PreTrainedModel, token_ids: Sequence[int]) -> None: ...

    def run_layer(
        self, layer_index: int, hidden_states: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a layer makes of states under a mask [T, T], and its attention [H, T, T]."""
        ...

    def norm(self, hidden_states: Tensor) -> Tensor: ...


class Llama:
    """Llama's embeddings, layers and final norm by hand, from its weights."""

    def __init__(self, model: PreTrainedModel, token_ids: Sequence[int]) -> None:
        self.decoder = model
        self.config = model.config
        self.embeddings = torch.stack([model.embed_tokens.weight[token] for token in token_ids])

    def run_layer(
        self, layer_index: int, hidden_states: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a layer makes of [T, d], and its attention [H, T, T]."""
        block = self.decoder.layers[layer_index]
        normed = self._rms_norm(block.input_layernorm, hidden_states)
        attention_output, weights = self._attend(block.self_attn, normed, mask)
        hidden_states = hidden_states + attention_output
        normed = self._rms_norm(block.post_attention_layernorm, hidden_states)
        return hidden_states + self._feed_forward(block.mlp, normed), weights

    def norm(self, hidden_states: Tensor) -> Tensor:
        return self._rms_norm(self.decoder.norm, hidden_states)

    def _attend(self, attention: nn.Module, normed: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # Head h of the queries reads key and value head h // (heads / groups).
        heads_per_group = self.config.num_attention_heads // self.config.num_key_value_heads
        queries = self._rotate(self._heads(attention.q_proj, normed))
        group_keys = self._rotate(self._heads(attention.k_proj, normed))
        keys = group_keys.repeat_interleave(heads_per_group, dim=0)
        group_values = self._heads(attention.v_proj, normed)
        values = group_values.repeat_interleave(heads_per_group, dim=0)
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
        exponentials = torch.where(mask, exponentials, 0.0)
        weights = exponentials / exponentials.sum(-1, keepdim=True)
        head_outputs = (weights @ values).transpose(0, 1).flatten(1)
        return head_outputs @ attention.o_proj.weight.T, weights

    def _feed_forward(self, mlp: nn.Module, normed: Tensor) -> Tensor:
        gate = normed @ mlp.gate_proj.weight.T
        silu = gate / (1 + (-gate).exp())
        return (silu * (normed @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T

    def _heads(self, projection: nn.Module, hidden_states: Tensor) -> Tensor:
        """[T, d] -> [heads, T, size]."""
        projected = hidden_states @ projection.weight.T
        return projected.unflatten(-1, (-1, self.config.head_dim)).transpose(0, 1)

    def _rotate(self, heads: Tensor) -> Tensor:
        """Pair (j, j + size / 2) of position t turns by the angle t * theta ** (-2 j / size)."""
        half = heads.shape[-1] // 2
        theta = self.config.rope_parameters["rope_theta"]
        speeds = torch.tensor([theta ** (-j / half) for j in range(half)], dtype=torch.float64)
        positions = torch.arange(heads.shape[-2], dtype=torch.float64)
        angles = positions[:, None] * speeds
        cosine = angles.cos()
        sine = angles.sin()
        first_half = heads[..., :half]
        second_half = heads[..., half:]
        turned_first = first_half * cosine - second_half * sine
        turned_second = second_half * cosine + first_half * sine
        return torch.cat([turned_first, turned_second], -1)

    def _rms_norm(self, norm: nn.Module, hidden_states: Tensor) -> Tensor:
        mean_square = hidden_states.pow(2).mean(-1, keepdim=True)
        return hidden_states / (mean_square + self.config.rms_norm_eps).sqrt() * norm.weight


class Eager:
    """Any family's, by transformers: each layer gets what the whole model gives it, but for its input and mask."""

    def __init__(self, model: PreTrainedModel, token_ids: Sequence[int]) -> None:
        decoder = copy.deepcopy(model)
        self.norm = final_norm_of(decoder)
        self.layers = decoder.h if hasattr(decoder, "h") else decoder.layers
        self.mask = torch.empty(0)  # of the layer that runs
        self.weights = torch.empty(0)  # of the layer that ran last
        self.layer_inputs: list[Any] = []
        self._record_layer_inputs(decoder, token_ids)
        first_arguments, _ = self.layer_inputs[0]
        self.embeddings = first_arguments[0]
        for module in decoder.modules():
            if type(module).__name__.endswith("Attention"):
                module.register_forward_pre_hook(self._replace_mask, with_kwargs=True)
                module.register_forward_hook(self._keep_weights)
                # GPT-2 of early releases has a causal mask of its own, besides the one it is given.
                if "bias" in module._buffers:
                    module.bias.fill_(True)

    def run_layer(
        self, layer_index: int, hidden_states: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a layer makes of [1, T, d], and its attention [H, T, T]."""
        (_, *arguments), options = self.layer_inputs[layer_index]
        self.mask = mask
        output = self.layers[layer_index](hidden_states, *arguments, **options)
        assert not self.weights[:, ~mask].any(), (
            f"layer {layer_index} attends to what it should not see"
        )
        if isinstance(output, tuple):
            output = output[0]
        return output, self.weights

    def _record_layer_inputs(self, decoder: PreTrainedModel, token_ids: Sequence[int]) -> None:
        def record(layer: nn.Module, arguments: Any, options: dict[str, Any]) -> None:
            self.layer_inputs.append((arguments, options))

        hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in self.layers]
        forward(decoder, token_ids)
        for hook in hooks:
            hook.remove()

    def _replace_mask(self, module: nn.Module, arguments: Any, options: dict[str, Any]) -> Any:
        additive_mask = torch.zeros(1, 1, *self.mask.shape).masked_fill(~self.mask, -math.inf)
        return arguments, options | {"attention_mask": additive_mask}

    def _keep_weights(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self.weights = output[1][0]


# ---------------------------------------------------------------------------------------------------------------------
# Models


class _Run:
    """One sequence through a model by a plan."""

    def __init__(
        self,
        runner: LayerRunner,
        plan: Plan,
        depth: int,
        length: int,
        windows: Windows | None,
    ) -> None:
        self.runner = runner
        self.plan = plan
        self.depth = depth
        self.length = length
        self.windows = windows
        self.attention_maps: list[Tensor] = []
        self.layer_inputs: list[Tensor] = []  # what enters each layer of the whole model

    def run_layer(self, layer_index: int, hidden_states: Tensor, kind: str | None) -> Tensor:
        window = self.windows[layer_index] if self.windows else None
        mask = visible(kind or self.plan.other_kind, self.length, self.plan.m, window)
        hidden_states, weights = self.runner.run_layer(layer_index, hidden_states, mask)
        self.attention_maps.append(weights)
        return hidden_states

    def run_model(self) -> Tensor:
        """What leaves the last layer."""
        runs_layers_twice = self.plan.architecture == "inter" and self.plan.variant == "paper"
        hidden_states = self.runner.embeddings
        for layer_index in range(self.depth):
            layer_input = hidden_states
            self.layer_inputs.append(layer_input)
            kind = self.plan.converted[layer_index] if self.plan.architecture == "inplace" else None
            hidden_states = self.run_layer(layer_index, layer_input, kind)
            second_kind = self.plan.converted[layer_index] if runs_layers_twice else None
            if second_kind:
                hidden_states = hidden_states + self.run_layer(
                    layer_index, layer_input, second_kind
                )
        return hidden_states

    def run_last_layer_again(self, hidden_states: Tensor) -> Tensor:
        """extend: passes of the topmost layer, on top of the model."""
        for kind in self.plan.converted:
            hidden_states = self.run_layer(self.depth - 1, hidden_states, kind)
        return hidden_states

    def run_second_stream(self) -> Tensor:
        """A stream beside the whole model: of the converted layers, or of all from the first of them on."""
        converted_layers = [
            layer_index for layer_index, kind in enumerate(self.plan.converted) if kind
        ]
        hidden_states = self.runner.embeddings
        if self.plan.architecture == "inter":
            hidden_states = self.layer_inputs[converted_layers[0]]
            converted_layers = list(range(converted_layers[0], self.depth))
        for layer_index in converted_layers:
            hidden_states = self.run_layer(
                layer_index, hidden_states, self.plan.converted[layer_index]
            )
        return hidden_states


@torch.no_grad()
@double_by_default()
def run(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    plan: Plan,
    windows: Windows | None = None,
    runner_class: type[LayerRunner] = Llama,
) -> tuple[Tensor, Tensor]:
    """V [T, d] and one attention map for every layer that runs, in the order they run: [calls, H, T, T].

    ``windows``: each layer's window, None where it sees the whole text.
    """
    runner = runner_class(as_double(model), token_ids)
    sequence_run = _Run(runner, plan, model.config.num_hidden_layers, len(token_ids), windows)
    hidden_states = sequence_run.run_model()
    if plan.architecture == "extend":
        hidden_states = sequence_run.run_last_layer_again(hidden_states)
    vectors = runner.norm(hidden_states)
    if plan.has_second_stream:
        second_states = sequence_run.run_second_stream()
        if plan.variant == "paper":
            vectors = vectors + runner.norm(second_states)
        else:
            vectors = runner.norm(hidden_states + second_states)
    return vectors.reshape(len(token_ids), -1), torch.stack(sequence_run.attention_maps)


def hooked(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    plan: Plan,
    windows: Windows | None = None,
) -> tuple[Tensor, Tensor]:
    """What ``run`` gives, of any family; the model must be loaded as eager."""
    return run(model, token_ids, plan, windows, Eager)
