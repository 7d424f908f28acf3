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
from pipelines import save_and_load
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.sentence_transformer.modules import Router

import st_reba
from st_reba.bases import BUNDLED
from st_reba.methods import method_of
from st_reba.modules import MODULES
from st_reba.modules.registration import _register

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 110]
PROMPTS = {"query": "Query: ", "document": "Text: "}
TEMPLATE = {"query": "问：{instruction} {text}\n{text}", "document": "{text} / {text}"}
THREE_WORDINGS = {
    "query": "Query: {text}",
    "document": "Passage: {text}",
    "similarity": "Text: {text}",
}
MODELS: dict[str, dict[str, Any]] = {
    "reba": {"method": "reba", "prompts": PROMPTS, "max_seq_length": 200},
    "authors": {"method": "reba", "implementation": "authors", "pooling": "mean"},
    "echo": {"method": "echo", "pooling": "mean", "template": TEMPLATE, "instruction": "find"},
    "nosink": {"method": "nosink", "setting": "mask0&bidir", "k": 4, "k0": 2},
    "second": {"method": "nosink", "setting": "inter-bidir", "k": 2},
    "ensemble": {"method": "prompteol", "template": "contrastive"},
    "chunk mask0": {"method": "reba", "chunk": 4, "repeats": 3, "setting": "mask0-bidir", "k": 1},
    "filter": {"method": "classical"},
    "three wordings": {"method": "prompteol", "template": THREE_WORDINGS},
    "search filter": {"method": "prompteol", "template": THREE_WORDINGS},
}
SLOW_NAMES = ("authors", "echo", "nosink", "second", "filter", "three wordings")
QUICK_NAMES = (*(name for name in MODELS if name not in SLOW_NAMES), "router")
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
# Files that no route changes.
SAME_FILES = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "config.json",
    "st_reba.py",
)
# Loads by the flag, saves again, loads that: where st_reba cannot be imported, also from pickles
# and in other processes. Each model in a fork of one process that holds the libraries.
STRANGERS = """
import os, pickle, sys
sys.modules["st_reba"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
texts = %r
def encode(model, **options):
    return np.stack([model.encode(texts, **options), model.encode_query(texts, **options)])
def run(folder, saved_again):
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    modules = {type(module).__module__ for module in model.modules()}
    assert "st_reba" in modules and not sys.modules["st_reba"]
    model.save_pretrained(saved_again)
    loaded_again = SentenceTransformer(saved_again, trust_remote_code=True, device="cpu")
    pickled = pickle.loads(pickle.dumps(model))
    vectors = [encode(model), encode(loaded_again), encode(pickled)]
    if folder.endswith("authors"):
        vectors.append(encode(model, device=["cpu", "cpu"], batch_size=4, chunk_size=2))
    np.save(f"{saved_again}.npy", np.stack(vectors))
if __name__ == "__main__":
    for folder in sys.argv[1:]:
        child = os.fork()
        if not child:
            run(folder, f"{folder} again")
            os._exit(0)  # without the seconds of tidying up
        assert os.waitpid(child, 0)[1] == 0, folder
    os._exit(0)
"""
PRIVATE_FOLDERS = {str(BUNDLED["mini"].parent), str(Path.home()), str(Path.cwd())}


def build_model(name: str) -> SentenceTransformer:
    if name == "router":  # it has the code of both routes
        query_model = st_reba.build("mini", "echo", template="echo", device="cpu")
        document_model = build_model("second")
        routes = Router.for_query_document(
            list(query_model), list(document_model), default_route="document"
        )
        return SentenceTransformer(modules=[routes], device="cpu")
    model = st_reba.build("mini", device="cpu", **MODELS[name])
    texts: list[str] = []
    for number in range(40):
        texts += [f"{number} {text}" for text in TEXTS[:3]]
    if name == "filter":
        return st_reba.fit_filter(model, texts, "center")
    if name == "search filter":
        return st_reba.fit_filter(model, texts, "whiten", power=0.25, queries=True, tokens=True)
    return model


