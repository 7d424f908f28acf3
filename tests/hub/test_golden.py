"""golden.json and verify: a model is known again, and whatever changes its vectors is found."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import NoSink
from st_reba.hub.golden import TEXTS, compare, read_golden, tolerance_of, write_golden
from st_reba.hub.saving import save
from st_reba.hub.verify import code_state, verify, verify_fresh

Edit = Callable[[Path], None]


def edit(name: str, *keys: Any, to: Any) -> Edit:
    """Set a value of a JSON file."""

    def change(folder: Path) -> None:
        value: Any = json.loads((folder / name).read_text(encoding="utf-8"))
        inner = value
        for key in keys[:-1]:
            inner = inner[key]
        assert inner.get(keys[-1]) != to
        inner[keys[-1]] = to
        (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")

    return change


def change_a_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(tensors) if name.endswith("layers.0.mlp.down_proj.weight"))
    tensors[name][3, 5] += 0.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_the_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = value["model"]["vocab"]
    one, two = [token for token, number in vocabulary.items() if number in (300, 301)]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden") / "model"
    stages = [NoSink("mask0-bidir", k=2)]
    model = st_reba.build("mini", "echo", pooling="mean", stages=stages, prompts={"query": "Q: "}, device="cpu")
    model.default_prompt_name = "query"
    save(model, folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def test_the_texts() -> None:
    chinese = [text for text in TEXTS if any("\u4e00" <= letter <= "\u9fff" for letter in text)]
    assert len(TEXTS) == len(set(TEXTS)) == 20 and len(chinese) == 10
    everything = "".join(TEXTS)
    assert "\n" in everything and "👍" in everything and "7.2%" in everything and "" in TEXTS


def test_the_file_and_that_it_is_known_again(saved: Path) -> None:
    value = read_golden(saved / "golden.json")
    assert (value["dtype"], value["device"], value["dimension"], value["prompt"]) == ("float32", "cpu", 192, None)
    assert value["versions"]["torch"] == torch.__version__ and value["versions"]["st-reba"] == st_reba.__version__
    assert tuple(each["text"] for each in value["texts"]) == TEXTS
    # The vectors are those of plain encode, without the default prompt.
    model = SentenceTransformer(str(saved), device="cpu", truncate_dim=8)
    model.default_prompt_name = None
    vectors = np.array([each["vector"] for each in value["texts"]])
    np.testing.assert_allclose(model.encode(list(TEXTS), truncate_dim=192), vectors, atol=1e-6, rtol=0)
    report = verify(saved, device="cpu")
    assert report.ok and report.changes == {} and report.code is None and len(report.texts) == 20
    assert all(each.cosine > 1 - 1e-10 and each.difference < 1e-6 for each in report.texts)
    assert verify(model, saved).ok and verify(model, saved / "golden.json").ok and model.truncate_dim == 8


@pytest.mark.parametrize(
    "change",
    [
        change_a_weight,
        change_the_tokenizer,
        edit("sentence_bert_config.json", "layout", "repeats", to=3),
        edit("sentence_bert_config.json", "stages", 0, "nosink", "k", to=3),
        edit("sentence_bert_config.json", "stages", to=[]),
        edit("1_Pooling/config.json", "pooling_mode", to="lasttoken"),
    ],
    ids=["weight", "tokenizer", "repeats", "k", "stages", "pooling"],
)
def test_a_change_is_found(folder: Path, change: Edit) -> None:
    change(folder)
    report = verify(folder, device="cpu")
    assert not report.ok and report.changes == {} and report.worst.difference > report.tolerance
    assert "FAIL" in str(report) and json.loads(json.dumps(report.to_dict()))["ok"] is False


def test_changed_code_is_told(folder: Path) -> None:
    assert code_state(str(folder)) is None
    (folder / "st_reba_old.py").touch()
    file = folder / "st_reba_repeat.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n") + b"# mine\n")
    report = verify(folder, device="cpu")
    assert report.ok and "differs from st_reba" in str(report) and "st_reba_old.py, st_reba_repeat.py" in str(report)
    (folder / "st_reba.py").write_text("from .st_reba_os import Nothing\n")
    assert "names no version" in str(code_state(str(folder)))
    (folder / "st_reba.py").unlink()
    assert str(code_state(str(folder))).startswith("none in the repository")


def test_the_tolerance_follows_depth_and_number_type(base: Callable[..., str]) -> None:
    shallow, deep = st_reba.build(base("qwen3")), st_reba.build("mini")
    exact = tolerance_of(deep)
    assert exact == pytest.approx(64 * 2**-23 * 6**0.5, rel=0.05)
    assert tolerance_of(shallow) == pytest.approx(exact * (shallow[0].depth / 6) ** 0.5, rel=0.05)
    assert tolerance_of(deep, "float64") == exact < tolerance_of(deep, "float16") < tolerance_of(deep, "bfloat16") < 0.1


def test_half_precision_and_other_versions(base: Callable[..., str], tmp_path: Path) -> None:
    """The coarser of both types counts, then and now; a vector's length counts as much as its direction."""
    model = st_reba.build(base("qwen3"), "echo", pooling="mean", normalize=False, dtype="bfloat16", device="cpu")
    save(model, tmp_path / "model")
    stored = read_golden(tmp_path / "model" / "golden.json")
    assert stored["dtype"] == "bfloat16" and verify(tmp_path / "model", device="cpu").ok
    exact = verify(tmp_path / "model", dtype="float32", device="cpu")
    assert exact.ok and exact.changes == {"dtype": ("bfloat16", "float32")}
    assert exact.tolerance == stored["tolerance"] == tolerance_of(model) and exact.worst.difference > 1e-4
    stored["versions"]["torch"], stored["device"] = "2.4.0", "cuda (A100)"
    told = compare(model, stored)
    assert told.ok and told.changes == {"device": ("cuda (A100)", "cpu"), "torch": ("2.4.0", torch.__version__)}
    assert f"changed since: torch 2.4.0 -> {torch.__version__}" in str(told)
    for each in stored["texts"]:
        each["vector"] = [1.2 * number for number in each["vector"]]
    longer = compare(model, stored)
    assert all(each.cosine > 1 - 1e-3 and not each.ok for each in longer.texts)


