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
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from transformers.dynamic_module_utils import get_relative_imports

import st_reba
from st_reba.build import EMBEDDED
from st_reba.modules import MODULES
from st_reba.modules.vendoring import code

ROOT = Path(st_reba.__file__).parents[1]
TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 60]
BUILDS: dict[str, dict[str, Any]] = {
    "mini": {"pooling": "mean", "prompts": {"query": "Q: "}, "max_seq_length": 200},
    "gpt2": {"method": "echo", "pooling": "mean", "separator": "\n"},
    "qwen3": {"method": "nosink", "setting": "mask0&bidir", "k": 2, "k0": 1},
    "gemma2": {"chunk": 7, "repeats": 3, "setting": "inter-back", "k": 1},
}
# Loads each folder, tells its vectors, and saves it again under its own name and one letter more.
SCRIPT = """
import json, os, pickle, sys
mode, texts, *folders = json.loads(sys.argv[1])
if mode == "a":
    import st_reba
else:
    sys.modules["st_reba"] = None
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel

def load(folder, trusted):
    return SentenceTransformer(folder, device="cpu", trust_remote_code=trusted)

for folder in folders:
    model = load(folder, mode == "b")
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
    for folder in folders[:4]:
        copy = load(folder, True)
        assert type(copy[0]) not in st_reba.modules.MODULES and type(copy[0]).__module__ == "st_reba"
        print(json.dumps([folder, copy.encode(texts).tolist()]))
    print(json.dumps([folders[-1], model.encode(texts).tolist()]))
"""


