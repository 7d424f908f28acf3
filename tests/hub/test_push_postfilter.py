"""A model with a post-filter on the Hub: pushed, verified there, and loaded by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from server import Hub

import st_reba
from st_reba.hub.push import push
from st_reba.hub.saving import save

TEXTS = [f"{name} {deed} {number}" for name in ("Ann", "王芳") for deed in ("sells", "忘记了") for number in range(25)]


@pytest.mark.slow
def test_pushed_and_loaded(hub: Hub, tmp_path: Path) -> None:
    model = st_reba.fit_postfilter(st_reba.build("mini", "echo", pooling="mean", device="cpu"), TEXTS, "standardize")
    save(model, tmp_path / "model")
    pushed = push(tmp_path / "model", "org/filtered", say=lambda line: None)
    assert "3_Dense/model.safetensors" in pushed.files and "golden.json" in pushed.files
    loaded = SentenceTransformer("org/filtered", device="cpu", cache_folder=str(tmp_path / "cache"))
    assert np.array_equal(loaded.encode(TEXTS[:5]), model.encode(TEXTS[:5]))
    assert cast(Any, loaded[0]).postfilter == cast(Any, model[0]).postfilter
