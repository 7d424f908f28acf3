"""Saved models: the same vectors and files by every route, after any number of rounds, and nothing of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.methods import method_of

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 110]
PROMPTS = {"query": "Query: ", "document": "Text: "}
TEMPLATE = {"query": "问：{instruction} {text}\n{text}", "document": "{text} / {text}"}
MODELS: dict[str, dict[str, Any]] = {
    "reba": {"prompts": PROMPTS, "max_seq_length": 200},
    "authors": {"implementation": "authors", "pooling": "mean"},
    "echo": {"method": "echo", "pooling": "mean", "template": TEMPLATE, "instruction": "find"},
    "nosink": {"method": "nosink", "setting": "mask0&bidir", "k": 4, "k0": 2},
    "second": {"method": "nosink", "setting": "inter-bidir", "k": 2},
    "ensemble": {"method": "prompteol", "template": "contrastive"},
    "chunk mask0": {"chunk": 4, "repeats": 3, "setting": "mask0-bidir", "k": 1},
    "filter": {"method": "classical"},
}
SAME = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "config.json", "st_reba.py")
# Loads by the flag, saves again, loads that: where st_reba cannot be imported, also from pickles and other processes.
# Each model in a fork of one process that holds the libraries.
STRANGERS = """
import importlib.abc, json, os, pickle, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "st_reba":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import numpy as np
from sentence_transformers import SentenceTransformer
texts = %r
def run(folder, again, vectors, pool):
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    assert "st_reba" in {type(each).__module__ for each in model.modules()} and "st_reba" not in sys.modules
    one = model.encode(texts)
    model.save_pretrained(again)
    two = SentenceTransformer(again, trust_remote_code=True, device="cpu").encode(texts)
    three = pickle.loads(pickle.dumps(model)).encode(texts)
    found = [one, two, three]
    if pool:
        found.append(model.encode(texts, device=["cpu", "cpu"], batch_size=4, chunk_size=2))
    np.save(vectors, np.stack(found))
if __name__ == "__main__":
    for line in sys.stdin:
        if not (child := os.fork()):
            run(*json.loads(line))
            os._exit(0)  # without the seconds of tidying up
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def built(name: str) -> SentenceTransformer:
    model = st_reba.build("mini", device="cpu", **{"method": "reba", **MODELS[name]})
    texts = [f"{text} {n}" for n in range(40) for text in TEXTS[:3]]
    return st_reba.fit_filter(model, texts, "center") if name == "filter" else model


@pytest.fixture(
    scope="module", params=slow_but(MODELS, "reba", "nosink", "second", "ensemble", "chunk mask0", "filter")
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> SentenceTransformer:
    return built(name)


@pytest.fixture(scope="module")
def saved(model: SentenceTransformer, name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("private 模型 of mine") / name
    model.save_pretrained(str(path))
    return path


def test_rounds_with_the_package(model: SentenceTransformer, saved: Path, tmp_path: Path) -> None:
    wanted, folder = model.encode_query(TEXTS), saved
    for number in range(2):
        again = SentenceTransformer(str(folder), device="cpu")
        assert np.array_equal(again.encode_query(TEXTS), wanted)
        assert method_of(again) == method_of(model) and again.max_seq_length == model.max_seq_length
        assert [type(module) for module in again] == [type(module) for module in model]
        folder = tmp_path / str(number)
        again.save_pretrained(str(folder))
        assert sorted(os.listdir(folder)) == sorted(os.listdir(saved))
        for file in SAME:
            assert (folder / file).read_bytes() == (saved / file).read_bytes(), file


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """``strangers(folder, again, pool=False)``: the vectors of a model by every way that strangers have."""
    place = tmp_path_factory.mktemp("strangers")
    script, vectors, errors = place / "script.py", place / "vectors.npy", place / "errors.txt"
    script.write_text(STRANGERS % TEXTS, encoding="utf-8")
    environment = {**os.environ, "HF_HOME": str(place), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with errors.open("w") as said, subprocess.Popen([sys.executable, script], stderr=said, **pipes) as process:

        def run(folder: Path, again: Path, pool: bool = False) -> Any:
            assert process.stdin is not None and process.stdout is not None
            print(json.dumps([str(folder), str(again), str(vectors), pool]), file=process.stdin, flush=True)
            assert process.stdout.readline() == "0\n", errors.read_text(encoding="utf-8")
            return np.load(vectors)

        yield run
        process.kill()  # which saves the seconds of its tidying up


def test_rounds_of_strangers(
    model: SentenceTransformer, saved: Path, name: str, tmp_path: Path, strangers: Callable[..., Any]
) -> None:
    again = tmp_path / f"again {name}"
    for found in strangers(saved, again, pool=name == "authors"):
        assert np.abs(found - model.encode(TEXTS)).max() < 1e-5
    for file in set(SAME) - {"config.json"}:  # which names float32: only the package stores the base's own type
        assert (again / file).read_bytes() == (saved / file).read_bytes(), file
    # What strangers saved is still a model of the package.
    assert np.array_equal(SentenceTransformer(str(again), device="cpu").encode(TEXTS), model.encode(TEXTS))


def test_a_router_has_the_code_of_both_routes(tmp_path: Path, strangers: Callable[..., Any]) -> None:
    query = st_reba.build("mini", "echo", template="echo", device="cpu")
    routes = Router.for_query_document(list(query), list(built("second")), default_route="document")
    model = SentenceTransformer(modules=[routes], device="cpu")
    model.save_pretrained(str(tmp_path / "saved"))
    for found in strangers(tmp_path / "saved", tmp_path / "again"):
        assert np.abs(found - model.encode(TEXTS)).max() < 1e-5
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert np.array_equal(again.encode_query(TEXTS), query.encode_query(TEXTS))


def test_nothing_of_this_machine(saved: Path) -> None:
    machine = {str(saved.parent), str(EMBEDDED["mini"].parent), str(Path.home()), str(Path.cwd())}
    for path in saved.rglob("*"):
        if path.suffix in {".json", ".md", ".py"}:
            text = path.read_text(encoding="utf-8")
            assert not [place for place in machine if len(place) > 5 and place in text], path.name


def test_what_was_changed_later_survives(tmp_path: Path) -> None:
    """A length; and weights, which are not rounded to the base's type."""
    model = built("echo")
    model.max_seq_length = 100
    with torch.no_grad():
        next(model.parameters()).add_(1e-6)
    model.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert again.max_seq_length == 100 and np.array_equal(again.encode(TEXTS), model.encode(TEXTS))
