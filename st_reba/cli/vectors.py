"""The commands that use a model: encode, index, search."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import (
    CORPUS_FILES,
    add_corpus,
    add_engine,
    add_reading,
    add_running,
    corpus_settings,
    count,
    engine_settings,
    load_model,
    new_command,
    positive,
)

if TYPE_CHECKING:
    from ..index import Index


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
        "Write a folder that st-reba search reads, from texts or from an encoded corpus. Killed while it encodes, the\n"
        "same command goes on.",
        "  st-reba index my_model corpus.jsonl my_index\n"
        "  st-reba index my_model my_corpus my_index --factory IVF4096,PQ48,RFlat --recall-aim 0.98",
        index,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument(
        "file",
        metavar="INPUT",
        help=f"texts: {CORPUS_FILES}; or a folder that st-reba encode-corpus wrote",
    )
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    kind = command.add_mutually_exclusive_group()
    kind.add_argument(
        "--factory",
        metavar="S",
        default="Flat",
        help="a FAISS factory string, as HNSW32, IVF1024,Flat or IVF4096,PQ48,RFlat (default: %(default)s, exact)",
    )
    kind.add_argument("--auto", action="store_true", help="choose it by the number of documents")
    command.add_argument(
        "--parameters", metavar="P", help='FAISS search parameters, as "nprobe=32" (default: found by measuring)'
    )
    command.add_argument(
        "--recall-aim",
        metavar="R",
        type=float,
        default=0.95,
        help="recall@10 against exact search that they are to reach (default: %(default)s)",
    )
    command.add_argument(
        "--train-size", metavar="N", type=positive, help="vectors to train on (default: by the factory)"
    )
    command.add_argument("--seed", metavar="N", type=count, default=0, help="of that sample (default: %(default)s)")
    add_corpus(command)
    add_engine(command)
    command.add_argument("--overwrite", action="store_true", help="replace an index that is there")
    command.add_argument("--json", action="store_true", help="print what was built as JSON")
    add_running(command)


def index(options: argparse.Namespace) -> None:
    from ..corpus.folder import is_corpus
    from ..index import Index

    settings = {
        "factory": "auto" if options.auto else options.factory,
        "parameters": options.parameters,
        "recall_aim": options.recall_aim,
        "train_size": options.train_size,
        "seed": options.seed,
        "overwrite": options.overwrite,
        "model_source": options.model,
    }
    model = load_model(options)
    if is_corpus(options.file):
        built = Index.from_corpus(options.file, options.out, model, **settings)
    else:
        built = Index.build(
            model,
            options.file,
            options.out,
            **engine_settings(options),
            **corpus_settings(options),
            **settings,
        )
    with built:
        about = _about(built, options.out)
    print(json.dumps(about, ensure_ascii=False) if options.json else _said(about))


def _about(built: Index, out: Path) -> dict[str, Any]:
    manifest, report = built.manifest, built.report
    return {
        "path": str(out),
        "count": manifest.count,
        "dimension": manifest.dim,
        "metric": manifest.metric,
        "factory": manifest.factory,
        "why": None if report is None else report.why,
        "recall": manifest.recall,
        "rejected": manifest.rejected,
        "rejects": None if report is None or report.rejects is None else str(out / report.rejects.name),
        "seconds": {} if report is None else {stage: round(value, 3) for stage, value in report.seconds.items()},
    }


def _said(about: dict[str, Any]) -> str:
    lines = ["{path}: {count} vectors of {dimension} dimensions".format(**about)]
    chosen = f" ({about['why']})" if about["why"] else ""
    lines.append(f"factory: {about['factory']}{chosen}")
    recall = about["recall"]
    if recall is None:
        lines.append("recall@10: 1, the search is exact")
    else:
        given = f" with {recall['parameters']}" if recall["parameters"] else ""
        lines.append(
            f"recall@{recall['k']}: {recall['recall']:.3f}{given}, of {recall['queries']} documents as queries"
        )
    if about["rejected"]:
        lines.append(f"set aside: {about['rejected']} records, with their reasons in {about['rejects']}")
    spent = {stage: seconds for stage, seconds in about["seconds"].items() if seconds >= 0.05}
    if spent:
        lines.append("seconds: " + ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in spent.items()))
    return "\n".join(lines)


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
    command.add_argument(
        "--no-verify",
        action="store_true",
        help="compare only the files' sizes with the manifest, not their content, which is read whole otherwise",
    )
    command.add_argument("--model", help="the model, where it is no longer where the index was built with it")
    command.add_argument("--json", action="store_true", help="print one JSON object a query (query, results)")
    add_running(command)


def search(options: argparse.Namespace) -> None:
    from ..index import Index

    with Index.open(options.index, verify=not options.no_verify) as index:
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
