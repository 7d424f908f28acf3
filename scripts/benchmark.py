#!/usr/bin/env python
"""Time encoding by method in one run, beside sentence-transformers' own modules and another version of st_reba.

    python scripts/benchmark.py MODEL TEXTS --rounds 5 --words 350 --count 64 --only echo reba-mean
    python scripts/benchmark.py MODEL TEXTS --beside CHECKOUT
    python scripts/benchmark.py MODEL TEXTS --device cuda --dtype bfloat16 --batch-size 256

MODEL is a base's folder; of TEXTS, one a line, the first 1,000 are encoded, each round by all cases
in turn, a process each. Printed are medians of the rounds and of their ratios, and the most memory
of a process (on a GPU: of tensors).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from process_memory import peak_bytes

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Case:
    """A pipeline, and what it is compared with."""

    compared_with: str
    method: str | None  # None: sentence-transformers' own modules
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "stock": Case("stock", None),
    "classical": Case("stock", "classical", {"pooling": "mean"}),
    "prompteol": Case("classical", "prompteol"),
    "echo": Case("classical", "echo", {"pooling": "mean"}),
    "reba-last": Case("echo", "reba", {"pooling": "last"}),
    "reba-mean": Case("echo", "reba", {"pooling": "mean"}),
    "pieces": Case("reba-mean", "reba", {"pooling": "mean", "chunk": 128}),
    "nosink": Case("classical", "nosink", {"setting": "mask0-bidir", "k": 4}),
    "inter": Case("classical", "nosink", {"setting": "inter-bidir", "k": 4}),
}


def build_stock_model(options: argparse.Namespace) -> SentenceTransformer:
    """The mean of a base by sentence-transformers' own modules."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Pooling,
        Transformer,
    )

    transformer = Transformer(
        options.model,
        model_kwargs={"dtype": getattr(torch, options.dtype)},
        modality_config={
            "text": {
                "method": "forward",
                "method_output_name": "last_hidden_state",
            }
        },
        module_output_name="token_embeddings",
    )
    tokenizer = transformer.tokenizer
    tokenizer.padding_side = "right"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    pooling = Pooling(transformer.get_embedding_dimension())
    return SentenceTransformer(modules=[transformer, pooling], device=options.device)


def build_model(case: Case, options: argparse.Namespace) -> SentenceTransformer:
    if case.method is None:
        return build_stock_model(options)
    import st_reba

    return st_reba.build(
        options.model,
        case.method,
        device=options.device,
        dtype=options.dtype,
        normalize=False,
        **case.options,
    )


def peak_gibibytes(device: str) -> float:
    """The most that this process has held; on a GPU, its tensors."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**30
    return peak_bytes() / 2**30


def run_worker(options: argparse.Namespace, texts: list[str]) -> None:
    """Build a case, and encode once for every line on standard input."""
    model = build_model(CASES[options.case], options)
    batch_size = options.batch_size
    model.encode(texts[:batch_size], batch_size=batch_size)
    print("ready", flush=True)
    for _ in sys.stdin:
        start_time = time.perf_counter()
        model.encode(texts, batch_size=batch_size)
        seconds = time.perf_counter() - start_time
        print(f"took {seconds} {peak_gibibytes(options.device)}", flush=True)


class Worker:
    """A process that encodes when it is asked."""

    def __init__(self, case_name: str, checkout: Path, options: argparse.Namespace) -> None:
        arguments = [options.model, options.texts, "--case", case_name]
        for name in ("words", "count", "device", "dtype", "batch_size"):
            value = getattr(options, name)
            if value:
                arguments.append(f"--{name.replace('_', '-')}={value}")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, *arguments],
            env=os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.seconds: list[float] = []  # of each round
        self.peak = 0.0

    def encode(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, peak = self.wait_for("took").split()
        self.seconds.append(float(seconds))
        self.peak = float(peak)

    def wait_for(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise SystemExit(f"{' '.join(self.process.args)} ended.")  # type: ignore[arg-type]


def median_ratio(worker: Worker, other_worker: Worker) -> float:
    """Median of the rounds' ratios."""
    ratios: list[float] = []
    for seconds, other_seconds in zip(worker.seconds, other_worker.seconds, strict=True):
        ratios.append(seconds / other_seconds)
    return statistics.median(ratios)


def read_texts(options: argparse.Namespace) -> list[str]:
    """The first texts of the file, or longer ones that are joined from them."""
    lines = Path(options.texts).read_text(encoding="utf-8").splitlines()
    texts = [line.strip() for line in lines if line.strip()][:1000]
    if not options.words:
        return texts
    words = " ".join(texts * 40).split()
    long_texts: list[str] = []
    for index in range(options.count):
        start = index * options.words
        long_texts.append(" ".join(words[start : start + options.words]))
    return long_texts


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument(
        "--beside",
        type=Path,
        help="checkout of another version, whose package is timed too",
    )
    parser.add_argument(
        "--words",
        type=int,
        help="join the texts to longer ones of this many words",
    )
    parser.add_argument("--count", type=int, default=64, help="how many of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


Workers = dict[tuple[str, str], Worker]  # by case and version: "" or "before"


def describe_worker(case_name: str, version: str, workers: Workers) -> str:
    """Medians, and ratios to the case that this one is compared with and to the other version."""
    worker = workers[case_name, version]
    cells = [
        f"{case_name} {version}".ljust(24),
        f"{statistics.median(worker.seconds):.3f} s",
        f"{worker.peak:.2f} GiB",
    ]
    compared_with = CASES[case_name].compared_with
    compared_worker = workers.get((compared_with, version)) or workers.get((compared_with, ""))
    if compared_worker is not None:
        cells.append(f"{median_ratio(worker, compared_worker):.3f} x {compared_with}")
    if not version and (case_name, "before") in workers:
        cells.append(f"{median_ratio(worker, workers[case_name, 'before']):.3f} x before")
    return "  ".join(cells)


def main() -> None:
    options = parse_options()
    if options.case:
        run_worker(options, read_texts(options))
        return
    workers: Workers = {}
    for case_name in options.only:
        workers[case_name, ""] = Worker(case_name, CHECKOUT, options)
    for case_name in options.only:
        if options.beside and case_name != "stock":
            workers[case_name, "before"] = Worker(case_name, options.beside, options)
    for worker in workers.values():
        worker.wait_for("ready")
    for _ in range(options.rounds):
        for worker in workers.values():
            worker.encode()
    for case_name, version in workers:
        print(describe_worker(case_name, version, workers))


if __name__ == "__main__":
    main()
