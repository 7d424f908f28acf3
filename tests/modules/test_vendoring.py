"""The code that travels with a model: every route loads it, and every save by any of them leaves all routes open."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from transformers.dynamic_module_utils import get_relative_imports

import st_reba
from st_reba import Ensemble, LayerPlan, Prepend, ReadLayers
from st_reba.bases import EMBEDDED
from st_reba.hub.saving import save
from st_reba.modules import MODULES
from st_reba.modules.vendoring import code, extra

ROOT = Path(st_reba.__file__).parents[1]
TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 60]
BUILDS: dict[str, dict[str, Any]] = {
    "mini": {"pooling": "mean", "prompts": {"query": "Q: "}, "max_seq_length": 200},
    "gpt2": {"method": "echo", "pooling": "mean", "template": "{text}\n{text}", "stages": [Prepend(1)]},
    "qwen3": {"method": "nosink", "setting": "mask0&bidir", "k": 2, "k0": 1},
    "gemma2": {"chunk": 7, "repeats": 3, "stages": [LayerPlan(architecture="inter", kind="backward", k=1)]},
    # It calls no attention interface.
    "bloom": {},
    "llama": {"method": "prompteol", "stages": [Ensemble(["{text} is", "so {text}"]), ReadLayers(1)]},
}
# Loads each folder, tells its vectors, and saves it again under its own name and one letter more.
SCRIPT = """
import json, pickle, sys
mode, texts, *folders = json.loads(sys.argv[1])
if mode == "a":
    import st_reba
else:
    sys.modules["st_reba"] = None
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel

for folder in folders:
    model = SentenceTransformer(folder, device="cpu", trust_remote_code=mode == "b")
    homes = {name.split(".")[0] for name in sys.modules if name.rpartition(".")[2] == "st_reba_repeat"}
    assert homes == ({"transformers_modules"} if mode == "b" else set()), homes
    print(json.dumps([folder, model.encode(texts).tolist()]))
    model.save_pretrained(folder + mode)
if mode == "b":
    # As a pool of worker processes sends it.
    again = pickle.loads(pickle.dumps(model))
    assert type(again[0]) is type(model[0]) and (again.encode(texts) == model.encode(texts)).all()
else:
    # The package and a copy of it in one process: each minds its own passes.
    BaseModel._module_classes = {}
    copy = SentenceTransformer(folders[0], device="cpu", trust_remote_code=True)
    assert type(copy[0]) is not st_reba.RepeatTransformer and type(copy[0]).__module__ == "st_reba"
    print(json.dumps([folders[0], copy.encode(texts).tolist()]))
    print(json.dumps([folders[-1], model.encode(texts).tolist()]))
"""


def run(mode: str, place: Path, folders: list[str]) -> dict[str, list[Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_MODULES_CACHE": str(place / f"cache_{mode}")}
    if mode == "a":
        environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-c", SCRIPT, json.dumps([mode, TEXTS, *folders])]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[Any]] = {}
    for line in done.stdout.splitlines():
        if line.startswith('["'):
            folder, vectors = json.loads(line)
            found.setdefault(folder, []).append(vectors)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def models(base: Callable[..., str], place: Path) -> dict[str, SentenceTransformer]:
    models = {name: st_reba.build(base(name), **options, device="cpu") for name, options in BUILDS.items()}
    for name, model in models.items():
        model.save_pretrained(str(place / name))
    return models


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def carried(folder: Path) -> set[str]:
    return {path.stem.removeprefix("st_reba_") for path in folder.glob("st_reba_*.py")}


def test_a_process_without_the_package_trusts_the_code(models: dict[str, SentenceTransformer], place: Path) -> None:
    """The same vectors, and what it saves is what it loaded, file by file."""
    found = run("b", place, ["gpt2"])
    np.testing.assert_allclose(found["gpt2"][0], models["gpt2"].encode(TEXTS), atol=1e-6, rtol=0)
    assert files(place / "gpt2b") == files(place / "gpt2")


@pytest.mark.slow
def test_every_route_gives_the_same_vectors_and_every_save_the_same_files(
    models: dict[str, SentenceTransformer], base: Callable[..., str], place: Path
) -> None:
    """A folder's letters say by whom it was saved, one after the other: a has the package, b trusts the code."""
    names = list(BUILDS)
    save(models["qwen3"], place / "left", weights=False, golden=False, base=base("qwen3"), overwrite=True)
    found = {f"{key} by b": value for key, value in run("b", place, [*names, "left"]).items()}
    found |= {f"{key} by a": value for key, value in run("a", place, names + [f"{name}b" for name in names]).items()}
    found |= {f"{key} by b": value for key, value in run("b", place, [f"{name}a" for name in names]).items()}
    assert len(found) == 4 * len(names) + 1
    for key, several in found.items():
        name = next((name for name in names if key.startswith(name)), "qwen3")
        for vectors in several:
            np.testing.assert_allclose(vectors, models[name].encode(TEXTS), atol=1e-6, rtol=0, err_msg=key)
    machine = {str(place), str(ROOT), str(EMBEDDED["mini"]), str(Path.home()), "transformers_modules"}
    for name in names:
        first = files(place / name)
        for saved in ("a", "b", "ba", "ab"):
            assert files(place / f"{name}{saved}") == first, saved
        for file, content in first.items():
            # A vocabulary may hold anything.
            if file not in ("tokenizer.json", "model.safetensors"):
                assert not [word for word in machine if len(word) > 5 and word.encode() in content], file
        types = [module["type"] for module in json.loads(first["modules.json"])]
        assert {each.count(".") for each in types if each.startswith("st_reba")} == {1}
        assert types[0] == f"st_reba.{'NoSink' if name == 'qwen3' else 'Repeat'}Transformer"


