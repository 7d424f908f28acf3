"""What is read of prompts, against float64: attention outputs, and the weighted sum of several prompts' vectors."""

from __future__ import annotations

from typing import Any

import pytest
import reference
import torch
from marks import Base
from oracle import assert_close, double
from pipelines import build, encoded, features_of
from torch import Tensor

from st_reba import PromptEnsemble
from st_reba.modules import blocks
from st_reba.modules.outputs import watch_attention

TEMPLATES = ["A {text} B", 'This: "{text}" is "', "{text}"]


def outputs(model: Any, ids: list[int]) -> list[Tensor]:
    """Σ over heads of W_O · A · W_V · norm(x) of every layer, [T, d] each, by its probabilities and what enters it."""
    states = reference.layer_states(model, ids, final_norm=False)
    maps, found = reference.hidden_and_attention(model, ids)[1], []
    for layer, block in enumerate(model.layers):
        value = block.self_attn.v_proj(block.input_layernorm(states[layer]))
        value = value.view(len(ids), model.config.num_key_value_heads, -1).repeat_interleave(2, dim=1)
        mixed = torch.einsum("hqt,thd->qhd", maps[layer], value)
        found.append(block.self_attn.o_proj(mixed.reshape(len(ids), -1)))
    return found


@pytest.mark.parametrize("ends", [None, (1, 3), 2])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
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
            assert_close(vector, torch.stack(outputs(double(path), ids)[first - 1 : last]).mean(dim=0)[-1])


@pytest.mark.parametrize("equal_norms", [True, False])
@pytest.mark.parametrize(
    ("method", "weights"),
    [("prompteol", (1.0, -0.5, 0.25)), ("reba:pooling=mean", (0.2, 0.3, 0.5)), ("prompteol", None)],
)
def test_ensembles(base: Base, method: str, weights: Any, equal_norms: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the average; the texts of a batch begin apart, and blocks hold some of ReBA's anchors, or none."""
    monkeypatch.setattr(blocks, "BLOCK", 1 << 11)
    path = base("llama", "bos_eos")
    model = build(path, method, template=TEMPLATES, weights=weights, equal_norms=equal_norms)
    each = torch.stack([encoded(build(path, method, template=template)).double() for template in TEMPLATES])
    each /= each.norm(dim=2, keepdim=True) if equal_norms else 1.0
    wanted = torch.einsum("p,pbd->bd", torch.tensor(weights or [1 / 3] * 3, dtype=torch.float64), each)
    for got, vector in zip(encoded(model), wanted, strict=True):
        assert_close(got, vector)


def test_ensembles_by_hand() -> None:
    """A zero vector stays zero; a transformer of another package has one template."""
    vectors = torch.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, 0.0], [0.0, 2.0], [5.0, 6.0], [1.0, 0.0]])
    joined = PromptEnsemble([1.0, 0.0, -1.0])({"sentence_embedding": vectors})["sentence_embedding"]
    assert joined.tolist() == [[0.0, 0.0], [-1.0, 1.0]]
    with pytest.raises(ValueError, match="the 1 templates of object"):
        PromptEnsemble([1.0, 1.0]).on_model_ready([object()])
