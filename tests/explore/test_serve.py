"""What is opened, and what is refused before a model is loaded; without gradio."""

from __future__ import annotations

import socket
import subprocess
import sys
import webbrowser
from pathlib import Path
from unittest.mock import ANY, MagicMock, Mock, call

import pytest
from starlette import applications, responses, testclient

from st_reba.explore import DEFAULT_MODELS, launch, serve
from st_reba.index import Index
from st_reba.serve.hosts import LOOPBACK


def test_a_name_is_a_path_or_a_base_with_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may have a space in its name."""
    monkeypatch.chdir(tmp_path)
    Path("my model").mkdir()
    named_models = serve.read_names(["my model", "mini", DEFAULT_MODELS[2]])
    assert named_models["my model"] == ("my model", None)
    assert named_models["mini"] == ("mini", None)
    _, method = named_models[DEFAULT_MODELS[2]]
    assert str(method) == "reba:pooling=mean"


def test_a_path_is_shown_by_its_end_unless_two_are_alike(
    tmp_path: Path,
) -> None:
    first_folder = tmp_path / "a" / "model"
    second_folder = tmp_path / "b" / "model"
    first_folder.mkdir(parents=True)
    second_folder.mkdir(parents=True)
    model_names = [
        f"{first_folder} echo",
        str(first_folder),
        str(second_folder),
    ]
    displayed_names = list(serve.read_names(model_names))
    assert displayed_names == ["model echo", "model", str(second_folder)]


@pytest.mark.parametrize(
    "model_names",
    [
        [],
        [f"mini echo:repeats={repeats}" for repeats in range(1, 8)],
        ["mini ehco"],
    ],
)
def test_too_few_too_many_and_unknown_models_are_refused(
    model_names: list[str],
) -> None:
    with pytest.raises(ValueError):
        launch(model_names)


def test_a_taken_port_is_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "required", Mock())
    with socket.create_server(("127.0.0.1", 0)) as bound_socket:
        port = bound_socket.getsockname()[1]
        with pytest.raises(OSError, match="Give another port"):
            launch(["not/there"], port=port)


@pytest.fixture
def launch_calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Records the calls of what launch uses, which does nothing; ``port`` is called with the port."""
    recorder = Mock()
    functions = {
        "serve.required": recorder.required,
        "serve.make_app": recorder.make_app,
        "serve.run_server": recorder.run_server,
        "serve.threading.Timer": recorder.Timer,
        "compute.open_model": recorder.open_model,
    }
    for name, function in functions.items():
        monkeypatch.setattr(f"st_reba.explore.{name}", function)
    monkeypatch.setattr(Index, "open", recorder.open_index)
    recorder.run_server.side_effect = lambda app, server_socket: recorder.port(
        server_socket.getsockname()[1]
    )
    return recorder


def test_launch_opens_models_and_serves_this_machine_alone(
    launch_calls: Mock,
) -> None:
    launch(["mini"], port=0)
    models = {"mini": launch_calls.open_model()}
    launch_calls.make_app.assert_called_once_with(models, None, LOOPBACK)
    launch_calls.run_server.assert_called_once_with(launch_calls.make_app(), ANY)
    assert not launch_calls.Timer.called


def test_the_page_is_served_at_a_port_of_its_own(
    launch_calls: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind_socket = MagicMock()
    monkeypatch.setattr(serve, "bind_socket", bind_socket)
    launch_calls.run_server.side_effect = None
    launch(["mini"])
    bind_socket.assert_called_once_with("127.0.0.1", 7860)


def test_the_page_for_other_machines_is_served_by_any_name(
    launch_calls: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "bind_socket", MagicMock())
    launch_calls.run_server.side_effect = None
    launch(["mini"], host="0.0.0.0")
    launch_calls.make_app.assert_called_once_with(ANY, None, ())


def test_launch_opens_an_index_and_a_browser(launch_calls: Mock) -> None:
    launch(["mini"], port=0, index="i", open_browser=True, dtype="float16")
    launch_calls.open_model.assert_called_once_with("mini", None, dtype="float16")
    launch_calls.open_index.assert_called_once_with("i", dtype="float16")
    models = {"mini": launch_calls.open_model()}
    launch_calls.make_app.assert_called_once_with(models, launch_calls.open_index(), LOOPBACK)
    address = f"http://localhost:{launch_calls.port.call_args[0][0]}"
    timer_calls = [call(1.0, webbrowser.open, [address]), call().start()]
    assert launch_calls.Timer.mock_calls == timer_calls


@pytest.fixture
def page_module(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A stand-in for the page and gradio; and starlette in place of fastapi."""
    fastapi = Mock(FastAPI=lambda **_: applications.Starlette(), responses=responses)
    page_module = Mock()
    monkeypatch.setitem(sys.modules, "st_reba.explore.page", page_module)
    monkeypatch.setitem(sys.modules, "fastapi", fastapi)
    return page_module


def test_each_language_is_mounted_without_what_asks_other_servers(
    page_module: Mock,
) -> None:
    serve.make_app({}, None)
    paths: list[str] = []
    for mount in page_module.gr.mount_gradio_app.mock_calls:
        paths.append(mount.kwargs["path"])
        assert mount.kwargs["ssr_mode"] is False
        assert mount.kwargs["enable_monitoring"] is False
        assert mount.kwargs["footer_links"] == []
    assert paths == ["/en", "/zh"]
    assert page_module.Page.mock_calls == [call({}, None, "en"), call({}, None, "zh")]


@pytest.mark.usefixtures("page_module")
def test_a_browser_gets_the_page_in_its_language() -> None:
    client = testclient.TestClient(serve.make_app({}, None), follow_redirects=False)
    for accepted_languages, location in (("zh-CN,en;q=0.5", "zh/"), ("en,zh;q=0.5", "en/")):
        answer = client.get("/", headers={"Accept-Language": accepted_languages})
        assert answer.headers["location"] == location


@pytest.mark.usefixtures("page_module")
def test_the_browser_asks_no_other_server() -> None:
    app = serve.make_app({}, None, ["testserver"])
    client = testclient.TestClient(app, follow_redirects=False)
    headers = client.get("/").headers
    assert headers["location"] == "en/"
    assert headers["content-security-policy"] == (
        "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; form-action 'self'"
    )


@pytest.mark.usefixtures("page_module")
def test_a_foreign_host_is_refused() -> None:
    client = testclient.TestClient(serve.make_app({}, None, ["testserver"]))
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
    client = testclient.TestClient(serve.make_app({}, None), follow_redirects=False)
    assert client.get("/", headers={"Host": "any.example"}).status_code == 307


@pytest.mark.slow
def test_the_page_needs_nothing_of_the_extra_for_serving() -> None:
    """gradio brings starlette, uvicorn and pydantic along; nothing brings the others."""
    script = (
        "import sys; sys.modules['batched'] = sys.modules['prometheus_client'] = None; "
        "import st_reba.explore.serve, st_reba.explore.answers"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_missing_gradio_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=r"st-reba\[explore\]"):
        launch(["mini"])
