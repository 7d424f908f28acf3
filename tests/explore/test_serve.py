"""Before the page is served: what is refused, and in which order; without gradio."""

from __future__ import annotations

import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from st_reba.explore import launch, serve


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands for uvicorn: what it was to serve."""
    served: list[Any] = []
    monkeypatch.setitem(sys.modules, "uvicorn", types.SimpleNamespace(run=lambda *given, **all: served.append(all)))
    monkeypatch.setattr(serve, "make_app", lambda *given: given)
    return served


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_is_served_on_this_machine_alone(server: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    launch(["mini"], port=port)
    assert server[0]["host"] == "127.0.0.1" and server[0]["port"] == port
    assert f"http://127.0.0.1:{port}" in capsys.readouterr().out


def test_refused_before_it_starts(server: list[Any], tmp_path: Path) -> None:
    port = free_port()
    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "Did you mean 'echo'", {"models": ["mini ehco"]}),
        (ValueError, "language.*choose from", {"language": "de"}),
        (FileNotFoundError, "index", {"models": ["mini"], "index": tmp_path / "none"}),
        (TypeError, "unexpected keyword argument", {"models": ["mini"], "devise": "cpu"}),
    ]
    for kind, message, given in refused:
        with pytest.raises(kind, match=message):
            launch(**{"models": ["mini"], "port": port, **given})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="Give another port"):
            # A model that is not there: the port is looked at first.
            launch(["mini ehco"], port=taken.getsockname()[1])
    assert not server


def test_without_gradio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"pip install 'st-reba\[explore\]'"):
        launch(["mini"])


@pytest.mark.slow
def test_gradio_is_imported_by_the_page_alone() -> None:
    code = "import sys, st_reba, st_reba.explore; assert not {'gradio', 'fastapi', 'uvicorn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
