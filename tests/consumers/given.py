"""What the tests of consumers share: texts, and fresh processes that reach nothing but this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SENTENCES = ROOT / "examples" / "sentences.jsonl"
TEXTS = [json.loads(line)["text"] for line in SENTENCES.read_text(encoding="utf-8").splitlines()[::5]]
QUESTIONS = [
    "出国证件快到期了还能过关吗？",
    "苹果公司发布新电脑",
    "股票为什么下跌",
    "Should I chill an onion before chopping it?",
    "Will it rain tomorrow?",
]
PROMPTS = {"query": "Query: ", "document": "Document: "}
# The names that the first section of docs/how-to/tools.md defines, with more texts.
GIVEN: dict[str, Any] = {
    "texts": TEXTS,
    "questions": QUESTIONS,
    "relevant": [[row for row in range(len(TEXTS)) if row % 7 == number] for number in range(len(QUESTIONS))],
    "pairs": [[TEXTS[row], TEXTS[(row * 5 + 1) % len(TEXTS)], (row * 3) % 11 / 2.0] for row in range(24)],
}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "ANONYMIZED_TELEMETRY": "False",
    "RAY_USAGE_STATS_ENABLED": "0",
}
LOCAL = (None, "", "localhost", "127.0.0.1", "::1", b"localhost", b"127.0.0.1")


def script(path: Path, *arguments: str, folder: Path, **environment: str) -> str:
    """What a script prints, in a fresh process."""
    proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "HF_TOKEN", *proxies}}
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**kept, **QUIET, **environment},
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def answer(name: str, job: dict[str, Any], folder: Path, **environment: str) -> Any:
    """What the script of that name beside this file answers to a job, see :func:`answering`."""
    given, result = folder / "job.json", folder / "result.json"
    given.write_text(json.dumps({**job, "result": str(result)}), encoding="utf-8")
    script(Path(__file__).with_name(name), str(given), folder=folder, **environment)
    answered = json.loads(result.read_text(encoding="utf-8"))
    assert answered["asked"] == [], "hosts that would have been contacted"
    return answered["answer"]


def answering(work: Callable[[dict[str, Any]], Any]) -> None:
    """The other side of :func:`answer`: whoever is not on this machine is out of reach."""
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
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    text = json.dumps({"answer": work(job), "asked": asked}, default=lambda each: each.tolist())
    Path(job["result"]).write_text(text, encoding="utf-8")


def assert_carried(expected: bool) -> None:
    """Assert which code ran: the copy that a repository carries, or the installed package's."""
    carried = [name for name in sys.modules if name.startswith("transformers_modules.") and name.endswith(".st_reba")]
    assert bool(carried) == expected and ("st_reba.modules.transformer" in sys.modules) != expected


def exported() -> tuple[Path, list[str], list[list[float]]]:
    """The folder that ``st-reba onnx`` wrote, and its golden texts and vectors; without one a test file is skipped."""
    if "ST_REBA_ONNX" not in os.environ:
        pytest.skip("set ST_REBA_ONNX to a folder that st-reba onnx wrote", allow_module_level=True)
    folder = Path(os.environ["ST_REBA_ONNX"]).resolve()
    stored = json.loads((folder / "golden.json").read_text(encoding="utf-8"))["texts"]
    assert len(stored) >= 19
    return folder, [each["text"] for each in stored], [each["vector"] for each in stored]
