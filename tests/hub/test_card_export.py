"""What a card says of ONNX: the command that it gives is one that `st-reba onnx` takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import Base
from pipelines import PIPELINES, build
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import st_reba
from st_reba import QueryShift, TokenPart
from st_reba.graph_rules import GraphTask, tasks_of_graphs
from st_reba.hub import save
from st_reba.onnx.graph import EmbeddingGraph

PROMPTS = {"query": "Find it", "document": "Doc: "}
# Options of build besides the pipelines of every kind.
OPTIONS: dict[str, dict[str, Any]] = {
    **PIPELINES,
    "default": {"method": None},
    "two wordings": {"method": "echo", "template": {"query": "Q: {text}", "document": "{text}"}},
    "prompt": {"method": "echo", "prompts": {"query": "Q: "}},
    "same prompts": {"method": "echo", "prompts": {"query": "Q: ", "document": "Q: "}},
    "field": {"method": "echo", "template": "{topic} {text} {text}"},
    "instruction": {"method": "echo", "template": "echo-instruct"},
    "instructions": {"method": "echo", "template": "echo-instruct", "prompts": PROMPTS},
    "instruction of all": {
        "method": "echo",
        "template": "{instruction} {text}",
        "prompts": PROMPTS,
    },
    "cut": {"truncate_dim": 8},
    "reversed once": {"method": "prompteol", "template": "{reversed}:"},
}


def set_rotation(model: Any) -> None:
    model[0].model.config.update({"rope_parameters": {"rope_type": "dynamic"}})


CHANGES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda model: None,
    "shift": lambda model: model.append(QueryShift(32)),
    "tokens": lambda model: model.append(TokenPart(32, len(model.tokenizer), 32, 3, share=0.4)),
    "own input": lambda model: setattr(model[0], "own_input", True),
    "rotation": set_rotation,
    "other pooling": lambda model: setattr(model[1], "pooling_mode", "weightedmean"),
    "no pooling": lambda model: model.pop(1),
    "dense": lambda model: model.append(Dense(32, 8)),
    "residual": lambda model: model.append(Dense(32, 32, use_residual=True)),
    "other output": lambda model: model.append(Dense(32, 8, module_output_name="other")),
    "other module": lambda model: model.append(torch.nn.Identity()),
}


def accepted_graphs(model: SentenceTransformer) -> dict[GraphTask, EmbeddingGraph]:
    graphs: dict[GraphTask, EmbeddingGraph] = {}
    tasks: list[GraphTask] = [None, "document", "query", "similarity"]
    for task in tasks:
        try:
            graphs[task] = EmbeddingGraph(model, task)
        except ValueError:
            continue
    return graphs


def assert_described(model: SentenceTransformer) -> None:
    """Assert that the card names the tasks that a graph takes, and no other."""
    graphs = accepted_graphs(model)
    described_tasks = tasks_of_graphs(model)
    if not graphs:
        assert described_tasks is None
        return
    if None in graphs:
        assert described_tasks == []
        return
    similarity = graphs.get("similarity")
    document = graphs.get("document")
    if similarity is not None and document is not None and similarity.layout == document.layout:
        del graphs["similarity"]
    assert described_tasks == list(graphs)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_card_names_the_tasks_that_a_graph_takes(base: Base, name: str) -> None:
    options = dict(OPTIONS[name])
    assert_described(build(base("llama"), options.pop("method", "reba"), check=False, **options))


@pytest.mark.parametrize("change", CHANGES)
def test_a_card_knows_the_modules_that_a_graph_takes(base: Base, change: str) -> None:
    model = build(base("llama"), "classical", check=False)
    CHANGES[change](model)
    assert_described(model)


def test_a_tokenizer_without_a_file_cannot_be_exported(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = build(base("llama"), "classical", check=False)
    assert tasks_of_graphs(model) is not None
    monkeypatch.setattr(type(model.tokenizer), "is_fast", False)
    assert tasks_of_graphs(model) is None
    with pytest.raises(ValueError, match=r"without tokenizer\.json"):
        EmbeddingGraph(model)


def test_quantized_weights_cannot_be_exported(base: Base) -> None:
    model: Any = build(base("llama"), "classical", check=False)
    model[0].model.hf_quantizer = object()
    assert tasks_of_graphs(model) is None
    assert not accepted_graphs(model)


@pytest.mark.parametrize(
    ("options", "command", "sentence"),
    [
        ({"method": "echo"}, "exported\n```\n\nDo not serve", ""),
        (
            {},
            "exported --task document\n```\n",
            "That graph embeds documents only. `--task query` writes one for queries, `--task similarity` one for "
            "what `encode` takes, into a folder of its own.",
        ),
        (
            {"method": "echo", "template": "echo-instruct"},
            "exported --task document\n```\n",
            "That graph embeds documents only.\n",
        ),
    ],
    ids=["one graph", "three", "only documents"],
)
def test_a_card_gives_a_command_that_works(
    tmp_path: Path, options: dict[str, Any], command: str, sentence: str
) -> None:
    card = saved_card(tmp_path, **options)
    assert f"\nst-reba onnx path/to/model {command}" in card
    assert sentence in card
    assert ("That graph embeds" in card) == bool(sentence)


@pytest.mark.parametrize(
    "options", [{"method": "reba", "chunk": 20}, {"template": "contrastive"}], ids=str
)
def test_a_card_of_a_model_that_no_graph_can_hold_has_no_command(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    card = saved_card(tmp_path, **options)
    assert "Without torch" not in card
    assert "st-reba onnx" not in card


def saved_card(tmp_path: Path, **options: Any) -> str:
    model = st_reba.build("mini", device="cpu", **options)
    save(model, tmp_path / "model", golden=False)
    return (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
