"""What several commands share: their frame, common options, and how numbers on the command line are read."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Written out, so that parsing needs no library; the tests hold them against the package.
METHODS = ("reba", "echo", "classical", "prompteol", "nosink")
POOLINGS = ("last", "mean", "cls")
SPANS = ("last_copy", "repeats", "last_copy_and_end", "end", "all")
JOINS = ("mean", "concat")
DTYPES = ("float32", "bfloat16", "float16", "auto")
FILTERS = ("center", "abtt", "standardize", "whiten")
BATCH_TOKENS = 4096
ENGINES = ("single", "local", "ray")
MAX_CHARS = 1_000_000
# What a corpus is read from.
CORPUS_FILES = (
    ".txt (one text a line), .jsonl, .csv, .tsv, each also .gz, .parquet, a folder of such files, or one that "
    "datasets' save_to_disk wrote"
)
_PLAN = """'{"k": 4, "k0": 2}', or '{"layers": {"backward": [-1, -2]}}'"""


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


def add_reading(command: argparse.ArgumentParser) -> None:
    """How a file of texts is read."""
    command.add_argument("--text-column", default="text", help="column or key of the text (default: %(default)s)")
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
    command.add_argument("--id-column", default="id", help="column or key of the id (default: %(default)s)")
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


def corpus_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_corpus` asked for, as `encode_corpus` takes it."""
    names = (
        "text_column",
        "id_column",
        "encoding",
        "split",
        "max_chars",
        "strict",
        "batch_size",
        "batch_tokens",
    )
    return {name: getattr(options, name) for name in names}


def add_engine(command: argparse.ArgumentParser) -> None:
    """Where a corpus is encoded."""
    command.add_argument(
        "--engine",
        choices=ENGINES,
        default="single",
        help="where it runs: in this process, in several on this machine, on a Ray cluster (default: %(default)s)",
    )
    command.add_argument(
        "--workers", metavar="N", type=positive, help="processes of local and ray (default: one a GPU, or what suits)"
    )
    command.add_argument("--devices", metavar="D,D", help="where the processes of local run, as cuda:0,cuda:1")


def engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_engine` asked for, as `encode_corpus` takes it."""
    devices = None if options.devices is None else [name for name in options.devices.split(",") if name]
    return {"engine": options.engine, "workers": options.workers, "devices": devices}


def print_description(description: Any, as_json: bool) -> None:
    """Print what a model folder holds."""
    print(json.dumps(asdict(description), ensure_ascii=False, indent=2) if as_json else description)


def load_model(options: argparse.Namespace) -> SentenceTransformer:
    """The saved model that a command names, by way of the registered classes."""
    from ..persistence import load

    return load(options.model, device=options.device, dtype=options.dtype, trust_remote_code=options.trust_remote_code)


def layer_count(text: str) -> int | str:
    """A number of layers, or ``all``."""
    return text if text == "all" else count(text)


def plan(text: str) -> dict[str, Any]:
    """A layer plan in JSON."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error}): write {_PLAN}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object: write {_PLAN}")
    return value


def layer(text: str) -> int | list[int]:
    """A layer's number, or the first and the last of several, as ``2:4``."""
    numbers = re.fullmatch(r"(-?\d+)(?::(-?\d+))?", text, re.ASCII)
    if numbers is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no layer: write its number, as 3, or -4 counted from the end; or two, as 2:4"
        )
    first, last = numbers.groups()
    return int(first) if last is None else [int(first), int(last)]


def numbers(text: str) -> list[float]:
    """Numbers, as ``1,-0.5``."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: write --weights=1,-0.5") from None


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
