"""Saving and loading: the same vectors and files after any number of rounds, and nothing of this machine inside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from marks import slow_but
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

import st_reba
from st_reba.bases import EMBEDDED

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 110]
PROMPTS = {"query": "Query: ", "document": "Text: "}
COMMON: dict[str, Any] = {"max_seq_length": 200, "prompts": PROMPTS}
MODELS: dict[str, dict[str, Any]] = {
    "paper": {**COMMON},
    "published": {"variant": "published", "pooling": "mean", "normalize_weights": True},
    "special": {"include_special": True, "template": "{text}\n{text}\n{text}", "normalize": False, "dtype": "bfloat16"},
    "chunked": {"chunk": 20, "repeats": 3, "pooling": "mean", "normalize_weights": True, **COMMON},
    "echo": {
        "method": "echo",
        "pooling": "mean",
        "template": {"query": "问：{instruction} {text}\n{text}", "document": "{text} / {text}"},
        "instruction": "find",
        **COMMON,
    },
    "classical": {"method": "classical", "pooling": "cls"},
    "prompteol": {"method": "prompteol", **COMMON},
}
SAME = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "config.json")


def encoded(model: SentenceTransformer) -> Any:
    return np.stack([model.encode(TEXTS), model.encode_query(TEXTS), model.encode_document(TEXTS)])


def strings(value: Any) -> Iterator[str]:
    """All strings inside a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


@pytest.fixture(scope="module", params=slow_but(MODELS, "paper", "classical", "prompteol"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> SentenceTransformer:
    return st_reba.build("mini", **MODELS[name])


@pytest.fixture(scope="module")
def saved(model: SentenceTransformer, name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("private 模型 of mine") / name
    model.save_pretrained(str(path))
    return path


def load(folder: Path, name: str) -> SentenceTransformer:
    """As the model was built: without a dtype it runs in float32 here, however it is stored."""
    dtype = {"model_kwargs": {"dtype": MODELS[name]["dtype"]}} if "dtype" in MODELS[name] else {}
    return SentenceTransformer(str(folder), device="cpu", **dtype)


@pytest.fixture
def loaded(saved: Path, name: str) -> SentenceTransformer:
    return load(saved, name)


def test_three_rounds(model: SentenceTransformer, saved: Path, name: str, tmp_path: Path) -> None:
    wanted, folder = encoded(model), saved
    for number in range(3):
        again = load(folder, name)
        assert [type(module) for module in again] == [type(module) for module in model]
        assert np.array_equal(encoded(again), wanted)
        folder = tmp_path / str(number)
        again.save_pretrained(str(folder))
        for file in SAME:
            assert (folder / file).read_bytes() == (saved / file).read_bytes(), file
        assert sorted(os.listdir(folder)) == sorted(os.listdir(saved))


def test_types(saved: Path, name: str) -> None:
    modules = json.loads((saved / "modules.json").read_text(encoding="utf-8"))
    types = [module["type"] for module in modules]
    reba = MODELS[name].get("method", "reba") == "reba"
    assert types[0] == "st_reba.RepeatTransformer"
    chunked = "chunk" in MODELS[name]
    assert (types[1] == f"st_reba.{'Chunked' * chunked}ReBAPooling") == reba
    assert [each for each in types if each.startswith("st_reba")] == types[: 1 + reba]
    assert len(types) == 2 + MODELS[name].get("normalize", True)


def test_nothing_of_this_machine(saved: Path) -> None:
    machine = {str(saved.parent), str(EMBEDDED["mini"].parent), str(Path.home()), str(Path.cwd())}
    files = sorted(path for path in saved.rglob("*") if path.suffix in {".json", ".md", ".txt", ".jinja"})
    assert {"modules.json", "config.json", "tokenizer_config.json"} <= {path.name for path in files}
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not [place for place in machine if len(place) > 5 and place in text], path.name
        # The vocabulary of a tokenizer may hold anything.
        if path.suffix == ".json" and path.name != "tokenizer.json":
            assert not [one for one in strings(json.loads(text)) if os.path.isabs(one)], path.name


def test_settings_survive(model: SentenceTransformer, loaded: SentenceTransformer, name: str) -> None:
    first, again = cast(Any, model[0]), cast(Any, loaded[0])
    assert again.get_config_dict() == first.get_config_dict()
    assert cast(Any, loaded[1]).get_config_dict() == cast(Any, model[1]).get_config_dict()
    assert loaded.max_seq_length == model.max_seq_length == MODELS[name].get("max_seq_length", 1024)
    assert again.budget() == first.budget()
    assert loaded.prompts == model.prompts
    if "prompts" in MODELS[name]:
        assert loaded.prompts == PROMPTS
    assert again.base_model == "mini"
    assert st_reba.spec_of(loaded) == st_reba.spec_of(model)
    assert again.model.dtype == first.model.dtype


def test_tokens_survive(model: SentenceTransformer, loaded: SentenceTransformer) -> None:
    one, two = (cast(Any, each.encode(TEXTS, output_value="token_embeddings")) for each in (model, loaded))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_length_set_later_survives(loaded: SentenceTransformer, name: str, tmp_path: Path) -> None:
    loaded.max_seq_length = 100
    wanted = loaded.encode(TEXTS)
    loaded.save_pretrained(str(tmp_path))
    again = load(tmp_path, name)
    assert again.max_seq_length == 100
    assert np.array_equal(again.encode(TEXTS), wanted)


def test_weights_keep_the_bases_number_type(model: SentenceTransformer, saved: Path, name: str) -> None:
    """mini's are bfloat16; they run in float32 here, and are neither rounded nor doubled by a save."""
    assert (saved / "model.safetensors").stat().st_size < 1.1 * (EMBEDDED["mini"] / "model.safetensors").stat().st_size
    assert cast(Any, SentenceTransformer(str(saved), device="cpu")[0]).model.dtype == torch.float32
    assert cast(Any, model[0]).model.dtype == getattr(torch, MODELS[name].get("dtype", "float32"))


def test_trained_weights_are_not_rounded(tmp_path: Path) -> None:
    model = st_reba.build("mini", "echo")
    with torch.no_grad():
        next(iter(cast(Any, model[0]).model.parameters())).add_(1e-6)
    wanted = model.encode(TEXTS)
    model.save_pretrained(str(tmp_path))
    assert np.array_equal(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), wanted)


def test_plain_transformers_loads_the_folder(saved: Path, name: str) -> None:
    assert "st_reba" not in (saved / "config.json").read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(str(saved))
    features = tokenizer(TEXTS[0], return_tensors="pt")
    dtype = torch.bfloat16 if MODELS[name].get("dtype") == "bfloat16" else torch.float32
    hidden = []
    for folder in (saved, EMBEDDED["mini"]):
        backbone = AutoModel.from_pretrained(str(folder), dtype=dtype).eval()
        with torch.inference_mode():
            hidden.append(backbone(input_ids=features["input_ids"]).last_hidden_state)
    assert torch.equal(*hidden)
