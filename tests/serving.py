"""A server in a process of its own, which is stopped at the end."""

from __future__ import annotations

import os
import subprocess
import sys
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
    command = [str(Path(sys.executable).with_name("st-reba")), "serve", model, "--port", "0", *options]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
    with subprocess.Popen(command, cwd=folder, env=settings, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            address, path, _ = started.stdout.readline().partition("/v1 ")  # told when it takes connections
            assert path
            yield started, address
        finally:
            started.kill()
