"""The server's process: what it refuses, what it warns of, and how it stops."""

from __future__ import annotations

import json
import signal
import socket
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import st_reba.serve
from st_reba.serve import run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from serving import process


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "open_model", lambda *given, **more: pytest.fail("loaded"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="Give another port"):
            st_reba.serve.serve("organization/model", port=taken.getsockname()[1])


@pytest.mark.parametrize(
    "host, key, warned", [("0.0.0.0", "", True), ("0.0.0.0", "k", False), ("127.0.0.1", "", False)]
)
def test_a_warning_where_anybody_may_ask(
    host: str, key: str, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(run.KEYS, key)
    monkeypatch.setattr(run, "check_port", lambda *given: None)
    monkeypatch.setattr(run, "open_model", lambda *given, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        st_reba.serve.serve("organization/model", host=host)
    assert (run.KEYS in capsys.readouterr().err) == warned


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are asked for; else OMP_NUM_THREADS stands; else one processor is left to read and answer."""
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr("st_reba.persistence.load", lambda *given, **more: None)
    monkeypatch.setattr(run, "_processors", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run.open_model("m", None, None)
    run.open_model("m", None, 2)
    monkeypatch.delenv("OMP_NUM_THREADS")
    run.open_model("m", None, None)
    assert found == [2, 7]


def ask(address: str, texts: list[str]) -> Any:
    request = urllib.request.Request(
        f"{address}/v1/embeddings", json.dumps({"input": texts}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return [one["embedding"] for one in json.load(answer)["data"]]


@pytest.mark.slow
def test_sigterm_finishes_what_was_accepted(tmp_path: Path) -> None:
    model = st_reba.build("mini", "echo", device="cpu")
    model.save_pretrained(str(tmp_path / "model"))
    texts = [f"{number} cats sleep on the warm roof of the bank, and nobody knows why." for number in range(64)]
    with process(tmp_path) as (server, address), ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(ask, address, texts) for _ in range(8)]
        while True:
            with urllib.request.urlopen(f"{address}/health") as answer:
                if json.load(answer)["waiting"] == 8 * 64:
                    break
        server.send_signal(signal.SIGTERM)
        answers = [one.result() for one in waiting]
        assert server.wait(60) in (0, -signal.SIGTERM)
    expected = model.encode(texts)
    for answer in answers:
        np.testing.assert_allclose(answer, expected, atol=1e-6, rtol=0)
