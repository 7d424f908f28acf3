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


@pytest.mark.parametrize(
    ("is_safe", "file_name"), [(True, "model.safetensors"), (False, "pytorch_model.bin")]
)
def test_weights_are_saved_in_the_format_that_is_asked_for(
    tmp_path: Path, is_safe: bool, file_name: str
) -> None:
    QueryShift(2, SHIFT).save(str(tmp_path), safe_serialization=is_safe)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", file_name}
    assert torch.equal(QueryShift.load(str(tmp_path)).get_buffer("shift"), SHIFT)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A saved model that ends with a shift."""
    model = st_reba.build("mini", "classical", device="cpu")
    modules = [*model, QueryShift(192, torch.ones(192))]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path))
    return tmp_path


def test_a_saved_shift_is_loaded(model_folder: Path) -> None:
    loaded_model = st_reba.load(model_folder, device="cpu")
    assert torch.equal(loaded_model[-1].shift, torch.ones(192))


@pytest.mark.parametrize(
    ("size", "message"),
    [("10000000000", "is not a value of a QueryShift"), ("1000000", "configuration asks for")],
)
def test_a_shift_larger_than_its_weights_is_refused(
    model_folder: Path, size: str, message: str
) -> None:
    """Before memory is taken for what the configuration asks for."""
    config_path = model_folder / "3_QueryShift" / "config.json"
    config_path.write_text(config_path.read_text().replace("192", size))
    with pytest.raises(ValueError, match=message):
        st_reba.load(model_folder)
