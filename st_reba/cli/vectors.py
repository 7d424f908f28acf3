"""The command that encodes texts: encode."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from .options import add_reading, add_running, load_model, new_command


def add_encode(commands: Any) -> None:
    command = new_command(
        commands,
        "encode",
        "Encode texts: a file of .txt (one a line), .jsonl, .csv or .tsv, or lines from standard input.",
        "  st-reba encode my_model corpus.jsonl --out vectors.npy\n  echo 你好 | st-reba encode my_model - --json",
        encode,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument("file", metavar="FILE", nargs="?", help="the texts; - (default): standard input")
    command.add_argument("--out", metavar="X.npy", help="write the vectors here, [texts, dimension] float32")
    command.add_argument("--json", action="store_true", help="print one JSON object a text instead (text, vector)")
    command.add_argument("--task", choices=("query", "document"), help="encode as queries or as documents")
    command.add_argument("--prompt", help="text in front, or the template's {instruction}")
    add_reading(command)
    add_running(command)


def encode(options: argparse.Namespace) -> None:
    if (options.out is None) == (not options.json):
        raise ValueError("encode needs either --out X.npy or --json (and not both).")
    from ..encode import encode_file, encode_stream

    texts = _texts(options)
    model = load_model(options)
    settings = {
        "task": options.task,
        "batch_size": options.batch_size,
        "batch_tokens": options.batch_tokens,
        "prompt": options.prompt,
    }
    if options.json:
        count = 0
        for chunk, vectors in encode_stream(model, texts, **settings):
            count += len(chunk)
            for text, vector in zip(chunk, vectors.tolist(), strict=True):
                print(json.dumps({"text": text, "vector": vector}, ensure_ascii=False))
        if not count:
            raise ValueError("There are no texts to encode: the input is empty.")
    else:
        count, dimension = encode_file(model, texts, options.out, **settings)
        print(f"{options.out}: {count} vectors of {dimension} dimensions")


def _texts(options: argparse.Namespace) -> Iterator[str]:
    if options.file == "-":
        return (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    from ..corpus import read_documents

    return (document.text for document in read_documents(options.file, text_column=options.text_column))
