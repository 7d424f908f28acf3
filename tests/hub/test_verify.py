"""verify: whatever changes a model's vectors is found, here and in a process of its own."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import st_reba
from st_reba.hub.golden import Report, Rounded, TextResult
from st_reba.hub.saving import save
from st_reba.hub.verify import code_state, verify, verify_fresh

ROOT = Path(st_reba.__file__).parents[1]
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


@pytest.fixture
def folder(echo_saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(echo_saved, tmp_path / "model"))


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


def test_what_cannot_be_compared(echo_saved: Path, tmp_path: Path, base: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="32 dimensions, and its golden vectors have 192"):
        verify(st_reba.build(base("qwen3")), echo_saved)
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


@pytest.mark.slow
def test_another_process_tells_what_is_wrong(folder: Path) -> None:
    """That it finds what is right is seen where models are pushed."""
    change_a_weight(folder)
    with pytest.raises(ValueError, match=r"does not give its golden vectors.*\d+ of 20 texts differ"):
        verify_fresh(folder, device="cpu")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The other process's script runs in this one."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        assert command[:2] == [sys.executable, "-c"] and options["env"]["PYTHONPATH"].startswith(str(ROOT))
        with monkeypatch.context() as patch, redirect_stdout(io.StringIO()) as out:
            patch.setattr(sys, "argv", ["-c", *command[3:]])
            print("Loading weights")
            try:
                exec(compile(command[2], "script", "exec"), {})
            except Exception as error:
                return subprocess.CompletedProcess(command, 1, out.getvalue(), f"Traceback\n{error!r}\n")
        return subprocess.CompletedProcess(command, 0, out.getvalue(), "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_what_another_process_is_asked_and_tells(folder: Path, here: list[list[str]]) -> None:
    verify_fresh(folder, device="cpu")
    verify_fresh(folder)
    assert [command[3:] for command in here] == [[str(folder), "cpu"], [str(folder), ""]]
    change_a_weight(folder)
    with pytest.raises(ValueError, match=r"does not give its golden vectors.*st-reba verify.*\d+ of 20 texts differ"):
        verify_fresh(folder, device="cpu")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="is not published.*Error.*model.safetensors"):
        verify_fresh(folder)


def test_another_process_says_that_8_bits_lose_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = (TextResult("a", 1.0, 0.0, True),)
    report = Report(texts, 1e-4, {}, rounded=Rounded("onnx/model_quantized.onnx", 0.5, 0.7))
    done = subprocess.CompletedProcess([], 0, json.dumps(report.to_dict()), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(ValueError, match="onnx/model_quantized.onnx gives cosines of min 0.5, mean 0.7 only"):
        verify_fresh(tmp_path)
