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


def test_reversed(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    """A reversed text's row is what the text, reversed by hand, has; cut texts lose the same words."""
    path, texts = base("llama"), ["the cat  sat.", "猫在GPU上。", "x"]
    model: Any = build(path, "prompteol", template=["A {text} B", "A {reversed} B"], weights=[1.0, 2.0])
    each = [
        encoded(build(path, "prompteol", template="A {text} B"), given)
        for given in (texts, ["sat.  cat the", "。上GPU在猫", "x"])
    ]
    units = [torch.nn.functional.normalize(one.double(), dim=1) for one in each]
    for limit, room in ((256, 251), (10**30, None)):
        model[0].tokenizer.model_max_length = limit
        assert model[0].budget() == room
        for got, wanted in zip(encoded(model, texts), units[0] + 2 * units[1], strict=True):
            assert_close(got, wanted)
    short: Any = build(path, "classical", template="{reversed}", max_seq_length=8)
    long = " ".join(f"{n}" for n in range(50))
    features_of(short, [long[: short[0].content([long], offsets=True)["offset_mapping"][0][6][1]]])
    assert "was cut to" not in caplog.text
    for _ in range(2):
        ids = features_of(short, ["x", long])["input_ids"][1]
        assert caplog.text.count("was cut to 7 a copy") == 1
    assert ids[-1] == short[0].content([long])["input_ids"][0][0]
