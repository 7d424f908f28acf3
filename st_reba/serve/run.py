"""Serve a model until the process is told to stop."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..optional import required
from .access import API_KEY_VARIABLE, LOOPBACK, read_keys


def serve(
    model: str | os.PathLike[str],
    *,
    index: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    name: str | None = None,
    limits: Mapping[str, int] | None = None,
    **options: Any,
) -> None:
    """Serve a saved model to OpenAI's clients. SIGTERM and Ctrl+C answer the accepted requests, then end it.

    If the environment variable ST_REBA_API_KEY is set, clients must send one of its keys (separated by commas).
    OMP_NUM_THREADS is the number of torch's threads; without it, all processors but one.

    Args:
        model: Folder or Hub id.
        index: Folder of an index of that model, for ``/v1/search``.
        host: Address; ``"0.0.0.0"`` serves to everybody who reaches this machine.
        port: Port; 0 takes a free one.
        name: Name of the model for clients; None: the name of its folder, or its Hub id.
        limits: ``batch_size``, ``max_body``, ``max_tokens`` and ``queue``, as for :class:`.app.EmbeddingServer`.
        **options: ``device``, ``dtype`` and ``trust_remote_code``, as for :func:`st_reba.load`.

    Raises:
        ImportError: A package of the extra ``serve`` is missing.
        OSError: The address is taken, or the model or the index is not found.
        ValueError: A key is empty, or the index belongs to another model.

    Example:
        >>> serve("my_model", port=8080)  # doctest: +SKIP
    """
    for module in ("uvicorn", "starlette", "pydantic", "prometheus_client", "batched"):
        required(module, "serve")
    if name is not None and not name.strip():
        raise ValueError(f"name={name!r} (--name) is empty. Give the name that clients send.")
    keys = read_keys(os.environ.get(API_KEY_VARIABLE))
    local = host in LOOPBACK
    with bound(host, port) as taken:
        if not local and not keys:
            print(
                f"Warning: anybody who reaches {host} can use it. Set {API_KEY_VARIABLE} to ask for a key.",
                file=sys.stderr,
            )
        import torch

        from .. import Index, load
        from .app import EmbeddingServer

        # torch's threads wait actively: one for each processor slows down the thread that reads and answers.
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
        loaded = load(os.fspath(model), **options)
        opened = None if index is None else Index.open(index, loaded)
        hosts = LOOPBACK if local and not keys else ()
        if name is None:
            name = Path(model).resolve().name if os.path.isdir(model) else os.fspath(model)
        app = EmbeddingServer(loaded, name, index=opened, keys=keys, hosts=hosts, **(limits or {}))
        run(app, taken, path="/v1")


def bound(host: str, port: int) -> socket.socket:
    """Take an address before a model is loaded; an error names the remedy."""
    if not host.strip():
        # An empty address is that of every interface, which nobody means by it.
        raise ValueError(f"host={host!r} (--host) is empty. Give 127.0.0.1, or 0.0.0.0 for every interface.")
    try:
        taken = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Else an answer of two packets waits 40 ms for the client's delayed acknowledgement; asyncio sees to that only
        # on sockets that it makes itself.
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return taken
    except (OSError, OverflowError, TypeError, UnicodeError) as error:
        remedy = "Give another port (--port) or address (--host)."
        raise OSError(f"host={host!r}, port={port} cannot be served ({error}). {remedy}") from None


def run(app: Any, taken: socket.socket, path: str = "") -> None:
    """Print the address and run an ASGI application until SIGTERM or Ctrl+C; accepted requests get two minutes."""
    import uvicorn

    from .connections import PatientProtocol

    host, port = taken.getsockname()[:2]
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}{path}  (Ctrl+C ends it)", flush=True)
    options: dict[str, Any] = {"log_level": "warning", "server_header": False, "timeout_graceful_shutdown": 120}
    config = uvicorn.Config(app, http=PatientProtocol, **options)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[taken])
