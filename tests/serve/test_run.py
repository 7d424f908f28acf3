"""What is served to whom; and a real process with many clients, which loses nothing that it accepted."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY, MagicMock, Mock

import httpx
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from serving import server_process

import st_reba
from st_reba.serve import run
from st_reba.serve.access import API_KEY_VARIABLE
from st_reba.serve.connections import PatientProtocol
from st_reba.serve.hosts import LOOPBACK

TEXTS = [f"{number} cats sleep on the warm roof." for number in range(1000)]


@pytest.fixture
def load_model(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Takes the place of `st_reba.load`; no key is set."""
    load_model = Mock()
    monkeypatch.setattr(st_reba, "load", load_model)
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    return load_model


def test_a_taken_port_is_refused_before_the_model_is_loaded(load_model: Mock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound_socket:
        port = bound_socket.getsockname()[1]
        with pytest.raises(OSError, match="Give another port"):
            st_reba.serve.serve("organization/model", port=port)
    assert not load_model.called


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": ""}, "--host"),
        ({"host": " "}, "--host"),
        ({"name": ""}, "--name"),
        ({"name": " "}, "--name"),
    ],
)
def test_an_empty_address_or_name_is_refused(
    options: dict[str, Any], message: str, load_model: Mock
) -> None:
    with pytest.raises(ValueError, match=message):
        st_reba.serve.serve("organization/model", port=0, **options)
    assert not load_model.called