def run(mode: str, place: Path, folders: list[str]) -> dict[str, list[Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_MODULES_CACHE": str(place / f"cache_{mode}")}
    if mode == "a":
        environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([mode, TEXTS, *folders])],
        cwd=place,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
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
    models = {name: st_reba.build(base(name), **options) for name, options in BUILDS.items()}
    for name, model in models.items():
        model.save_pretrained(str(place / name))
    return models


@pytest.fixture(scope="module")
def found(models: dict[str, SentenceTransformer], place: Path) -> dict[str, list[Any]]:
    """What each folder gave; a folder's letters say by whom it was saved, one after the other."""
    names = list(models)
    found = run("b", place, names)
    found |= {f"{key} by a": value for key, value in run("a", place, names + [f"{name}b" for name in names]).items()}
    later = [f"{name}{saved}" for name in names for saved in ("a", "b", "ba")]
    found |= {f"{key} by b": value for key, value in run("b", place, later).items()}
    latest = [f"{name}{saved}" for name in names for saved in ("ab", "bab", "bb")]
    found |= {f"{key} by a": value for key, value in run("a", place, latest).items()}
    return found


@pytest.mark.slow
def test_every_route_gives_the_same_vectors(
    models: dict[str, SentenceTransformer], found: dict[str, list[Any]]
) -> None:
    assert len(found) == 4 + 8 + 12 + 12
    for key, several in found.items():
        name = next(name for name in models if key.startswith(name))
        for vectors in several:
            np.testing.assert_allclose(vectors, models[name].encode(TEXTS), atol=1e-6, rtol=0, err_msg=key)


def test_every_save_leaves_the_same(
    models: dict[str, SentenceTransformer], found: dict[str, list[Any]], place: Path
) -> None:
    machine = {str(place), str(ROOT), str(EMBEDDED["mini"]), str(Path.home()), "transformers_modules"}
    for name in models:
        first = _files(place / name)
        assert set(code()) <= set(first)
        for saved in ("a", "b", "ba", "ab", "bb", "bab", "aba", "bba"):
            assert _files(place / f"{name}{saved}") == first, saved
        for file, content in first.items():
            # A vocabulary may hold anything.
            if file not in ("tokenizer.json", "model.safetensors"):
                hits = [word for word in machine if len(word) > 5 and word.encode() in content]
                assert not hits, file
        types = [module["type"] for module in json.loads(first["modules.json"])]
        assert {each.count(".") for each in types if each.startswith("st_reba")} == {1}
        assert types[0] == f"st_reba.{'NoSink' if name == 'qwen3' else 'Repeat'}Transformer"


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The code


def test_the_files() -> None:
    files = {name: content.decode("utf-8") for name, content in code().items()}
    own = {path.stem for path in (ROOT / "st_reba" / "modules").glob("*.py")} - {"__init__"}
    assert set(files) == {"st_reba.py", *(f"st_reba_{name}.py" for name in own)}
    assert files["st_reba.py"].startswith(f"# st_reba {st_reba.__version__}\n")
    for name, text in files.items():
        compile(text, name, "exec")
        # Nothing of the package, and of the siblings only by the form that transformers follows.
        assert not re.findall(r"^\s*(?:from|import) +st_reba\b", text, re.MULTILINE), name
        assert not re.findall(r"^\s*from +\.+ +import|^\s*from +\.\.|^\s*import +\.", text, re.MULTILINE), name
        assert {f"{each}.py" for each in re.findall(r"^\s*from \.(\S+)", text, re.MULTILINE)} <= set(files), name
        assert b"\r" not in text.encode()


def test_one_file_imports_all(tmp_path: Path) -> None:
    """As transformers 5.0 copies what st_reba.py itself imports, and nothing behind that."""
    files = code()
    (tmp_path / "st_reba.py").write_bytes(files["st_reba.py"])
    imported = get_relative_imports(tmp_path / "st_reba.py")
    assert {f"{name}.py" for name in imported} == set(files) - {"st_reba.py"}


def test_line_ends_do_not_matter(tmp_path: Path) -> None:
    """A copy of a copy is the same, also from a checkout with the line ends of Windows."""
    for name, content in code().items():
        (tmp_path / name).write_bytes(content.replace(b"\n", b"\r\n"))
    (tmp_path / "st_reba_of_an_older_version.py").write_text("raise RuntimeError\n", encoding="utf-8")
    script = (
        "import sys, types, json\n"
        "package = types.ModuleType('copied'); package.__path__ = ['.']; sys.modules['copied'] = package\n"
        "sys.modules['st_reba'] = None\n"
        "from copied.st_reba_vendoring import code\n"
        "print(json.dumps({name: content.decode() for name, content in code().items()}))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {name: text.encode() for name, text in json.loads(done.stdout).items()} == code()


# Where it is saved


def test_classes_are_stored_by_one_dot() -> None:
    assert {each.__module__ for each in MODULES} == {"st_reba"}
    assert all(getattr(st_reba, each.__name__) is each for each in MODULES)


def test_pickles(models: dict[str, SentenceTransformer]) -> None:
    for model in models.values():
        again = pickle.loads(pickle.dumps(model))
        assert [type(each) for each in again] == [type(each) for each in model]
        np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))


class Mine(st_reba.RepeatTransformer):
    """A user's own class keeps its own name."""


def test_a_users_class(tmp_path: Path) -> None:
    model = st_reba.build("mini", "echo")
    model.save_pretrained(str(tmp_path / "plain"))
    model[0] = Mine.load(str(tmp_path / "plain"))
    assert type(pickle.loads(pickle.dumps(model))[0]) is Mine
    model.save_pretrained(str(tmp_path / "mine"))
    types = [each["type"] for each in json.loads((tmp_path / "mine" / "modules.json").read_text(encoding="utf-8"))]
    assert types[0] == f"{__name__}.Mine"


def test_inside_a_router(models: dict[str, SentenceTransformer], tmp_path: Path) -> None:
    """Types are looked for in the root, however deep their module is saved."""
    model = models["gpt2"]
    router = Router.for_query_document(query_modules=list(model), document_modules=list(model))
    whole = SentenceTransformer(modules=[router], device="cpu")
    whole.save_pretrained(str(tmp_path))
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("st_reba*")) == sorted(map(Path, code()))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_array_equal(again.encode_query(TEXTS), whole.encode_query(TEXTS))


def test_a_module_alone(models: dict[str, SentenceTransformer], tmp_path: Path) -> None:
    models["gpt2"][0].save(str(tmp_path))
    assert {path.name for path in tmp_path.glob("st_reba*")} == set(code())
    assert not (tmp_path / "config_sentence_transformers.json").exists()
