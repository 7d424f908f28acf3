"""The commands explore and space: what they hand on; mistakes are told in test_help.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import st_reba.explore
from st_reba.cli import main
from st_reba.cli.explore import _LANGUAGES
from st_reba.explore import names


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(st_reba.explore, "launch", lambda models, **given: calls.append((models, given)), raising=False)
    monkeypatch.setattr(names, "check_installed", lambda: None)
    return calls


def test_languages() -> None:
    assert tuple(names.LANGUAGES) == _LANGUAGES


def test_explore(launched: list[Any], tmp_path: Path) -> None:
    assert main(["explore"]) == 0
    models, given = launched.pop()
    assert models == list(names.DEFAULT) and (given["host"], given["port"], given["index"]) == ("127.0.0.1", 7860, None)
    options = ["--port", "8000", "--language", "zh", "--open", "--device", "cpu", "--dtype", "bfloat16"]
    assert main(["explore", "mini", "mini echo:pooling=mean", "zoo:mini-reba", *options]) == 0
    models, given = launched.pop()
    assert models == ["mini", "mini echo:pooling=mean", "zoo:mini-reba"]
    assert callable(given.pop("ready"))
    assert given == {
        "host": "127.0.0.1",
        "port": 8000,
        "index": None,
        "language": "zh",
        "open_browser": True,
        "device": "cpu",
        "dtype": "bfloat16",
        "trust_remote_code": False,
    }


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(names, "find_spec", lambda module: None)
    assert main(["explore"]) == 2 and "pip install 'st-reba[explore]'" in capsys.readouterr().err


def test_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "space"
    assert main(["space", str(folder), "mini", "mini echo", "--title", "Mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder), "models": ["mini", "mini echo"]}
    assert 'title: "Mine"' in (folder / "README.md").read_text(encoding="utf-8")
    assert main(["space", str(folder), "mini"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["space", str(folder), "mini", "--overwrite"]) == 0
