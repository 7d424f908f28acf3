"""Saved models: the same vectors and files by every route, for plain SentenceTransformer too, once st_reba is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.sentence_transformer.modules import Router

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.methods import method_of
from st_reba.modules import MODULES
from st_reba.modules.registration import _register

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 110]
PROMPTS = {"query": "Query: ", "document": "Text: "}
TEMPLATE = {"query": "问：{instruction} {text}\n{text}", "document": "{text} / {text}"}
THREE_WORDINGS = {"query": "Query: {text}", "document": "Passage: {text}", "similarity": "Text: {text}"}
MODELS: dict[str, dict[str, Any]] = {
    "reba": {"prompts": PROMPTS, "max_seq_length": 200},
    "authors": {"implementation": "authors", "pooling": "mean"},
    "echo": {"method": "echo", "pooling": "mean", "template": TEMPLATE, "instruction": "find"},
    "nosink": {"method": "nosink", "setting": "mask0&bidir", "k": 4, "k0": 2},
    "second": {"method": "nosink", "setting": "inter-bidir", "k": 2},
    "ensemble": {"method": "prompteol", "template": "contrastive"},
    "chunk mask0": {"chunk": 4, "repeats": 3, "setting": "mask0-bidir", "k": 1},
    "filter": {"method": "classical"},
    "three wordings": {"method": "prompteol", "template": THREE_WORDINGS},
    "search filter": {"method": "prompteol", "template": THREE_WORDINGS},
}
QUICK = ("reba", "nosink", "second", "ensemble", "chunk mask0", "filter", "three wordings", "search filter", "router")
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
SAME = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "config.json", "st_reba.py")
# Loads by the flag, saves again, loads that: where st_reba cannot be imported, also from pickles and other processes.
# Each model in a fork of one process that holds the libraries.
STRANGERS = """
import os, pickle, sys
sys.modules["st_reba"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
texts = %r
def run(folder, again):
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    assert "st_reba" in {type(each).__module__ for each in model.modules()} and not sys.modules["st_reba"]
    model.save_pretrained(again)
    others = SentenceTransformer(again, trust_remote_code=True, device="cpu"), pickle.loads(pickle.dumps(model))
    found = [np.stack([each.encode(texts), each.encode_query(texts)]) for each in (model, *others)]
    if folder.endswith("authors"):
        spread = {"device": ["cpu", "cpu"], "batch_size": 4, "chunk_size": 2}
        found.append(np.stack([model.encode(texts, **spread), model.encode_query(texts, **spread)]))
    np.save(f"{again}.npy", np.stack(found))
if __name__ == "__main__":
    for folder in sys.argv[1:]:
        if not (child := os.fork()):
            run(folder, f"{folder} again")
            os._exit(0)  # without the seconds of tidying up
        assert os.waitpid(child, 0)[1] == 0, folder
    os._exit(0)
"""
MACHINE = {str(place) for place in (EMBEDDED["mini"].parent, Path.home(), Path.cwd()) if len(str(place)) > 5}


def built(name: str) -> SentenceTransformer:
    if name == "router":  # it has the code of both routes
        query = st_reba.build("mini", "echo", template="echo", device="cpu")
        routes = Router.for_query_document(list(query), list(built("second")), default_route="document")
        return SentenceTransformer(modules=[routes], device="cpu")
    model = st_reba.build("mini", device="cpu", **{"method": "reba", **MODELS[name]})
    texts = [f"{n} {text}" for n in range(40) for text in TEXTS[:3]]
    if name == "filter":
        return st_reba.fit_filter(model, texts, "center")
    if name == "search filter":
        return st_reba.fit_filter(model, texts, "whiten", power=0.25, queries=True)
    return model


@pytest.mark.parametrize("names", slow_but([QUICK, (*MODELS.keys() - QUICK,)], QUICK), ids=["quick", "slow"])
def test_rounds(names: tuple[str, ...], tmp_path: Path) -> None:
    """The package and strangers load what either saved, and save the same files, which name no place here."""
    place, models = tmp_path / "private 模型 of mine", {name: built(name) for name in names}
    for name, model in models.items():
        model.save_pretrained(str(place / name))
    (script := tmp_path / "script.py").write_text(STRANGERS % TEXTS, encoding="utf-8")
    command = [sys.executable, script, *(place / name for name in names)]
    subprocess.run(command, env={**ENVIRONMENT, "HF_HOME": str(tmp_path)}, check=True)
    for name, model in models.items():
        saved, ours, theirs = (place / f"{name}{end}" for end in ("", " ours", " again"))
        for found in np.load(f"{theirs}.npy"):
            assert np.abs(found[0] - model.encode(TEXTS)).max() < 1e-5, name
            assert np.abs(found[1] - model.encode_query(TEXTS)).max() < 1e-5, name
        SentenceTransformer(str(saved), device="cpu").save_pretrained(str(ours))
        for folder in (saved, ours, theirs):
            again = SentenceTransformer(str(folder), device="cpu")
            assert np.array_equal(again.encode_query(TEXTS), model.encode_query(TEXTS)), folder
            assert method_of(again) == method_of(model) and again.max_seq_length == model.max_seq_length
            assert [type(module) for module in again] == [type(module) for module in model]
            for file in SAME if name != "router" else ("modules.json",):
                # Only the package stores the base's own type: what strangers save names float32.
                same = (folder / file).read_bytes() == (saved / file).read_bytes()
                assert same or (folder, file) == (theirs, "config.json"), folder / file
        assert sorted(os.listdir(ours)) == sorted(os.listdir(saved))
        for path in saved.rglob("*"):
            text = path.read_text(encoding="utf-8") if path.suffix in {".json", ".md", ".py"} else ""
            assert not [machine for machine in {*MACHINE, str(tmp_path)} if machine in text], path


def test_what_was_changed_later_survives(tmp_path: Path) -> None:
    """A length; and weights, which are not rounded to the base's type."""
    model = built("echo")
    model.max_seq_length = 100
    with torch.no_grad():
        next(model.parameters()).add_(1e-6)
    model.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert again.max_seq_length == 100 and np.array_equal(again.encode(TEXTS), model.encode(TEXTS))


IMPORT = """
import sys
import st_reba.build
try:
    st_reba.build("mini", "reba:pooling=mean,setting=mask0-bidir,k=4", repeats=0)
except ValueError as error:
    assert "repeats=0" in str(error)
print(*sys.modules)
"""
WITH_IMPORT = """
import sys
import %s
import numpy
model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
numpy.save(sys.argv[2], model.encode(sys.argv[3:]))
print(*sys.modules)
"""


def imported(*arguments: str) -> set[str]:
    """What a process has imported that runs a script."""
    environment = {**ENVIRONMENT, "PYTHONPATH": str(Path(st_reba.__file__).parents[1])}
    command = [sys.executable, "-c", *arguments]
    return {*subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.split()}


def test_an_import_and_a_wrong_value_are_light() -> None:
    """And the function is not hidden by the module of its name."""
    found = imported(IMPORT)
    assert "st_reba.methods" in found
    assert not found & {"torch", "sentence_transformers", "transformers", "yaml", "faiss"}


@pytest.mark.slow
@pytest.mark.parametrize("order", ["st_reba, sentence_transformers", "sentence_transformers, st_reba"])
def test_fresh_process_with_import(tmp_path: Path, order: str) -> None:
    """It loads without a flag, whichever is imported first, and imports nothing that a model does not need."""
    model, folder, vectors = st_reba.build("mini", "reba", pooling="mean"), tmp_path / "saved", tmp_path / "vectors.npy"
    model.save_pretrained(str(folder))
    found = imported(WITH_IMPORT % order, str(folder), str(vectors), *TEXTS)
    assert np.allclose(np.load(vectors), model.encode(TEXTS), atol=1e-5)
    assert not found & {"faiss", "matplotlib", "st_reba.index", "st_reba.onnx", "st_reba.assembly"}


def test_the_table_of_classes() -> None:
    """It has ours and those of other plugins; a sentence-transformers without the table is refused."""
    table, ours = BaseModel._module_classes, {f"st_reba.{name}": getattr(st_reba, name) for name in MODULES}
    assert {name: table[name] for name in table if "reba" in name.lower()} == ours
    module = SimpleNamespace(BaseModel=SimpleNamespace(_module_classes={"other.Module": torch.nn.Linear}))
    for _ in range(2):
        _register(module)
    assert dict(module.BaseModel._module_classes) == {"other.Module": torch.nn.Linear, **ours}
    assert len(module.BaseModel._module_classes) == 1 + len(ours)
    for model in (SimpleNamespace(_module_classes=["a list"]), SimpleNamespace()):
        with pytest.raises(RuntimeError, match="no table.*trust_remote_code=True"):
            _register(SimpleNamespace(BaseModel=model))
