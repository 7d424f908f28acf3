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


def test_a_saved_shift_loads_and_one_larger_than_its_weights_is_refused(
    tmp_path: Path,
) -> None:
    """Before memory is taken for what the configuration asks for."""
    model = st_reba.build("mini", "classical", device="cpu")
    shift = QueryShift(192, torch.ones(192))
    SentenceTransformer(modules=[*model, shift], device="cpu").save_pretrained(str(tmp_path))
    loaded = st_reba.load(tmp_path, device="cpu")
    assert torch.equal(loaded[-1].shift, shift.shift)
    config = tmp_path / "3_QueryShift" / "config.json"
    saved = config.read_text()
    for size, message in (
        ("10000000000", "is no value of a QueryShift"),
        ("1000000", "configuration asks for"),
    ):
        config.write_text(saved.replace("192", size))
        with pytest.raises(ValueError, match=message):
            st_reba.load(tmp_path)
