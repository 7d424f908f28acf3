"""Registration: saved models load by plain SentenceTransformer once st_reba is imported, and nothing else does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from torch import nn

import st_reba

ROOT = Path(st_reba.__file__).parents[1]
CLASSES = {
    st_reba.DecoderTransformer,
    st_reba.RepeatTransformer,
    st_reba.NoSinkTransformer,
    st_reba.ReBAPooling,
    st_reba.ChunkedReBAPooling,
    st_reba.PromptEnsemble,
}
NAMES = {f"st_reba.{each.__name__}" for each in CLASSES}
TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。"]

WITH_IMPORT = """
import sys
import sentence_transformers
before = set(sys.modules)
import st_reba
print(*sorted(set(sys.modules) - before))
import numpy
model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
numpy.save(sys.argv[2], model.encode(sys.argv[3:]))
"""
WITHOUT_IMPORT = """
import sys
import sentence_transformers
try:
    sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
except ValueError as error:
    print(error)
assert "st_reba" not in sys.modules
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, encoding="utf-8", timeout=120
    )


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", pooling="mean")


@pytest.fixture(scope="module")
def folder(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    model.save_pretrained(str(path))
    return path


@pytest.fixture
def edited(model: SentenceTransformer, tmp_path: Path) -> Any:
    """Save the model with another class name for its second module."""

    def save(name: str) -> str:
        model.save_pretrained(str(tmp_path))
        path = tmp_path / "modules.json"
        modules = json.loads(path.read_text(encoding="utf-8"))
        modules[1]["type"] = name
        path.write_text(json.dumps(modules), encoding="utf-8")
        return str(tmp_path)

    return save


@pytest.mark.slow
def test_fresh_process_with_import(model: SentenceTransformer, folder: Path, tmp_path: Path) -> None:
    """One process: it loads without a flag, imports fast, and imports nothing that a model does not need."""
    vectors = tmp_path / "vectors.npy"
    done = python("-c", WITH_IMPORT, str(folder), str(vectors), *TEXTS)
    assert done.returncode == 0, done.stderr[-2000:]
    assert np.allclose(np.load(vectors), model.encode(TEXTS), atol=1e-5)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert "st_reba" in imported
    assert not imported & {"faiss", "yaml", "matplotlib", "sklearn", "pandas", "datasets"}
    assert not {name for name in done.stdout.split() if name.startswith(("st_reba.index", "st_reba.demo"))}


@pytest.mark.slow
def test_fresh_process_without_import(folder: Path) -> None:
    done = python("-c", WITHOUT_IMPORT, str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "trust_remote_code" in done.stdout and "st_reba.RepeatTransformer" in done.stdout


def test_these_names_are_registered() -> None:
    table = BaseModel._module_classes
    assert {name for name in table if "reba" in name.lower()} == NAMES
    assert {table[name] for name in NAMES} == CLASSES


@pytest.mark.parametrize(
    "name",
    [
        "st_reba.LayerPlan",
        "st_reba.modules.ReBAPooling",
        "st_reba.modules.pooling.ReBAPooling",
        "st_reba.modules.transformer.DecoderTransformer",
        "st_reba.build",
        "st_reba.cli.main",
        "os.system",
        "subprocess.Popen",
    ],
)
def test_no_other_name_is_loadable(edited: Any, name: str) -> None:
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(edited(name), device="cpu")


def test_registered_name_in_the_wrong_place(edited: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        SentenceTransformer(edited("st_reba.RepeatTransformer"), device="cpu").encode(TEXTS)


def test_registering_adds_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"other.Module": nn.Linear}
    monkeypatch.setattr(BaseModel, "_module_classes", there)
    for _ in range(2):
        st_reba.register(*CLASSES)
        assert set(BaseModel._module_classes) == {"other.Module", *NAMES}
    assert there == {"other.Module": nn.Linear}


def test_sentence_transformers_without_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = "sentence-transformers>=6.0,<7.*trust_remote_code=True"
    monkeypatch.setattr(BaseModel, "_module_classes", ["a list"])
    with pytest.raises(RuntimeError, match=advice):
        st_reba.register(st_reba.ReBAPooling)
    monkeypatch.delattr(BaseModel, "_module_classes")
    with pytest.raises(RuntimeError, match=advice):
        st_reba.register(st_reba.ReBAPooling)
    assert not hasattr(BaseModel, "_module_classes")
