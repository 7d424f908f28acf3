"""The same models for every consumer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from consumer_texts import PROMPTS
from sentence_transformers import SentenceTransformer

import st_reba


@pytest.fixture(scope="session")
def models() -> dict[str, SentenceTransformer]:
    """Models as built, never saved: what every consumer is held against."""
    return {
        "default": st_reba.build("mini", device="cpu"),
        "echo": st_reba.build("mini", "echo", prompts=PROMPTS, device="cpu"),
        "reba": st_reba.build("mini", "reba", pooling="mean", device="cpu"),
    }


@pytest.fixture(scope="session")
def model_parents(
    models: dict[str, SentenceTransformer],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """For each model, a folder that holds it as ``my_model``."""
    parents: dict[str, Path] = {}
    for name, model in models.items():
        parents[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(str(parents[name] / "my_model"))
    return parents


@pytest.fixture(scope="session")
def model_vectors(models: dict[str, SentenceTransformer]) -> Any:
    """``vectors(name, texts, task)``: a model's own; task: "plain", "query", "document", or a prompt."""

    def encode(model_name: str, texts: list[str], task: str) -> Any:
        model = models[model_name]
        if task == "plain":
            return model.encode(texts)
        if task == "query":
            return model.encode_query(texts)
        if task == "document":
            return model.encode_document(texts)
        return model.encode(texts, prompt=task)

    return encode
