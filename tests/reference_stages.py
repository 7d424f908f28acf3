"""Further training-free stages in plain float64: vectors of several prompts put together, and Token Prepending."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from reference import Layout, as_double, hidden_and_attention
from reference_nosink import _BY_HAND, Plan, visible
from torch import Tensor
from transformers import PreTrainedModel

__all__ = ["ensemble", "placed_behind", "prepended", "prepended_by_hooks"]


def ensemble(vectors: Sequence[Tensor], weights: Sequence[float], equal_norms: bool = True) -> Tensor:
    """Sum over the prompts p of w_p u_p, u_p the vector of a text in p, divided by its length with equal_norms."""
    total = [0.0] * len(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        numbers = vector.double().tolist()
        length = math.sqrt(sum(number * number for number in numbers)) if equal_norms else 1.0
        for place, number in enumerate(numbers):
            total[place] += weight * number / length
    return torch.tensor(total, dtype=torch.float64)


def placed_behind(placed: Layout, token: int) -> tuple[Layout, int]:
    """The same sequence with a placeholder directly in front of copy 1, and the placeholder's position."""
    at = placed.positions(1)[0]
    ids = [*placed.ids[:at], token, *placed.ids[at:]]
    return replace(placed, ids=ids, copy_of=[*placed.copy_of[:at], 0, *placed.copy_of[at:]]), at


@torch.no_grad()
def prepended(
    model: PreTrainedModel, ids: Sequence[int], at: int, layers: int, plan: Plan, runs: int | None = None
) -> tuple[Tensor, Tensor]:
    """V [T, d] and the attention maps, by hand (GPT-2, Llama): behind each of the first ``layers`` layers, row ``at``
    becomes the last row. Only the first ``runs`` layers run."""
    parts = _BY_HAND[model.config.model_type](as_double(model))
    x = parts.embed(ids)
    maps = []
    for index, kind in enumerate(plan.converted[:runs]):
        x, weights = parts.layer(index, x, visible(kind or plan.others, len(ids), plan.m))
        maps.append(weights)
        if index < layers:
            rows = [x[len(ids) - 1] if row == at else x[row] for row in range(len(ids))]
            x = torch.stack(rows)
    return parts.norm(x), torch.stack(maps)


def prepended_by_hooks(model: PreTrainedModel, ids: Sequence[int], at: int, layers: int) -> tuple[Tensor, Tensor]:
    """The same of any family, in transformers' eager attention and without a plan."""
    model = as_double(model)
    done: list[int] = []

    def put(module: Any, arguments: Any, output: Any) -> Any:
        hidden = (output[0] if isinstance(output, tuple) else output).clone()
        hidden[0, at] = hidden[0, -1]
        done.append(hidden.shape[1])
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    blocks = model.h if hasattr(model, "h") else model.layers
    hooks = [block.register_forward_hook(put) for block in list(blocks)[:layers]]
    try:
        found = hidden_and_attention(model, ids)
    finally:
        for hook in hooks:
            hook.remove()
    assert done == [len(ids)] * layers
    return found