def test_models_with_needs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A template that wants an instruction, a tokenizer without a token for the empty text, texts that are cut."""
    asked = st_reba.build("mini", "echo", template="{instruction}: {text} / {text}", max_seq_length=24)
    write_golden(asked, tmp_path)
    stored = read_golden(tmp_path / "golden.json")
    assert set(stored["fields"]) == {"instruction"} and compare(asked, stored).ok
    assert "was cut" not in caplog.text
    asked.encode("long " * 100, instruction="A")
    assert "was cut" in caplog.text
    poor = st_reba.build("mini", "echo")
    for name in ("eos", "sep", "bos", "cls", "unk", "pad"):
        setattr(poor.tokenizer, f"{name}_token", None)
    write_golden(poor, tmp_path)
    assert len(read_golden(tmp_path / "golden.json")["texts"]) == 19


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "names no format"),
        ('{"format": 2}', "format 2 is newer than 1.*Update st_reba"),
        ('{"format": 1}', "'dimension' is missing"),
        ({"dtype": "int8"}, "'dtype'"),
        ({"dimension": 191}, "'texts'"),
        ({"texts": []}, "'texts'"),
        ({"texts": [{"text": "a", "vector": ["x"] * 192}]}, "'texts'"),
        ({"texts": [{"text": "a", "vector": [float("nan")] * 192}]}, "'texts'"),
        ({"tolerance": 10.0}, "'tolerance'"),
        ({"fields": {"instruction": 1}}, "'fields'"),
        ({"versions": None}, "'versions'"),
        ({"graph": "../model.onnx"}, "'graph'"),
    ],
)
def test_a_malformed_file_is_refused(saved: Path, tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "golden.json"
    if isinstance(content, dict):
        content = json.dumps({**read_golden(saved / "golden.json"), **content})
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_golden(path)


def test_what_cannot_be_compared(saved: Path, tmp_path: Path, base: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="32 dimensions, and its golden vectors have 192"):
        verify(st_reba.build(base("qwen3")), saved)
    with pytest.raises(ValueError, match="golden=None"):
        verify(st_reba.build("mini"))
    model = st_reba.build("mini", "echo")
    save(model, tmp_path / "without", golden=False)
    with pytest.raises(FileNotFoundError, match="holds no golden.json"):
        verify(tmp_path / "without")
    with torch.no_grad():
        next(model[0].model.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match=r"No golden vector of ''.*NaN.*golden=False"):
        save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_another_process_tells_what_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it finds what is right is seen where models are pushed."""
    change_a_weight(folder)
    with pytest.raises(ValueError, match=r"does not give its golden vectors.*\d+ of 20 texts differ"):
        verify_fresh(folder, device="cpu")
    ended = subprocess.CompletedProcess([], 1, "Loading weights\n", "Traceback\nValueError: no weights\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(ValueError, match="is not published.*ValueError: no weights"):
        verify_fresh(folder)
