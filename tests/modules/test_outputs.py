"""Attention outputs and reversed texts, against float64 and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import reference
import torch
from marks import Base
from oracle import assert_close, double
from pipelines import build, encoded, features_of
from torch import Tensor

from st_reba.modules.outputs import watch_attention


def outputs(model: Any, ids: list[int]) -> list[Tensor]:
    """Σ over heads of W_O · A · W_V · norm(x) of every layer, [T, d] each, by its probabilities and what enters it."""
    states = reference.layer_states(model, ids, final_norm=False)
    maps = reference.hidden_and_attention(model, ids)[1]
    found = []
    for layer, block in enumerate(model.layers if hasattr(model, "layers") else model.h):
        if hasattr(block, "self_attn"):
            value = block.self_attn.v_proj(block.input_layernorm(states[layer]))
            project, heads = block.self_attn.o_proj, model.config.num_key_value_heads
        else:
            value = block.attn.c_attn(block.ln_1(states[layer])).chunk(3, dim=-1)[2]
            project, heads = block.attn.c_proj, model.config.n_head
        value = value.view(len(ids), heads, -1).repeat_interleave(maps.shape[1] // heads, dim=1)
        mixed = torch.einsum("hqt,thd->qhd", maps[layer], value)
        found.append(project(mixed.reshape(len(ids), -1)))
    return found


@pytest.mark.parametrize("ends", [None, (1, 3), 2])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_outputs(base: Base, name: str, ends: Any) -> None:
    """By default those of the upper half; the layers above the highest are cut off."""
    path = base(name)
    model: Any = build(path, "prompteol", read="attention", layer=ends)
    watch_attention(model[0].model)  # which is watched already
    first, last = {None: (2, 3), 2: (2, 2)}.get(ends, ends)
    assert model[0].depth == last
    features = features_of(model)
    with torch.no_grad():
        for row, vector in enumerate(encoded(model)):
            ids = features["input_ids"][row][: features["spans"][row].total].tolist()
            wanted = torch.stack(outputs(double(path), ids)[first - 1 : last]).mean(dim=0)[-1]
            assert_close(vector, wanted)
