"""examples/ray_serve.py with two replicas: both answer, and one that is killed is replaced."""

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

import pytest
from given import QUIET, ROOT, TEXTS

pytest.importorskip("ray.serve")
_SECONDS = 240


def ask(address: str, text: str) -> Any:
    """The vector of a text; what fails is asked again, as OpenAI's client does."""
    body = json.dumps({"input": text, "model": "my_model:document"}).encode()
    for attempt in range(_SECONDS):
        try:
            request = urllib.request.Request(f"{address}/v1/embeddings", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["data"][0]["embedding"]
        except OSError:
            if attempt == _SECONDS - 1:
                raise
            time.sleep(1)


def replicas(session: int) -> list[int]:
    """Processes of the session whose title is a replica's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
            title = (entry / "cmdline").read_bytes()
            found += [int(entry.name)] if title.startswith(b"ray::ServeReplica") else []
    return found


def test_two_replicas(places: dict[str, Path], models: dict[str, Any], close: Any, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = [sys.executable, str(ROOT / "examples" / "ray_serve.py"), "my_model"]
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    log = tmp_path / "log"
    expected = models["echo"].encode_document(TEXTS)
    with log.open("w") as stream:
        started = subprocess.Popen(
            [*script, "--replicas", "2", "2", "--port", str(port)],
            cwd=places["echo"],
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            with ThreadPoolExecutor(8) as threads:
                ask(address, TEXTS[0])
                close(list(threads.map(lambda text: ask(address, text), TEXTS)), expected)
                before = replicas(started.pid)
                assert len(before) == 2, log.read_text()[-3000:]
                os.kill(before[0], signal.SIGKILL)
                close(list(threads.map(lambda text: ask(address, text), TEXTS)), expected)
            for _ in range(_SECONDS):
                now = replicas(started.pid)
                if len(now) == 2 and before[0] not in now:
                    break
                time.sleep(1)
            else:
                pytest.fail(f"it was not replaced: {log.read_text()[-3000:]}")
        finally:
            started.terminate()
            try:
                started.wait(90)
            finally:
                os.killpg(started.pid, signal.SIGKILL) if started.poll() is None else None
