"""A reader of docs/how-to/tools.md: a process of its own that runs a section's blocks and tells what came of it.

    python reader.py JOB

JOB is a JSON file: ``route``, ``module`` (whose ``told`` is asked), ``blocks``, ``given`` (the names that the page's
first section defines), ``places`` (for each model, a folder that holds it as ``my_model``) and ``result`` (the file
to write).
"""

from __future__ import annotations

import json
import os
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

LOCAL = (None, "", "localhost", "127.0.0.1", "::1", b"localhost", b"127.0.0.1")


def keep_from_the_network() -> list[str]:
    """Let nothing out of this machine; the list grows by every host that was asked for."""
    asked: list[str] = []
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def resolving(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in LOCAL:
            asked.append(str(host))
            raise socket.gaierror(f"{host}: this process has no network")
        return resolve(host, *arguments, **options)

    def connecting(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in LOCAL:
            asked.append(str(address[0]))
            raise ConnectionRefusedError(f"{address}: this process has no network")
        connect(self, address)

    socket.getaddrinfo = resolving
    socket.socket.connect = connecting  # type: ignore[method-assign]
    return asked


def main(job: dict[str, Any]) -> None:
    asked = keep_from_the_network()
    if job["route"] == "plugin":
        import_module("st_reba")
    else:
        # As if it were not installed.
        sys.modules["st_reba"] = None  # type: ignore[assignment]
    module = import_module(job["module"])
    result: dict[str, Any] = {}
    for name, place in job["places"].items():
        os.chdir(place)
        names: dict[str, Any] = {"__name__": "__main__", **job["given"]}
        for block in job["blocks"]:
            exec(compile(block, f"tools.md for {module.__name__}", "exec"), names)
        result[name] = module.told(names)
    # Which code ran: the installed package's, or the copy that the repository carries.
    homes = sorted(
        name
        for name in sys.modules
        if name == "st_reba.modules.transformer"
        or (name.startswith("transformers_modules.") and name.endswith(".st_reba"))
    )
    Path(job["result"]).write_text(json.dumps({"told": result, "homes": homes, "asked": asked}), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
