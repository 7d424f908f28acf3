"""The commands build, info, verify, push, zoo and onnx: what they hand on, and what they print."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

import st_reba
from st_reba.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def saved_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with masks, saved by the command; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("models") / "model"
    options = ["--method", "nosink", "--set", "setting=mask0-bidir", "--set", "k=2"]
    assert main(["build", "mini", str(folder), *options]) == 0
    return folder


def test_build_prints_the_model_as_json_and_no_bars(tmp_path: Path, capsys: Capture) -> None:
    options = [
        "--method",
        "nosink",
        "--set",
        "setting=mask0-bidir",
        "--set",
        "k=2",
        "--json",
    ]
    assert main(["build", "mini", str(tmp_path / "model"), *options]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    facts = json.loads(printed.out)
    assert facts["method"] == "nosink:setting=mask0-bidir,k=2"
    assert facts["base"] == "mini"
    assert facts["revision"] is None
    assert facts["layers"] == 6
    assert facts["masks"][3:] == [
        "forward",
        "nosink-bidirectional",
        "nosink-bidirectional",
    ]
    assert facts["template"] == ["{text}"]
    assert "templates" not in facts
    assert facts["longest text, in tokens"] > 9
    assert main(["info", str(tmp_path / "model"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == facts


def test_info_tells_the_longest_text_of_each_task(tmp_path: Path, capsys: Capture) -> None:
    st_reba.build("mini").save_pretrained(str(tmp_path / "model"))
    assert main(["info", str(tmp_path / "model"), "--json"]) == 0
    longest_texts = json.loads(capsys.readouterr().out)["longest text, in tokens"]
    assert set(longest_texts) == {"query", "document", "similarity"}
    # The examples stand in front of what `encode` takes alone.
    assert longest_texts["similarity"] < longest_texts["document"] - 50


def test_info_prints_yaml_and_does_not_warn_of_16_bits(saved_folder: Path, capsys: Capture) -> None:
    assert main(["info", str(saved_folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "method: nosink:setting=mask0-bidir,k=2" in lines
    assert "template: ['{text}']" in lines
    model_logger = logging.getLogger("sentence_transformers.base.model")
    assert not model_logger.isEnabledFor(logging.WARNING)


def test_info_refuses_a_missing_model(tmp_path: Path) -> None:
    assert main(["info", str(tmp_path / "missing")]) == 1


def test_verify_accepts_a_saved_model(saved_folder: Path, capsys: Capture) -> None:
    assert main(["verify", str(saved_folder), "--json"]) == 0
    printed_report = capsys.readouterr()
    assert json.loads(printed_report.out)["ok"] is True
    assert "Encoding" not in printed_report.err
    assert main(["verify", str(saved_folder)]) == 0
    assert "Encoding 20 texts" in capsys.readouterr().err


def test_verify_and_push_refuse_other_code(
    saved_folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    changed_folder = tmp_path / "model"
    shutil.copytree(saved_folder, changed_folder)
    (changed_folder / "st_reba.py").write_text("# other\n", encoding="utf-8")
    assert main(["verify", str(changed_folder)]) == 1
    assert "FAIL" in capsys.readouterr().out
    assert main(["push", str(changed_folder), "org/model", "--dry-run"]) == 1


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_folder_has_no_revisions(command: str, tmp_path: Path, capsys: Capture) -> None:
    assert main([command, str(tmp_path), "--revision", "v2"]) == 2
    assert capsys.readouterr().err.startswith(
        f"st-reba: --revision v2: {tmp_path} is not a repository"
    )


def test_build_replaces_a_model_only_if_told_to(tmp_path: Path, capsys: Capture) -> None:
    folder = str(tmp_path / "model")
    assert main(["build", "mini", folder]) == 0
    assert main(["build", "mini", folder]) == 1
    capsys.readouterr()
    assert main(["build", "mini", folder, "--overwrite"]) == 0
    loading_line, saving_line, next_line = capsys.readouterr().err.splitlines()
    assert loading_line == "Loading mini and building a model from it ..."
    assert saving_line.startswith(f"Saving {folder}: ")
    assert next_line.startswith(f"Next: st-reba index TEXTS my_index --model {folder} ")


@pytest.fixture
def build_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mock:
    """Takes the place of `st_reba.build`, which fails; the current folder has a file of texts."""
    build_call = Mock(side_effect=ValueError("enough"))
    monkeypatch.setattr(st_reba, "build", build_call)
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a\nb\n", encoding="utf-8")
    return build_call


@pytest.mark.parametrize(
    ("words", "method", "options"),
    [
        ("", None, {}),
        (
            "--method echo:pooling=mean --set layer=[1,2]",
            "echo:pooling=mean",
            {"layer": [1, 2]},
        ),
        (
            "--repeats 0 --pooling mean --set k=all --set m=2 --set k0=0",
            None,
            {"repeats": 0, "pooling": "mean", "k": "all", "m": 2, "k0": 0},
        ),
        (
            "--prompt query=a=b --set normalize=false",
            None,
            {"prompts": {"query": "a=b"}, "normalize": False},
        ),
        ("--template {text}", None, {"template": "{text}"}),
        (
            "--template a{text} --template b{text}",
            None,
            {"template": ["a{text}", "b{text}"]},
        ),
        (
            "--dtype bfloat16 --device cpu --quantization nf4 --trust-remote-code",
            None,
            {
                "dtype": "bfloat16",
                "device": "cpu",
                "quantization": "nf4",
                "trust_remote_code": True,
            },
        ),
        (
            "--method auto --texts texts.txt --set chunk=9",
            "auto",
            {"texts": ["a", "b"], "chunk": 9},
        ),
    ],
)
def test_build_hands_on_its_options(
    words: str, method: str | None, options: dict[str, Any], build_call: Mock
) -> None:
    assert main(["build", "mini", "out", *words.split()]) == 1
    assert build_call.mock_calls == [call("mini", method, **options)]


@pytest.mark.parametrize(
    ("words", "exit_status"),
    [(["out", "--set", "m"], 2), (["out", "--prompt", "=a"], 2), (["texts.txt"], 1)],
)
def test_build_refuses_before_it_builds(
    words: list[str], exit_status: int, build_call: Mock
) -> None:
    assert main(["build", "mini", *words]) == exit_status
    assert not build_call.called


def test_zoo_lists_every_recipe(capsys: Capture) -> None:
    assert main(["zoo"]) == 0
    cells_by_name: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        name, *cells = line.split()
        cells_by_name[name] = cells
    assert list(cells_by_name) == ["NAME", *st_reba.zoo()]
    assert cells_by_name["NAME"][:4] == ["BASE", "SIZE", "LICENCE", "STATUS"]
    expected_row = "google/gemma-3-1b-pt 1B gemma ready prompteol:max_seq_length=2048"
    assert cells_by_name["gemma3-1b-prompteol"] == expected_row.split()


def test_info_shows_a_recipe_of_the_zoo(capsys: Capture) -> None:
    assert main(["info", "zoo:mini-echo", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["base"] == "mini"
    assert facts["method"] == "echo"


def test_info_suggests_a_name_for_a_misspelt_one(capsys: Capture) -> None:
    assert main(["info", "zoo:mini-ekko"]) == 1
    assert "mini-echo" in capsys.readouterr().err


def test_info_shows_a_recipe_file(tmp_path: Path, capsys: Capture) -> None:
    line = "{base: mini, method: echo, template: '说：{text}，{text}'}\n"
    (tmp_path / "r.yaml").write_text(line, encoding="utf-8")
    assert main(["info", str(tmp_path / "r.yaml")]) == 0
    assert capsys.readouterr().out == line


def test_a_recipes_model_has_the_recipes_facts(tmp_path: Path) -> None:
    assert main(["build", "zoo:mini-reba", str(tmp_path / "model")]) == 0
    assert "model_name: mini-reba\n" in read_card(tmp_path / "model")


def test_a_model_that_differs_from_its_recipe_has_no_facts_of_it(tmp_path: Path) -> None:
    options = ["--repeats", "3", "--license", "mit"]
    assert main(["build", "zoo:mini-reba", str(tmp_path / "model"), *options]) == 0
    card = read_card(tmp_path / "model")
    assert "model_name: mini-reba\n" not in card
    assert "license: mit\n" in card


def read_card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def test_onnx_refuses_a_folder_before_it_loads(
    saved_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("st_reba.safety.load", Mock(side_effect=ValueError("loaded")))
    assert main(["onnx", "model", str(saved_folder), "--overwrite"]) == 1
    assert "exists, and is not an exported model" in capsys.readouterr().err


def test_onnx_hands_on_its_options(
    saved_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("onnxscript")

    def fake_export(model: object, folder: Path, **options: object) -> dict[str, object]:
        return {"folder": str(folder), **options}

    silence_loading = Mock()
    monkeypatch.setattr("st_reba.onnx.export", fake_export)
    monkeypatch.setattr("st_reba.cli.models.silence_loading", silence_loading)
    options = ["--task", "query", "--quantize", "int8", "--json"]
    capsys.readouterr()
    assert main(["onnx", str(saved_folder), "out", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "folder": "out",
        "task": "query",
        "quantize": "int8",
        "overwrite": False,
    }
    assert silence_loading.called
