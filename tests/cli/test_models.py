"""The commands build, info, verify, push, zoo and onnx: what they hand on, and what they print."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

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
    assert told["masks"][3:] == ["forward", "nosink-bidirectional", "nosink-bidirectional"] and told["revision"] is None
    assert main(["info", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    # It would warn of 16 bits, but nothing is encoded.
    assert not logging.getLogger("sentence_transformers.base.model").isEnabledFor(logging.WARNING)
    assert main(["info", folder]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "method: nosink:setting=mask0-bidir,k=2" in shown
    assert told["template"] == ["{text}"] and "template: ['{text}']" in shown
    assert "templates" not in told and told["longest text, in tokens"] > 9
    assert main(["verify", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    (tmp_path / "model" / "st_reba.py").write_text("# other\n", encoding="utf-8")
    assert main(["verify", folder]) == 1 and "FAIL" in capsys.readouterr().out
    assert main(["push", folder, "org/model", "--dry-run"]) == 1
    assert main(["build", "mini", folder]) == 1
    capsys.readouterr()
    assert main(["build", "mini", folder, "--overwrite"]) == 0
    loading, saving, following = capsys.readouterr().err.splitlines()
    assert loading == "Loading mini and building a model from it ..." and saving.startswith(f"Saving {folder}: ")
    assert following.startswith(f"Next: st-reba index TEXTS my_index --model {folder} ")
    assert main(["info", str(tmp_path / "missing")]) == 1


def test_options_of_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = Mock(side_effect=ValueError("enough"))
    monkeypatch.setattr(st_reba, "build", asked)
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a\nb\n", encoding="utf-8")
    cases: list[tuple[str, str | None, dict[str, Any]]] = [
        ("", None, {}),
        ("--method echo:pooling=mean --set layer=[1,2]", "echo:pooling=mean", {"layer": [1, 2]}),
        ("--repeats 0 --set k=all --set m=2 --set k0=0", None, {"repeats": 0, "k": "all", "m": 2, "k0": 0}),
        ("--prompt query=a=b --set normalize=false", None, {"prompts": {"query": "a=b"}, "normalize": False}),
        ("--template {text}", None, {"template": "{text}"}),
        ("--template a{text} --template b{text}", None, {"template": ["a{text}", "b{text}"]}),
        ("--dtype bfloat16 --trust-remote-code", None, {"dtype": "bfloat16", "trust_remote_code": True}),
        ("--method auto --texts texts.txt --set chunk=9", "auto", {"texts": ["a", "b"], "chunk": 9}),
    ]
    for arguments, method, options in cases:
        assert main(["build", "mini", "out", *arguments.split()]) == 1
        assert asked.mock_calls == [call("mini", method, **options)]
        asked.reset_mock()
    for wrong, status in ((["out", "--set", "m"], 2), (["out", "--prompt", "=a"], 2), (["texts.txt"], 1)):
        assert main(["build", "mini", *wrong]) == status and not asked.called


def test_zoo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    cells = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert list(cells) == ["NAME", *st_reba.zoo()] and cells["NAME"][:4] == ["BASE", "SIZE", "LICENCE", "STATUS"]
    wanted = "google/gemma-3-1b-pt 1B gemma ready prompteol:max_seq_length=2048"
    assert cells["gemma3-1b-prompteol"] == wanted.split()
    assert main(["info", "zoo:mini-echo", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["base"], shown["method"]) == ("mini", "echo")
    assert main(["info", "zoo:mini-ekko"]) == 1
    assert "mini-echo" in capsys.readouterr().err
    line = "{base: mini, method: echo, template: '说：{text}，{text}'}\n"
    (tmp_path / "r.yaml").write_text(line, encoding="utf-8")
    assert main(["info", str(tmp_path / "r.yaml")]) == 0 and capsys.readouterr().out == line


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
    monkeypatch.setattr("st_reba.cli.models.silence_loading", quiet := Mock())
    given = [str(tmp_path / "model"), "out", "--task", "query", "--quantize", "int8", "--json"]
    assert main(["onnx", *given]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"folder": "out", "task": "query", "quantize": "int8", "overwrite": False} and quiet.called
