"""Registration: saved models load by plain SentenceTransformer once st_reba is imported, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers.base.model import BaseModel
from torch import nn

import st_reba
from st_reba.modules import MODULES
from st_reba.modules.registration import _register

ROOT = Path(st_reba.__file__).parents[1]
TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。"]

IMPORT = """
import sys
import st_reba.build
try:
    st_reba.build("mini", "reba:pooling=mean,setting=mask0-bidir,k=4", repeats=0)
except ValueError as error:
    assert "repeats=0" in str(error)
print(*sorted(sys.modules))
"""
WITH_IMPORT = """
import sys
{imports}
import numpy
model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
numpy.save(sys.argv[2], model.encode(sys.argv[3:]))
print(*sorted(sys.modules))
"""


def python(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_an_import_and_a_wrong_value_are_light() -> None:
    imported = set(python(IMPORT).split())  # and the function is not hidden by the module of its name
    assert "st_reba.methods" in imported
    heavy = {"torch", "sentence_transformers", "transformers", "yaml", "faiss"}
    assert not {name.partition(".")[0] for name in imported} & heavy


@pytest.mark.slow
@pytest.mark.parametrize("order", ["st_reba, sentence_transformers", "sentence_transformers, st_reba"])
def test_fresh_process_with_import(tmp_path: Path, order: str) -> None:
    """It loads without a flag, whichever is imported first, and imports nothing that a model does not need."""
    model, folder, vectors = st_reba.build("mini", "reba", pooling="mean"), tmp_path / "saved", tmp_path / "vectors.npy"
    model.save_pretrained(str(folder))
    printed = python(WITH_IMPORT.format(imports=f"import {order}"), str(folder), str(vectors), *TEXTS)
    assert np.allclose(np.load(vectors), model.encode(TEXTS), atol=1e-5)
    imported = printed.split()
    assert not {name.partition(".")[0] for name in imported} & {"faiss", "matplotlib"}
    assert not [name for name in imported if name.startswith(("st_reba.index", "st_reba.onnx", "st_reba.assembly"))]


def test_exactly_these_names_are_registered() -> None:
    table = BaseModel._module_classes
    assert {name for name in table if "reba" in name.lower()} == {f"st_reba.{name}" for name in MODULES}
    assert {table[f"st_reba.{name}"] for name in MODULES} == {getattr(st_reba, name) for name in MODULES}


def test_the_table_of_classes() -> None:
    """Other plugins keep theirs; a sentence-transformers without the table is refused."""
    module = SimpleNamespace(BaseModel=SimpleNamespace(_module_classes={"other.Module": nn.Linear}))
    for _ in range(2):
        _register(module)
    assert set(module.BaseModel._module_classes) == {"other.Module", *(f"st_reba.{name}" for name in MODULES)}
    assert module.BaseModel._module_classes["other.Module"] is nn.Linear
    for model in (SimpleNamespace(_module_classes=["a list"]), SimpleNamespace()):
        with pytest.raises(RuntimeError, match="no table.*trust_remote_code=True"):
            _register(SimpleNamespace(BaseModel=model))
