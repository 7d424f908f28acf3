"""Rows that begin with padding → rows that begin at column 0, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def padding_in_front(attention_mask: Tensor) -> Tensor | None:
    """Each row's first real position [B, 1]; None where all begin at column 0."""
    start = attention_mask.bool().int().argmax(dim=1, keepdim=True)
    return start if bool(start.any()) else None


def shifted(tensor: Tensor, start: Tensor, dim: int) -> Tensor:
    """A [B, …] tensor whose rows are rotated along ``dim``: position ``start`` [B, 1] comes to stand at 0."""
    length = tensor.shape[dim]
    index = (torch.arange(length, device=tensor.device) + start) % length
    shape = [1] * tensor.ndim
    shape[0], shape[dim] = index.shape
    return tensor.gather(dim, index.view(shape).expand_as(tensor))


def moved(features: dict[str, Any], start: Tensor) -> dict[str, Any]:
    """Features with all that is of shape [B, T] rotated."""
    shape = features["attention_mask"].shape
    return {
        name: shifted(value, start, 1) if isinstance(value, Tensor) and value.shape == shape else value
        for name, value in features.items()
    }
