"""golden.json and verify: a model is known again, and whatever changes its vectors is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import cli
from st_reba.hub import golden
from st_reba.hub.golden import DIFFERENCE, TEXTS, compare, read_golden, write_golden
from st_reba.hub.saving import save
from st_reba.hub.verify import verify

Edit = Callable[[Path], None]


def edit(name: str, **changes: Any) -> Edit:
    def change(folder: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**value, **changes}, ensure_ascii=False), encoding="utf-8")

    return change


def change_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

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
    model = st_reba.build("mini", "echo", pooling="mean", setting="mask0-bidir", k=2, prompts={"query": "Q: "})
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
    tokens = [len(ids) for ids in st_reba.build("mini")[0].content(TEXTS)["input_ids"]]
    assert sorted(tokens)[:2] == [0, 1] and 100 < max(tokens) < 160


def test_the_file(saved: Path) -> None:
    value = read_golden(saved / "golden.json")
    assert (value["dtype"], value["device"], value["dimension"], value["prompt"]) == ("float32", "cpu", 192, None)
    assert value["tolerance"] == {"difference": DIFFERENCE}
    assert value["versions"]["torch"] == torch.__version__ and value["versions"]["st-reba"] == st_reba.__version__
    assert tuple(each["text"] for each in value["texts"]) == TEXTS
    # The vectors are those of plain encode, without the default prompt.
    model = SentenceTransformer(str(saved), device="cpu")
    model.default_prompt_name = None
    vectors = np.array([each["vector"] for each in value["texts"]])
    np.testing.assert_allclose(model.encode(list(TEXTS)), vectors, atol=1e-6, rtol=0)
    text = (saved / "golden.json").read_text(encoding="utf-8")
    numbers = text.split('"vector": [')[5].split("]")[0].split(", ")
    assert max(len(number.partition("e")[0].strip("-0.").replace(".", "")) for number in numbers) == 7


def test_known_again(saved: Path) -> None:
    report = verify(saved)
    assert report.ok and report.changes == {} and len(report.texts) == 20
    assert all(each.cosine > 1 - 1e-10 and each.difference < 1e-6 for each in report.texts)
    half = verify(saved, dtype="bfloat16")
    assert half.ok and half.changes == {"dtype": ("float32", "bfloat16")}
    assert half.tolerance == {"cosine": 1e-3, "length": 1e-2}
    assert max(each.difference for each in half.texts) > DIFFERENCE
    loaded = SentenceTransformer(str(saved), device="cpu", truncate_dim=8)
    assert verify(loaded, saved).ok and verify(loaded, saved / "golden.json").ok
    assert loaded.truncate_dim == 8


@pytest.mark.parametrize(
    "change",
    [
        change_a_weight,
        change_the_tokenizer,
        edit("sentence_bert_config.json", repeats=3),
        edit("sentence_bert_config.json", layers=None),
        edit("sentence_bert_config.json", span="all"),
        edit("1_Pooling/config.json", pooling_mode="lasttoken"),
    ],
    ids=["weight", "tokenizer", "repeats", "layers", "span", "pooling"],
)
def test_a_change_is_found(folder: Path, change: Edit) -> None:
    change(folder)
    report = verify(folder)
    assert not report.ok and report.changes == {}
    assert any(each.difference > DIFFERENCE for each in report.texts)


def test_k_is_found(tmp_path: Path) -> None:
    save(st_reba.build("mini", "nosink", setting="mask0-bidir", k=2), tmp_path)
    assert verify(tmp_path).ok
    edit("sentence_bert_config.json", k=3)(tmp_path)
    assert not verify(tmp_path).ok


def test_half_precision(base: Callable[..., str], tmp_path: Path) -> None:
    """Lengths count too, where a cosine would not tell."""
    model = st_reba.build(base("qwen3"), "echo", pooling="mean", normalize=False, dtype="bfloat16")
    save(model, tmp_path)
    assert read_golden(tmp_path / "golden.json")["dtype"] == "bfloat16"
    report = verify(tmp_path)
    assert report.ok and report.changes == {}
    exact = verify(tmp_path, dtype="float32")
    assert exact.tolerance == {"cosine": 1e-3, "length": 1e-2}
    assert exact.changes == {"dtype": ("bfloat16", "float32")}
    stored = read_golden(tmp_path / "golden.json")
    for each in stored["texts"]:
        each["vector"] = [1.05 * number for number in each["vector"]]
    longer = compare(model, stored)
    assert not longer.ok and all(each.cosine > 1 - 1e-3 and not each.ok for each in longer.texts)


def test_other_versions_are_told(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceTransformer(str(saved), device="cpu")
    stored = read_golden(saved / "golden.json")
    stored["versions"]["torch"] = "2.4.0"
    stored["device"] = "cuda (A100)"
    report = compare(model, stored)
    assert report.ok
    assert report.changes == {"device": ("cuda (A100)", "cpu"), "torch": ("2.4.0", torch.__version__)}
    assert f"changed since: torch 2.4.0 -> {torch.__version__}" in str(report)


def test_models_with_needs(base: Callable[..., str], tmp_path: Path) -> None:
    """A template that wants an instruction, and a tokenizer without a token for the empty text."""
    asked = st_reba.build("mini", "echo", template="{instruction}: {text} / {text}")
    write_golden(asked, tmp_path)
    stored = read_golden(tmp_path / "golden.json")
    assert set(stored["fields"]) == {"instruction"}
    assert compare(asked, stored).ok
    poor = st_reba.build("mini", "echo")
    for name in ("eos", "sep", "bos", "cls", "unk", "pad"):
        setattr(poor.tokenizer, f"{name}_token", None)
    write_golden(poor, tmp_path)
    assert len(read_golden(tmp_path / "golden.json")["texts"]) == 19


def test_a_cut_is_no_matter_of_these_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = st_reba.build("mini", "echo", max_seq_length=24)
    write_golden(model, tmp_path)
    assert verify(model, tmp_path).ok
    assert "was cut" not in caplog.text
    model.encode("long " * 100)
    assert "was cut" in caplog.text


def test_texts_that_cannot_be_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = st_reba.build("mini", "echo")
    with torch.no_grad():
        next(model[0].model.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match=r"No golden vector of ''.*NaN.*golden=False"):
        save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


# Files that are none


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "names no format"),
        ('{"format": "1"}', "names no format"),
        ('{"format": 2}', "format 2 is newer than 1.*Update st_reba"),
        ('{"format": 1}', "'dimension' is missing"),
        ({"dtype": "int8"}, "'dtype'"),
        ({"dimension": 191}, "'texts'"),
        ({"texts": []}, "'texts'"),
        ({"texts": [{"text": "a", "vector": ["x"] * 192}]}, "'texts'"),
        ({"texts": [{"text": "a", "vector": [float("nan")] * 192}]}, "'texts'"),
        ({"tolerance": {"difference": 10.0}}, "'tolerance'"),
        ({"tolerance": {}}, "'tolerance'"),
        ({"fields": {"instruction": 1}}, "'fields'"),
        ({"versions": None}, "'versions'"),
    ],
)
def test_malformed(saved: Path, tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "golden.json"
    if isinstance(content, dict):
        content = json.dumps({**read_golden(saved / "golden.json"), **content})
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_golden(path)


def test_another_models_vectors(saved: Path, base: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="32 dimensions, and its golden vectors have 192"):
        verify(st_reba.build(base("qwen3")), saved)
    with pytest.raises(ValueError, match="golden=None"):
        verify(st_reba.build("mini"))


# The command


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 22 and lines[-1] == "20 of 20 texts agree (tolerance: difference 1e-05)"
    assert all("  ok    " in line for line in lines[1:-1])
    change_a_weight(folder)
    assert cli.main(["verify", str(folder), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False and len(report["texts"]) == 20 and not report["texts"][3]["ok"]
    assert cli.main(["verify", str(folder)]) == 1
    assert "FAIL" in capsys.readouterr().out
    (folder / "golden.json").unlink()
    assert cli.main(["verify", str(folder)]) == 2
    assert "holds no golden.json" in capsys.readouterr().err


def test_build_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["build", "mini", str(tmp_path / "with"), "--method", "echo"]) == 0
    assert cli.main(["build", "mini", str(tmp_path / "without"), "--method", "echo", "--no-golden"]) == 0
    assert verify(tmp_path / "with").ok
    with pytest.raises(FileNotFoundError, match="holds no golden.json"):
        verify(tmp_path / "without")
    assert golden.FILE == "golden.json"
