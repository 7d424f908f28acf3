"""The command that encodes a corpus of any size."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import (
    CORPUS_FILES,
    add_corpus,
    add_engine,
    add_running,
    corpus_settings,
    engine_settings,
    load_model,
    new_command,
    positive,
)

if TYPE_CHECKING:
    from ..corpus import Corpus
    from ..corpus.progress import RunProgress

# Written out, so that parsing needs no library; the tests hold them against the package.
STORE_DTYPES = ("float32", "float16")
SHARD_SIZE = 16_384


def add_encode_corpus(commands: Any) -> None:
    command = new_command(
        commands,
        "encode-corpus",
        "Encode a corpus of any size into a folder of shards. Killed at any moment, the same command goes on.",
        "  st-reba encode-corpus my_model corpus.jsonl my_corpus\n"
        "  st-reba encode-corpus my_model texts/ my_corpus --engine local --workers 8 --store-dtype float16",
        encode_corpus,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument(
        "input",
        metavar="INPUT",
        help=f"the texts: {CORPUS_FILES}; -: lines from standard input, which must be the same to go on",
    )
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write, or to go on with")
    add_engine(command)
    command.add_argument(
        "--shard-size",
        metavar="N",
        type=positive,
        default=SHARD_SIZE,
        help="records a shard; a kill costs one shard's encoding at most (default: %(default)s)",
    )
    command.add_argument(
        "--store-dtype",
        choices=STORE_DTYPES,
        default="float32",
        help="of the stored vectors; float16: half the disk, three digits (default: %(default)s)",
    )
    add_corpus(command)
    command.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a corpus that is complete, or does not fit; go on with others",
    )
    command.add_argument("--json", action="store_true", help="print what was done as JSON")
    add_running(command)


def encode_corpus(options: argparse.Namespace) -> int:
    from ..corpus import encode_corpus
    from ..corpus.progress import RunProgress

    progress = RunProgress()
    try:
        corpus = encode_corpus(
            load_model(options),
            (line.rstrip("\r\n") for line in sys.stdin if line.strip()) if options.input == "-" else options.input,
            options.out,
            shard_size=options.shard_size,
            dtype=options.store_dtype,
            overwrite=options.overwrite,
            model_source=options.model,
            progress=progress,
            **engine_settings(options),
            **corpus_settings(options),
        )
    except KeyboardInterrupt:
        print(f"st-reba: interrupted; {_so_far(progress)}", file=sys.stderr)
        return 130
    about = _about(corpus, progress)
    print(json.dumps(about, ensure_ascii=False) if options.json else _said(about))
    return 0


def _so_far(progress: RunProgress) -> str:
    if progress.total is None:
        return f"{progress.records:,} records were read; the same command goes on"
    return f"{progress.kept:,} of {progress.total:,} documents are encoded and kept; the same command goes on"


def _about(corpus: Corpus, progress: RunProgress) -> dict[str, Any]:
    header = corpus.header()
    totals = header["totals"]
    first = next(corpus.rejects(), None)
    return {
        "path": str(corpus.path),
        **totals,
        "dimension": header["model"]["dimension"],
        "dtype": header["settings"]["dtype"],
        "rejects": str(corpus.path / "rejects.jsonl"),
        "first_reject": None if first is None else first.to_json(),
        # Of this run.
        "encoded": progress.texts,
        "texts_per_second": progress.texts / progress.seconds if progress.texts else None,
        "tokens_per_second": progress.positions / progress.seconds if progress.positions else None,
        # Of all runs.
        "seconds": header["seconds"],
    }


def _said(about: dict[str, Any]) -> str:
    lines = [
        f"{about['path']}: {about['documents']:,} documents, vectors of {about['dimension']} dimensions "
        f"({about['dtype']}) in {about['shards']:,} shards"
    ]
    if aside := about["rejected"] + about["unusable"]:
        first = about["first_reject"]
        lines.append(f"set aside: {aside:,}, in {about['rejects']}; first: {first['place']}: {first['reason']}")
    if about["encoded"]:
        tokens = about["tokens_per_second"]
        rate = f"{about['texts_per_second']:,.0f} texts/s" + ("" if tokens is None else f", {tokens:,.0f} tokens/s")
        lines.append(f"encoded now: {about['encoded']:,} texts, {rate}")
    else:
        lines.append("nothing to do: all of it was encoded already")
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in about["seconds"].items())
    return "\n".join([*lines, f"time: {stages}"])
