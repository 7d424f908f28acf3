"""Measure what encoding and indexing a corpus takes: seconds by stage, and whether memory grows with the corpus.

Each size runs in processes of its own, through the command line, as a user would; the peak is what the system says the
process held at most (resident, libraries and model included).

    python scripts/measure_corpus.py corpus.txt --sizes 10000 50000 100000 --model mini --factory Flat
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        model = options.model
        if not Path(model).is_dir():
            model = str(folder / "model")
            _run("build", options.model, model, "--method", options.method, "--pooling", options.pooling)
        results = []
        for size in options.sizes:
            texts = folder / f"{size}.txt"
            with options.texts.open(encoding="utf-8") as lines, texts.open("w", encoding="utf-8") as part:
                count = sum(bool(part.write(line)) for line in islice(lines, size))
            if count < size:
                sys.exit(f"--sizes {size}: {options.texts} has only {count} lines. Give a smaller size or more texts.")
            corpus, index = str(folder / f"corpus-{size}"), str(folder / f"index-{size}")
            encoded, encode_peak = _run("encode-corpus", model, str(texts), corpus, "--json")
            built, index_peak = _run("index", model, corpus, index, "--factory", options.factory, "--json")
            results.append(
                {"texts": size, "encode": encoded, "encode_peak_mib": encode_peak}
                | {"index": built, "index_peak_mib": index_peak}
            )
            print(_told(results[-1]), file=sys.stderr)
    print(json.dumps({"model": options.model, "factory": options.factory, "sizes": results}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, metavar="TEXTS", help="a .txt file, one text a line")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 50_000, 100_000], help="numbers of texts")
    parser.add_argument("--model", default="mini", help="a saved model's folder, or a base to build (default: mini)")
    parser.add_argument("--method", default="reba", help="of a model that is built (default: %(default)s)")
    parser.add_argument("--pooling", default="mean", help="of a model that is built (default: %(default)s)")
    parser.add_argument("--factory", default="Flat", help="of the index (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, help="where to write (default: the system's temporary folder)")
    return parser.parse_args()


def _run(*command: str) -> tuple[dict[str, Any], int]:
    """A command's JSON, and the most memory that it held, in MiB."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "st_reba.cli", *command], stdout=out, env=os.environ | {"PYTHONPATH": paths}
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"st-reba {' '.join(command)}: status {process.returncode}")
        out.seek(0)
        text = out.read().decode()
    # Kilobytes on Linux, bytes on macOS.
    peak = usage.ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)
    return (json.loads(text) if "--json" in command else {}), peak


def _told(result: dict[str, Any]) -> str:
    parts = []
    for name in ("encode", "index"):
        seconds: dict[str, float] = result[name].get("seconds", {})
        split = ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items())
        parts.append(f"{name}: {split}; peak {result[f'{name}_peak_mib']} MiB")
    return f"{result['texts']:,} texts: {' | '.join(parts)}"


if __name__ == "__main__":
    main()
