#!/usr/bin/env python
"""Time encoding by method in one run, beside sentence-transformers' own modules and another version of st_reba.

    scripts/benchmark.py MODEL TEXTS [--beside CHECKOUT] [--rounds 5] [--words 350 --count 64] [--only CASE ...]
    scripts/benchmark.py MODEL TEXTS --device cuda --dtype bfloat16 --batch-size 256

MODEL is a base's folder; of TEXTS, one a line, the first 1,000 are encoded, each round by all cases in turn, a process
each. Printed are medians of the rounds and of their ratios, and the most memory of a process (on a GPU: of tensors).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Case: what it is compared with, and how it is built.
CASES: dict[str, tuple[str, str]] = {
    "stock": ("stock", "stock"),
    "classical": ("stock", "build('classical', pooling='mean')"),
    "prompteol": ("classical", "build('prompteol')"),
    "echo": ("classical", "build('echo', pooling='mean')"),
    "reba-last": ("echo", "build('reba', pooling='last')"),
    "reba-mean": ("echo", "build('reba', pooling='mean')"),
    "pieces": ("reba-mean", "build('reba', pooling='mean', chunk=128)"),
    "nosink": ("classical", "build('nosink', setting='mask0-bidir', k=4)"),
    "inter": ("classical", "build('nosink', setting='inter-bidir', k=4)"),
}


def worker(given: argparse.Namespace, texts: list[str]) -> None:
    """Build a case, and encode once for every line on standard input."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    def build(method: str, **options: Any) -> SentenceTransformer:
        import st_reba

        return st_reba.build(given.model, method, device=given.device, dtype=given.dtype, normalize=False, **options)

    size = given.batch_size
    if given.case == "stock":
        transformer = Transformer(
            given.model,
            model_kwargs={"dtype": getattr(torch, given.dtype)},
            modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            module_output_name="token_embeddings",
        )
        transformer.tokenizer.padding_side = "right"
        transformer.tokenizer.pad_token = transformer.tokenizer.pad_token or transformer.tokenizer.eos_token
        pooling = Pooling(transformer.get_embedding_dimension())
        model = SentenceTransformer(modules=[transformer, pooling], device=given.device)
    else:
        model = eval(CASES[given.case][1], {"build": build})
    model.encode(texts[:size], batch_size=size)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        model.encode(texts, batch_size=size)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        peak = torch.cuda.max_memory_allocated() / 2**30 if given.device == "cuda" else peak
        print(f"took {time.perf_counter() - began} {peak}", flush=True)


class Case:
    """A process that encodes when it is asked."""

    def __init__(self, name: str, checkout: Path, given: argparse.Namespace) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-W", "ignore", __file__, given.model, given.texts, "--case", name]
        for option in ("words", "count", "device", "dtype", "batch_size"):
            command += [f"--{option.replace('_', '-')}={value}"] if (value := getattr(given, option)) else []
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self.seconds: list[float] = []
        self.peak = 0.0

    def encode(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, peak = self.wait("took").split()
        self.seconds.append(float(seconds))
        self.peak = float(peak)

    def wait(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line[len(word) :]
        raise SystemExit(f"{' '.join(self.process.args)} ended.")  # type: ignore[arg-type]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model")
    options.add_argument("texts")
    options.add_argument("--beside", type=Path, help="checkout of another version, whose package is timed too")
    options.add_argument("--words", type=int, help="join the texts to longer ones of so many words")
    options.add_argument("--count", type=int, default=64, help="how many of these")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--case", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    lines = map(str.strip, Path(arguments.texts).read_text(encoding="utf-8").splitlines())
    texts = [line for line in lines if line][:1000]
    if arguments.words:
        words = " ".join(texts * 40).split()
        texts = [" ".join(words[n * arguments.words :][: arguments.words]) for n in range(arguments.count)]
    if arguments.case:
        return worker(arguments, texts)
    here = Path(__file__).resolve().parent.parent
    running = {(name, ""): Case(name, here, arguments) for name in arguments.only}
    if arguments.beside:
        old = [name for name in arguments.only if name != "stock"]
        running |= {(name, "before"): Case(name, arguments.beside, arguments) for name in old}
    for case in running.values():
        case.wait("ready")
    for _ in range(arguments.rounds):
        for case in running.values():
            case.encode()
    for (name, version), case in running.items():
        line = [f"{name} {version}".ljust(24), f"{statistics.median(case.seconds):.3f} s", f"{case.peak:.2f} GiB"]
        others = {CASES[name][0]: running.get((CASES[name][0], version)) or running.get((CASES[name][0], ""))}
        if not version:
            others["before"] = running.get((name, "before"))
        line += [f"{_ratio(case, other):.3f} x {each}" for each, other in others.items() if other is not None]
        print("  ".join(line))


def _ratio(case: Case, other: Case) -> float:
    """Median of the rounds' ratios."""
    return statistics.median(mine / its for mine, its in zip(case.seconds, other.seconds, strict=True))


if __name__ == "__main__":
    main()
