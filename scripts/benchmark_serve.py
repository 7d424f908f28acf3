"""``st-reba serve`` beside other servers of the same model and ``encode`` itself, in turns, on the loopback.

    python scripts/benchmark_serve.py MODEL [--rival litserve-budget=PYTHON] [--checkout FOLDER] …

PYTHON is an interpreter of an environment that has the rival and this package; FOLDER another version of this package,
which must be able to read MODEL (or FOLDER=MODEL says its own). 1, 8 and 32 clients send short and long
texts, three in ten requests a list of two to six. Of each: texts a second, texts a second of the server's processor
time (which a busy machine changes little), the median and the 99th percentile of the seconds an answer took, and the
largest difference from ``encode``. All run in turns; the figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RIVALS = ROOT / "scripts" / "serving" / "rivals.py"
CLIENTS = (1, 8, 32)
Row = tuple[float, float, float, float, float]


def texts() -> list[str]:
    """Short ones, and one in eight of some hundred tokens."""
    lines = (ROOT / "examples" / "sentences.jsonl").read_text(encoding="utf-8").splitlines()
    short = [json.loads(line)["text"] for line in lines]
    long = [" ".join(short[start : start + 5]) for start in range(0, len(short) - 5, 8)]
    return random.Random(0).sample([*short, *long], len(short) + len(long))


class Server:
    """A process that serves, in a session of its own, so that its processor time can be told."""

    def __init__(self, name: str, command: list[str], log: Path, root: Path = ROOT) -> None:
        self.name = name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [part.replace("PORT", str(self.port)) for part in command]
        settings = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        settings["HF_HUB_OFFLINE"] = settings["DO_NOT_TRACK"] = "1"
        with log.open("w", encoding="utf-8") as stream:
            self.process = subprocess.Popen(command, env=settings, stdout=stream, stderr=stream, start_new_session=True)
        self.log = log

    def wait(self) -> None:
        """Until it answers."""
        stop = time.monotonic() + 180
        while True:
            try:
                Client(self.port).ask(["a"])
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > stop:
                    raise SystemExit(f"{self.name} does not answer:\n{self.log.read_text()[-2000:]}") from None
                time.sleep(0.5)

    def seconds(self) -> float:
        """Processor time of all its processes."""
        ticks = 0
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
            except OSError:
                continue
            if fields and int(fields[3]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, given: list[str]) -> list[list[float]]:
        """Vectors; a lone text is sent as a string."""
        body = {"model": "model", "input": given[0] if len(given) == 1 else given}
        self.connection.request(
            "POST", "/v1/embeddings", json.dumps(body), {"Content-Type": "application/json", "Connection": "keep-alive"}
        )
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {content[:200]!r}")
        return [one["embedding"] for one in json.loads(content)["data"]]


def load(server: Server, clients: int, seconds: float, expected: dict[str, Any]) -> Row:
    """Ask for so long, and hold what comes against ``encode``."""
    names, lock = list(expected), threading.Lock()
    taken: list[float] = []
    found: list[tuple[list[str], list[list[float]]]] = []
    failed: list[str] = []
    stop = time.monotonic() + seconds

    def work(number: int) -> None:
        client, chance = Client(server.port), random.Random(number)
        while time.monotonic() < stop:
            given = chance.sample(names, 1 if chance.random() < 0.7 else chance.randint(2, 6))
            begun = time.monotonic()
            try:
                vectors = client.ask(given)
            except Exception as error:
                failed.append(f"{type(error).__name__}: {error}")
                return
            with lock:
                taken.append(time.monotonic() - begun)
                found.append((given, vectors))

    used, begun = server.seconds(), time.monotonic()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed, used = time.monotonic() - begun, server.seconds() - used
    if failed:
        raise SystemExit(f"{server.name}, {clients} clients: {len(failed)} failed, as {failed[0]}")
    count = sum(len(given) for given, _ in found)
    worst = max(
        float(np.abs(np.asarray(vector) - expected[text]).max())
        for given, vectors in found
        for text, vector in zip(given, vectors, strict=True)
    )
    taken.sort()
    return count / passed, count / used, statistics.median(taken), taken[int(len(taken) * 0.99)], worst


def encode(model: Any, given: list[str], seconds: float) -> tuple[float, float]:
    """Texts a second, and a second of processor time, in batches of 32."""
    begun, used, count = time.monotonic(), time.process_time(), 0
    while time.monotonic() < begun + seconds:
        model.encode(given, batch_size=32, show_progress_bar=False)
        count += len(given)
    return count / (time.monotonic() - begun), count / (time.process_time() - used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--checkout", action="append", default=[], metavar="FOLDER[=MODEL]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each turn")
    parser.add_argument("--logs", type=Path, default=Path("."), help="where the servers' output goes")
    options = parser.parse_args()
    # So that the servers are stopped.
    signal.signal(signal.SIGTERM, lambda *given: sys.exit(1))
    import torch
    from sentence_transformers import SentenceTransformer

    import st_reba  # noqa: F401

    torch.set_num_threads(1)
    folder = str(options.model.resolve())
    model, given = SentenceTransformer(folder, device="cpu"), texts()
    expected = dict(zip(given, model.encode(given, batch_size=32), strict=True))
    ours = [sys.executable, "-m", "st_reba.cli", "serve", folder, "--name", "model", "--port", "PORT"]
    servers = [Server("st-reba serve", ours, options.logs / "serve.log")]
    rows: dict[tuple[str, int], list[Row]] = {}
    alone: list[tuple[float, float]] = []
    around: list[float] = []
    try:
        for rival in options.rival:
            name, _, python = rival.partition("=")
            command = [python, str(RIVALS), name, folder, "PORT"]
            servers.append(Server(name, command, options.logs / f"{name}.log"))
        for checkout in options.checkout:
            root, _, other = checkout.partition("=")
            command = [part.replace(folder, other or folder) for part in ours]
            servers.append(Server(Path(root).name, command, options.logs / "checkout.log", Path(root)))
        for server in servers:
            server.wait()
        for _ in range(options.rounds):
            for clients in CLIENTS:
                alone.append(encode(model, given, options.seconds / 2))
                for server in servers:
                    around.append(os.getloadavg()[0])
                    row = load(server, clients, options.seconds, expected)
                    rows.setdefault((server.name, clients), []).append(row)
                    print(f"{server.name}, {clients} clients: {row[0]:.0f} texts/s", file=sys.stderr, flush=True)
    finally:
        for server in servers:
            server.stop()
    print(f"{os.cpu_count()} processors, load {min(around):.1f} to {max(around):.1f}; {options.rounds} rounds\n")
    print("| server | clients | texts/s | a CPU second | p50, ms | p99, ms | largest difference |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    rate, cost = (statistics.median(column) for column in zip(*alone, strict=True))
    print(f"| `encode`, batches of 32 | | {rate:.0f} | {cost:.0f} | | | |")
    for clients in CLIENTS:
        for server in servers:
            found = rows[server.name, clients]
            rate, cost, middle, high = (statistics.median(column) for column in list(zip(*found, strict=True))[:4])
            worst = max(row[4] for row in found)
            shown = f"{rate:.0f} | {cost:.0f} | {middle * 1e3:.0f} | {high * 1e3:.0f} | {worst:.0e}"
            print(f"| {server.name} | {clients} | {shown} |")


if __name__ == "__main__":
    main()
