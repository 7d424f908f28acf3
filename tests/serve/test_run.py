"""A real process: many clients, clients that misbehave, and a graceful end. Nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock, call

import numpy as np
import pytest
import torch

import st_reba
from st_reba.serve import run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from serving import process

TEXTS = [f"{number} cats sleep on the warm roof." for number in range(1000)]


def test_a_taken_port_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st_reba, "load", lambda *given, **more: pytest.fail("loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="Give another port"):
        st_reba.serve.serve("organization/model", port=taken.getsockname()[1])
    with pytest.raises(OSError):
        run.bound("127.0.0.1", 70_000)


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with (
        run.bound("127.0.0.1", 0) as taken,
        socket.create_connection(taken.getsockname()),
        taken.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(("host", "processors", "threads"), [("0.0.0.0", 4, 3), ("127.0.0.1", 1, 1)])
@pytest.mark.parametrize("key", ["", "k"])
def test_what_is_served_to_whom(
    host: str, processors: int, threads: int, key: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    monkeypatch.setenv(run.KEYS, key)
    found = Mock(**{"open.side_effect": lambda *given: given})
    for one in ("load", "Index.open", "serve.app.EmbeddingServer", "serve.run.run"):
        monkeypatch.setattr(f"st_reba.{one}", getattr(found, one.rpartition(".")[2]))
    monkeypatch.setattr(torch, "set_num_threads", found.threads)
    given = {"keys": [key] * bool(key), "hosts": run.LOOPBACK if host == "127.0.0.1" and not key else (), "queue": 7}
    rows = (("1", Path(__file__).parent, None, "serve"), ("1", "a/b", "c", "c"), (None, "a/b", None, "a/b"))
    for number, model, name, shown in rows:
        monkeypatch.delenv("OMP_NUM_THREADS") if number is None else monkeypatch.setenv("OMP_NUM_THREADS", number)
        st_reba.serve.serve(model, index=name, host=host, port=0, name=name, limits={"queue": 7})
        assert (run.KEYS in capsys.readouterr().err) == (host == "0.0.0.0" and not key)
        # One is left for answers, unless the caller chose.
        assert found.threads.mock_calls == ([call(threads)] if number is None else [])
        found.EmbeddingServer.assert_called_with(found.load(), shown, index=name and (name, found.load()), **given)
        found.run.assert_called_with(found.EmbeddingServer(), ANY, path="/v1")


@pytest.mark.parametrize(("name", "shown"), [(("127.0.0.1", 8), "127.0.0.1:8"), (("::1", 8, 0, 0), "[::1]:8")])
def test_what_runs(name: Any, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    taken, found = Mock(**{"getsockname.return_value": name}), Mock()
    monkeypatch.setattr("uvicorn.Config", found.Config)
    monkeypatch.setattr("uvicorn.Server", found.Server)
    found.Server().run.side_effect = KeyboardInterrupt
    run.run("app", taken, "/v1")
    assert capsys.readouterr().out.startswith(f"http://{shown}/v1 ")
    found.Config.assert_called_with("app", log_level="warning", server_header=False, timeout_graceful_shutdown=120)
    found.Server().run.assert_called_once_with(sockets=[taken])


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "batched", None)
    with pytest.raises(ImportError, match=r"st-reba\[serve\]"):
        st_reba.serve.serve("organization/model", port=0)


@pytest.fixture(scope="module")
def plain() -> Any:
    return st_reba.build("mini", "classical", pooling="mean", device="cpu")


@pytest.fixture(scope="module")
def folder(plain: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    plain.save_pretrained(str(made / "model"))
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[int, int]]:
    """Process and port of a server."""
    # A thousand connections exceed the limit of many systems; the server inherits this one.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 <= hard < 4096 else 4096, hard))
    with process(folder) as (started, address):
        yield started.pid, int(address.rpartition(":")[2])


def memory(pid: int) -> float:
    """MiB that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize() / 2**20


def head(length: int) -> bytes:
    lines = ("POST /v1/embeddings HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Connection: close")
    return ("\r\n".join([*lines, f"Content-Length: {length}"]) + "\r\n\r\n").encode()


async def ask(port: int, text: Any) -> tuple[int, Any]:
    body = json.dumps({"input": text}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(len(body)) + body)
    answer = await reader.read()
    writer.close()
    first, _, content = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(content)


def check(plain: Any, texts: list[str], answers: list[tuple[int, Any]]) -> None:
    assert [status for status, _ in answers] == [200] * len(texts)
    found = [content["data"][0]["embedding"] for _, content in answers]
    np.testing.assert_allclose(found, plain.encode(texts), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_a_thousand_at_once(server: tuple[int, int], plain: Any) -> None:
    """The second thousand needs no more memory than the first."""
    pid, port = server

    async def storm() -> list[tuple[int, Any]]:
        return await asyncio.gather(*(ask(port, text) for text in TEXTS))

    check(plain, TEXTS, asyncio.run(storm()))
    before = memory(pid)
    check(plain, TEXTS, asyncio.run(storm()))
    assert memory(pid) - before < 48


@pytest.mark.slow
def test_sigterm_answers_what_was_accepted(folder: Path, plain: Any) -> None:
    with process(folder) as (server, address), ThreadPoolExecutor(8) as threads:
        port = int(address.rpartition(":")[2])
        waiting = [threads.submit(lambda: asyncio.run(ask(port, TEXTS[:64]))) for _ in range(8)]
        while True:
            with urllib.request.urlopen(f"{address}/health") as answer:
                if json.load(answer)["waiting"] == 8 * 64:
                    break
        server.send_signal(signal.SIGTERM)
        answers = [one.result() for one in waiting]
        assert server.wait(60) in (0, -signal.SIGTERM)
    expected = plain.encode(TEXTS[:64])
    for status, content in answers:
        assert status == 200
        np.testing.assert_allclose([one["embedding"] for one in content["data"]], expected, atol=1e-6, rtol=0)
