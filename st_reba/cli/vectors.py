"""The commands that use a model: encode, index, search."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .options import add_reading, add_running, load_model, new_command, positive


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
    from ..index import read_documents

    return (document.text for document in read_documents(options.file, text_column=options.text_column))


def add_index(commands: Any) -> None:
    command = new_command(
        commands,
        "index",
        "Encode a file of texts and write a folder that st-reba search reads.",
        "  st-reba index my_model corpus.jsonl my_index",
        index,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument("file", metavar="FILE", help=".txt (one text a line), .jsonl, .csv or .tsv")
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    command.add_argument("--id-column", default="id", help="column or key of the id (default: %(default)s)")
    command.add_argument("--overwrite", action="store_true", help="replace an index that is there")
    command.add_argument("--json", action="store_true", help="print what was built as JSON")
    add_reading(command)
    add_running(command)


def index(options: argparse.Namespace) -> None:
    from ..index import Index, read_documents

    documents = read_documents(options.file, text_column=options.text_column, id_column=options.id_column)
    with Index.build(
        load_model(options),
        documents,
        options.out,
        batch_size=options.batch_size,
        batch_tokens=options.batch_tokens,
        overwrite=options.overwrite,
        model_source=options.model,
    ) as index:
        about = index.manifest
        built = {"path": str(options.out), "count": about.count, "dimension": about.dim, "metric": about.metric}
    print(json.dumps(built) if options.json else "{path}: {count} vectors of {dimension} dimensions".format(**built))


def add_search(commands: Any) -> None:
    command = new_command(
        commands,
        "search",
        "Search an index for the texts nearest to one or more queries.",
        "  st-reba search my_index 股票为什么下跌 -k 5\n  st-reba search my_index 'why do stocks fall' --json",
        search,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("query", metavar="QUERY", nargs="+", help="what to search for")
    command.add_argument("-k", type=positive, default=10, help="results a query (default: %(default)s)")
    command.add_argument("--prompt", help="text in front of the queries, or the template's {instruction}")
    command.add_argument("--model", help="the model, where it is no longer where the index was built with it")
    command.add_argument("--json", action="store_true", help="print one JSON object a query (query, results)")
    add_running(command)


def search(options: argparse.Namespace) -> None:
    from ..index import Index

    with Index.open(options.index) as index:
        options.model = options.model or index.find_model()
        found = index.search(options.query, options.k, model=load_model(options), prompt=options.prompt)
    for query, results in zip(options.query, found, strict=True):
        if options.json:
            print(json.dumps({"query": query, "results": [asdict(one) for one in results]}, ensure_ascii=False))
            continue
        if len(options.query) > 1:
            print(query)
        for one in results:
            print(f"{one.rank:>3}. {one.score:.4f}  {one.id}  {one.text}")
