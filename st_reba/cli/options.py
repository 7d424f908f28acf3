"""What several commands share: their frame, common options, and how numbers on the command line are read."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_type_hints

from ..modules.options import Options, alternatives
from ..spec import METHODS, read_value

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Written out, so that parsing needs no library; the tests hold them against the package.
DTYPES = ("float32", "bfloat16", "float16", "auto")
BATCH_TOKENS = 4096
ENGINES = ("local", "ray")
MAX_CHARS = 1_000_000
# What a corpus is read from.
CORPUS_FILES = (
    ".txt (one text a line), .jsonl, .csv, .tsv, each also .gz, .parquet, a folder of such files, or one that "
    "datasets' save_to_disk wrote"
)


def new_command(commands: Any, name: str, summary: str, example: str, run: Any) -> argparse.ArgumentParser:
    """A command's parser, with an example in its help."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=re.split(r"(?<=[.?!])\s", summary, maxsplit=1)[0].replace("\n", " "),
        description=summary,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(command=run)
    command.add_argument("--verbose", action="store_true", help="show the libraries' messages, and errors in full")
    return command


def add_running(command: argparse.ArgumentParser) -> None:
    """Where and how a model runs."""
    command.add_argument("--device", help="where to run: cpu, cuda, cuda:1, mps (default: a GPU where there is one)")
    command.add_argument("--dtype", choices=DTYPES, help="of the weights (default: float32 on a CPU, else as stored)")
    command.add_argument("--trust-remote-code", action="store_true", help="allow the model's own Python code")


def add_fields(command: argparse.ArgumentParser) -> None:
    """An option for each field of the methods, as the methods describe it; one that is not given is not set."""
    group = command.add_argument_group("the method's fields")
    described: dict[str, tuple[type[Options], str, list[str], dict[str, None]]] = {}
    for method, kind in _kinds():
        for name, allowed, _, words in kind.described():
            _, _, methods, choices = described.setdefault(name, (kind, words, [], {}))
            methods.append(method)
            choices.update(dict.fromkeys(re.findall("'[^']*'", allowed)))
    for name, (kind, words, methods, choices) in described.items():
        whose = "" if len(methods) == len(METHODS) else f"{', '.join(methods)}: "
        listed = f" ({', '.join(choices)})" if choices else ""
        help = f"{whose}{words}{listed}".replace("%", "%%")
        flag, hint = f"--{name.replace('_', '-')}", get_type_hints(kind)[name]
        if hint is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help)
        else:
            metavar = "N" if int in alternatives(hint) else "TEXT"
            group.add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=help)


def fields_of(options: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given, as ``build`` takes them."""
    hints = {name: get_type_hints(kind)[name] for _, kind in _kinds() for name in kind.names()}
    given = {name: getattr(options, name) for name in hints if hasattr(options, name)}
    return {name: read_value(value, hints[name]) if isinstance(value, str) else value for name, value in given.items()}


def _kinds() -> Iterator[tuple[str, type[Options]]]:
    return ((method, kind) for method, kinds in METHODS.items() for kind in kinds)


def add_reading(command: argparse.ArgumentParser) -> None:
    """How a file of texts is read."""
    command.add_argument(
        "--text-column", metavar="NAME", help="column or key of the text (default: text, content, body, ...)"
    )
    size = command.add_mutually_exclusive_group()
    size.add_argument(
        "--batch-tokens",
        metavar="N",
        type=positive,
        help="token positions a forward pass, all copies of a text and padding included; texts of like length run "
        "together, so that at most 5 %% is padding. Fewer need less memory, more suit a GPU "
        f"(default: {BATCH_TOKENS})",
    )
    size.add_argument(
        "--batch-size", metavar="N", type=positive, help="a fixed number of texts a forward pass, in place of that"
    )


def add_corpus(command: argparse.ArgumentParser) -> None:
    """How a corpus is read: as files of texts are, and more."""
    add_reading(command)
    command.add_argument(
        "--id-column",
        metavar="NAME",
        help="column or key of the id (default: id, _id, doc_id, ...); '': none",
    )
    command.add_argument("--encoding", default="utf-8-sig", help="of text files (default: %(default)s)")
    command.add_argument("--split", help="of a folder of several datasets")
    command.add_argument(
        "--max-chars",
        metavar="N",
        type=positive,
        default=MAX_CHARS,
        help="the longest text; longer ones are set aside (default: %(default)s)",
    )
    command.add_argument("--strict", action="store_true", help="stop at the first record that would be set aside")
    command.add_argument(
        "--passages",
        metavar="N:M",
        help="cut long texts into passages of N tokens that overlap by M, as 256:32; each gets a vector",
    )
    command.add_argument(
        "--part-size", metavar="N", type=positive, help="records that a kill costs at most (default: a minute's work)"
    )


def corpus_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_corpus` asked for, as `encode_corpus` takes it."""
    names = (
        "text_column",
        "id_column",
        "encoding",
        "split",
        "max_chars",
        "strict",
        "passages",
        "part_size",
        "batch_size",
        "batch_tokens",
    )
    return {name: getattr(options, name) for name in names}


def add_engine(command: argparse.ArgumentParser) -> None:
    """Where a corpus is encoded."""
    command.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="where it runs: on this machine or on a Ray cluster (default: %(default)s)",
    )
    command.add_argument(
        "--workers", metavar="N", type=positive, help="processes (default: this one; of ray: one a GPU or node)"
    )
    command.add_argument("--devices", metavar="D,D", help="where they run, as cuda:0,cuda:1")


def engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_engine` asked for, as `encode_corpus` takes it."""
    devices = None if options.devices is None else [name for name in options.devices.split(",") if name]
    return {"engine": options.engine, "workers": options.workers, "devices": devices}


def print_description(description: Any, as_json: bool) -> None:
    """Print what a model folder holds."""
    print(json.dumps(description.to_json(), ensure_ascii=False, indent=2) if as_json else description)


def load_model(options: argparse.Namespace) -> SentenceTransformer:
    """The saved model that a command names, by way of the registered classes."""
    from ..persistence import load

    return load(options.model, device=options.device, dtype=options.dtype, trust_remote_code=options.trust_remote_code)


def layer_count(text: str) -> int | str:
    """A number of layers, or ``all``."""
    return text if text == "all" else count(text)


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


def pairs(text: str) -> dict[str, str]:
    """``NAME=VALUE`` pairs with commas between."""
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not name.strip() or not equals:
            raise argparse.ArgumentTypeError(f"{part!r}: write NAME=VALUE, with commas between several")
        found[name.strip()] = value.strip()
    return found
