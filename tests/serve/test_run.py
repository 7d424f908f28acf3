"""A real process: many clients, and a graceful end. Nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock, call

import httpx
import numpy as np
import pytest
import torch
from serving import process

import st_reba
from st_reba.serve import run
from st_reba.serve.access import API_KEY_VARIABLE
from st_reba.serve.connections import PatientProtocol
from st_reba.serve.hosts import LOOPBACK, bind_socket

TEXTS = [f"{number} cats sleep on the warm roof." for number in range(1000)]


def test_a_taken_port_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st_reba, "load", lambda *given, **more: pytest.fail("loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="Give another port"):
        st_reba.serve.serve("organization/model", port=taken.getsockname()[1])
    with pytest.raises(OSError):
        bind_socket("127.0.0.1", 70_000)
    for host in ("nope.invalid", "a\ud800"):
        with pytest.raises(OSError, match="--host"):
            bind_socket(host, 0)


@pytest.mark.parametrize("options", [{"host": ""}, {"host": " "}, {"name": ""}, {"name": " "}], ids=str)
def test_an_empty_address_or_name_is_refused(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    monkeypatch.setattr(st_reba, "load", lambda *args, **kwargs: pytest.fail("loaded"))
    with pytest.raises(ValueError, match=f"--{next(iter(options))}"):
        st_reba.serve.serve("organization/model", **{"port": 0, **options})


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with (
        bind_socket("127.0.0.1", 0) as taken,
        socket.create_connection(taken.getsockname()),
        taken.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(("host", "processors", "threads"), [("0.0.0.0", 4, 3), ("127.0.0.1", 1, 1)])
@pytest.mark.parametrize("key", [None, "k"])
def test_what_is_served_to_whom(
    host: str, processors: int, threads: int, key: str | None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    if key is not None:
        monkeypatch.setenv(API_KEY_VARIABLE, key)
    found = Mock(**{"open.side_effect": lambda *given: given})
    for one in ("load", "Index.open", "serve.app.EmbeddingServer", "serve.run.run_server"):
        monkeypatch.setattr(f"st_reba.{one}", getattr(found, one.rpartition(".")[2]))
    monkeypatch.setattr(torch, "set_num_threads", found.threads)
    given = {"keys": [key] if key else [], "hosts": LOOPBACK if host == "127.0.0.1" and not key else (), "queue": 7}
    rows = (("1", Path(__file__).parent, None, "serve"), ("1", "a/b", "c", "c"), (None, "a/b", None, "a/b"))
    for number, model, name, shown in rows:
        monkeypatch.delenv("OMP_NUM_THREADS") if number is None else monkeypatch.setenv("OMP_NUM_THREADS", number)
        st_reba.serve.serve(model, index=name, host=host, port=0, name=name, limits={"queue": 7})
        assert (API_KEY_VARIABLE in capsys.readouterr().err) == (host == "0.0.0.0" and not key)
        # One is left for answers, unless the caller chose.
        assert found.threads.mock_calls == ([call(threads)] if number is None else [])
        found.EmbeddingServer.assert_called_with(found.load(), shown, index=name and (name, found.load()), **given)
        found.run_server.assert_called_with(found.EmbeddingServer(), ANY, path="/v1")


@pytest.mark.parametrize(("name", "shown"), [(("127.0.0.1", 8), "127.0.0.1:8"), (("::1", 8, 0, 0), "[::1]:8")])
def test_what_runs(name: Any, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    taken, found = Mock(**{"getsockname.return_value": name}), Mock()
    monkeypatch.setattr("uvicorn.Config", found.Config)
    monkeypatch.setattr("uvicorn.Server", found.Server)
    found.Server().run.side_effect = KeyboardInterrupt
    run.run_server("app", taken, "/v1")
    assert capsys.readouterr().out.startswith(f"http://{shown}/v1 ")
    options = {"log_level": "warning", "server_header": False, "timeout_graceful_shutdown": 120}
    found.Config.assert_called_with("app", http=PatientProtocol, **options)
    found.Server().run.assert_called_once_with(sockets=[taken])


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "batched", None)
    with pytest.raises(ImportError, match=r"st-reba\[serve\]"):
        st_reba.serve.serve("organization/model", port=0)


@pytest.fixture(scope="module")
def folder(plain: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    plain.save_pretrained(str(made / "model"))
    return made


async def ask(address: str, given: list[Any]) -> list[Any]:
    """Ask for embeddings, all at once, over as many connections; returns those of each answer."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits, trust_env=False) as client:
        answers = await asyncio.gather(*(client.post("/v1/embeddings", json={"input": each}) for each in given))
    assert {answer.status_code for answer in answers} == {200}
    return [[one["embedding"] for one in answer.json()["data"]] for answer in answers]


@pytest.mark.slow
def test_a_thousand_at_once(folder: Path, plain: Any) -> None:
    """The second thousand needs no more memory than the first."""
    # A thousand connections exceed the limit of many systems; the server inherits this one.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 <= hard < 4096 else 4096, hard))
    pages = []
    with process(folder) as (server, address):
        for _ in "ab":
            found = asyncio.run(ask(address, TEXTS))
            np.testing.assert_allclose(found, plain.encode(TEXTS)[:, None], atol=1e-6, rtol=0)
            pages.append(int(Path(f"/proc/{server.pid}/statm").read_text(encoding="utf-8").split()[1]))
    assert (pages[1] - pages[0]) * resource.getpagesize() < 48 * 2**20


@pytest.mark.slow
def test_sigterm_answers_what_was_accepted(folder: Path, plain: Any) -> None:
    with process(folder) as (server, address), ThreadPoolExecutor(1) as thread:
        answers = thread.submit(lambda: asyncio.run(ask(address, [TEXTS[:64]] * 8)))
        while httpx.get(f"{address}/health", trust_env=False).json()["waiting"] != 8 * 64:
            pass
        server.send_signal(signal.SIGTERM)
        found = answers.result()
        assert server.wait(60) in (0, -signal.SIGTERM)
    np.testing.assert_allclose(found, [plain.encode(TEXTS[:64])] * 8, atol=1e-6, rtol=0)
