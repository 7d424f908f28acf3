"""Models that no graph can hold are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import st_reba
from st_reba.onnx.graph import EmbeddingGraph


def build(base: str, **options: Any) -> SentenceTransformer:
    options = {"method": "reba", **options}
    return st_reba.build(base, dtype="float32", device="cpu", check=False, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 8},
        {"method": "prompteol", "template": "metaeol"},
        {"method": "prompteol", "template": "{reversed}:"},
        {"method": "echo", "template": "{topic} {text} {text}"},
        {"method": "echo", "template": "echo-instruct", "instruction": "Find it."},
        {"prompts": {"query": "Question: ", "document": ""}},
    ],
)
def test_methods(base: Callable[..., str], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        EmbeddingGraph(build(base("qwen3"), **options))


def changed(part: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model[0].model.config, part, value)


@pytest.mark.parametrize(
    "change",
    [
        changed("rope_parameters", {"rope_type": "dynamic", "factor": 2.0}),
        changed("layer_types", ["linear_attention", "full_attention"]),
        lambda model: model[0].model.to(torch.bfloat16),
        lambda model: setattr(model, "truncate_dim", 8),
        lambda model: setattr(model[1], "pooling_mode", "weightedmean"),
        lambda model: model.append(Dense(32, 32, use_residual=True)),
        lambda model: model.append(Dense(32, 8, module_output_name="other")),
        lambda model: model.append(torch.nn.Identity()),
    ],
)
def test_bases_and_modules(base: Callable[..., str], change: Callable[[Any], None]) -> None:
    model = build(base("qwen3"), method="classical")
    EmbeddingGraph(model)
    change(model)
    with pytest.raises(ValueError):
        EmbeddingGraph(model)
