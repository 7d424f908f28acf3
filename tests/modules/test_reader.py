"""Inner layers, one or several, against the float64 oracle."""

from __future__ import annotations

from typing import Any

import families
import pytest
import reference
import torch
import transformers
from marks import Base
from oracle import TEXTS, assert_close, double, oracle
from pipelines import build, encoded
from reference import hidden_and_attention, symmetrized_max

from st_reba import backbones
from st_reba.modules.layers import layers_of, watch_layers

DEPTH = 3
# The first release looks ahead in it.
DOGE = "sees token 1" if transformers.__version__ == "5.0.0" else "position biases"


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize(
    ("name", "layer", "join"),
    [
        ("gpt2", 0, "mean"), ("gemma2", 1, "mean"), ("gpt_oss", -2, "mean"), ("gpt2", -1, "mean"),
        ("gpt2", [0, 3], "mean"), ("llama", [1, 2], "mean"), ("gemma2", [-3, -1], "mean"),
        ("gpt2", [0, 3], "concat"), ("llama", [1, 2], "concat"), ("gemma2", [-3, -1], "concat"),
    ],
)  # fmt: skip
def test_several(base: Base, name: str, layer: Any, join: Any, final_norm: bool) -> None:
    """One layer, or several that are joined: Echo's states, and ReBA's attention of the layers that are left."""
    path, options = base(name), {"pooling": "mean", "layer": layer, "join": join, "final_norm": final_norm}
    first, last = (each % (DEPTH + 1) for each in (layer if isinstance(layer, list) else (layer, layer)))
    echo, reba = (build(path, method, **options) for method in ("echo", "reba"))
    watch_layers(echo[0].model)  # which are watched already
    width = 32 * (last - first + 1 if join == "concat" else 1)
    for model in (echo, reba):
        assert model.get_embedding_dimension() == model[0].get_embedding_dimension() == width
        assert model[0].depth == len(layers_of(model[0].model)) == max(1, last)
    for text, by_echo, by_reba in zip(TEXTS, encoded(echo), encoded(reba), strict=True):
        placed = oracle(path, text, (None, None))[0]
        states = reference.layer_states(double(path), placed.ids, final_norm=final_norm)
        fused = symmetrized_max(hidden_and_attention(double(path), placed.ids)[1][: max(1, last)])
        units = [states[each] / states[each].norm(dim=1, keepdim=True) for each in range(first, last + 1)]
        joined = torch.cat(units, dim=1) if width > 32 else reference.mean_of_layers(states, first, last)
        joined = states[first] if first == last else joined
        assert_close(by_echo, reference.echo(joined, placed, "mean"))
        assert_close(by_reba, reference.reba(joined, fused, placed, "mean"))


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gpt_neo", {"layer": 1}, "numbered layers"), ("bloom", {"read": "attention"}, "attention blocks"),
        ("gemma3n_text", {"layer": 1}, "without those above"), ("gemma3n_text", {"layer": [1, -1]}, "4-dimensional"),
        ("gemma3n_text", {"setting": "inter-back", "k": 1}, "share keys and values"),
        ("glm_moe_dsa", {"setting": "mask0-bidir", "k": 1}, "^setting: layers choose their keys"),
        ("doge", {"setting": "mask0-bidir", "k": 1}, DOGE),
    ],
)  # fmt: skip
def test_bases_that_are_refused(name: str, options: dict[str, Any], says: str, tmp_path: Any) -> None:
    assert name in families.CAUSAL_LMS or pytest.skip(f"{name} is of a later transformers")
    families.save(name, tmp_path)
    with pytest.raises(ValueError, match=says):
        build(str(tmp_path), "echo", **options)


def test_the_list_of_layers(base: Base) -> None:
    """Another list of the same length is not taken for it."""
    decoder = build(base("llama"), "echo")[0].model
    decoder.embed_tokens.others = torch.nn.ModuleList([torch.nn.Identity() for _ in decoder.layers])
    decoder.embed_tokens.others[0].layer_idx = 0
    assert layers_of(decoder) is decoder.layers


def test_states_must_stay(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    real, factor = backbones.run_ids, iter((1.0, 1 + 1e-5))
    monkeypatch.setattr(
        backbones, "run_ids", lambda m, ids: real(m, (m.embed_tokens.weight.data.mul_(next(factor)), ids)[1])
    )
    with pytest.raises(ValueError, match="hidden states change"):
        build(base("llama"), layer=1)
