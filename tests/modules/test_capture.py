"""Rows of A^new: the layers that must show theirs, and where the anchors stand in a block."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from marks import Base
from pipelines import build, encoded

from st_reba.modules.blocks import ScoreTerms
from st_reba.modules.capture import BackwardAttention, Capture

KINDS = ["full_attention", "full_attention", "linear_attention", "mamba", "mamba", "mamba"]


@pytest.mark.parametrize("second", [None, ["once more"]])
@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, 6),
        ({"layer_types": KINDS}, 2),
        ({"layers_block_type": ["hybrid", *KINDS]}, 3),
        ({"layer_types": [*"ab"]}, 6),
    ],
)
def test_every_attention_must_show(config: dict[str, Any], layers: int, second: list[str] | None) -> None:
    """That of a layer that runs twice, twice."""
    config = SimpleNamespace(num_hidden_layers=6, **config)  # type: ignore[assignment]
    transformer = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    backward = BackwardAttention([(0, 1)], torch.ones(1, 2, dtype=torch.bool))
    masks = None if second is None else SimpleNamespace(second=second)
    state: Any = SimpleNamespace(transformer=transformer, masks=masks, backward=backward, features={})
    for _ in range(layers + len(second or ())):
        with pytest.raises(ValueError, match="showed theirs"):
            Capture("last").finish(state, state)
        backward.attend(*torch.zeros(3, 1, 1, 2, 4), ScoreTerms(causal=True), False)
    assert Capture("last").finish(state, state) is state
    assert state.features["backward_attention"].tolist() == [[[1.0, 0.25]]]


def test_attention_that_is_observed(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; a layer whose hook is lost is missed."""
    model: Any = build(base("bloom"))
    wanted = encoded(model)
    assert torch.equal(encoded(model), wanted) and caplog.text.count("eager attention is observed") == 1
    model[0].model.h[0].self_attention._forward_hooks.clear()
    with pytest.raises(ValueError, match="2 layers, but 1 showed"):
        encoded(model)


@pytest.mark.parametrize(("number", "keys"), list(product((1, 2), (1, 2, 3))))
def test_texts_that_begin_apart(number: int, keys: int) -> None:
    """A block with few keys holds some of their anchors, or none."""
    backward = BackwardAttention([(0, number), (1, number)], torch.ones(2, 4, dtype=torch.bool))
    block, wanted = torch.rand(2, 3, 5, keys), torch.zeros(2, number, 5)
    for text, place in product((0, 1), range(number)):
        if text + place < keys:
            wanted[text, place] = block[text, :, :, text + place].amax(dim=0)
    assert torch.equal(backward.columns(block), wanted)
