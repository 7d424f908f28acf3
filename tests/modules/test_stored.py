"""What a save stores of methods and stages, that it comes back the same by every route, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import TEXTS
from pipelines import encoded, pipeline
from sentence_transformers import SentenceTransformer

from st_reba import Ensemble, LayerPlan, NoSink, NoSinkTransformer, Prepend, ReadLayers, Spec, encode_words, spec_of
from st_reba.modules.stored import stored_as

Deep = Callable[..., str]
FILE = "sentence_bert_config.json"
QUERIES = {"query": "Q: {text} {text}", "document": "D: {text} {text}"}
# Method, fields and stages.
SAVED: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "one layer": ("classical", {"pooling": "cls"}, [ReadLayers(2)]),
    "before the norm": ("echo", {}, [ReadLayers(-2, final_norm=False)]),
    "a range": ("reba", {"variant": "published"}, [ReadLayers([1, 3])]),  # type: ignore[arg-type]
    "side by side": ("echo", {"span": "repeats", "repeats": 3}, [ReadLayers([1, 2], "concat")]),  # type: ignore[arg-type]
    "a setting": ("nosink", {"pooling": "last"}, [NoSink("MASK0&BIDIR", k=2, k0=1, m=2)]),
    "all layers": ("nosink", {}, [NoSink("mask0-all", k="all")]),
    "published": ("nosink", {}, [NoSink("extra-back", k=2, variant="published")]),
    "a plan": ("reba", {"pooling": "mean"}, [LayerPlan("inter", layers={"backward": [-1], "bidirectional": [0]})]),
    "chunked": (
        "reba",
        {"chunk": 6, "repeats": 3, "include_special": True, "normalize_weights": True, "pooling": "mean"},
        [],
    ),
    "ensemble": (
        "prompteol",
        {},
        [Ensemble(["“{text}” is: ", {"query": "Q: {text}", "document": "D: {text}"}], [1, -0.25], False)],  # type: ignore[arg-type]
    ),
    "prepended": ("reba", {"max_seq_length": 77, "instruction": "find"}, [Prepend(2)]),
    "everything": (
        "echo",
        {"template": QUERIES, "compute_matched": True, "span": "last_copy_and_end", "pooling": "mean"},
        [LayerPlan(k=1, kind="rerouted"), ReadLayers(3), Prepend(1)],
    ),
}


def build(deep: Deep, name: str) -> Any:
    method, fields, stages = SAVED[name]
    return pipeline(deep("llama", "bos_eos"), method, stages, normalize=True, **fields)


def both(model: Any) -> Any:
    return np.stack([model.encode_query(list(TEXTS)), model.encode_document(list(TEXTS))])


def test_weights_that_would_be_rounded_stay() -> None:
    """They are compared part by part: one number of the last part is enough."""
    weight = torch.zeros((1 << 22) + 1)
    for value, dtype in ((1.0, torch.bfloat16), (1.001, torch.float32)):
        weight[-1] = value
        layer = torch.nn.ParameterList([weight])
        with stored_as(layer, torch.bfloat16):
            assert layer[0].dtype == dtype
        assert layer[0].dtype == torch.float32


@pytest.mark.parametrize("name", SAVED)
def test_saved_and_loaded(deep: Deep, tmp_path: Path, name: str) -> None:
    """Plain SentenceTransformer gives the same vectors from the folder, and from a copy it saved itself."""
    model = build(deep, name)
    vectors, spec = both(model), Spec.make(SAVED[name][0], SAVED[name][2], SAVED[name][1])
    model.save_pretrained(str(tmp_path / "first"))
    first: Any = SentenceTransformer(str(tmp_path / "first"), device="cpu")
    first.save_pretrained(str(tmp_path / "second"))
    for again in (first, SentenceTransformer(str(tmp_path / "second"), device="cpu")):
        assert spec_of(again) == spec_of(model) == spec
        assert again[0].layout == model[0].layout and str(again[0].stack) == str(model[0].stack)
        assert [type(each).__name__ for each in again] == [type(each).__name__ for each in model]
        for each, before in zip(list(again)[1:], list(model)[1:], strict=True):
            assert each.get_config_dict() == before.get_config_dict()
        np.testing.assert_array_equal(both(again), vectors)
    # Weights and tokenizer are sentence-transformers' to write; the rest is ours.
    ours = ["modules.json", FILE, *(file.name for file in (tmp_path / "first").glob("st_reba*.py"))]
    assert len(ours) > 5
    for file in ours:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    if name == "chunked":
        tokens = (each.encode(list(TEXTS), output_value="token_embeddings") for each in (again, model))
        assert all(map(torch.equal, *tokens))
        item = (TEXTS[2], (4, 8))
        np.testing.assert_array_equal(encode_words(again, [item]), encode_words(model, [item]))


def test_a_class_of_its_own(deep: Deep, tmp_path: Path) -> None:
    """NoSinkTransformer comes back as itself, from the stages alone."""
    model: Any = build(deep, "a setting")
    first = NoSinkTransformer(deep("llama", "bos_eos"), "mask0&bidir", k=2, k0=1, m=2)
    kept = SentenceTransformer(modules=[first, *list(model)[1:]], device="cpu")
    kept.save_pretrained(str(tmp_path))
    again: Any = SentenceTransformer(str(tmp_path), device="cpu")
    assert type(again[0]).__name__ == "NoSinkTransformer" and again[0].stages == model[0].stages
    assert torch.equal(encoded(again), encoded(model))
    # Put together by hand, nothing says how it was meant; what it does is known.
    assert spec_of(again).stages == model[0].stages


@pytest.mark.slow
def test_vendored(deep: Deep, tmp_path: Path) -> None:
    """Every one runs from the repository's own copies, without st_reba installed."""
    wanted = {}
    for name in SAVED:
        model = build(deep, name)
        model.save_pretrained(str(tmp_path / name))
        wanted[name] = both(model)
    script = (
        "import json, sys\n"
        "sys.modules['st_reba'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"for name in {list(wanted)!r}:\n"
        "    model = SentenceTransformer(name, trust_remote_code=True, device='cpu')\n"
        f"    texts = {list(TEXTS)!r}\n"
        "    print(json.dumps([name, [model.encode_query(texts).tolist(), model.encode_document(texts).tolist()]]))\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert list(found) == list(wanted)
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, wanted[name], atol=1e-6, rtol=0)


