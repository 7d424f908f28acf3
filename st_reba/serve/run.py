"""Serve a model until the process is told to stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..optional import required
from ..ports import check_port, show_address
from .settings import Settings

KEYS = "ST_REBA_API_KEY"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# What was accepted is finished within these seconds of SIGTERM, or given up.
_STOP_SECONDS = 120


def serve(
    model: str | os.PathLike[str],
    *,
    index: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    name: str | None = None,
    threads: int | None = None,
    settings: Settings | None = None,
    ready: Callable[[str], object] = show_address,
    **running: Any,
) -> None:
    """Serve a saved model to OpenAI's clients. SIGTERM and Ctrl+C finish what was accepted, then it returns.

    Clients must send one of the keys in the environment variable ST_REBA_API_KEY, with commas between, if it is set.

    Args:
        model: Its folder or Hub id.
        index: The folder of an index of that model, for ``/v1/search``.
        host: Where it is served; ``"0.0.0.0"``: to everybody who reaches this machine.
        port: Its port.
        name: What clients call the model; None: as its folder or Hub id is called.
        threads: Of torch; None: OMP_NUM_THREADS, or all processors but one, which reads and answers.
        settings: Limits, and how requests are joined.
        ready: Is told the address, as ``"http://127.0.0.1:8080/v1"``; by default it is printed.
        **running: ``device``, ``dtype`` and ``trust_remote_code``, as :func:`st_reba.build` takes them.

    Raises:
        ImportError: A package of the extra ``serve`` is missing.
        OSError: The address is taken, or there is no such model or index.
        ValueError: The index is another model's.

    Example:
        >>> serve("my_model", port=8080)  # doctest: +SKIP
    """
    uvicorn = required("uvicorn", "serve")
    for package in ("starlette", "prometheus_client", "batched"):
        required(package, "serve")
    settings = settings or Settings()
    name = name or name_of(model)
    keys = keys_of(os.environ)
    check_port(host, port)
    local = host in _LOOPBACK
    if not local and not keys:
        print(
            f"Warning: whoever reaches {host}:{port} can use the model{' and read the index' if index else ''}. "
            f"Set {KEYS} to ask for a key.",
            file=sys.stderr,
        )
    from .app import make_app

    loaded, opened = open_model(model, index, threads, **running)
    app = make_app(
        loaded, name, index=opened, settings=settings, keys=keys, hosts=_LOOPBACK if local and not keys else ()
    )
    shown = f"[{host}]" if ":" in host else host
    ready(f"http://{shown}:{port}/v1")
    try:
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=_STOP_SECONDS,
            server_header=False,
        )
    finally:
        if opened is not None:
            opened.close()


def keys_of(environment: Mapping[str, str]) -> list[str]:
    """The keys that clients may send.

    Example:
        >>> keys_of({"ST_REBA_API_KEY": "one, two,"})
        ['one', 'two']
    """
    return [key for key in map(str.strip, environment.get(KEYS, "").split(",")) if key]


def open_model(
    model: str | os.PathLike[str], index: str | os.PathLike[str] | None, threads: int | None, **running: Any
) -> tuple[Any, Any]:
    """The model, and the index if there is one, with torch's threads set.

    torch takes a thread a processor, which wait for each other busily: beside threads that read and answer requests
    this is many times slower than fewer.
    """
    import torch

    from ..index import Index
    from ..persistence import load

    if threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads or max(1, _processors() - 1))
    loaded = load(model, **running)
    return loaded, None if index is None else Index.open(index, loaded)


def _processors() -> int:
    # Not every system says which processors a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def name_of(model: str | os.PathLike[str]) -> str:
    """What clients call a model: the name of its folder, or its Hub id.

    Example:
        >>> name_of("models/my_model/"), name_of("organization/model")
        ('my_model', 'organization/model')
    """
    path = os.fspath(model)
    folder = Path(path)
    return folder.resolve().name if folder.exists() or path.count("/") != 1 else path
