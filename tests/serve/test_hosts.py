"""Addresses: what cannot be served is refused with a remedy, and answers are sent at once."""

from __future__ import annotations

import socket

import pytest

from st_reba.serve.hosts import bind_socket


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 70_000), ("nope.invalid", 0), ("a\ud800", 0)]
)
def test_an_address_that_cannot_be_served_is_refused(host: str, port: int) -> None:
    with pytest.raises(OSError, match="--host"):
        bind_socket(host, port)


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with bind_socket("127.0.0.1", 0) as bound_socket:
        client_socket = socket.create_connection(bound_socket.getsockname())
        accepted_socket, _ = bound_socket.accept()
        with client_socket, accepted_socket:
            assert accepted_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