def test_each_module_leaves_what_it_needs(deep: Deep, tmp_path: Path) -> None:
    """The code of stages and poolings that a model does not have is not in its repository."""
    files = {}
    for name in ("one layer", "chunked", "prepended"):
        build(deep, name).save_pretrained(str(tmp_path / name))
        files[name] = {file.stem.removeprefix("st_reba_") for file in (tmp_path / name).glob("st_reba_*.py")}
    assert "reading" in files["one layer"] and not {"chunked", "pooling", "prepend", "prompts"} & files["one layer"]
    assert {"chunked", "pooling"} <= files["chunked"] and not {"reading", "prepend"} & files["chunked"]
    assert {"pooling", "prepend"} <= files["prepended"] and not {"reading", "chunked"} & files["prepended"]


# Configurations that a save did not write


@pytest.fixture(scope="module")
def folder(deep: Deep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    build(deep, "everything").save_pretrained(str(path))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": None}, "lacks 'stages'"),
        ({"layout": None}, "lacks 'layout'"),
        ({"layout": {"repeats": 0}}, "repeats=0"),
        ({"layout": {"repeats": 10**9}}, "repeats=1000000000"),
        ({"layout": {"repeat": 2}}, "Did you mean 'repeats'"),
        ({"layout": {"template": "{text:}" * 5_000}}, "has 5000 {text} slots"),
        ({"layout": "echo"}, "layout: 'echo' must be a mapping"),
        ({"stages": [{"read": {"layers": 9}}]}, "layers=9: .*no 9"),
        ({"stages": [{"read": {"layers": [3, 1]}}]}, "3 stands above 1"),
        ({"stages": [{"read": {"layers": "2"}}]}, "layers='2'"),
        ({"stages": [{"read": {"final_norm": 1}}]}, "final_norm=1"),
        ({"stages": [{"layers": {"k": 9}}]}, "k=9, but 3 layers"),
        ({"stages": [{"layers": {"layers": {"backward": [-9]}}}]}, "names layer -9"),
        ({"stages": [{"nosink": {"setting": "mask0-bidir", "k": 9}}]}, "nosink: k=9, but 3 layers"),
        ({"stages": [{"prepend": {"layers": 3}}]}, "prepend: layers=3, but 3 layers"),
        ({"stages": [{"prepend": {"layers": 1}}, {"prepend": {"layers": 2}}]}, "do the same thing"),
        ({"stages": [{"evil": {}}]}, "stages .='evil'. is not known"),
        ({"stages": {"read": {}}}, "must be a list"),
        ({"method": {"echo": 3}}, "method="),
        ({"layers": 3}, "sentence_bert_config.json: layers"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_a_configuration_that_is_wrong(folder: Path, change: dict[str, Any], message: str) -> None:
    file = folder / FILE
    before = file.read_text(encoding="utf-8")
    try:
        file.write_text(json.dumps({**json.loads(before), **change}), encoding="utf-8")
        with pytest.raises(ValueError, match=message) as caught:
            SentenceTransformer(str(folder), device="cpu")
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
    finally:
        file.write_text(before, encoding="utf-8")


@pytest.mark.parametrize("name", ["stages", "layout", FILE])
def test_a_configuration_that_was_lost(folder: Path, name: str) -> None:
    """By its defaults, the module would give another model's vectors."""
    file = folder / FILE
    before = file.read_text(encoding="utf-8")
    try:
        if name == FILE:
            file.unlink()
        else:
            file.write_text(json.dumps({k: v for k, v in json.loads(before).items() if k != name}), encoding="utf-8")
        with pytest.raises(ValueError, match=f"{FILE} is missing, or lacks .*Copy all of its files"):
            SentenceTransformer(str(folder), device="cpu")
    finally:
        file.write_text(before, encoding="utf-8")
