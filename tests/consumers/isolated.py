"""Fresh processes that reach nothing but this machine: who starts one, and what it runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What a job says, and what it answers, are written as JSON.
Job = dict[str, Any]

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "ANONYMIZED_TELEMETRY": "False",
    "RAY_USAGE_STATS_ENABLED": "0",
}
LOCAL_HOSTS = (
    None,
    "",
    "localhost",
    "127.0.0.1",
    "::1",
    b"localhost",
    b"127.0.0.1",
)


def run_script(path: Path, *arguments: str, folder: Path, **environment: str) -> str:
    """What a script prints, in a fresh process."""
    inherited: dict[str, str] = {}
    for name, value in os.environ.items():
        if name not in ("PYTHONPATH", "HF_TOKEN") and not name.lower().endswith("_proxy"):
            inherited[name] = value
    completed = subprocess.run(
        [sys.executable, str(path), *arguments],
        env=inherited | QUIET | environment,
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=1800,
    )
    assert completed.returncode == 0, completed.stderr[-5000:]
    return completed.stdout


def run_job(script_name: str, job: Job, folder: Path, **environment: str) -> Any:
    """What the script of that name beside this file answers to a job, see :func:`answer_job`."""
    job_file = folder / "job.json"
    result_file = folder / "result.json"
    job_file.write_text(json.dumps({**job, "result": str(result_file)}), encoding="utf-8")
    script = Path(__file__).with_name(script_name)
    run_script(script, str(job_file), folder=folder, **environment)
    result = json.loads(result_file.read_text(encoding="utf-8"))
    assert result["contacted_hosts"] == [], "hosts that would have been contacted"
    return result["answer"]


def answer_job(work: Callable[[Job], Any]) -> None:
    """The other side of :func:`run_job`: whoever is not on this machine is out of reach."""
    contacted_hosts = cut_off_network()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    result = {"answer": work(job), "contacted_hosts": contacted_hosts}
    text = json.dumps(result, default=lambda array: array.tolist())
    Path(job["result"]).write_text(text, encoding="utf-8")


def cut_off_network() -> list[str]:
    """From here on this process reaches its own machine only; gives the list of hosts that it tried to reach."""
    contacted_hosts: list[str] = []
    original_getaddrinfo = socket.getaddrinfo
    original_connect = socket.socket.connect

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if host not in LOCAL_HOSTS:
            contacted_hosts.append(str(host))
            raise socket.gaierror(f"{host}: this process has no network")
        return original_getaddrinfo(host, *args, **options)

    def connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in LOCAL_HOSTS:
            contacted_hosts.append(str(address[0]))
            raise ConnectionRefusedError(f"{address}: this process has no network")
        original_connect(self, address)

    socket.getaddrinfo = getaddrinfo
    socket.socket.connect = connect  # type: ignore[method-assign]
    return contacted_hosts


def assert_published_code_ran(expected: bool) -> None:
    """Assert which code ran: the copy that a repository carries, or the installed package's."""
    published_modules: list[str] = []
    for name in sys.modules:
        if name.startswith("transformers_modules.") and name.endswith(".st_reba"):
            published_modules.append(name)
    assert bool(published_modules) == expected
    assert ("st_reba.modules.transformer" in sys.modules) != expected
