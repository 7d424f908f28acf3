"""NoSink in plain float64: which token sees which, and tiny models run layer by layer, apart from the package.

A layer's kind says which keys (columns) each query (row) sees; a plan says which kinds the layers of one model run,
and how often. ``run`` computes Llama from its weights alone; ``hooked`` puts the same masks into transformers' own
eager attention, for every other family. Layers and tokens count from 0.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from reference import _double_by_default, as_double, final_norm_of, forward
from torch import Tensor, nn
from transformers import PreTrainedModel

Windows = Sequence[int | None]


@lru_cache(maxsize=1024)
def visible(kind: str, length: int, m: int = 1, window: int | None = None) -> Tensor:
    """[T, T], True where row i sees column t.

    nosink hides the first m columns from the rows i >= m; the rows before keep what the kind gives without it. A
    window keeps |i - t| < window, whichever way the layer looks. rerouted shows the last column to every row, beyond
    any window.
    """
    result = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        for t in range(length):
            ways = {"forward": t <= i, "backward": t >= i, "bidirectional": True, "rerouted": t <= i}
            hidden = kind.startswith("nosink-") and t < m <= i
            near = window is None or abs(i - t) < window
            result[i, t] = ways[kind.removeprefix("nosink-")] and near and not hidden
            if kind == "rerouted" and t == length - 1:
                result[i, t] = True
    return result


@dataclass(frozen=True)
class Plan:
    """What runs.

    ``converted`` holds one entry for each layer of the model, bottom first: the kind it is converted to, or None. For
    extend it holds the kinds of the passes added on top instead, in their order.
    """

    converted: tuple[str | None, ...]
    architecture: Literal["inplace", "inter", "extra", "extend"] = "inplace"
    others: str = "forward"
    m: int = 1
    variant: Literal["paper", "published"] = "paper"


def plan(
    depth: int, architecture: Any = "inplace", kind: str = "bidirectional", k: int = 0, k0: int = 0, **rest: Any
) -> Plan:
    """The plan that counts k layers (or added passes) from the top; the top k0 of these run nosink-bidirectional."""
    kinds = (kind,) * (k - k0) + ("nosink-bidirectional",) * k0
    return Plan(kinds if architecture == "extend" else (None,) * (depth - k) + kinds, architecture, **rest)


# ---------------------------------------------------------------------------------------------------------------------
# Layers


class Llama:
    """Llama's embeddings, layers and final norm by hand, from its weights."""

    def __init__(self, model: PreTrainedModel, ids: Sequence[int]) -> None:
        self.body, self.config = model, model.config
        self.embedded = torch.stack([model.embed_tokens.weight[token] for token in ids])

    def layer(self, index: int, x: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
        """What a layer makes of [T, d], and its attention [H, T, T]."""
        block = self.body.layers[index]
        attention, mlp, y = block.self_attn, block.mlp, self._rms_norm(block.input_layernorm, x)
        queries = self._rotate(self._heads(attention.q_proj, y))
        # Head h of the queries reads key and value head h // (heads / groups).
        shared = self.config.num_attention_heads // self.config.num_key_value_heads
        keys = self._rotate(self._heads(attention.k_proj, y)).repeat_interleave(shared, dim=0)
        values = self._heads(attention.v_proj, y).repeat_interleave(shared, dim=0)
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        exponent = torch.where(sees, (scores - scores.amax(-1, keepdim=True)).exp(), 0.0)
        weights = exponent / exponent.sum(-1, keepdim=True)
        x = x + (weights @ values).transpose(0, 1).flatten(1) @ attention.o_proj.weight.T
        y = self._rms_norm(block.post_attention_layernorm, x)
        gate = y @ mlp.gate_proj.weight.T
        inner = gate / (1 + (-gate).exp()) * (y @ mlp.up_proj.weight.T)
        return x + inner @ mlp.down_proj.weight.T, weights

    def norm(self, x: Tensor) -> Tensor:
        return self._rms_norm(self.body.norm, x)

    def _heads(self, module: nn.Module, x: Tensor) -> Tensor:
        """[T, d] -> [heads, T, size]."""
        return (x @ module.weight.T).unflatten(-1, (-1, self.config.head_dim)).transpose(0, 1)

    def _rotate(self, x: Tensor) -> Tensor:
        """Pair (j, j + size / 2) of position t turns by the angle t * theta ** (-2 j / size)."""
        half = x.shape[-1] // 2
        theta = self.config.rope_parameters["rope_theta"]
        speeds = torch.tensor([theta ** (-j / half) for j in range(half)], dtype=torch.float64)
        angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * speeds
        first, second = x[..., :half], x[..., half:]
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    def _rms_norm(self, module: nn.Module, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt() * module.weight


class Eager:
    """Any family's, by transformers: each layer gets what the whole model gives it, but for its input and mask."""

    def __init__(self, model: PreTrainedModel, ids: Sequence[int]) -> None:
        model = copy.deepcopy(model)
        self.norm, self.layers = final_norm_of(model), model.h if hasattr(model, "h") else model.layers
        self.given: list[Any] = []
        keep = [
            each.register_forward_pre_hook(lambda _, *given: self.given.append(given), with_kwargs=True)
            for each in self.layers
        ]
        forward(model, ids)
        for hook in keep:
            hook.remove()
        self.embedded = self.given[0][0][0]
        for module in model.modules():
            if type(module).__name__.endswith("Attention"):
                module.register_forward_pre_hook(self._mask, with_kwargs=True)
                module.register_forward_hook(self._look)
                # GPT-2 of early releases has a causal mask of its own, beside the one it is given.
                if "bias" in module._buffers:
                    module.bias.fill_(True)

    def layer(self, index: int, x: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
        """What a layer makes of [1, T, d], and its attention [H, T, T]."""
        (_, *args), options = self.given[index]
        self.sees = sees
        output = self.layers[index](x, *args, **options)
        assert not self.weights[:, ~sees].any(), f"layer {index} attends to what it should not see"
        return output[0] if isinstance(output, tuple) else output, self.weights

    def _mask(self, module: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        mask = torch.zeros(1, 1, *self.sees.shape).masked_fill(~self.sees, -math.inf)
        return args, {**options, "attention_mask": mask}

    def _look(self, module: nn.Module, args: Any, output: Any) -> None:
        self.weights = output[1][0]


# ---------------------------------------------------------------------------------------------------------------------
# Models


@torch.no_grad()
@_double_by_default()
def run(
    model: PreTrainedModel, ids: Sequence[int], plan: Plan, windows: Windows | None = None, how: Any = Llama
) -> tuple[Tensor, Tensor]:
    """V [T, d] and one attention map for every layer that runs, in the order they run: [calls, H, T, T].

    ``windows``: each layer's window, None where it sees the whole text.
    """
    parts, maps = how(as_double(model), ids), list[Tensor]()
    depth, inplace = model.config.num_hidden_layers, plan.architecture == "inplace"

    def layer(index: int, x: Tensor, kind: str | None) -> Tensor:
        sees = visible(kind or plan.others, len(ids), plan.m, windows[index] if windows else None)
        x, weights = parts.layer(index, x, sees)
        maps.append(weights)
        return x

    x, entered = parts.embedded, []
    for index in range(depth):
        entered.append(x)
        x = layer(index, x, plan.converted[index] if inplace else None)
        if plan.architecture == "inter" and plan.variant == "paper" and plan.converted[index]:
            x = x + layer(index, entered[index], plan.converted[index])
    result = parts.norm(x)
    if plan.architecture == "extend":
        for kind in plan.converted:
            x = layer(depth - 1, x, kind)
        result = parts.norm(x)
    elif plan.architecture == "extra" or plan.variant == "published":
        # A second stream beside the whole model: of the converted layers, or of all from the first of them on.
        chosen = [index for index, kind in enumerate(plan.converted) if kind]
        second = parts.embedded
        if plan.architecture == "inter":
            second, chosen = entered[chosen[0]], list(range(chosen[0], depth))
        for index in chosen:
            second = layer(index, second, plan.converted[index])
        result = result + parts.norm(second) if plan.variant == "paper" else parts.norm(x + second)
    return result.reshape(len(ids), -1), torch.stack(maps)


def hooked(
    model: PreTrainedModel, ids: Sequence[int], plan: Plan, windows: Windows | None = None
) -> tuple[Tensor, Tensor]:
    """What ``run`` gives, of any family; the model must be loaded as eager."""
    return run(model, ids, plan, windows, Eager)
