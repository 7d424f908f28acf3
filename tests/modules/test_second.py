"""Layers that run a second time: by hand on a text of one token, which every kind of layer sees alike; and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pipelines import pipeline, transformer
from torch import Tensor, nn

from st_reba import LayerPlan

Base = Callable[..., str]


@pytest.mark.parametrize(
    ("plan", "by_hand"),
    [
        (LayerPlan("inter", k=1), lambda e, one, two, norm: norm(2 * two(one(e)))),
        (LayerPlan("inter", k=2), lambda e, one, two, norm: norm(2 * two(2 * one(e)))),
        # From the input of layer 1 on, beside it, and summed before the norm.
        (LayerPlan("inter", k=1, variant="published"), lambda e, one, two, norm: norm(2 * two(one(e)))),
        (LayerPlan("extra", k=1), lambda e, one, two, norm: norm(two(one(e))) + norm(two(e))),
        (LayerPlan("extra", k=2), lambda e, one, two, norm: 2 * norm(two(one(e)))),
        (LayerPlan("extra", k=1, variant="published"), lambda e, one, two, norm: norm(two(one(e)) + two(e))),
        (LayerPlan("extend", k=2), lambda e, one, two, norm: norm(two(two(two(one(e)))))),
    ],
)
def test_one_token(base: Base, plan: LayerPlan, by_hand: Callable[..., Tensor]) -> None:
    first: Any = transformer(base("llama", "plain"), "nosink", [plan])
    features = first.preprocess(["a"])
    assert features["input_ids"].shape == (1, 1)
    model = first.model

    def run(layer: Any) -> Callable[[Tensor], Tensor]:
        def forward(hidden: Tensor) -> Tensor:
            found = layer.forward(hidden, position_embeddings=angles, attention_mask=None)
            return found[0] if isinstance(found, tuple) else found

        return forward

    # A norm hides how large its input is, and none hides which of both was normed.
    for norm in (model.norm, nn.Identity()):
        model.norm = norm
        with torch.inference_mode():
            entering = model.embed_tokens(features["input_ids"])
            angles = model.rotary_emb(entering, torch.zeros(1, 1, dtype=torch.long))
            wanted = by_hand(entering, *map(run, model.layers), norm)
            torch.testing.assert_close(first(features)["token_embeddings"], wanted, rtol=1e-5, atol=1e-5)


def test_layers_that_do_not_say_their_number_cannot_run_twice() -> None:
    model: Any = pipeline("mini", "nosink", [LayerPlan()])
    for layer in model[0].model.layers:
        layer.self_attn.layer_idx = None
    with pytest.raises(ValueError, match="no list of 6 layers that say their layer_idx, so none can run twice"):
        model[0].rebind([LayerPlan("inter", k=1)])


def test_layers_that_cannot_run_twice(base: Base) -> None:
    """Whose keys are read by others, or whose states have a further dimension."""
    first: Any = transformer(base("llama"), "nosink", [LayerPlan("inter", k=1)])
    features = first.preprocess(["hi"])
    first.model.layers[1].register_forward_hook(lambda *given: given[2][None], prepend=True)
    with pytest.raises(ValueError, match="LlamaDecoderLayer passes on 4-dimensional hidden states, not .B, T, d."):
        first(features)
    first.model.config.num_kv_shared_layers = 1
    with pytest.raises(ValueError, match="LlamaModel read the keys and values of others, which a second pass would"):
        first.rebind([LayerPlan("extra", k=1)])
    first.rebind([LayerPlan(k=1)])
