"""QueryShift: what it adds, to which vectors, and what it refuses to load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import QueryShift

SHIFT = torch.tensor([1.0, -2.0])


def test_only_queries_are_shifted() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
    features = {"sentence_embedding": vectors}
    module = QueryShift(2, SHIFT)
    assert torch.equal(module(features, task="query")["sentence_embedding"], vectors + SHIFT)
    for task in (None, "document", "similarity"):
        assert torch.equal(module(features, task=task)["sentence_embedding"], vectors)
    assert torch.equal(features["sentence_embedding"], vectors)


def test_shift_is_not_trained() -> None:
    assert list(QueryShift(2, SHIFT).parameters()) == []


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    QueryShift(2, SHIFT).save_config(str(tmp_path))
    with pytest.raises(ValueError, match="Could not find 'model.safetensors'"):
        QueryShift.load(str(tmp_path))


def test_configuration_larger_than_the_weights_is_refused(tmp_path: Path) -> None:
    """Before memory is taken for what the configuration asks for."""
    model = st_reba.build("mini", "classical", device="cpu")
    shift = QueryShift(192, torch.ones(192))
    SentenceTransformer(modules=[*model, shift], device="cpu").save_pretrained(str(tmp_path))
    config = tmp_path / "3_QueryShift" / "config.json"
    config.write_text(config.read_text().replace("192", "193"))
    with pytest.raises(ValueError, match="QueryShift/model.safetensors: shift"):
        st_reba.load(tmp_path)
