"""The commands that encode: texts (encode), and words in them (words)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
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


def add_words(commands: Any) -> None:
    command = new_command(
        commands,
        "words",
        "Encode words where they stand in their texts: all words, or one wherever it stands.\n\n"
        "A Chinese character is a word, unless --word names a longer one.",
        "  st-reba words my_model texts.txt --out words.jsonl\n"
        "  echo 他在银行取钱 | st-reba words my_model - --word 银行 --json",
        words,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument("file", metavar="TEXTS", help="a file as of encode; -: standard input")
    command.add_argument("--word", metavar="WORD", help="this word alone, wherever it stands (default: all words)")
    command.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write .npy: [words, dimension] float32; or .jsonl: an object a word (text, word, start, end, vector)",
    )
    command.add_argument("--json", action="store_true", help="print these objects instead")
    command.add_argument("--task", choices=("query", "document"), help="encode as queries or as documents")
    command.add_argument("--prompt", help="text in front, or the template's {instruction}")
    add_reading(command)
    add_running(command)


def words(options: argparse.Namespace) -> None:
    out: Path | None = options.out
    if (out is None) == (not options.json):
        raise ValueError("words needs either --out FILE or --json (and not both).")
    if out is not None and (out.suffix not in (".npy", ".jsonl") or not out.parent.is_dir() or out.is_dir()):
        raise ValueError(f"--out {str(out)!r}: give a .npy or .jsonl file in a folder that exists.")
    import numpy as np

    from ..files import whole_file
    from ..words import encode_words, unseen_words, words_of

    items = [item for text in _texts(options) for item in words_of(text, options.word)]
    if not items:
        raise ValueError(
            "There is no word in the texts."
            if options.word is None
            else f"--word {options.word!r}: in none of the texts."
        )
    model = load_model(options)
    given: dict[str, Any] = {"prompt": options.prompt, "task": options.task}
    if unseen := unseen_words(model, items, **given):
        place = min(unseen)
        start, end = items[place][1]
        first = f"first {items[place][0][start:end]!r} in {items[place][0]!r:.60}"
        print(f"{len(unseen)} words are past the cut or on no token, and left out: {first}", file=sys.stderr)
        items = [item for place, item in enumerate(items) if place not in unseen]
    sizes: dict[str, Any] = {"batch_size": options.batch_size, "batch_tokens": options.batch_tokens}
    vectors = encode_words(model, items, show_progress_bar=sys.stderr.isatty(), **given, **sizes)
    lines = (
        json.dumps(
            {"text": text, "word": text[start:end], "start": start, "end": end, "vector": vector.tolist()},
            ensure_ascii=False,
        )
        for (text, (start, end)), vector in zip(items, vectors, strict=True)
    )
    if out is None:
        for line in lines:
            print(line)
        return
    with whole_file(out) as stream:
        if out.suffix == ".npy":
            np.save(stream, vectors)
        else:
            stream.writelines(f"{line}\n".encode("utf-8", "surrogatepass") for line in lines)
    print(f"{out}: {len(vectors)} words of {vectors.shape[1]} dimensions")


def _texts(options: argparse.Namespace) -> Iterator[str]:
    if options.file == "-":
        return (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    from ..corpus import read_documents

    return (document.text for document in read_documents(options.file, text_column=options.text_column))
