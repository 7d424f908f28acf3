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
from consumer_texts import ROOT, TEXTS
from isolated import QUIET

pytest.importorskip("ray.serve")
SECONDS = 240


def request_vector(address: str, text: str) -> Any:
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop_server(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(90)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)


def test_two_replicas_give_the_models_vectors(
    model_parents: dict[str, Path],
    model_vectors: Any,
    tmp_path: Path,
) -> None:
    port = free_port()
    script = str(ROOT / "examples" / "ray_serve.py")
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [
                sys.executable,
                script,
                "my_model",
                "--replicas",
                "2",
                "2",
                "--port",
                str(port),
            ],
            cwd=model_parents["echo"],
            env=os.environ | QUIET,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}/v1/embeddings"
    try:
        with ThreadPoolExecutor(8) as threads:
            served_vectors = list(threads.map(lambda text: request_vector(address, text), TEXTS))
        expected = model_vectors("echo", TEXTS, "document")
        np.testing.assert_allclose(served_vectors, expected, atol=1e-6, rtol=0)
    finally:
        stop_server(server)
