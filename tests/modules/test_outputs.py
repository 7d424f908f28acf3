"""What is read of prompts, against float64: attention outputs, and the weighted sum of several prompts' vectors."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import reference
import torch
from marks import Base
from oracle import assert_close, float64_model
from pipelines import build, encoded, features_of
from torch import Tensor

from st_reba import PromptEnsemble
from st_reba.modules import blocks
from st_reba.modules.outputs import AfterSibling, watch_attention
from st_reba.modules.passes import ForwardPass, running

TEMPLATES = ["A {text} B", 'This: "{text}" is "', "{text}"]


def attention_outputs(model: Any, token_ids: list[int]) -> list[Tensor]:
    """Σ over heads of W_O · A · W_V · norm(x) of every layer, [T, d] each, by its probabilities and what enters it."""
    length = len(token_ids)
    states = reference.layer_states(model, token_ids, final_norm=False)
    _, attention = reference.hidden_and_attention(model, token_ids)
    outputs: list[Tensor] = []
    for layer, block in enumerate(model.layers):
        values = block.self_attn.v_proj(block.input_layernorm(states[layer]))
        group_values = values.view(length, model.config.num_key_value_heads, -1)
        head_values = group_values.repeat_interleave(2, dim=1)
        head_outputs = torch.einsum("hqt,thd->qhd", attention[layer], head_values)
        outputs.append(block.self_attn.o_proj(head_outputs.reshape(length, -1)))
    return outputs


@pytest.mark.parametrize(
    ("read_layers", "first_layer", "last_layer"),
    [(None, 2, 3), ((1, 3), 1, 3), (2, 2, 2)],
    ids=["the upper half by default", "a range", "one"],
)
@pytest.mark.parametrize("base_name", ["llama", "gemma2"])
def test_outputs_are_the_mean_over_layers(
    base: Base,
    base_name: str,
    read_layers: Any,
    first_layer: int,
    last_layer: int,
) -> None:
    """The layers above the highest are cut off; Gemma's outputs pass a norm, and count before and after it."""
    path = base(base_name)
    model: Any = build(path, "prompteol", read="attention", layer=read_layers)
    watch_attention(model[0].model)  # which is watched already
    assert model[0].depth == last_layer
    features = features_of(model)
    for row, vector in enumerate(encoded(model)):
        row_length = features["spans"][row].row_length
        token_ids = features["input_ids"][row][:row_length].tolist()
        layers = slice(first_layer - 1, last_layer)
        with torch.no_grad():
            reference_model: Any = float64_model(path)
            outputs = attention_outputs(reference_model, token_ids)
            expected_vector = torch.stack(outputs[layers]).mean(dim=0)[-1]
            if base_name == "gemma2":
                normed_outputs: list[Tensor] = []
                for block, output in zip(reference_model.layers, outputs, strict=True):
                    normed_outputs.append(block.post_attention_layernorm(output))
                normed_mean = torch.stack(normed_outputs[layers]).mean(dim=0)[-1]
                expected_vector = expected_vector / expected_vector.norm()
                expected_vector = expected_vector + normed_mean / normed_mean.norm()
        assert_close(vector, expected_vector)


def test_a_module_that_gets_its_input_by_name_takes_no_part(base: Base) -> None:
    """It is shown to be no norm of the attention's output, as these are called by position."""
    model = build(base("llama"), "prompteol")
    forward_pass = ForwardPass(model[0].model, features_of(model, ["a"]))
    observe_module = Mock()
    forward_pass.after_sibling.append(observe_module)
    module = torch.nn.Identity()
    module.register_forward_hook(AfterSibling())
    with running(forward_pass):
        module(input=torch.ones(1))
        observe_module.assert_not_called()
        module(torch.ones(1))
        observe_module.assert_called_once()


@pytest.mark.parametrize("equal_norms", [True, False])
@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ("prompteol", (1.0, -0.5, 0.25)),
        ("reba:pooling=mean", (0.2, 0.3, 0.5)),
        ("prompteol", None),
    ],
)
def test_an_ensemble_is_the_weighted_sum_of_its_prompts(
    base: Base,
    method: str,
    weights: Any,
    equal_norms: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default the average; the texts of a batch begin apart, and blocks hold some of ReBA's anchors, or none."""
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 1 << 11)
    path = base("llama", "bos_eos")
    model = build(
        path,
        method,
        template=TEMPLATES,
        weights=weights,
        equal_norms=equal_norms,
    )
    expected_vectors = torch.zeros((), dtype=torch.float64)
    for template, weight in zip(TEMPLATES, weights or [1 / 3] * 3, strict=True):
        prompt_vectors = encoded(build(path, method, template=template)).double()
        if equal_norms:
            prompt_vectors /= prompt_vectors.norm(dim=1, keepdim=True)
        expected_vectors = expected_vectors + weight * prompt_vectors
    for vector, expected in zip(encoded(model), expected_vectors, strict=True):
        assert_close(vector, expected)


def test_a_zero_vector_stays_zero_in_an_ensemble() -> None:
    first_text = [[3.0, 4.0], [5.0, 6.0], [0.0, 0.0]]
    second_text = [[0.0, 2.0], [5.0, 6.0], [1.0, 0.0]]
    features = {"sentence_embedding": torch.tensor([*first_text, *second_text])}
    ensemble = PromptEnsemble([1.0, 0.0, -1.0])
    assert ensemble(features)["sentence_embedding"].tolist() == [
        [0.0, 0.0],
        [-1.0, 1.0],
    ]


def test_a_transformer_of_another_package_has_one_template() -> None:
    with pytest.raises(ValueError, match="the 1 templates of object"):
        PromptEnsemble([1.0, 1.0]).on_model_ready([object()])
