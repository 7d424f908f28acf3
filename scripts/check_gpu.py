"""What only a GPU can show: the CPU's vectors, no waiting inside a pass, and what each method costs there.

    python scripts/check_gpu.py [MODEL]
    python scripts/check_gpu.py --device cpu

The first runs on one CUDA card, the second compares the same without a card. MODEL is a base's
folder (default: the bundled one).

Vectors are compared with float32 on the CPU. A wait for the card inside the decoder is an error,
but for the one that transformers' masks make in each pass. Exit status 1: one differs, or waits.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import Transformer

import st_reba

METHODS: dict[str, dict[str, Any]] = {
    "classical": {"pooling": "mean"},
    "echo": {"pooling": "mean"},
    "prompteol": {},
    "reba": {"pooling": "last"},
    "reba:pooling=mean": {},
    "reba:implementation=authors": {},
    "reba:pooling=mean,chunk=64": {},
    "nosink": {"setting": "mask0-bidir", "k": 2},
    "nosink:setting=inter-bidir,k=2": {},
    "reba:pooling=mean,setting=mask0-bidir,k=2": {},
}
# Of a vector's length: the largest distance that rounding may make.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
TEXTS = [
    "",
    "猫",
    "今天天气真好！",
    "The cat is asleep on the warm roof. " * 12,
    "def f(x):\n    return x",
    "好" * 200,
]


@contextmanager
def collect_waits(device: str) -> Iterator[set[str]]:
    """Collect the lines of code where the decoder waits for the card; transformers' own, in its masks, do not count."""
    original_forward = Transformer.forward
    waiting_lines: set[str] = set()

    def watched_forward(self: Any, *args: Any, **options: Any) -> Any:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught_warnings:
                warnings.filterwarnings("always", "called a synchronizing CUDA operation")
                return original_forward(self, *args, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            for warning in caught_warnings:
                is_wait = "synchronizing" in str(warning.message)
                if is_wait and "transformers/masking_utils" not in warning.filename:
                    waiting_lines.add(f"{warning.filename}:{warning.lineno}")

    if not device.startswith("cuda"):
        yield waiting_lines
        return
    with patch.object(Transformer, "forward", watched_forward):
        yield waiting_lines


def check(
    name: str,
    options: argparse.Namespace,
    dtype: str,
    expected_vectors: np.ndarray,
) -> bool:
    """Print what a method does on the card; returns whether that is right."""
    model = st_reba.build(options.model, name, device=options.device, dtype=dtype, **METHODS[name])
    model.encode(TEXTS)
    start_time = time.perf_counter()
    with collect_waits(options.device) as waiting_lines:
        vectors = model.encode(TEXTS * 20, batch_size=32)[: len(TEXTS)]
    seconds = time.perf_counter() - start_time
    differences = vectors.astype(np.float64) - expected_vectors
    distance = float(np.linalg.norm(differences, axis=1).max())
    is_right = distance <= TOLERANCES[dtype] and not waiting_lines
    verdict = "ok" if is_right else "FAIL"
    line = f"{name:45} {dtype:9} distance {distance:.1e} {verdict}  {seconds:.2f} s"
    print(line, *(f"waits at {waiting_line}" for waiting_line in waiting_lines))
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="mini")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    failure_count = 0
    for name, fields in METHODS.items():
        exact_model = st_reba.build(options.model, name, device="cpu", dtype="float32", **fields)
        expected_vectors = exact_model.encode(TEXTS)
        for dtype in TOLERANCES:
            failure_count += not check(name, options, dtype, expected_vectors)
    print(f"{failure_count} failed")
    return int(failure_count > 0)


if __name__ == "__main__":
    raise SystemExit(main())
