"""``st-reba serve`` beside LitServe with the same model and ``encode`` itself, in turns, on the loopback.

    python scripts/benchmark_serve.py MODEL [--rival litserve=PYTHON]

PYTHON is that of an environment with LitServe and this package. 1, 8 and 32 clients send short and long texts, three in
ten requests a list of two to six. Of each: texts a second, also of the server's processor time, the median and the 99th
percentile of an answer's time, and the largest difference from ``encode``. All run in turns; the figures are medians
over the rounds.
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
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RIVALS = ROOT / "scripts" / "serving" / "rivals.py"
CLIENTS = (1, 8, 32)
OURS = [
    str(Path(sys.executable).with_name("st-reba")),
    "serve",
    "MODEL",
    "--name",
    "model",
    "--port",
    "PORT",
]


def texts() -> list[str]:
    """Short ones, and one in eight of some hundred tokens."""
    lines = (ROOT / "examples" / "sentences.jsonl").read_text(encoding="utf-8").splitlines()
    short = [json.loads(line)["text"] for line in lines]
    long = [" ".join(short[start : start + 5]) for start in range(0, len(short) - 5, 8)]
    return random.Random(0).sample([*short, *long], len(short) + len(long))


def ask(connection: http.client.HTTPConnection, given: list[str]) -> list[list[float]]:
    """Vectors; a lone text is sent as a string."""
    body = json.dumps({"model": "model", "input": given[0] if len(given) == 1 else given})
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {content[:200]!r}")
    return [one["embedding"] for one in json.loads(content)["data"]]


@contextmanager
def server(command: list[str], model: str) -> Iterator[tuple[int, int]]:
    """Port and process of a server that answers, in a session of its own, so that its processor time can be told."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [{"PORT": str(port), "MODEL": model}.get(part, part) for part in command]
    settings = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    settings["HF_HUB_OFFLINE"] = settings["DO_NOT_TRACK"] = "1"
    process = subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(360):
            try:
                ask(
                    http.client.HTTPConnection("127.0.0.1", port, timeout=120),
                    ["a"],
                )
                break
            except OSError:
                time.sleep(0.5)
        yield port, process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def processor_seconds(session: int) -> float:
    """Processor time of all processes of a session."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def load(at: tuple[int, int], clients: int, seconds: float, expected: dict[str, Any]) -> tuple[float, ...]:
    """Ask for so long, and hold what comes against ``encode``."""
    stop, names = time.monotonic() + seconds, list(expected)

    def work(number: int) -> list[tuple[float, list[str], list[list[float]]]]:
        connection, chance = (
            http.client.HTTPConnection("127.0.0.1", at[0], timeout=120),
            random.Random(number),
        )
        answers = []
        while time.monotonic() < stop:
            given = chance.sample(names, 1 if chance.random() < 0.7 else chance.randint(2, 6))
            begun = time.monotonic()
            vectors = ask(connection, given)
            answers.append((time.monotonic() - begun, given, vectors))
        return answers

    used, begun = processor_seconds(at[1]), time.monotonic()
    with ThreadPoolExecutor(clients) as threads:
        found = [answer for some in threads.map(work, range(clients)) for answer in some]
    passed, used = time.monotonic() - begun, processor_seconds(at[1]) - used
    pairs = [pair for _, given, vectors in found for pair in zip(given, vectors, strict=True)]
    worst = max(float(np.abs(np.asarray(vector) - expected[text]).max()) for text, vector in pairs)
    taken = sorted(each for each, _, _ in found)
    middle, high = statistics.median(taken), taken[int(len(taken) * 0.99)]
    return len(pairs) / passed, len(pairs) / used, middle, high, worst


def encode(model: Any, given: list[str], seconds: float) -> tuple[float, float]:
    """Texts a second, and a second of processor time, in batches of 32."""
    begun, used, count = time.monotonic(), time.process_time(), 0
    while time.monotonic() < begun + seconds:
        model.encode(given, batch_size=32, show_progress_bar=False)
        count += len(given)
    return count / (time.monotonic() - begun), count / (time.process_time() - used)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each turn")
    options = parser.parse_args()
    import torch

    import st_reba

    torch.set_num_threads(1)
    folder, given = os.path.realpath(options.model), texts()
    model = st_reba.load(folder, device="cpu")
    expected = dict(zip(given, model.encode(given, batch_size=32), strict=True))
    commands = {"st-reba serve": OURS}
    for name, python in (each.split("=") for each in options.rival):
        commands[name] = [python, str(RIVALS), name, "MODEL", "PORT"]
    rows: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    alone: list[tuple[float, float]] = []
    with ExitStack() as stack:
        running = {name: stack.enter_context(server(command, folder)) for name, command in commands.items()}
        for _ in range(options.rounds):
            for clients in CLIENTS:
                alone.append(encode(model, given, options.seconds / 2))
                for name, at in running.items():
                    row = load(at, clients, options.seconds, expected)
                    rows.setdefault((name, clients), []).append(row)
                    print(
                        f"{name}, {clients} clients: {row[0]:.0f} texts/s",
                        file=sys.stderr,
                        flush=True,
                    )
    print("| server | clients | texts/s | a CPU second | p50, ms | p99, ms | largest difference |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    rate, cost = (statistics.median(column) for column in zip(*alone, strict=True))
    print(f"| `encode`, batches of 32 | | {rate:.3g} | {cost:.3g} | | | |")
    for (name, clients), found in rows.items():
        rate, cost, middle, high, _ = (statistics.median(column) for column in zip(*found, strict=True))
        shown = f"{rate:.3g} | {cost:.3g} | {middle * 1e3:.0f} | {high * 1e3:.0f} | {max(row[4] for row in found):.0e}"
        print(f"| {name} | {clients} | {shown} |")


if __name__ == "__main__":
    main()
