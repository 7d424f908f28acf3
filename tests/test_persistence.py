"""Loading a saved model as build runs one, and where a model is, as seen from what was made with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.persistence import load, loaded, located, place_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    st_reba.build("mini", "echo", check=False).save_pretrained(str(path))
    return path


def test_weights_run_as_they_would_after_build(folder: Path) -> None:
    """mini's are stored in bfloat16."""
    model: Any = load(folder, device="cpu")
    assert model[0].model.dtype == torch.float32
    assert load(folder, device="cpu", dtype="bfloat16").dtype == torch.bfloat16
    # What the caller says to transformers goes before.
    assert load(folder, device="cpu", model_kwargs={"dtype": "float16"}).dtype == torch.float16
    again, source = loaded(str(folder), None, device="cpu")
    assert source == str(folder) and np.array_equal(again.encode("hi"), model.encode("hi"))
    assert loaded(model, "org/model") == (model, "org/model") and loaded(str(folder), "x", device="cpu")[1] == "x"


def test_what_is_no_saved_model(tmp_path: Path) -> None:
    for place, message in (
        ("mini", "MODEL='mini' is a base model, not a saved embedder. Run: st-reba build mini FOLDER"),
        (str(tmp_path), "holds no modules.json: it is no saved model. Run: st-reba build"),
    ):
        with pytest.raises(ValueError, match=message):
            load(place)
    (tmp_path / "modules.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="0 modules"):
        load(tmp_path)


def test_a_place_moves_with_what_remembers_it(tmp_path: Path) -> None:
    model, index = tmp_path / "models" / "one", tmp_path / "data" / "index"
    for path in (model, index):
        path.mkdir(parents=True)
    place = place_of(model, index)
    assert place == os.path.join("..", "..", "models", "one") and located(place, index) == str(model)
    inside = index / "model"
    inside.mkdir()
    assert place_of(inside, index) == os.path.join(".", "model") and located("./model", index) == str(inside)
    # Through a link it is what the link leads to.
    (tmp_path / "link").symlink_to(index)
    assert located(place_of(model, tmp_path / "link"), tmp_path / "link") == str(model)
    # Anything else is a name on the Hub, and nobody knows what is not told.
    assert place_of("org/model", index) == located("org/model", index) == "org/model"
    assert place_of(None, index) is None
    with pytest.raises(ValueError, match="does not say where its model is; name it: --model"):
        located(None, index)
    moved = tmp_path / "elsewhere"
    model.rename(moved)
    with pytest.raises(ValueError, match="one', which is gone; name it: --model FOLDER"):
        located(place, index)
    assert located(place, index, must=False) == str(model)


def test_pickles_are_not_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a repository is not listed, as on the Hub."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("sentence_transformers.SentenceTransformer", lambda *_, **kwargs: asked.append(kwargs))
    load(folder)
    load(folder, model_kwargs={"use_safetensors": False})
    assert [each["model_kwargs"]["use_safetensors"] for each in asked] == [True, False]


def test_an_error_names_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **options: Any) -> SentenceTransformer:
        raise OSError("disk gone")

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", fails)
    with pytest.raises(ValueError, match="MODEL='.*model' could not be loaded: disk gone"):
        load(folder)
