"""The command ``st-reba``: argument parsing only; every command is one function elsewhere."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Written out, so that parsing needs no library; the tests hold them against the package.
METHODS = ("reba", "echo", "classical", "prompteol", "nosink")
POOLINGS = ("last", "mean", "cls")
SPANS = ("last_copy", "repeats", "last_copy_and_end", "end", "all")
DTYPES = ("float32", "bfloat16", "float16", "auto")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``st-reba``; returns the exit status."""
    options = _parse(arguments)
    if not options.verbose:
        from transformers.utils import logging

        # A bar a file of weights would drown what is printed; downloads keep theirs.
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        options.command(options)
    except BrokenPipeError:
        # The reader, as `head`, has had enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("st-reba: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if options.verbose:
            raise
        # Messages of the libraries may be several lines long.
        message = " ".join(str(error).split())
        known = isinstance(error, (OSError, ValueError, TypeError))
        print(
            f"st-reba: {message if known else f'{type(error).__name__}: {message} (--verbose shows more)'}",
            file=sys.stderr,
        )
        return 2
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse; FILE and QUERY may also stand behind the options, where argparse does not look for them."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    late = [argument for argument in rest if argument == "-" or not argument.startswith("-")]
    if options.command is _search:
        options.query += late
        late = []
    elif len(late) == 1 and options.command is _encode and options.file is None:
        options.file = late.pop()
    if unknown := [argument for argument in rest if argument.startswith("-") and argument != "-"] + late:
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is _encode and options.file is None:
        options.file = "-"
    return options


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="st-reba",
        description="Any decoder-only language model as a text embedder, without training.",
        epilog="Start with: st-reba demo",
    )
    top.add_argument("--version", action="version", version=f"st-reba {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_build(commands)
    _add_encode(commands)
    _add_index(commands)
    _add_search(commands)
    _add_info(commands)
    return top


def _command(commands: Any, name: str, summary: str, example: str, run: Any) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(command=run)
    command.add_argument("--verbose", action="store_true", help="show the libraries' messages, and errors in full")
    return command


def _add_running(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", help="where to run: cpu, cuda, cuda:1, mps (default: a GPU where there is one)")
    command.add_argument("--dtype", choices=DTYPES, help="of the weights (default: float32 on a CPU, else as stored)")
    command.add_argument("--trust-remote-code", action="store_true", help="allow the model's own Python code")


def _add_reading(command: argparse.ArgumentParser) -> None:
    command.add_argument("--text-column", default="text", help="column or key of the text (default: %(default)s)")
    command.add_argument("--batch-size", type=_positive, default=32, help="texts at once (default: %(default)s)")


# --- demo


def _add_demo(commands: Any) -> None:
    command = _command(
        commands,
        "demo",
        "The whole job offline: build, save, load, index a few hundred sentences, search, compare methods.",
        "  st-reba demo\n  st-reba demo --keep demo_files --query 股票为什么下跌",
        _demo,
    )
    command.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the model and the index in this new folder")
    command.add_argument("--query", action="append", metavar="TEXT", help="search for this instead; may be repeated")
    command.add_argument("-k", type=_positive, default=3, help="results a query (default: %(default)s)")
    command.add_argument("--json", action="store_true", help="print the report as JSON instead")


def _demo(options: argparse.Namespace) -> None:
    from . import demo

    report = demo.run(
        options.keep,
        queries=tuple(options.query or demo.QUERIES),
        k=options.k,
        say=(lambda line: None) if options.json else print,
    )
    if options.json:
        print(demo.report_as_json(report))


# --- build


def _add_build(commands: Any) -> None:
    command = _command(
        commands,
        "build",
        "Turn a base model into a text embedder and save it for SentenceTransformer(OUT).",
        "  st-reba build mini my_model\n"
        "  st-reba build mini my_encoder --method nosink --setting 'mask0&bidir' --k 4 --k0 2\n"
        "  st-reba build Qwen/Qwen3-0.6B qwen3-echo --method echo --pooling mean --max-seq-length 1024",
        _build,
    )
    command.add_argument("base", metavar="BASE", help="'mini' (embedded), a folder, a Hub id, or a recipe.yaml")
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    command.add_argument("--method", choices=METHODS, default="reba", help="(default: %(default)s)")
    command.add_argument("--repeats", type=_positive, default=2, help="copies of the text (default: %(default)s)")
    command.add_argument("--pooling", choices=POOLINGS, help="(default: mean for nosink, else last)")
    command.add_argument("--template", help="text with {text} slots, one a copy; or the name of a template")
    command.add_argument("--separator", default="", help="text between the copies")
    command.add_argument("--instruction", default="", help="value of the template's {instruction}")
    command.add_argument("--variant", choices=("paper", "published"), default="paper", help="(default: %(default)s)")
    command.add_argument("--setting", help="any method: what the layers see, as mask0-bidir or inplace-back")
    command.add_argument("--k", type=_layers, metavar="K", help="--setting: converted layers from the top, or all")
    command.add_argument("--k0", type=_count, metavar="K0", help="--setting: those of them that hide the sink")
    command.add_argument("--m", type=_count, default=1, help="--setting: sink tokens (default: %(default)s)")
    command.add_argument("--layers", type=json.loads, metavar="JSON", help="instead of --setting: a plan of your own")
    command.add_argument("--no-check", action="store_true", help="do not check that each layer obeys the plan")
    command.add_argument("--span", choices=SPANS, help="positions that echo and classical pool")
    command.add_argument("--no-normalize", action="store_true", help="do not scale vectors to length 1")
    command.add_argument("--normalize-weights", action="store_true", help="reba: divide each sum of weights to 1")
    command.add_argument("--include-special", action="store_true", help="reba: sum over template and special tokens")
    command.add_argument("--compute-matched", action="store_true", help="halve the content of each copy")
    command.add_argument("--max-seq-length", type=_positive, help="positions of all copies together")
    command.add_argument("--prompt", action="append", default=[], metavar="NAME=TEXT", help="saved prompt; repeatable")
    command.add_argument("--revision", help="Hub revision of the base")
    command.add_argument("--overwrite", action="store_true", help="replace a saved model that is there")
    command.add_argument("--json", action="store_true", help="print the description as JSON")
    _add_running(command)


def _build(options: argparse.Namespace) -> None:
    prompts = {}
    for prompt in options.prompt:
        name, equals, text = prompt.partition("=")
        if not name or not equals:
            raise ValueError(f"--prompt {prompt!r}: write NAME=TEXT, as in --prompt 'query=query: '.")
        prompts[name] = text
    from .build import build
    from .describe import describe
    from .persistence import check_out, save

    check_out(options.out, overwrite=options.overwrite)
    model = build(
        options.base,
        options.method,
        repeats=options.repeats,
        pooling=options.pooling,
        template=options.template,
        separator=options.separator,
        instruction=options.instruction,
        normalize=not options.no_normalize,
        variant=options.variant,
        setting=options.setting,
        k=options.k,
        k0=options.k0,
        m=options.m,
        layers=options.layers,
        check=not options.no_check,
        span=options.span,
        normalize_weights=options.normalize_weights,
        include_special=options.include_special,
        compute_matched=options.compute_matched,
        max_seq_length=options.max_seq_length,
        prompts=prompts or None,
        dtype=options.dtype,
        device=options.device,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
    )
    save(model, options.out, overwrite=options.overwrite)
    _print_description(describe(options.out, trust_remote_code=options.trust_remote_code), options.json)


# --- encode


def _add_encode(commands: Any) -> None:
    command = _command(
        commands,
        "encode",
        "Encode texts: a file of .txt (one a line), .jsonl, .csv or .tsv, or lines from standard input.",
        "  st-reba encode my_model corpus.jsonl --out vectors.npy\n  echo 你好 | st-reba encode my_model - --json",
        _encode,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument("file", metavar="FILE", nargs="?", help="the texts; - (default): standard input")
    command.add_argument("--out", metavar="X.npy", help="write the vectors here, [texts, dimension] float32")
    command.add_argument("--json", action="store_true", help="print one JSON object a text instead (text, vector)")
    command.add_argument("--task", choices=("query", "document"), help="encode as queries or as documents")
    command.add_argument("--prompt", help="text in front, or the template's {instruction}")
    _add_reading(command)
    _add_running(command)


def _encode(options: argparse.Namespace) -> None:
    if (options.out is None) == (not options.json):
        raise ValueError("encode needs either --out X.npy or --json (and not both).")
    from .encode import encode_file, encode_stream

    texts = _texts(options)
    model = _load(options)
    settings = {"task": options.task, "batch_size": options.batch_size, "prompt": options.prompt}
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
    from .index import read_documents

    return (document.text for document in read_documents(options.file, text_column=options.text_column))


# --- index and search


def _add_index(commands: Any) -> None:
    command = _command(
        commands,
        "index",
        "Encode a file of texts and write a folder that st-reba search reads.",
        "  st-reba index my_model corpus.jsonl my_index",
        _index,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument("file", metavar="FILE", help=".txt (one text a line), .jsonl, .csv or .tsv")
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    command.add_argument("--id-column", default="id", help="column or key of the id (default: %(default)s)")
    command.add_argument("--overwrite", action="store_true", help="replace an index that is there")
    command.add_argument("--json", action="store_true", help="print what was built as JSON")
    _add_reading(command)
    _add_running(command)


def _index(options: argparse.Namespace) -> None:
    from .index import Index, read_documents

    documents = read_documents(options.file, text_column=options.text_column, id_column=options.id_column)
    with Index.build(
        _load(options),
        documents,
        options.out,
        batch_size=options.batch_size,
        overwrite=options.overwrite,
        model_source=options.model,
    ) as index:
        about = index.manifest
        built = {"path": str(options.out), "count": about.count, "dimension": about.dim, "metric": about.metric}
    print(json.dumps(built) if options.json else "{path}: {count} vectors of {dimension} dimensions".format(**built))


def _add_search(commands: Any) -> None:
    command = _command(
        commands,
        "search",
        "Search an index for the texts nearest to one or more queries.",
        "  st-reba search my_index 股票为什么下跌 -k 5\n  st-reba search my_index 'why do stocks fall' --json",
        _search,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("query", metavar="QUERY", nargs="+", help="what to search for")
    command.add_argument("-k", type=_positive, default=10, help="results a query (default: %(default)s)")
    command.add_argument("--prompt", help="text in front of the queries, or the template's {instruction}")
    command.add_argument("--model", help="the model, where it is no longer where the index was built with it")
    command.add_argument("--json", action="store_true", help="print one JSON object a query (query, results)")
    _add_running(command)


def _search(options: argparse.Namespace) -> None:
    from .index import Index

    with Index.open(options.index) as index:
        options.model = options.model or index.find_model()
        found = index.search(options.query, options.k, model=_load(options), prompt=options.prompt)
    for query, results in zip(options.query, found, strict=True):
        if options.json:
            print(json.dumps({"query": query, "results": [asdict(one) for one in results]}, ensure_ascii=False))
            continue
        if len(options.query) > 1:
            print(query)
        for one in results:
            print(f"{one.rank:>3}. {one.score:.4f}  {one.id}  {one.text}")


# --- info


def _add_info(commands: Any) -> None:
    command = _command(
        commands,
        "info",
        "Tell what a model folder holds, without loading its weights.",
        "  st-reba info my_model\n  st-reba info my_model --json",
        _info,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument("--revision", help="Hub revision")
    command.add_argument("--trust-remote-code", action="store_true", help="allow the model's own Python code")
    command.add_argument("--json", action="store_true", help="print JSON")


def _info(options: argparse.Namespace) -> None:
    from .describe import describe

    description = describe(options.model, revision=options.revision, trust_remote_code=options.trust_remote_code)
    _print_description(description, options.json)


# --- shared


def _print_description(description: Any, as_json: bool) -> None:
    print(json.dumps(asdict(description), ensure_ascii=False, indent=2) if as_json else description)


def _load(options: argparse.Namespace) -> SentenceTransformer:
    """A saved model, by way of the registered classes."""
    from .persistence import load

    return load(options.model, device=options.device, dtype=options.dtype, trust_remote_code=options.trust_remote_code)


def _layers(text: str) -> int | str:
    return text if text == "all" else _count(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


if __name__ == "__main__":
    sys.exit(main())
