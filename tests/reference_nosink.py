"""NoSink in plain float64: which token sees which, and tiny models run layer by layer by hand, apart from the package.

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
from reference import as_double, hidden_and_attention
from torch import Tensor, nn
from transformers import PreTrainedModel

Architecture = Literal["inplace", "inter", "extra", "extend"]

KINDS = ("forward", "backward", "bidirectional", "nosink-forward", "nosink-bidirectional", "rerouted")

# ---------------------------------------------------------------------------------------------------------------------
# Masks


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
            if kind in ("forward", "nosink-forward", "rerouted"):
                sees = t <= i
            elif kind == "backward":
                sees = t >= i
            elif kind in ("bidirectional", "nosink-bidirectional"):
                sees = True
            else:
                raise ValueError(f"unknown kind {kind!r}")
            if kind.startswith("nosink-") and i >= m and t < m:
                sees = False
            if window is not None and abs(i - t) >= window:
                sees = False
            if kind == "rerouted" and t == length - 1:
                sees = True
            result[i, t] = sees
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Plans


@dataclass(frozen=True)
class Plan:
    """What runs.

    ``converted`` holds one entry for each layer of the model, bottom first: the kind it is converted to, or None. For
    extend it holds the kinds of the passes added on top instead, in their order.
    """

    converted: tuple[str | None, ...]
    architecture: Architecture = "inplace"
    others: str = "forward"
    m: int = 1
    variant: Literal["paper", "published"] = "paper"


def from_top(depth: int, kind: str, k: int, k0: int = 0) -> tuple[str | None, ...]:
    """The top k of ``depth`` layers run ``kind``; of these the top k0 run nosink-bidirectional."""
    return (None,) * (depth - k) + (kind,) * (k - k0) + ("nosink-bidirectional",) * k0


def plan(
    depth: int,
    architecture: Architecture = "inplace",
    kind: str = "bidirectional",
    k: int = 0,
    k0: int = 0,
    **rest: Any,
) -> Plan:
    """The plan that counts k layers (or added passes) from the top."""
    return Plan(from_top(k if architecture == "extend" else depth, kind, k, k0), architecture, **rest)


# ---------------------------------------------------------------------------------------------------------------------
# Llama by hand


def _attend(queries: Tensor, keys: Tensor, values: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q k / sqrt(size)) v over what each row sees: [H, T, size] -> [T, H * size], and the weights [H, T, T]."""
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
    exponent = torch.where(sees, (scores - scores.amax(-1, keepdim=True)).exp(), 0.0)
    weights = exponent / exponent.sum(-1, keepdim=True)
    return (weights @ values).transpose(0, 1).flatten(1), weights


def _heads(rows: Tensor, heads: int) -> Tensor:
    """[T, heads * size] -> [heads, T, size]."""
    return rows.unflatten(-1, (heads, -1)).transpose(0, 1)


