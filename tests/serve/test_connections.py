"""Requests that do not arrive are abandoned, and an answer that comes early reaches its client."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import h11
import pytest
import uvicorn

from st_reba.serve import connections
from st_reba.serve.hosts import bind_socket

Address = tuple[str, int]


async def refuse_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Answer 413 without reading the body."""
    if scope["type"] != "http":
        return
    headers = [(b"content-length", b"5")]
    if scope["path"] == "/close":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b"large"})


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """A server that waits 0.3 s for a request."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
    config = uvicorn.Config(
        refuse_at_once,
        http=connections.PatientProtocol,
        log_level="critical",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    with bind_socket("127.0.0.1", 0) as bound_socket:
        server_thread = threading.Thread(target=server.run, kwargs={"sockets": [bound_socket]})
        server_thread.start()
        yield bound_socket.getsockname()
        server.should_exit = True
        server_thread.join()


def send_slowly(address: Address, first_bytes: bytes) -> float:
    """Send bytes, and then one now and then; returns the seconds until the connection is closed."""
    start_time = time.perf_counter()
    with (
        socket.create_connection(address, timeout=5) as client_socket,
        suppress(OSError),
    ):
        client_socket.sendall(first_bytes)
        while time.perf_counter() < start_time + 5:
            client_socket.sendall(b"a")
            time.sleep(0.05)
    return time.perf_counter() - start_time


@pytest.mark.parametrize(
    "first_bytes",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Half: ",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\naGET / HTTP/1.1\r\nX-Half: ",
    ],
)
def test_a_request_that_trickles_is_abandoned(first_bytes: bytes, address: Address) -> None:
    assert send_slowly(address, first_bytes) < 3


def test_a_silent_connection_is_closed(address: Address) -> None:
    with socket.create_connection(address, timeout=5) as client_socket:
        assert client_socket.recv(1) == b""


@pytest.mark.parametrize("path", ["/close", "/keep"])
def test_a_client_that_is_still_sending_reads_the_answer(path: str, address: Address) -> None:
    connection = HTTPConnection(*address, timeout=10)
    connection.request("POST", path, b"a" * (16 * 2**20))
    response = connection.getresponse()
    assert response.status == 413
    assert response.read() == b"large"
    connection.close()


def test_a_header_that_is_too_large_is_answered(address: Address) -> None:
    connection = HTTPConnection(*address, timeout=10)
    connection.request("GET", "/", headers={"X-Large": "a" * (8 * 2**20)})
    assert connection.getresponse().status == 400
    connection.close()


def test_a_client_that_never_stops_sending_is_dropped(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.3)
    first_bytes = b"POST /close HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
    assert send_slowly(address, first_bytes) < 3


class LostTransport:
    """A connection whose client has gone, which asyncio does not know yet."""

    was_aborted = False

    def is_closing(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise OSError("Transport endpoint is not connected")

    def abort(self) -> None:
        self.was_aborted = True


def test_an_answer_to_a_client_that_has_gone_is_no_error() -> None:
    conn = h11.Connection(h11.SERVER)
    conn.receive_data(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n")
    conn.next_event()
    transport = LostTransport()
    loop = asyncio.new_event_loop()
    connections.GentleTransport(transport, conn, loop).close()
    loop.close()
    assert transport.was_aborted


@pytest.mark.parametrize(
    ("their_state", "is_closing", "is_closed"),
    [(h11.DONE, False, True), (h11.SEND_BODY, True, True), (h11.SEND_BODY, False, False)],
)
def test_a_connection_lingers_only_while_a_request_arrives(
    their_state: Any, is_closing: bool, is_closed: bool
) -> None:
    transport = Mock()
    transport.is_closing.return_value = is_closing
    connection: Any = SimpleNamespace(their_state=their_state)
    gentle_transport = connections.GentleTransport(transport, connection, Mock())
    gentle_transport.close()
    assert transport.close.called == is_closed
    gentle_transport.close()  # by whoever does not wait
    assert transport.close.called
