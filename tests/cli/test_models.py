"""The commands build, info, verify, push, zoo and onnx: what they hand on, and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import st_reba
from st_reba.cli import main

NOSINK = ["--set", "setting=mask0-bidir", "--set", "k=2"]


def test_build_info_verify_push(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "model")
    assert main(["build", "mini", folder, "--method", "nosink", *NOSINK, "--json"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert shown.err == ""  # no bars of what is loaded and written
    assert told["method"] == "nosink:setting=mask0-bidir,k=2" and told["base"] == "mini" and told["layers"] == 6
    assert told["masks"][3:] == ["forward", "nosink-bidirectional", "nosink-bidirectional"]
    assert main(["info", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert main(["info", folder]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "method: nosink:setting=mask0-bidir,k=2" in shown
    assert told["templates"] == {"document": ["{text}"], "query": ["{text}"]}
    assert shown[shown.index("templates:") + 1 :][:2] == ["  query: ['{text}']", "  document: ['{text}']"]
    assert main(["verify", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    (tmp_path / "model" / "st_reba.py").write_text("# other\n", encoding="utf-8")
    assert main(["verify", folder]) == 1 and "FAIL" in capsys.readouterr().out
    assert main(["push", folder, "org/model", "--dry-run"]) == 1
    assert main(["build", "mini", folder]) == 1
    assert main(["build", "mini", folder, "--overwrite"]) == 0
    assert main(["info", str(tmp_path / "missing")]) == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def build(base: str, method: Any, **options: Any) -> Any:
        found.append((base, method, options))
        raise ValueError("enough")

    monkeypatch.setattr(st_reba, "build", build)
    return found


def test_options_of_build(asked: list[Any], tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a\nb\n", encoding="utf-8")
    out = str(tmp_path / "out")
    cases: list[tuple[list[str], tuple[Any, Any, dict[str, Any]]]] = [
        (["mini", out], ("mini", None, {})),
        (
            ["mini", out, "--method", "echo:pooling=mean", "--repeats", "0", "--set", "layer=[1,2]", "--set", "k=all"],
            ("mini", "echo:pooling=mean", {"repeats": 0, "layer": [1, 2], "k": "all"}),
        ),
        (
            ["mini", out, "--prompt", "query=a=b", "--set", "normalize=false", "--set", "m=2", "--set", "k0=0"],
            ("mini", None, {"prompts": {"query": "a=b"}, "normalize": False, "m": 2, "k0": 0}),
        ),
        (["mini", out, "--template", "{text}"], ("mini", None, {"template": "{text}"})),
        (
            ["mini", out, "--template", "a {text}", "--template", "b {text}", "--trust-remote-code"],
            ("mini", None, {"template": ["a {text}", "b {text}"], "trust_remote_code": True}),
        ),
        (
            ["mini", out, "--method", "auto", "--texts", str(texts), "--dtype", "bfloat16", "--set", "chunk=9"],
            ("mini", "auto", {"texts": ["a", "b"], "dtype": "bfloat16", "chunk": 9}),
        ),
    ]
    for arguments, wanted in cases:
        assert main(["build", *arguments]) == 1
        assert asked.pop() == wanted
    for wrong in (["--set", "m"], ["--prompt", "=a"]):
        assert main(["build", "mini", out, *wrong]) == 1 and not asked


def test_wrong_options_of_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--set", "layers=2"], ["--method", "ehco"]):
        assert main(["build", "mini", str(tmp_path / "out"), *wrong]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "layers=2" in first and "'ehco'" in second and "echo" in second


def test_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    cells = {line.split()[0]: line.split()[1:4] for line in capsys.readouterr().out.splitlines()}
    assert list(cells) == ["NAME", *st_reba.zoo()] and cells["NAME"] == ["BASE", "SIZE", "LICENCE"]
    assert cells["gemma3-1b-prompteol"] == ["google/gemma-3-1b-pt", "1B", "gemma"]
    assert main(["info", "zoo:mini-echo", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["base"], shown["method"]) == ("mini", "echo")
    assert main(["info", "zoo:mini-ekko"]) == 1
    assert "mini-echo" in capsys.readouterr().err


def test_facts_of_a_recipe_are_those_of_its_own_model(tmp_path: Path) -> None:
    assert main(["build", "zoo:mini-reba", str(tmp_path / "a")]) == 0
    assert "model_name: mini-reba\n" in (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert main(["build", "zoo:mini-reba", str(tmp_path / "b"), "--repeats", "3", "--license", "mit"]) == 0
    card = (tmp_path / "b" / "README.md").read_text(encoding="utf-8")
    assert "model_name: mini-reba\n" not in card and "license: mit\n" in card


def test_onnx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    assert main(["build", "mini", str(tmp_path / "model")]) == 0
    monkeypatch.setattr("st_reba.onnx.export", lambda model, folder, **options: {"folder": str(folder), **options})
    capsys.readouterr()
    given = [str(tmp_path / "model"), "out", "--task", "query", "--quantize", "int8", "--json"]
    assert main(["onnx", *given]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"folder": "out", "task": "query", "quantize": "int8", "overwrite": False}
