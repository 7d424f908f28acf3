"""serve: what the command hands on, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commanding import Refused

import st_reba.serve
from st_reba.cli import main
from st_reba.serve import Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(st_reba.serve, "serve", lambda model, **given: calls.append((model, given)))
    return calls


def test_what_the_command_hands_on(served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "organization/model"]) == 0
    model, given = served.pop()
    assert (model, given.pop("settings")) == ("organization/model", Settings())
    assert (given["host"], given["port"]) == ("127.0.0.1", 8080)
    options = ["--queue", "7", "--delay", "2.5", "--max-body", "1"]
    options += ["--batch-size", "4", "--threads", "2", "--name", "n"]
    for option, told in (((), "U  (Ctrl+C ends it)\n"), (("--json",), '{"url": "U"}\n'), (("-q",), "")):
        assert main(["serve", "organization/model", *option]) == 0
        served.pop()[1]["ready"]("U")
        assert capsys.readouterr().out == told
    assert main(["serve", "organization/model", *options]) == 0
    _, given = served.pop()
    assert given["settings"] == Settings(queue=7, delay=2.5, max_body=1, batch_size=4)
    assert (given["threads"], given["name"]) == (2, "n")


def test_an_exported_model_is_not_served(served: list[Any], refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "onnx" / "model.onnx").touch()
    assert "is an exported model; serve the saved model that it was made of" in refused("serve", tmp_path)
    assert served == []
