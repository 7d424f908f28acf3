"""Serve a model until the process is told to stop."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..optional import required
from .access import API_KEY_VARIABLE, read_keys
from .hosts import LOOPBACK, bind_socket

if TYPE_CHECKING:
    from starlette.types import ASGIApp


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
    """Serve a saved model to OpenAI's clients.

    On SIGTERM or Ctrl+C, it answers the requests that it has accepted, then ends.
    If the environment variable ST_REBA_API_KEY is set, clients must send one of its keys (separated
    by commas). OMP_NUM_THREADS is the number of torch's threads; without it, all processors but
    one.

    Args:
        model: Folder or Hub id.
        index: Folder of an index of that model, for ``/v1/search``.
        host: Address; ``"0.0.0.0"`` serves everybody who can reach this machine.
        port: Port; 0 takes a free one.
        name: Name of the model for clients; None: the name of its folder, or its Hub id.
        limits: ``batch_size``, ``max_body``, ``max_tokens`` and ``queue``, as for
            :class:`.app.EmbeddingServer`.
        **options: ``device``, ``dtype`` and ``trust_remote_code``, as for :func:`st_reba.load`.

    Raises:
        ImportError: A package of the extra ``serve`` is missing.
        OSError: The address is taken, or the model or the index is not found.
        ValueError: A key is empty, or the index belongs to another model.

    Example:
        >>> serve("my_model", port=8080)  # doctest: +SKIP
    """
    for package in (
        "uvicorn",
        "starlette",
        "pydantic",
        "prometheus_client",
        "batched",
    ):
        required(package, "serve")
    if name is not None and not name.strip():
        raise ValueError(f"name={name!r} (--name) is empty. Give the name that clients send.")
    keys = read_keys(os.environ.get(API_KEY_VARIABLE))
    is_local = host in LOOPBACK
    with bind_socket(host, port) as bound_socket:
        if not is_local and not keys:
            warning = (
                f"anybody who reaches {host} can use it. Set {API_KEY_VARIABLE} to ask for a key."
            )
            print(f"Warning: {warning}", file=sys.stderr)
        from .. import Index, load
        from .app import EmbeddingServer

        _leave_a_processor()
        loaded_model = load(os.fspath(model), **options)
        opened_index = None if index is None else Index.open(index, loaded_model)
        if name is None:
            name = Path(model).resolve().name if os.path.isdir(model) else os.fspath(model)
        app = EmbeddingServer(
            loaded_model,
            name,
            index=opened_index,
            keys=keys,
            hosts=LOOPBACK if is_local and not keys else (),
            **(limits or {}),
        )
        run_server(app, bound_socket, path="/v1")


def _leave_a_processor() -> None:
    """Let torch use all processors but one, unless OMP_NUM_THREADS says how many.

    Its threads wait actively: one per processor would slow down the thread that handles requests.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        processor_count = os.cpu_count() or 1
        torch.set_num_threads(max(1, processor_count - 1))


def run_server(app: ASGIApp, bound_socket: socket.socket, path: str = "") -> None:
    """Print the address and run an application until SIGTERM; accepted requests get two minutes."""
    import uvicorn

    from .connections import PatientProtocol

    host, port = bound_socket.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    print(f"http://{host}:{port}{path}  (Ctrl+C ends it)", flush=True)
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=120,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[bound_socket])