@pytest.mark.parametrize(
    "names", slow_but([QUICK_NAMES, SLOW_NAMES], QUICK_NAMES), ids=["quick", "slow"]
)
def test_package_and_strangers_load_and_save_the_same(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    """Either loads what the other saved, and the files name no folder of this machine."""
    root = tmp_path / "private 模型 of mine"
    models = {name: build_model(name) for name in names}
    for name, model in models.items():
        model.save_pretrained(str(root / name))
    script = tmp_path / "script.py"
    script.write_text(STRANGERS % TEXTS, encoding="utf-8")
    command = [sys.executable, script, *(root / name for name in names)]
    subprocess.run(command, env={**ENVIRONMENT, "HF_HOME": str(tmp_path)}, check=True)
    for name, model in models.items():
        check_vectors_of_strangers(model, root / f"{name} again.npy")
        saved, saved_by_strangers = root / name, root / f"{name} again"
        saved_by_package = root / f"{name} ours"
        SentenceTransformer(str(saved), device="cpu").save_pretrained(str(saved_by_package))
        for folder in (saved, saved_by_package, saved_by_strangers):
            check_loaded_model(model, folder)
        same_files = SAME_FILES if name != "router" else ("modules.json",)
        check_files(saved, saved_by_package, same_files)
        # The package alone stores the base's own number type: strangers save float32.
        check_files(
            saved, saved_by_strangers, [file for file in same_files if file != "config.json"]
        )
        assert sorted(os.listdir(saved_by_package)) == sorted(os.listdir(saved))
        check_no_folder_is_named(saved, {*PRIVATE_FOLDERS, str(tmp_path)})


def check_vectors_of_strangers(model: SentenceTransformer, file: Path) -> None:
    for vectors, query_vectors in np.load(file):
        assert np.abs(vectors - model.encode(TEXTS)).max() < 1e-5, file
        assert np.abs(query_vectors - model.encode_query(TEXTS)).max() < 1e-5, file


def check_loaded_model(model: SentenceTransformer, folder: Path) -> None:
    loaded_model = SentenceTransformer(str(folder), device="cpu")
    assert np.array_equal(loaded_model.encode_query(TEXTS), model.encode_query(TEXTS)), folder
    assert method_of(loaded_model) == method_of(model)
    assert loaded_model.max_seq_length == model.max_seq_length
    assert [type(module) for module in loaded_model] == [type(module) for module in model]


def check_files(saved: Path, saved_again: Path, names: list[str] | tuple[str, ...]) -> None:
    for name in names:
        assert (saved_again / name).read_bytes() == (saved / name).read_bytes(), saved_again / name


def check_no_folder_is_named(saved: Path, private_folders: set[str]) -> None:
    for path in saved.rglob("*"):
        if path.suffix in {".json", ".md", ".py"}:
            text = path.read_text(encoding="utf-8")
            for folder in private_folders:
                assert len(folder) < 6 or folder not in text, path


def test_what_was_changed_later_is_saved(tmp_path: Path) -> None:
    """A length; and weights, which are not rounded to the base's type."""
    model = build_model("echo")
    model.max_seq_length = 100
    with torch.no_grad():
        next(model.parameters()).add_(1e-6)
    loaded_model = save_and_load(model, tmp_path)
    assert loaded_model.max_seq_length == 100
    assert np.array_equal(loaded_model.encode(TEXTS), model.encode(TEXTS))


BUILD_WRONGLY = """
import sys
import st_reba.build
try:
    st_reba.build("mini", "reba:pooling=mean,setting=mask0-bidir,k=4", repeats=0)
except ValueError as error:
    assert "repeats=0" in str(error)
print(*sys.modules)
"""
ENCODE = """
import sys
import %s
import numpy
model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
numpy.save(sys.argv[2], model.encode(sys.argv[3:]))
print(*sys.modules)
"""


def modules_of_script(*arguments: str) -> set[str]:
    """What a process has imported that runs a script."""
    environment = {**ENVIRONMENT, "PYTHONPATH": str(Path(st_reba.__file__).parents[1])}
    command = [sys.executable, "-c", *arguments]
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return set(process.stdout.split())


def test_an_import_and_a_wrong_value_are_light() -> None:
    """And the function is not hidden by the module of its name."""
    module_names = modules_of_script(BUILD_WRONGLY)
    assert "st_reba.methods" in module_names
    assert not module_names & {"torch", "sentence_transformers", "transformers", "yaml", "faiss"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports", ["st_reba, sentence_transformers", "sentence_transformers, st_reba"]
)
def test_a_fresh_process_loads_without_a_flag(tmp_path: Path, imports: str) -> None:
    """Whichever is imported first; nothing is imported that a model does not need."""
    model = st_reba.build("mini", "reba", pooling="mean")
    folder, vectors = tmp_path / "saved", tmp_path / "vectors.npy"
    model.save_pretrained(str(folder))
    module_names = modules_of_script(ENCODE % imports, str(folder), str(vectors), *TEXTS)
    assert np.allclose(np.load(vectors), model.encode(TEXTS), atol=1e-5)
    unneeded_names = {"faiss", "matplotlib", "st_reba.index", "st_reba.onnx", "st_reba.assembly"}
    assert not module_names & unneeded_names


def our_classes() -> dict[str, type]:
    return {f"st_reba.{name}": getattr(st_reba, name) for name in MODULES}


def test_the_table_of_classes_has_ours() -> None:
    listed_classes: dict[str, type] = {}
    for name, module_class in BaseModel._module_classes.items():
        if "reba" in name.lower():
            listed_classes[name] = module_class
    assert listed_classes == our_classes()


@pytest.mark.parametrize("name", ["ReBAPooling", "st_reba.Filter", "st_reba.__name__"])
def test_the_table_of_classes_has_no_other_name_of_the_package(name: str) -> None:
    """Without its prefix, a class would stand where another package may have one of that name."""
    assert BaseModel._module_classes.get(name) is None


def test_registering_again_keeps_the_classes_of_other_plugins() -> None:
    table: dict[str, type] = {"other.Module": torch.nn.Linear}
    module = SimpleNamespace(BaseModel=SimpleNamespace(_module_classes=table))
    for _ in range(2):
        _register(module)
    registered_classes = module.BaseModel._module_classes
    assert dict(registered_classes) == {"other.Module": torch.nn.Linear, **our_classes()}
    assert len(registered_classes) == 1 + len(MODULES)


@pytest.mark.parametrize(
    "base_model", [SimpleNamespace(_module_classes=["a list"]), SimpleNamespace()]
)
def test_sentence_transformers_without_the_table_is_refused(base_model: SimpleNamespace) -> None:
    with pytest.raises(RuntimeError, match=r"no table.*trust_remote_code=True"):
        _register(SimpleNamespace(BaseModel=base_model))
