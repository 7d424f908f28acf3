"""The same models for every consumer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from given import PROMPTS
from sentence_transformers import SentenceTransformer

import st_reba


@pytest.fixture(scope="session")
def models() -> dict[str, SentenceTransformer]:
    """Models as built, never saved: what every consumer is held against."""
    return {
        "echo": st_reba.build("mini", "echo", prompts=PROMPTS, device="cpu"),
        "reba": st_reba.build("mini", "reba", pooling="mean", device="cpu"),
    }


@pytest.fixture(scope="session")
def places(models: dict[str, SentenceTransformer], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each model, a folder that holds it as ``my_model``."""
    places = {name: tmp_path_factory.mktemp(name) for name in models}
    for name, model in models.items():
        model.save_pretrained(str(places[name] / "my_model"))
    return places


@pytest.fixture(scope="session")
def vectors(models: dict[str, SentenceTransformer]) -> Any:
    """``vectors(name, texts, how)``: a model's own; how: "plain", "query", "document", or a prompt."""

    def encode(name: str, texts: list[str], how: str) -> Any:
        model = models[name]
        methods = {"plain": model.encode, "query": model.encode_query, "document": model.encode_document}
        return methods[how](texts) if how in methods else model.encode(texts, prompt=how)

    return encode
