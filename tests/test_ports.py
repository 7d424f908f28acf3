"""An address to serve on is asked for before anything is loaded."""

from __future__ import annotations

import socket

import pytest

from st_reba.ports import check_port, show_address


def test_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(OSError, match=rf"host='127.0.0.1', port={port} cannot be served .*Give another port"):
            check_port("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    # What was served a moment ago is free again.
    check_port("127.0.0.1", port)
    # No machine of ours has this address, which is kept for examples.
    for host, number in (("192.0.2.1", 8000), ("127.0.0.1", 70_000)):
        with pytest.raises(OSError, match=f"port={number} cannot be served"):
            check_port(host, number)
    show_address("http://127.0.0.1:8000")
    assert capsys.readouterr().out == "http://127.0.0.1:8000  (Ctrl+C ends it)\n"
