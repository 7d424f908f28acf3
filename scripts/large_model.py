"""A model of Llama-2-7B's shape on a CPU: built, saved, loaded, encoded with, and what each step takes.

    python scripts/large_model.py FOLDER

Random weights in bfloat16, made in FOLDER (13 GB; another 13 GB while a copy is saved). Each method runs in processes
of its own: one builds from the base and saves, one loads what was saved. Memory is the most that a process held at a
time, pages of mapped files included. The time is beside transformers' own pass on as many tokens, right before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

METHODS = {
    "ReBA-2 last": "reba",
    "ReBA-2 mean": "reba:pooling=mean",
    "Echo-2": "echo:pooling=mean",
    "NoSink, MASK0-BIDIR, 16 layers": "nosink:setting=mask0-bidir,k=16",
}
TEXT = (
    "猫在窗台上睡着了，孩子们在草地上放风筝。The committee read the report twice before it agreed to fund the bridge."
)
GIB = 2**30


def held() -> float:
    """GiB that this process holds."""
    line = next(x for x in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / GIB


@contextmanager
def step(name: str, found: dict[str, Any]) -> Iterator[None]:
    """Write down the seconds of what is done inside, and the most memory."""
    peak, done = held(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, held())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        yield
    finally:
        found[f"{name}, s"] = round(time.perf_counter() - start, 1)
        done.set()
        watcher.join()
        found[f"{name}, GiB"] = round(max(peak, held()), 1)


def make_base(folder: Path) -> None:
    """The base: random weights, and the tokenizer of the embedded model."""
    import torch
    import transformers

    from st_reba.bases import EMBEDDED

    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.AutoModel.from_config(transformers.LlamaConfig())
    torch.set_default_dtype(dtype)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(EMBEDDED["mini"]).save_pretrained(folder)


def built_and_saved(base: Path, spec: str, folder: Path) -> dict[str, Any]:
    """Build from the base, encode beside transformers' own pass, once more in blocks, and save."""
    import torch

    from st_reba import build
    from st_reba.modules.layout import PARTS

    found: dict[str, Any] = {}
    with step("build", found):
        model = build(base, spec, dtype="auto", device="cpu")
    features = model.preprocess([TEXT])
    plain = {name: features[name] for name in ("input_ids", "attention_mask")}
    attention = model[0].model.config._attn_implementation
    found["tokens"] = features["input_ids"].shape[1]

    def alone() -> None:
        model[0].model.set_attn_implementation("sdpa")
        with torch.inference_mode():
            model[0].model(**plain, use_cache=False)
        model[0].model.set_attn_implementation(attention)

    def encode() -> Any:
        return model.encode([TEXT], convert_to_tensor=True)

    alone()
    with step("SDPA alone", found):
        alone()
    with step("encode", found):
        vector = encode()
    found["ratio"] = round(found["encode, s"] / found["SDPA alone, s"], 2)
    if not spec.startswith("echo"):
        with patch.dict(PARTS):
            PARTS.pop("fused")
            found["from blocks"] = float((vector - encode()).norm())
    with step("save", found):
        model.save_pretrained(str(folder))
    torch.save(vector, folder / "vector.pt")
    return found


def loaded(folder: Path) -> dict[str, Any]:
    """Load what was saved, and encode."""
    import torch
    from sentence_transformers import SentenceTransformer

    import st_reba  # noqa: F401 - so that its classes are found

    found: dict[str, Any] = {}
    with step("load", found):
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "auto"})
    with step("encode again", found):
        vector = model.encode([TEXT], convert_to_tensor=True)
    found["after loading"] = float((vector - torch.load(folder / "vector.pt")).norm())
    found["GiB on disk"] = round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / GIB, 1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the models go; 27 GB are needed")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="M", help="; ".join(METHODS)
    )
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    base, saved = options.folder / "base", options.folder / "saved"
    if options.step is not None:
        kind, method = options.step
        if kind == "base":
            make_base(base)
            return 0
        print(json.dumps(built_and_saved(base, METHODS[method], saved) if kind == "build" else loaded(saved)))
        return 0

    def run(kind: str, method: str = "-") -> dict[str, Any]:
        command = [sys.executable, __file__, str(options.folder), "--step", kind, method]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if kind != "base" else {}
        return found

    if not (base / "config.json").is_file():
        run("base")
    for method in options.methods:
        found = run("build", method) | run("load", method)
        shutil.rmtree(saved)
        print(json.dumps({"method": method, **found}, ensure_ascii=False), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
