"""What is opened, and what is refused before a model is loaded; without gradio."""

from __future__ import annotations

import socket
import sys
import webbrowser
from pathlib import Path
from unittest.mock import ANY, Mock, call

import pytest
from starlette import applications, responses, testclient

from st_reba.explore import DEFAULT_MODELS, launch, serve
from st_reba.index import Index
from st_reba.serve.hosts import LOOPBACK


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may have a space in its name."""
    monkeypatch.chdir(tmp_path)
    Path("my model").mkdir()
    named = serve.read_names(["my model", "mini", *DEFAULT_MODELS[::2]])
    assert named["my model"] == ("my model", None) and named["mini"] == ("mini", None)
    assert str(named[DEFAULT_MODELS[2]][1]) == "reba:pooling=mean"
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


def test_what_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Mock()
    for name in ("serve.required", "compute.open_model", "serve.make_app", "serve.run_server", "serve.threading.Timer"):
        monkeypatch.setattr(f"st_reba.explore.{name}", getattr(found, name.rpartition(".")[2]))
    monkeypatch.setattr(Index, "open", found.open)
    found.run_server.side_effect = lambda app, taken: found.port(taken.getsockname()[1])
    launch(["mini"], port=0)
    launch(["mini"], port=0, index="i", open_browser=True, dtype="float16")
    found.open.assert_called_once_with("i", dtype="float16")
    page, address = {"mini": found.open_model()}, f"http://localhost:{found.port.call_args[0][0]}"
    assert found.make_app.mock_calls == [call(page, None, LOOPBACK), call(page, found.open(), LOOPBACK)]
    assert found.Timer.mock_calls == [call(1.0, webbrowser.open, [address]), call().start()]
    assert found.run_server.mock_calls == [call(found.make_app(), ANY)] * 2


def test_the_browser_asks_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    fastapi = Mock(FastAPI=lambda **options: applications.Starlette(), responses=responses)
    monkeypatch.setitem(sys.modules, "st_reba.explore.page", page := Mock())
    monkeypatch.setitem(sys.modules, "fastapi", fastapi)
    client = testclient.TestClient(serve.make_app({}, None, ["testserver"]), follow_redirects=False)
    mounted = [one.kwargs for one in page.gr.mount_gradio_app.mock_calls]
    names = ("path", "ssr_mode", "enable_monitoring")
    assert [[one[name] for name in names] for one in mounted] == [["/en", False, False], ["/zh", False, False]]
    headers = client.get("/").headers
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
    assert (headers["location"], headers["content-security-policy"]) == ("en/", serve._CONTENT_POLICY.decode())


def test_gradio_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r"st-reba\[explore\]"):
        launch(["mini"])
