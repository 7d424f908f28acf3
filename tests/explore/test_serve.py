"""What is refused before a model is loaded; without gradio."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from st_reba.explore import DEFAULT, launch, serve


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may have a space in its name."""
    monkeypatch.chdir(tmp_path)
    Path("my model").mkdir()
    named = serve.read_names(["my model", "mini", *DEFAULT[::2]])
    assert named["my model"] == ("my model", None) and named["mini"] == ("mini", None)
    assert str(named[DEFAULT[2]][1]) == "reba:pooling=mean"
    here, there = (str(tmp_path / name / "model") for name in "ab")
    for path in (here, there):
        Path(path).mkdir(parents=True)
    assert list(serve.read_names([f"{here} echo", here, there])) == ["model echo", "model", there]


@pytest.mark.parametrize("names", [[], [f"mini echo:repeats={number}" for number in range(1, 8)], ["mini ehco"]])
def test_refusals(names: list[str]) -> None:
    with pytest.raises(ValueError):
        launch(names)


def test_a_taken_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "required", lambda *given: None)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="Give another port"):
        launch(["not/there"], port=taken.getsockname()[1])


def test_gradio_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r"st-reba\[explore\]"):
        launch(["mini"])