@pytest.fixture
def serve_calls(load_model: Mock, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Records the calls of what serve uses, which does nothing. OMP_NUM_THREADS is 1."""
    recorder = Mock(load=load_model)
    monkeypatch.setattr("st_reba.Index.open", recorder.open_index)
    monkeypatch.setattr("st_reba.serve.app.EmbeddingServer", recorder.EmbeddingServer)
    monkeypatch.setattr("st_reba.serve.run.run_server", recorder.run_server)
    monkeypatch.setattr(torch, "set_num_threads", recorder.set_num_threads)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return recorder


@pytest.mark.parametrize(
    ("host", "api_key", "allowed_hosts", "is_warned"),
    [
        ("127.0.0.1", None, LOOPBACK, False),
        ("127.0.0.1", "k", (), False),
        ("0.0.0.0", None, (), True),
        ("0.0.0.0", "k", (), False),
    ],
)
def test_hosts_and_keys_follow_from_the_address(
    host: str,
    api_key: str | None,
    allowed_hosts: tuple[str, ...],
    is_warned: bool,
    serve_calls: Mock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api_keys = []
    if api_key is not None:
        monkeypatch.setenv(API_KEY_VARIABLE, api_key)
        api_keys.append(api_key)
    st_reba.serve.serve("a/b", host=host, port=0, limits={"queue": 7})
    serve_calls.EmbeddingServer.assert_called_once_with(
        serve_calls.load(),
        "a/b",
        index=None,
        keys=api_keys,
        hosts=allowed_hosts,
        queue=7,
    )
    app = serve_calls.EmbeddingServer()
    serve_calls.run_server.assert_called_once_with(app, ANY, path="/v1")
    assert (API_KEY_VARIABLE in capsys.readouterr().err) is is_warned


@pytest.mark.parametrize(
    ("model_path", "name", "served_name"),
    [(Path(__file__).parent, None, "serve"), ("a/b", "c", "c"), ("a/b", None, "a/b")],
)
def test_a_model_is_served_under_its_name(
    model_path: str | Path, name: str | None, served_name: str, serve_calls: Mock
) -> None:
    st_reba.serve.serve(model_path, port=0, name=name)
    assert serve_calls.EmbeddingServer.call_args.args == (
        serve_calls.load(),
        served_name,
    )


def test_the_default_address_is_local(serve_calls: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    bind_socket = MagicMock()
    monkeypatch.setattr(run, "bind_socket", bind_socket)
    st_reba.serve.serve("a/b")
    bind_socket.assert_called_once_with("127.0.0.1", 8080)


def test_an_index_is_opened_with_the_model(serve_calls: Mock) -> None:
    st_reba.serve.serve("a/b", index="i", port=0, dtype="float16")
    serve_calls.load.assert_called_once_with("a/b", dtype="float16")
    serve_calls.open_index.assert_called_once_with("i", serve_calls.load())
    opened_index = serve_calls.open_index()
    assert serve_calls.EmbeddingServer.call_args.kwargs["index"] is opened_index


@pytest.mark.parametrize(("processor_count", "thread_count"), [(4, 3), (1, 1)])
def test_a_processor_is_left_for_answers(
    processor_count: int,
    thread_count: int,
    serve_calls: Mock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: processor_count)
    monkeypatch.delenv("OMP_NUM_THREADS")
    st_reba.serve.serve("a/b", port=0)
    serve_calls.set_num_threads.assert_called_once_with(thread_count)


def test_the_caller_chooses_the_number_of_threads(serve_calls: Mock) -> None:
    st_reba.serve.serve("a/b", port=0)
    assert not serve_calls.set_num_threads.called


@pytest.mark.parametrize(
    ("socket_name", "address"),
    [(("127.0.0.1", 8), "127.0.0.1:8"), (("::1", 8, 0, 0), "[::1]:8")],
)
def test_the_address_is_printed_and_ctrl_c_ends_the_server(
    socket_name: tuple[Any, ...],
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bound_socket = Mock()
    bound_socket.getsockname.return_value = socket_name
    uvicorn = Mock()
    uvicorn.Server().run.side_effect = KeyboardInterrupt
    monkeypatch.setattr("uvicorn.Config", uvicorn.Config)
    monkeypatch.setattr("uvicorn.Server", uvicorn.Server)
    app: Any = "app"
    run.run_server(app, bound_socket, "/v1")
    assert capsys.readouterr().out.startswith(f"http://{address}/v1 ")
    uvicorn.Config.assert_called_with(
        "app",
        http=PatientProtocol,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=120,
    )
    uvicorn.Server().run.assert_called_once_with(sockets=[bound_socket])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "batched", None)
    with pytest.raises(ImportError, match=r"st-reba\[serve\]"):
        st_reba.serve.serve("organization/model", port=0)


@pytest.fixture(scope="module")
def model_folder(
    plain_model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a saved model in ``model``."""
    folder = tmp_path_factory.mktemp("served")
    plain_model.save_pretrained(str(folder / "model"))
    return folder


async def embed_at_once(address: str, inputs: list[Any]) -> list[list[list[float]]]:
    """The embeddings of each input, all asked for at once, over as many connections."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=address, timeout=120, limits=limits, trust_env=False
    ) as client:
        requests = [client.post("/v1/embeddings", json={"input": texts}) for texts in inputs]
        answers = await asyncio.gather(*requests)
    embeddings: list[list[list[float]]] = []
    for answer in answers:
        assert answer.status_code == 200
        embeddings.append([item["embedding"] for item in answer.json()["data"]])
    return embeddings


def resident_pages(process_id: int) -> int:
    statistics = Path(f"/proc/{process_id}/statm").read_text(encoding="utf-8")
    return int(statistics.split()[1])


@pytest.mark.slow
def test_a_second_thousand_requests_need_no_more_memory(
    model_folder: Path, plain_model: SentenceTransformer
) -> None:
    # A thousand connections exceed the limit of many systems; the server inherits this one.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_limit = hard_limit if 0 <= hard_limit < 4096 else 4096
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))
    expected_vectors = plain_model.encode(TEXTS)[:, None]
    page_counts: list[int] = []
    with server_process(model_folder) as (server, address):
        for _ in range(2):
            embeddings = asyncio.run(embed_at_once(address, TEXTS))
            np.testing.assert_allclose(embeddings, expected_vectors, atol=1e-6, rtol=0)
            page_counts.append(resident_pages(server.pid))
    grown_bytes = (page_counts[1] - page_counts[0]) * resource.getpagesize()
    assert grown_bytes < 48 * 2**20


@pytest.mark.slow
def test_sigterm_answers_what_was_accepted(
    model_folder: Path, plain_model: SentenceTransformer
) -> None:
    inputs = [TEXTS[:64]] * 8
    with (
        server_process(model_folder) as (server, address),
        ThreadPoolExecutor(1) as thread,
    ):
        answers = thread.submit(lambda: asyncio.run(embed_at_once(address, inputs)))
        while httpx.get(f"{address}/health", trust_env=False).json()["waiting"] != 8 * 64:
            time.sleep(0.001)
        server.send_signal(signal.SIGTERM)
        embeddings = answers.result()
        assert server.wait(60) in (0, -signal.SIGTERM)
    expected_vectors = [plain_model.encode(TEXTS[:64])] * 8
    np.testing.assert_allclose(embeddings, expected_vectors, atol=1e-6, rtol=0)