def test_a_repository_carries_what_it_runs_and_no_more(models: dict[str, SentenceTransformer], place: Path) -> None:
    parts = {name: carried(place / name) for name in models}
    assert {"pooling", "capture"} <= parts["mini"] and {"chunked", "plan"} <= parts["gemma2"]
    assert {"nosink", "plan", "kinds"} <= parts["qwen3"] and {"ensemble", "prompts", "reading"} <= parts["llama"]
    assert "prepend" in parts["gpt2"] and {name for name in parts if "eager" in parts[name]} == {"bloom"}
    for name in ("gpt2", "qwen3"):
        assert not parts[name] & {"pooling", "capture", "chunked", "ensemble", "prompts", "reading", "filter"}, name
    assert not (parts["mini"] | parts["gpt2"]) & {"plan", "kinds", "nosink", "chunked", "adapters"}
    assert not parts["llama"] & {"pooling", "capture", "attention", "scores", "kernels"}


def test_the_files_import_their_siblings_alone(models: dict[str, SentenceTransformer], place: Path) -> None:
    for name in models:
        texts = {file.name: file.read_text(encoding="utf-8") for file in (place / name).glob("st_reba*.py")}
        assert texts["st_reba.py"].startswith(f"# st_reba {st_reba.__version__}\n")
        for file, text in texts.items():
            compile(text, file, "exec")
            # Nothing of the package, and of the siblings only by the form that transformers follows.
            assert not re.findall(r"^\s*(?:from|import) +st_reba\b", text, re.MULTILINE), file
            assert not re.findall(r"^\s*from +\.+ +import|^\s*from +\.\.|^\s*import +\.", text, re.MULTILINE), file
            assert {f"{each}.py" for each in re.findall(r"^\s*from \.(\S+)", text, re.MULTILINE)} <= set(texts), file
            assert "\r" not in text
        # Transformers 5.0 copies what st_reba.py itself imports, and nothing behind that.
        imported = get_relative_imports(place / name / "st_reba.py")
        assert {f"{each}.py" for each in imported} == set(texts) - {"st_reba.py"}


def test_classes_are_stored_by_one_dot_and_pickled(models: dict[str, SentenceTransformer]) -> None:
    assert {getattr(st_reba, name).__module__ for name in MODULES} == {"st_reba"}
    for model in models.values():
        again = pickle.loads(pickle.dumps(model))
        assert [type(each) for each in again] == [type(each) for each in model]
        np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))


def test_a_file_that_a_copy_has_not() -> None:
    assert extra("no_such_file", needed=False) is None
    with pytest.raises(ImportError, match=r"has no no_such_file\.py.*Install the package"):
        extra("no_such_file")


class Mine(st_reba.RepeatTransformer):
    """A user's own class keeps its own name."""


def test_a_users_class(place: Path, models: dict[str, SentenceTransformer], tmp_path: Path) -> None:
    model = SentenceTransformer(str(place / "gpt2"), device="cpu")
    model[0] = Mine.load(str(place / "gpt2"))
    assert type(pickle.loads(pickle.dumps(model))[0]) is Mine
    model.save_pretrained(str(tmp_path))
    types = [each["type"] for each in json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))]
    assert types[0] == f"{__name__}.Mine"


def test_inside_a_router_and_alone(models: dict[str, SentenceTransformer], tmp_path: Path) -> None:
    """Types are looked for in the root, however deep their module is saved."""
    model = models["qwen3"]
    router = Router.for_query_document(query_modules=list(model), document_modules=list(model))
    whole = SentenceTransformer(modules=[router], device="cpu")
    whole.save_pretrained(str(tmp_path / "router"))
    assert {path.parent for path in (tmp_path / "router").rglob("st_reba*")} == {tmp_path / "router"}
    again = SentenceTransformer(str(tmp_path / "router"), device="cpu")
    np.testing.assert_array_equal(again.encode_query(TEXTS), whole.encode_query(TEXTS))
    cast(Any, model[0]).save(str(tmp_path / "alone"))
    wanted = set(code(type(model[0]), *map(type, cast(Any, model[0]).stages)))
    assert {path.name for path in (tmp_path / "alone").glob("st_reba*")} == wanted
