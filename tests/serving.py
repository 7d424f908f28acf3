"""A server in a process of its own, which is stopped at the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import st_reba

ROOT = Path(st_reba.__file__).parents[1]


@contextmanager
def process(
    folder: Path, *options: str, model: str = "model", **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the folder's model, and its address; it is stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("st-reba")), "serve", model, "--port", str(port), *options]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
    with subprocess.Popen(command, cwd=folder, env=settings, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None and f":{port}/v1" in started.stdout.readline()
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert started.poll() is None
                time.sleep(0.05)
            yield started, f"http://127.0.0.1:{port}"
        finally:
            started.kill()
