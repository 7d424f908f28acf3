"""The number type that weights have while they are saved: the base's own, where no number changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from st_reba.modules.stored_types import stored_as

# What bfloat16 holds too, and what it would round.
EXACT = torch.tensor([1.5, -0.0])
ROUNDED = torch.tensor([1.001])
# Weights, the base's number type, and the types inside the block.
CASES: dict[str, tuple[list[Tensor], torch.dtype | None, list[torch.dtype]]] = {
    "exact": ([EXACT, EXACT], torch.bfloat16, [torch.bfloat16, torch.bfloat16]),
    "one is rounded": ([EXACT, ROUNDED], torch.bfloat16, [torch.float32, torch.float32]),
    "no type is known": ([EXACT], None, [torch.float32]),
    "two types": ([EXACT, EXACT.half()], torch.bfloat16, [torch.float32, torch.float16]),
    "whole numbers": ([EXACT, torch.tensor([3])], torch.bfloat16, [torch.bfloat16, torch.int64]),
}


def model_of(weights: list[Tensor]) -> nn.Module:
    model = nn.Module()
    for number, weight in enumerate(weights):
        parameter = nn.Parameter(weight.clone(), requires_grad=False)
        model.register_parameter(f"weight{number}", parameter)
    return model


def types_of(model: nn.Module) -> list[torch.dtype]:
    return [weight.dtype for weight in model.parameters()]


def assert_weights(model: nn.Module, weights: list[Tensor]) -> None:
    """Type and every bit."""
    assert types_of(model) == [weight.dtype for weight in weights]
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        assert torch.equal(parameter.view(torch.uint8), weight.view(torch.uint8))


@pytest.mark.parametrize("case", CASES)
def test_weights_have_the_type_of_the_base_where_that_rounds_none(case: str) -> None:
    weights, dtype, types_inside = CASES[case]
    model = model_of(weights)
    with stored_as(model, dtype):
        assert types_of(model) == types_inside
    assert_weights(model, weights)


def test_weights_have_their_own_type_again_after_an_error() -> None:
    model: Any = model_of([EXACT])
    with pytest.raises(OSError), stored_as(model, torch.bfloat16):
        raise OSError
    assert_weights(model, [EXACT])