class _Llama:
    def __init__(self, model: PreTrainedModel) -> None:
        self.body, self.config = model, model.config
        assert self.config.hidden_act == "silu"
        assert self.config.rope_parameters["rope_type"] == "default"

    def embed(self, ids: Sequence[int]) -> Tensor:
        return torch.stack([self.body.embed_tokens.weight[token] for token in ids])

    def layer(self, index: int, x: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
        block = self.body.layers[index]
        heads, groups = self.config.num_attention_heads, self.config.num_key_value_heads
        attention, y = block.self_attn, self._rms_norm(block.input_layernorm, x)
        queries = self._rotate(_heads(self._linear(attention.q_proj, y), heads))
        # Head h of the queries reads key and value head h // (heads / groups).
        shared = [h // (heads // groups) for h in range(heads)]
        keys = self._rotate(_heads(self._linear(attention.k_proj, y), groups))[shared]
        values = _heads(self._linear(attention.v_proj, y), groups)[shared]
        mixed, weights = _attend(queries, keys, values, sees)
        x = x + self._linear(attention.o_proj, mixed)
        y = self._rms_norm(block.post_attention_layernorm, x)
        gate = self._linear(block.mlp.gate_proj, y)
        inner = gate / (1 + (-gate).exp()) * self._linear(block.mlp.up_proj, y)
        return x + self._linear(block.mlp.down_proj, inner), weights

    def norm(self, x: Tensor) -> Tensor:
        return self._rms_norm(self.body.norm, x)

    def _rotate(self, x: Tensor) -> Tensor:
        """Pair (j, j + size / 2) of position t turns by the angle t * theta ** (-2 j / size)."""
        half = x.shape[-1] // 2
        theta = self.config.rope_parameters["rope_theta"]
        speeds = torch.tensor([theta ** (-j / half) for j in range(half)], dtype=torch.float64)
        angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * speeds
        first, second = x[..., :half], x[..., half:]
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    @staticmethod
    def _linear(module: nn.Module, x: Tensor) -> Tensor:
        assert module.bias is None
        return x @ module.weight.T

    def _rms_norm(self, module: nn.Module, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt() * module.weight


@torch.no_grad()
def run(model: PreTrainedModel, ids: Sequence[int], plan: Plan) -> tuple[Tensor, Tensor]:
    """V [T, d] and one attention map for every layer that runs, in the order they run: [calls, H, T, T]."""
    parts = _Llama(as_double(model))
    depth = model.config.num_hidden_layers
    maps: list[Tensor] = []

    def layer(index: int, x: Tensor, kind: str) -> Tensor:
        x, weights = parts.layer(index, x, visible(kind, len(ids), plan.m))
        maps.append(weights)
        return x

    assert plan.architecture == "extend" or len(plan.converted) == depth
    embedded = parts.embed(ids)
    anything = any(kind is not None for kind in plan.converted)
    x = embedded
    if plan.architecture == "inplace":
        for index, kind in enumerate(plan.converted):
            x = layer(index, x, kind or plan.others)
        result = parts.norm(x)
    elif plan.architecture == "inter" and plan.variant == "paper":
        for index, kind in enumerate(plan.converted):
            once = layer(index, x, plan.others)
            x = once if kind is None else once + layer(index, x, kind)
        result = parts.norm(x)
    elif plan.architecture == "inter":
        second = None
        for index, kind in enumerate(plan.converted):
            if second is None and kind is not None:
                second = x
            if second is not None:
                second = layer(index, second, kind or plan.others)
            x = layer(index, x, plan.others)
        result = parts.norm(x if second is None else x + second)
    elif plan.architecture == "extra":
        for index in range(depth):
            x = layer(index, x, plan.others)
        second = embedded
        for index, kind in enumerate(plan.converted):
            if kind is not None:
                second = layer(index, second, kind)
        if not anything:
            result = parts.norm(x)
        elif plan.variant == "paper":
            result = parts.norm(x) + parts.norm(second)
        else:
            result = parts.norm(x + second)
    elif plan.architecture == "extend":
        for index in range(depth):
            x = layer(index, x, plan.others)
        for kind in plan.converted:
            x = layer(depth - 1, x, str(kind))
        result = parts.norm(x)
    else:
        raise ValueError(f"unknown architecture {plan.architecture!r}")
    return result, torch.stack(maps)


# ---------------------------------------------------------------------------------------------------------------------
# Every other family, in transformers' eager attention


def hooked(
    model: PreTrainedModel, ids: Sequence[int], plan: Plan, windows: Sequence[int | None] | None = None
) -> tuple[Tensor, Tensor]:
    """What ``run`` gives, of any family: as inplace runs of its layers, whose outputs are put together.

    The model must be loaded as eager. ``windows``: each layer's window, None where it sees the whole text.
    """
    model = as_double(model)
    depth = model.config.num_hidden_layers
    spans = list(windows or [None] * depth)
    others = [plan.others] * depth
    chosen = [index for index, kind in enumerate(plan.converted) if kind is not None]
    kinds = [str(plan.converted[index]) for index in chosen]
    inplace = [kind or plan.others for kind in plan.converted]
    if plan.architecture == "inplace":
        return _masked(model, ids, inplace, plan.m, spans)[:2]
    if not chosen:
        return _masked(model, ids, others, plan.m, spans)[:2]
    if plan.architecture == "extend":
        taller = _relayered(model, (*range(depth), *[depth - 1] * len(chosen)))
        return _masked(taller, ids, [*others, *kinds], plan.m, spans + spans[-1:] * len(chosen))[:2]
    further = []
    added: dict[int, Tensor] = {}
    if plan.architecture == "extra":
        stack = _relayered(model, tuple(chosen))
        second, maps, outputs = _masked(stack, ids, kinds, plan.m, [spans[index] for index in chosen])
        further.append(maps)
        if plan.variant == "published":
            added[depth - 1] = outputs[-1]
    elif plan.variant == "published":
        _, maps, outputs = _masked(model, ids, inplace, plan.m, spans)
        further.append(maps[chosen[0] :])
        added[depth - 1] = outputs[-1]
    else:
        for index in chosen:
            once = [inplace[index] if layer == index else plan.others for layer in range(depth)]
            _, maps, outputs = _masked(model, ids, once, plan.m, spans, dict(added))
            further.append(maps[index : index + 1])
            added[index] = outputs[index]
    hidden, maps, _ = _masked(model, ids, others, plan.m, spans, added)
    if plan.architecture == "extra" and plan.variant == "paper":
        hidden = hidden + second
    return hidden, torch.cat([maps, *further])


def _masked(
    model: PreTrainedModel,
    ids: Sequence[int],
    kinds: Sequence[str],
    m: int,
    windows: Sequence[int | None],
    added: dict[int, Tensor] | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """V, attention maps and every layer's output, each layer's mask replaced on its way into the attention.

    ``added``: what is added to a layer's output before the next layer (or the final norm) gets it.
    """
    length = len(ids)
    masks = [visible(kind, length, m, window) for kind, window in zip(kinds, windows, strict=True)]
    seen: list[int] = []
    outputs: list[Tensor] = []

    def replace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        assert "attention_mask" in kwargs, "the attention takes its mask by position: nothing was replaced"
        mask = torch.zeros(1, 1, length, length, dtype=torch.float64).masked_fill(~masks[module.layer_idx], -math.inf)
        seen.append(module.layer_idx)
        return args, {**kwargs, "attention_mask": mask}

    def add(module: nn.Module, args: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        index = len(outputs)
        outputs.append(hidden[0])
        if index in (added or {}):
            hidden = hidden + (added or {})[index]
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    attentions = [module for module in model.modules() if _is_attention(module)]
    hooks = [module.register_forward_pre_hook(replace, with_kwargs=True) for module in attentions]
    hooks += [layer.register_forward_hook(add) for layer in getattr(*_layers(model))]
    # GPT-2 of early releases has a causal mask of its own, beside the one it is given.
    own = [module for module in attentions if "bias" in module._buffers]
    causal = [module.bias for module in own]
    try:
        for module in own:
            module.bias = torch.ones_like(module.bias)
        hidden, attention = hidden_and_attention(model, ids)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mask in zip(own, causal, strict=True):
            module.bias = mask
    assert seen == list(range(len(masks))), f"masks were replaced in the layers {seen} of {len(masks)}"
    assert len(outputs) == len(masks)
    for index, mask in enumerate(masks):
        assert not attention[index][:, ~mask].any(), f"layer {index} attends to what it should not see"
    return hidden, attention, outputs


def _is_attention(module: nn.Module) -> bool:
    return hasattr(module, "layer_idx") and type(module).__name__.endswith("Attention")


def _layers(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that holds the list of layers, and the list's name in it."""
    return model, next(name for name in ("h", "layers") if hasattr(model, name))


@lru_cache(maxsize=8)
def _relayered(model: PreTrainedModel, taken: tuple[int, ...]) -> PreTrainedModel:
    """A copy of the model that has these layers of the whole one, in this order."""
    model = copy.deepcopy(model)
    holder, name = _layers(model)
    whole = getattr(holder, name)
    layers = [copy.deepcopy(whole[index]) for index in taken]
    for place, layer in enumerate(layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = place
    setattr(holder, name, nn.ModuleList(layers))
    model.config.num_hidden_layers = len(taken)
    types = getattr(model.config, "layer_types", None)
    if types is not None:
        model.config.layer_types = [types[index] for index in taken]
    return model
