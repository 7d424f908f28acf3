"""What only a GPU can show: the CPU's vectors, no waiting inside a pass, and what each method costs there.

    python scripts/check_gpu.py [MODEL]         on one CUDA card; MODEL is a base's folder (default: the embedded one)
    python scripts/check_gpu.py --device cpu    the same comparison without a card

Vectors are compared with float32 on the CPU. A wait for the card inside the decoder is an error, but for the one that
transformers' masks make in each pass. Exit status 1: one differs, or waits.
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

METHODS = {
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
TEXTS = ["", "猫", "今天天气真好！", "The cat is asleep on the warm roof. " * 12, "def f(x):\n    return x", "好" * 200]


@contextmanager
def waits(device: str) -> Iterator[set[str]]:
    """Collect the lines of code where the decoder waits for the card; transformers' own, in its masks, do not count."""
    run, found = Transformer.forward, set()

    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.filterwarnings("always", "called a synchronizing CUDA operation")
                return run(self, *arguments, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            lines = {f"{each.filename}:{each.lineno}" for each in caught if "synchronizing" in str(each.message)}
            found.update(line for line in lines if "transformers/masking_utils" not in line)

    with patch.object(Transformer, "forward", watched if device.startswith("cuda") else run):
        yield found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model", nargs="?", default="mini")
    options.add_argument("--device", default="cuda")
    given = options.parse_args()
    failed = 0
    for name, fields in METHODS.items():
        base = st_reba.build(given.model, name, device="cpu", dtype="float32", **fields).encode(TEXTS)
        for dtype, tolerance in TOLERANCES.items():
            model = st_reba.build(given.model, name, device=given.device, dtype=dtype, **fields)
            model.encode(TEXTS)
            began = time.perf_counter()
            with waits(given.device) as places:
                vectors = model.encode(TEXTS * 20, batch_size=32)[: len(TEXTS)]
            seconds = time.perf_counter() - began
            distance = float(np.linalg.norm(vectors.astype(np.float64) - base, axis=1).max())
            wrong = not distance <= tolerance or bool(places)
            failed += wrong
            line = f"{name:45} {dtype:9} distance {distance:.1e} {'FAIL' if wrong else 'ok'}  {seconds:.2f} s"
            print(line, *(f"waits at {place}" for place in places))
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
