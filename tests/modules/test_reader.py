"""Inner layers, one or several, against the float64 oracle."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import families
import pytest
import reference
import torch
from marks import Base
from oracle import TEXTS, assert_close, double, oracle
from pipelines import build, encoded
from reference import hidden_and_attention, symmetrized_max
from sentence_transformers import SentenceTransformer

from st_reba import bases
from st_reba.modules.layers import layers_of, watch_layers

DEPTH, TWICE = 3, (None, None)


@pytest.mark.parametrize(
    ("name", "reading"), zip(cycle(["gpt2", "gemma2", "gpt_oss"]), product([0, 1, -2, -1], [True, False]), strict=False)
)
def test_one(base: Base, name: str, reading: tuple[int, bool]) -> None:
    """A model that reads layer k has k layers: Echo's states, and ReBA's attention of these alone."""
    path, (layer, final_norm) = base(name), reading
    number = layer % (DEPTH + 1)
    echo, reba = (
        build(path, method, pooling="mean", layer=layer, final_norm=final_norm) for method in ("echo", "reba")
    )
    assert {echo[0].depth, reba[0].depth} == {max(1, number)}
    for text, by_echo, by_reba in zip(TEXTS, encoded(echo), encoded(reba), strict=True):
        placed = oracle(path, text, TWICE)[0]
        hidden = reference.layer_states(double(path), placed.ids, final_norm=final_norm)[number]
        maps = hidden_and_attention(double(path), placed.ids)[1]
        assert_close(by_echo, reference.echo(hidden, placed, "mean"))
        assert_close(by_reba, reference.reba(hidden, symmetrized_max(maps[: max(1, number)]), placed, "mean"))


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("join", ["mean", "concat"])
@pytest.mark.parametrize(("name", "ends"), [("gpt2", (0, 3)), ("llama", (1, 2)), ("gemma2", (-3, -1))])
def test_several(base: Base, name: str, ends: tuple[int, int], join: Any, final_norm: bool) -> None:
    path, (first, last) = base(name), (each % (DEPTH + 1) for each in ends)
    model = build(path, "echo", pooling="mean", layer=list(ends), join=join, final_norm=final_norm)
    watch_layers(model[0].model)  # which are watched already
    width = 32 * (last - first + 1 if join == "concat" else 1)
    assert model.get_embedding_dimension() == model[0].get_embedding_dimension() == width
    for text, vector in zip(TEXTS, encoded(model), strict=True):
        placed = oracle(path, text, TWICE)[0]
        states = reference.layer_states(double(path), placed.ids, final_norm=final_norm)
        units = [states[each] / states[each].norm(dim=1, keepdim=True) for each in range(first, last + 1)]
        joined = reference.mean_of_layers(states, first, last) if join == "mean" else torch.cat(units, dim=1)
        assert_close(vector, reference.echo(joined, placed, "mean"))


def test_saved(base: Base, tmp_path: Any) -> None:
    """The file holds the layers that run alone, of a kind each, and the model reads what it read."""
    for number, options in enumerate(({"layer": 1}, {"layer": [1, 2], "join": "concat"})):
        model = build(base("gemma2"), "reba", **options)
        model.save_pretrained(str(tmp_path / str(number)))
        again = SentenceTransformer(str(tmp_path / str(number)), device="cpu")
        assert torch.equal(encoded(again), encoded(model)) and again[0].depth == number + 1
        assert sum(".layers." in name for name in again[0].state_dict()) == 11 * (number + 1)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gpt_neo", {"layer": 1}, "numbered layers"), ("bloom", {"read": "attention"}, "attention blocks"),
        ("gemma3n_text", {"layer": 1}, "without those above"), ("gemma3n_text", {"layer": [1, -1]}, "4-dimensional"),
        ("gemma3n_text", {"setting": "inter-back", "k": 1}, "share keys and values"),
        ("glm_moe_dsa", {"setting": "mask0-bidir", "k": 1}, "^setting: layers choose their keys"),
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
    real, factor = bases._run, iter((1.0, 1 + 1e-5))
    monkeypatch.setattr(bases, "_run", lambda m, ids: real(m, (m.embed_tokens.weight.data.mul_(next(factor)), ids)[1]))
    with pytest.raises(ValueError, match="hidden states change"):
        build(base("llama"), layer=1)
