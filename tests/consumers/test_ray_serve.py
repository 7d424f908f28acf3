"""examples/ray_serve.py with two replicas."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given import QUIET, ROOT, TEXTS

pytest.importorskip("ray.serve")
SECONDS = 240


def ask(address: str, text: str) -> Any:
    """The vector of a text; what fails is asked again, as OpenAI's client does."""
    body = json.dumps({"input": text, "model": "my_model:document"}).encode()
    for attempt in range(SECONDS):
        try:
            request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["data"][0]["embedding"]
        except OSError:
            if attempt == SECONDS - 1:
                raise
            time.sleep(1)


def test_two_replicas(places: dict[str, Path], vectors: Any, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, str(ROOT / "examples" / "ray_serve.py"), "my_model", "--replicas", "2", "2"]
    with (tmp_path / "log").open("w") as stream:
        started = subprocess.Popen(
            [*command, "--port", port],
            cwd=places["echo"],
            env={**os.environ, **QUIET},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )

    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda text: ask(f"http://127.0.0.1:{port}/v1/embeddings", text), TEXTS))
        np.testing.assert_allclose(found, vectors("echo", TEXTS, "document"), atol=1e-6, rtol=0)
    finally:
        started.terminate()
        try:
            started.wait(90)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
