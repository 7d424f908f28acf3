"""The number types that weights are stored in; not among what is published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .extensions import extensions


@contextmanager
def stored_as(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Give the weights the base's number type inside the ``with`` block, unless that would round them."""
    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    dtypes = {weight.dtype for weight in weights}
    if (
        dtype is None
        or len(dtypes) != 1
        or not all(_is_exact_as(weight, dtype) for weight in weights)
    ):
        yield
        return
    (loaded_dtype,) = dtypes
    try:
        for weight in weights:
            weight.data = weight.data.to(dtype)
        yield
    finally:
        for weight in weights:
            weight.data = weight.data.to(loaded_dtype)


def _is_exact_as(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a weight keeps its values in another number type."""
    if weight.dtype == dtype:
        return True
    # Piece by piece, as a whole weight would be copied twice.
    for values in torch.split(weight.detach().flatten(), 1 << 22):
        stored_values = values.to(dtype).to(values.dtype)
        # As bytes: -0.0 and NaN are values too.
        if not torch.equal(values.view(torch.uint8), stored_values.view(torch.uint8)):
            return False
    return True


extensions.stored_as = stored_as
