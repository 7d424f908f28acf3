"""The command that encodes a corpus of any size."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
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
)

if TYPE_CHECKING:
    from ..corpus import Corpus
    from ..corpus.encode import Run
    from ..corpus.source import Source

# Written out, so that parsing needs no library; the tests hold them against the package.
STORE_DTYPES = ("float32", "float16")


def add_encode_corpus(commands: Any) -> None:
    command = new_command(
        commands,
        "encode-corpus",
        "Encode a corpus of any size into a folder of parts. Killed at any moment, the same command goes on.",
        "  st-reba encode-corpus my_model corpus.jsonl my_corpus\n"
        "  st-reba encode-corpus my_model texts/ my_corpus --workers 8 --store-dtype float16",
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
        "--store-dtype",
        choices=STORE_DTYPES,
        default="float32",
        help="of the stored vectors; float16: half the disk, three digits (default: %(default)s)",
    )
    add_corpus(command)
    command.add_argument(
        "--overwrite", action="store_true", help="replace a corpus that does not fit; go on with others"
    )
    command.add_argument("--json", action="store_true", help="print what was done as JSON")
    add_running(command)


def encode_corpus(options: argparse.Namespace) -> int:
    from ..corpus import encode_corpus
    from ..corpus.encode import Run

    run = Run()
    try:
        # What is wrong with the input is said before a model is loaded.
        source = opened(options)
        corpus = encode_corpus(
            load_model(options),
            source,
            options.out,
            dtype=options.store_dtype,
            overwrite=options.overwrite,
            model_source=options.model,
            run=run,
            **engine_settings(options),
            **corpus_settings(options),
        )
    except KeyboardInterrupt:
        done = (
            f"{run.kept:,} of {run.total:,} texts are encoded and kept" if run.total else f"{run.records:,} were read"
        )
        print(f"st-reba: interrupted; {done}; the same command goes on", file=sys.stderr)
        return 130
    about = _about(corpus, run)
    print(json.dumps(about, ensure_ascii=False) if options.json else _said(about))
    return 0


def opened(options: argparse.Namespace) -> Source:
    """The input of a command, its first record read."""
    from ..corpus.records import Reading
    from ..corpus.source import open_source

    settings = corpus_settings(options)
    names = ("text_column", "id_column", "encoding", "split", "max_chars")
    lines = (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    return open_source(
        lines if options.input == "-" else options.input, Reading(**{name: settings[name] for name in names})
    ).begun()


def _about(corpus: Corpus, run: Run) -> dict[str, Any]:
    header = corpus.header()
    kinds = Counter(reject.kind for reject in corpus.rejects())
    return {
        "path": str(corpus.path),
        **header["totals"],
        "dimension": header["model"]["dimension"],
        "dtype": header["settings"]["dtype"],
        "rejects": str(corpus.path / "rejects.jsonl"),
        "kinds": dict(kinds),
        # Of this run.
        "encoded": run.texts,
        "seconds": run.seconds,
        "texts_per_second": run.texts / run.seconds if run.texts else None,
        "tokens_per_second": run.positions / run.seconds if run.positions else None,
    }


def _said(about: dict[str, Any]) -> str:
    lines = [
        f"{about['path']}: {about['documents']:,} documents, {about['vectors']:,} vectors of {about['dimension']} "
        f"dimensions ({about['dtype']}) in {about['parts']:,} parts"
    ]
    if about["kinds"]:
        lines.append(f"set aside: {counted(about['kinds'])}; each with its reason in {about['rejects']}")
    if about["encoded"]:
        tokens = about["tokens_per_second"]
        rate = f"{about['texts_per_second']:,.0f} texts/s" + ("" if tokens is None else f", {tokens:,.0f} tokens/s")
        lines.append(f"encoded now: {about['encoded']:,} texts in {about['seconds']:,.1f} s, {rate}")
    else:
        lines.append("nothing to do: all of it was encoded already")
    return "\n".join(lines)


def counted(kinds: dict[str, int]) -> str:
    """Records that were set aside, by reason."""
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
