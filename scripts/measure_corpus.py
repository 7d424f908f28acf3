"""Measure what encoding and indexing a corpus costs besides the model, and whether memory grows with it.

    python scripts/measure_corpus.py corpus.txt --sizes 10000 50000 100000

Each size runs in a process of its own. "model" is the time within the model's encode, tokenizing included; memory is
the most that the process held, resident, with Python, torch and the model.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any


def main() -> None:
    """Measure each size in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, metavar="TEXTS", help="a .txt file, one text a line")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 50_000, 100_000], help="numbers of texts")
    parser.add_argument("--model", default="mini", help="a saved model, or a base, by ReBA mean (default: %(default)s)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measured(options)))
        return
    rows = []
    for size in options.sizes:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(size)]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    print(f"| {' | '.join(rows[0])} |\n|{'--:|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(f'{value:,}' for value in row.values())} |")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Encode and index so many texts; seconds and MiB."""
    import st_reba
    from st_reba.corpus import encode_corpus
    from st_reba.safety import load

    saved = Path(options.model).is_dir()
    model = load(options.model) if saved else st_reba.build(options.model, "reba", pooling="mean")
    encode_document, spent = model.encode_document, 0.0

    def timed(*arguments: Any, **given: Any) -> Any:
        nonlocal spent
        began = time.perf_counter()
        vectors = encode_document(*arguments, **given)
        spent += time.perf_counter() - began
        return vectors

    model.encode_document = timed
    with tempfile.TemporaryDirectory() as scratch, options.texts.open(encoding="utf-8") as lines:
        began = time.perf_counter()
        encode_corpus(model, islice(lines, options.one), f"{scratch}/corpus", show_progress_bar=False)
        encoding, peak = time.perf_counter() - began, held()
        began = time.perf_counter()
        st_reba.Index.build(model, f"{scratch}/corpus", f"{scratch}/index", show_progress_bar=False).close()
        indexing = time.perf_counter() - began
    return {
        "texts": options.one,
        "encoding, s": round(encoding, 1),
        "of that the model, s": round(spent, 1),
        "all else, %": round(100 * (1 - spent / encoding), 1),
        "most memory, encoding, MiB": peak,
        "indexing, s": round(indexing, 1),
        "most memory, MiB": held(),
    }


def held() -> int:
    """The most memory that this process has held, in MiB."""
    # Kilobytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    main()
