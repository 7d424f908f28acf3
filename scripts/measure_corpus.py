"""Measure what encoding and indexing a corpus costs besides the model, and whether memory grows with it.

    python scripts/measure_corpus.py corpus.txt --sizes 10000 50000 100000

Each size runs in a process of its own. "model" is the time within the model's encode, tokenizing
included; memory is the most that the process held, resident, with Python, torch and the model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from process_memory import peak_bytes


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("texts", type=Path, metavar="TEXTS", help="a .txt file, one text a line")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[10_000, 50_000, 100_000],
        help="numbers of texts",
    )
    parser.add_argument(
        "--model",
        default="mini",
        help="a saved model, or a base, by ReBA mean (default: %(default)s)",
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure each size in a process of its own and print a table."""
    options = parse_options()
    if options.one is not None:
        print(json.dumps(measure(options.model, options.texts, options.one)))
        return
    rows: list[dict[str, float]] = []
    for size in options.sizes:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(size)]
        completed = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        rows.append(json.loads(completed.stdout))
    titles = list(rows[0])
    print(f"| {' | '.join(titles)} |\n|{'--:|' * len(titles)}")
    for row in rows:
        print(f"| {' | '.join(f'{value:,}' for value in row.values())} |")


class Stopwatch:
    """Adds up the time of a function's calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start_time = time.perf_counter()
            result = function(*args, **options)
            self.seconds += time.perf_counter() - start_time
            return result

        return timed


def open_model(name: str) -> Any:
    import st_reba
    from st_reba.safety import load

    if Path(name).is_dir():
        return load(name)
    return st_reba.build(name, "reba", pooling="mean")


def build_and_close(model: Any, corpus_folder: str, index_folder: str) -> None:
    import st_reba

    index = st_reba.Index.build(model, corpus_folder, index_folder, show_progress_bar=False)
    index.close()


def measure(model_name: str, texts_file: Path, size: int) -> dict[str, float]:
    """Encode and index ``size`` texts; seconds and MiB."""
    from st_reba.corpus import encode_corpus

    model = open_model(model_name)
    model_watch = Stopwatch()
    encoding_watch = Stopwatch()
    indexing_watch = Stopwatch()
    model.encode_document = model_watch.wrap(model.encode_document)
    encode = encoding_watch.wrap(encode_corpus)
    build_index = indexing_watch.wrap(build_and_close)
    with (
        tempfile.TemporaryDirectory() as scratch,
        texts_file.open(encoding="utf-8") as lines,
    ):
        corpus_folder = f"{scratch}/corpus"
        encode(model, islice(lines, size), corpus_folder, show_progress_bar=False)
        encoding_peak = peak_bytes() // 2**20
        build_index(model, corpus_folder, f"{scratch}/index")
    model_share = model_watch.seconds / encoding_watch.seconds
    return {
        "texts": size,
        "encoding, s": round(encoding_watch.seconds, 1),
        "of that the model, s": round(model_watch.seconds, 1),
        "all else, %": round(100 * (1 - model_share), 1),
        "most memory, encoding, MiB": encoding_peak,
        "indexing, s": round(indexing_watch.seconds, 1),
        "most memory, MiB": peak_bytes() // 2**20,
    }


if __name__ == "__main__":
    main()
