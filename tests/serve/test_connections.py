"""Requests that do not arrive are given up, and an answer that comes early reaches its client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
import uvicorn

from st_reba.serve import connections
from st_reba.serve.hosts import bind_socket

Address = tuple[str, int]


async def refuse_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Answer 413 without reading the body."""
    if scope["type"] == "http":
        headers = [(b"connection", b"close")] if scope["path"] == "/close" else []
        await send({"type": "http.response.start", "status": 413, "headers": [*headers, (b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"large"})


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
    config = uvicorn.Config(refuse_at_once, http=connections.PatientProtocol, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    with bind_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()
        server.should_exit = True
        thread.join()


def send_slowly(address: Address, beginning: bytes) -> float:
    """Send a beginning, and then a byte now and then; returns the seconds until the connection is closed."""
    started = time.perf_counter()
    with socket.create_connection(address, timeout=5) as client:
        client.sendall(beginning)
        try:
            while time.perf_counter() < started + 5:
                client.sendall(b"a")
                time.sleep(0.05)
        except OSError:
            pass
    return time.perf_counter() - started


@pytest.mark.parametrize(
    "beginning",
    [
        b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Half: ",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\naGET / HTTP/1.1\r\nX-Half: ",
    ],
)  # fmt: skip
def test_a_request_that_trickles_is_given_up(beginning: bytes, address: Address) -> None:
    assert send_slowly(address, beginning) < 3


def test_a_silent_connection_is_closed(address: Address) -> None:
    with socket.create_connection(address, timeout=5) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize("path", ["/close", "/keep"])
def test_a_client_that_is_still_sending_reads_the_answer(path: str, address: Address) -> None:
    client = HTTPConnection(*address, timeout=10)
    client.request("POST", path, b"a" * (16 * 2**20))
    response = client.getresponse()
    assert (response.status, response.read()) == (413, b"large")
    client.close()


def test_a_header_that_is_too_large_is_answered(address: Address) -> None:
    client = HTTPConnection(*address, timeout=10)
    client.request("GET", "/", headers={"X-Large": "a" * (8 * 2**20)})
    assert client.getresponse().status == 400
    client.close()


def test_a_client_that_never_stops_sending_is_dropped(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.3)
    beginning = b"POST /close HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
    assert send_slowly(address, beginning) < 3
