"""Addresses and host names of a server."""

from __future__ import annotations

import re
import socket

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def host_name(header: str) -> str:
    """The name in a Host header. (Where it holds no name, Starlette gives the server's own address.)

    Example:
        >>> host_name("LocalHost:8080"), host_name("[::1]:80")
        ('localhost', '::1')
    """
    return re.sub(r":\d*$", "", header).strip("[]").lower()


def bind_socket(host: str, port: int) -> socket.socket:
    """Take an address before a model is loaded; an error names the remedy."""
    if not host.strip():
        # For the system, an empty address means every interface, which nobody would mean by it.
        raise ValueError(
            f"host={host!r} (--host) is empty. Give 127.0.0.1, or 0.0.0.0 for every interface."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound_socket = socket.create_server((host, port), family=family)
        # asyncio sets this only on sockets that it makes itself. Without it, an answer of two
        # packets waits 40 ms for the client's delayed acknowledgement.
        bound_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError, TypeError, UnicodeError) as error:
        remedy = "Give another port (--port) or address (--host)."
        raise OSError(f"host={host!r}, port={port} cannot be served ({error}). {remedy}") from None
    return bound_socket
