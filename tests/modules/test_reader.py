"""Inner layers, one or several, against the float64 oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import families
import pytest
import reference
import torch
import transformers
from marks import Base
from oracle import TEXTS, assert_close, float64_model, oracle
from pipelines import build, encoded
from reference import hidden_and_attention, symmetrized_max
from torch import Tensor

from st_reba import backbones
from st_reba.modules import RepeatTransformer
from st_reba.modules.layers import ModuleCall, layers_of, watch_layers

DEPTH = 3
STATE_SIZE = 32
# The first release looks ahead in it.
DOGE_ERROR = "sees token 1" if transformers.__version__ == "5.0.0" else "position biases"
CASES: list[tuple[str, Any, str]] = [
    ("gpt2", 0, "mean"),
    ("gemma2", 1, "mean"),
    ("gpt_oss", -2, "mean"),
    ("gpt2", -1, "mean"),
    ("gpt2", [0, 3], "mean"),
    ("llama", [1, 2], "mean"),
    ("gemma2", [-3, -1], "mean"),
    ("gpt2", [0, 3], "concat"),
    ("llama", [1, 2], "concat"),
    ("gemma2", [-3, -1], "concat"),
]


def layer_range(layer: Any) -> tuple[int, int]:
    """The first and the last layer, counted from the embeddings on."""
    first_layer, last_layer = layer if isinstance(layer, list) else (layer, layer)
    return first_layer % (DEPTH + 1), last_layer % (DEPTH + 1)


def joined_states(layer_states: Tensor, first_layer: int, last_layer: int, join: str) -> Tensor:
    if first_layer == last_layer:
        return layer_states[first_layer]
    if join == "mean":
        return reference.mean_of_layers(layer_states, first_layer, last_layer)
    unit_states: list[Tensor] = []
    for states in layer_states[first_layer : last_layer + 1]:
        unit_states.append(states / states.norm(dim=1, keepdim=True))
    return torch.cat(unit_states, dim=1)


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize(("base_name", "layer", "join"), CASES)
@pytest.mark.parametrize("method", ["echo", "reba"])
def test_inner_layers_equal_the_oracle(
    base: Base,
    method: str,
    base_name: str,
    layer: Any,
    join: Any,
    final_norm: bool,
) -> None:
    """Echo's states, and ReBA's attention of the layers that are left."""
    path = base(base_name)
    model: Any = build(
        path,
        method,
        pooling="mean",
        layer=layer,
        join=join,
        final_norm=final_norm,
    )
    first_layer, last_layer = layer_range(layer)
    left_layers = max(1, last_layer)
    if method == "echo":
        watch_layers(model[0].model)  # which are watched already
    assert model[0].depth == len(layers_of(model[0].model)) == left_layers
    width = STATE_SIZE * (last_layer - first_layer + 1) if join == "concat" else STATE_SIZE
    assert model.get_embedding_dimension() == model[0].get_embedding_dimension() == width
    for text, vector in zip(TEXTS, encoded(model), strict=True):
        text_layout, _, _ = oracle(path, text, (None, None))
        layer_states = reference.layer_states(
            float64_model(path), text_layout.ids, final_norm=final_norm
        )
        states = joined_states(layer_states, first_layer, last_layer, join)
        if method == "echo":
            expected = reference.echo(states, text_layout, "mean")
        else:
            _, attention = hidden_and_attention(float64_model(path), text_layout.ids)
            fused_attention = symmetrized_max(attention[:left_layers])
            expected = reference.reba(states, fused_attention, text_layout, "mean")
        assert_close(vector, expected)


def test_layers_are_joined_by_their_mean_after_the_norm_unless_told_otherwise(base: Base) -> None:
    reading = {"of": "states", "first": 1, "last": 2}
    told = {"join": "mean", "final_norm": True}
    states: list[Tensor] = []
    for options in (reading, reading | told):
        transformer: Any = RepeatTransformer(base("llama"), reading=options)
        with torch.no_grad():
            states.append(transformer(transformer.preprocess(TEXTS))["token_embeddings"])
    assert torch.equal(*states)


@pytest.mark.parametrize(
    ("model_type", "options", "message"),
    [
        ("gpt_neo", {"layer": 1}, "numbered layers"),
        ("bloom", {"read": "attention"}, "attention blocks"),
        ("gemma3n_text", {"layer": 1}, "without the layers above it"),
        ("gemma3n_text", {"layer": [1, -1]}, "4-dimensional"),
        (
            "gemma3n_text",
            {"setting": "inter-back", "k": 1},
            "share keys and values",
        ),
        (
            "glm_moe_dsa",
            {"setting": "mask0-bidir", "k": 1},
            "^setting: layers choose their keys",
        ),
        ("doge", {"setting": "mask0-bidir", "k": 1}, DOGE_ERROR),
    ],
)
def test_bases_whose_layers_cannot_be_used_are_refused(
    model_type: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if model_type not in families.CAUSAL_LMS:
        pytest.skip(f"{model_type} is of a later transformers")
    families.save(model_type, tmp_path)
    with pytest.raises(ValueError, match=message):
        build(str(tmp_path), "echo", **options)


def test_another_list_of_the_same_length_is_not_taken_for_the_layers(
    base: Base,
) -> None:
    decoder = build(base("llama"), "echo")[0].model
    other_list = torch.nn.ModuleList([torch.nn.Identity() for _ in decoder.layers])
    other_list[0].layer_idx = 0
    decoder.embed_tokens.others = other_list
    assert layers_of(decoder) is decoder.layers


@pytest.mark.parametrize("is_by_name", [False, True])
def test_a_layer_runs_again_with_its_other_arguments(is_by_name: bool) -> None:
    states, other_states, output = torch.rand(3, 1, 2, 4)
    layer = Mock()
    layer.forward.return_value = output
    if is_by_name:
        layer_call = ModuleCall(layer, (), {"hidden_states": states, "position": 1})
        assert layer_call.repeat(other_states) is output
        layer.forward.assert_called_once_with(other_states, position=1)
    else:
        layer_call = ModuleCall(layer, (states, "mask"), {"position": 1})
        assert layer_call.repeat(other_states) is output
        layer.forward.assert_called_once_with(other_states, "mask", position=1)


def test_a_base_whose_states_change_without_its_upper_layers_is_refused(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_run_ids = backbones.run_ids
    factors = iter((1.0, 1 + 1e-5))

    def run_with_larger_embeddings(model: Any, token_ids: Any) -> Any:
        model.embed_tokens.weight.data.mul_(next(factors))
        return original_run_ids(model, token_ids)

    monkeypatch.setattr(backbones, "run_ids", run_with_larger_embeddings)
    with pytest.raises(ValueError, match="hidden states change"):
        build(base("llama"), layer=1)
