"""``st-reba serve`` beside LitServe with the same model and ``encode`` itself, in turns, on the loopback.

    python scripts/benchmark_serve.py MODEL [--rival litserve=PYTHON]

PYTHON is that of an environment with LitServe and this package. 1, 8 and 32 clients send short and
long texts, three in ten requests a list of two to six. Of each: texts a second, also of the
server's processor time, the median and the 99th percentile of an answer's time, and the largest
difference from ``encode``. All run in turns; the figures are medians over the rounds.
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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RIVALS = ROOT / "scripts" / "serving" / "rivals.py"
CLIENT_COUNTS = (1, 8, 32)
ST_REBA = str(Path(sys.executable).with_name("st-reba"))
OWN_COMMAND = [ST_REBA, "serve", "MODEL", "--name", "model", "--port", "PORT"]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
Vectors = list[list[float]]


def read_texts() -> list[str]:
    """Short ones, and one in eight of some hundred tokens."""
    file = ROOT / "examples" / "sentences.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    for start in range(0, len(lines) - 5, 8):
        texts.append(" ".join(texts[start : start + 5]))
    return random.Random(0).sample(texts, len(texts))


def request_vectors(connection: http.client.HTTPConnection, texts: list[str]) -> Vectors:
    """A lone text is sent as a string."""
    body = json.dumps({"model": "model", "input": texts[0] if len(texts) == 1 else texts})
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {content[:200]!r}")
    return [item["embedding"] for item in json.loads(content)["data"]]


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=120)


@dataclass(frozen=True)
class Server:
    """A process that answers, in a session of its own, so that its processor time can be told."""

    port: int
    session: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def run_server(command: list[str], model: str) -> Iterator[Server]:
    port = free_port()
    values = {"PORT": str(port), "MODEL": model}
    process = subprocess.Popen(
        [values.get(argument, argument) for argument in command],
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for_answer(port)
        yield Server(port, process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def wait_for_answer(port: int) -> None:
    for _ in range(360):
        try:
            request_vectors(connect(port), ["a"])
            return
        except OSError:
            time.sleep(0.5)


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


@dataclass(frozen=True)
class Answer:
    """Of one request."""

    seconds: float
    texts: list[str]
    vectors: Vectors


@dataclass(frozen=True)
class Figures:
    """Of one server under the load of some clients."""

    texts_per_second: float
    texts_per_processor_second: float
    median_seconds: float
    high_seconds: float  # the 99th percentile
    largest_difference: float


def run_client(port: int, texts: list[str], client_index: int, end_time: float) -> list[Answer]:
    """Ask until the time is over."""
    connection = connect(port)
    random_state = random.Random(client_index)
    answers: list[Answer] = []
    while time.monotonic() < end_time:
        text_count = 1 if random_state.random() < 0.7 else random_state.randint(2, 6)
        requested_texts = random_state.sample(texts, text_count)
        start_time = time.monotonic()
        vectors = request_vectors(connection, requested_texts)
        answers.append(Answer(time.monotonic() - start_time, requested_texts, vectors))
    return answers


def put_under_load(
    server: Server, client_count: int, seconds: float, expected: dict[str, Any]
) -> Figures:
    """Ask for so long, and hold what comes against ``encode``."""
    end_time = time.monotonic() + seconds
    texts = list(expected)
    processor_start = processor_seconds(server.session)
    start_time = time.monotonic()
    answers: list[Answer] = []
    with ThreadPoolExecutor(client_count) as threads:
        clients: list[Future[list[Answer]]] = []
        for client_index in range(client_count):
            clients.append(threads.submit(run_client, server.port, texts, client_index, end_time))
        for client in clients:
            answers += client.result()
    wall_seconds = time.monotonic() - start_time
    used_seconds = processor_seconds(server.session) - processor_start
    answer_seconds = sorted(answer.seconds for answer in answers)
    text_count = sum(len(answer.texts) for answer in answers)
    return Figures(
        texts_per_second=text_count / wall_seconds,
        texts_per_processor_second=text_count / used_seconds,
        median_seconds=statistics.median(answer_seconds),
        high_seconds=answer_seconds[int(len(answer_seconds) * 0.99)],
        largest_difference=max(difference_of(answer, expected) for answer in answers),
    )


def difference_of(answer: Answer, expected: dict[str, Any]) -> float:
    largest_difference = 0.0
    for text, vector in zip(answer.texts, answer.vectors, strict=True):
        difference = np.abs(np.asarray(vector) - expected[text]).max()
        largest_difference = max(largest_difference, float(difference))
    return largest_difference


def time_encode(model: Any, texts: list[str], seconds: float) -> tuple[float, float]:
    """Texts a second, and a second of processor time, in batches of 32."""
    start_time = time.monotonic()
    processor_start = time.process_time()
    text_count = 0
    while time.monotonic() < start_time + seconds:
        model.encode(texts, batch_size=32, show_progress_bar=False)
        text_count += len(texts)
    wall_seconds = time.monotonic() - start_time
    used_seconds = time.process_time() - processor_start
    return text_count / wall_seconds, text_count / used_seconds


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each turn")
    return parser.parse_args()


def server_commands(rivals: list[str]) -> dict[str, list[str]]:
    commands = {"st-reba serve": OWN_COMMAND}
    for rival in rivals:
        name, python = rival.split("=")
        commands[name] = [python, str(RIVALS), name, "MODEL", "PORT"]
    return commands


def median_of(rounds: list[Figures], name: str) -> float:
    return float(statistics.median(getattr(figures, name) for figures in rounds))


def print_table(
    encode_rates: list[tuple[float, float]],
    rounds_by_case: dict[tuple[str, int], list[Figures]],
) -> None:
    """Medians over the rounds, and the largest difference of all."""
    print("| server | clients | texts/s | a CPU second | p50, ms | p99, ms | largest difference |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    wall_rates, processor_rates = zip(*encode_rates, strict=True)
    rate = statistics.median(wall_rates)
    processor_rate = statistics.median(processor_rates)
    print(f"| `encode`, batches of 32 | | {rate:.3g} | {processor_rate:.3g} | | | |")
    for (name, client_count), rounds in rounds_by_case.items():
        cells = [
            name,
            str(client_count),
            f"{median_of(rounds, 'texts_per_second'):.3g}",
            f"{median_of(rounds, 'texts_per_processor_second'):.3g}",
            f"{median_of(rounds, 'median_seconds') * 1e3:.0f}",
            f"{median_of(rounds, 'high_seconds') * 1e3:.0f}",
            f"{max(figures.largest_difference for figures in rounds):.0e}",
        ]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    options = parse_options()
    import torch

    import st_reba

    torch.set_num_threads(1)
    folder = os.path.realpath(options.model)
    texts = read_texts()
    model = st_reba.load(folder, device="cpu")
    expected = dict(zip(texts, model.encode(texts, batch_size=32), strict=True))
    encode_rates: list[tuple[float, float]] = []
    rounds_by_case: dict[tuple[str, int], list[Figures]] = {}
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name, command in server_commands(options.rival).items():
            servers[name] = stack.enter_context(run_server(command, folder))
        for _, client_count in product(range(options.rounds), CLIENT_COUNTS):
            encode_rates.append(time_encode(model, texts, options.seconds / 2))
            for name, server in servers.items():
                figures = put_under_load(server, client_count, options.seconds, expected)
                rounds_by_case.setdefault((name, client_count), []).append(figures)
                print(
                    f"{name}, {client_count} clients: {figures.texts_per_second:.0f} texts/s",
                    file=sys.stderr,
                )
    print_table(encode_rates, rounds_by_case)


if __name__ == "__main__":
    main()
