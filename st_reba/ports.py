"""An address to serve on: whether it can be, asked before anything is loaded; and telling it."""

from __future__ import annotations

import socket


def check_port(host: str, port: int) -> None:
    """Raise an OSError where an address is taken or not this machine's."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise OSError(f"host={host!r}, port={port} cannot be served ({error}). Give another port.") from None


def show_address(url: str) -> None:
    """Print where something is served."""
    print(f"{url}  (Ctrl+C ends it)", flush=True)
