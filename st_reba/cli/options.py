"""Options that several commands share: each is declared once, as a field of a dataclass."""

from __future__ import annotations

import json as json_module
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import typer
import wrapt
from typer import Argument, Option

from ..modules.options import unknown
from ..ports import show_address
from . import places

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Written out, so that help needs no library; the tests hold them against the package.
DTYPES = ("float32", "bfloat16", "float16", "auto")
BATCH_TOKENS = 4096
ENGINES = ("local", "ray")
MAX_CHARS = 1_000_000
# Kinds of device that torch knows; others come with packages of their own.
_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "npu", "mlu", "musa", "xla")
CORPUS_FILES = (
    ".txt (a text on each line), .jsonl, .csv, .tsv, each also .gz, .parquet; a folder of these; a folder of datasets' "
    "save_to_disk"
)


def arg(metavar: str, help: str, default: Any = ..., **more: Any) -> Any:
    """An argument; without a default it must be given."""
    return Argument(default, metavar=metavar, help=help, **more)


def opt(default: Any, help: str, metavar: str | None = None, *flags: str, **more: Any) -> Any:
    """An option; without ``flags`` it is called like its parameter."""
    return Option(default, *flags, metavar=metavar, help=help, **more)


def choice(default: str | None, names: Iterable[str], help: str, *flags: str, **more: Any) -> Any:
    """An option that takes one of some names; of another, the nearest is told."""
    known = list(names)

    def check(value: str | None) -> str | None:
        if value is not None and value not in known:
            raise typer.BadParameter(unknown(repr(value), value, known))
        return value

    shown = "|".join(known)
    more |= {"callback": check, "autocompletion": completing(known)}
    return opt(default, help, shown if len(shown) < 24 else "NAME", *flags, **more)


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """What a shell offers behind an option."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _device(value: str | None) -> str | None:
    if value is not None and value.partition(":")[0] not in _DEVICES:
        raise typer.BadParameter(
            f"{value!r} is not known: give cpu, cuda, cuda:1 or mps, or another of {_DEVICES[3:]}."
        )
    return value


def pairs(text: str | None, flag: str) -> dict[str, str] | None:
    """``NAME=VALUE`` pairs with commas between."""
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not name.strip() or not equals:
            raise ValueError(f"{flag} {text!r}: write NAME=VALUE, with commas between several.")
        found[name.strip()] = value.strip()
    return found


def numbers(text: str | None, flag: str) -> list[int] | None:
    """Whole numbers with commas between."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text!r}: give whole numbers with commas between, as 16,32.") from None


# Used by several commands

MODEL = arg("MODEL", "A saved model: a folder of st-reba build, or a Hub id.")
BASE = arg(
    "BASE",
    "A base model: mini (it comes with st_reba), a folder, a Hub id, zoo:NAME, or a recipe.yaml.",
    autocompletion=places.base_names,
)
OUT = arg("OUT", "The folder to write.")
OVERWRITE = opt(False, "Replace what is there, if it is of the same kind.")
SEED = opt(0, "Seed of all random draws.", "N", min=0)
PROMPT = opt(None, "A text in front of the texts, or the template's {instruction}.", "TEXT")
TOP = opt(10, "Results for each query.", "N", "--top", "-n", min=1)
TASK = choice(None, ("query", "document"), "Encode as queries or as documents.")
NO_GOLDEN = opt(False, "Write no golden.json, which st-reba verify reads.")
REVISION = opt(None, "Branch, tag or commit of a Hub repository.", "REF")
TRUST = opt(False, "Allow the model's own Python code.")


@dataclass
class Output:
    """What is printed."""

    panel: ClassVar[str] = "Output"
    json: bool = opt(False, "Print JSON alone on stdout; all else goes to stderr.")
    quiet: bool = opt(False, "Print results and errors alone: no progress, no report.", None, "--quiet", "-q")
    verbose: bool = opt(False, "Show the libraries' messages, and errors in full.")

    def __post_init__(self) -> None:
        if not self.verbose:
            # A bar a file of weights would drown what is printed; downloads keep theirs.
            wrapt.when_imported("transformers.utils.logging")(lambda module: module.disable_progress_bar())

    @property
    def bar(self) -> bool | None:
        """Whether progress is shown: a bar on a terminal, in a log a line now and then."""
        if self.quiet:
            return False
        if sys.stderr.isatty():
            return None
        if not isinstance(sys.stderr, _Lines):
            sys.stderr = _Lines(sys.stderr)
        return True

    def report(self, text: object, value: Any = None, indent: int | None = None) -> None:
        """Tell what was done: a text, or JSON."""
        if self.json or not self.quiet:
            self.answer(text, value, indent)

    def answer(self, text: object, value: Any = None, indent: int | None = None) -> None:
        """Print what was asked for: a text, or JSON."""
        print(dumped(value, indent) if self.json else text)

    def address(self, url: str) -> None:
        """Tell where something is served from now on."""
        if self.json:
            print(dumped({"url": url}), flush=True)
        elif not self.quiet:
            show_address(url)

    @property
    def say(self) -> Callable[[str], None]:
        """Takes a line of what goes on."""
        if self.quiet:
            return lambda line: None
        return lambda line: print(line, file=sys.stderr if self.json else sys.stdout, flush=True)


def dumped(value: Any, indent: int | None = None) -> str:
    """JSON, with Chinese as it is where the terminal can show it."""
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return json_module.dumps(value, ensure_ascii=plain, indent=indent)


class _Lines:
    """A log: what a bar writes over and over becomes a line now and then."""

    SECONDS = 30.0

    def __init__(self, stream: Any) -> None:
        self._stream, self._told, self._in_bar = stream, time.monotonic(), False

    def write(self, text: str) -> int:
        ends_bar = text == "\n" and self._in_bar
        self._in_bar = text.startswith("\r")
        if not self._in_bar:
            return 0 if ends_bar else int(self._stream.write(text))
        if text.strip() and time.monotonic() - self._told >= self.SECONDS:
            self._told = time.monotonic()
            self._stream.write(f"{re.sub(r'[|].*[|]', '', text.strip())}\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass
class Running:
    """Where and how a model runs."""

    panel: ClassVar[str] = "Where it runs"
    device: str | None = opt(None, "cpu, cuda, cuda:1, mps. [default: a GPU if there is one]", "NAME", callback=_device)
    dtype: str | None = choice(
        None, DTYPES, f"Of the weights: {', '.join(DTYPES)}. [default: float32 on a CPU, else as stored]"
    )
    trust_remote_code: bool = TRUST

    def load(self, model: str) -> SentenceTransformer:
        """The saved model."""
        from ..persistence import load

        return load(model, device=self.device, dtype=self.dtype, trust_remote_code=self.trust_remote_code)


@dataclass
class Batches:
    """How much runs at once."""

    panel: ClassVar[str] = "How texts are read"
    batch_tokens: int | None = opt(
        None,
        f"Token positions in a forward pass, with all copies of a text; padding is at most 5 % or 64. Fewer need less "
        f"memory, more suit a GPU. [default: {BATCH_TOKENS}]",
        "N",
        min=1,
    )
    batch_size: int | None = opt(None, "Texts in a forward pass, instead of --batch-tokens.", "N", min=1)

    def __post_init__(self) -> None:
        if self.batch_tokens is not None and self.batch_size is not None:
            raise ValueError(
                f"--batch-size {self.batch_size} does not go with --batch-tokens {self.batch_tokens}: drop one."
            )

    @property
    def sizes(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "batch_tokens": self.batch_tokens}


@dataclass
class Texts(Batches):
    """How a file of texts is read."""

    text_column: str | None = opt(None, "Column or key of the text. [default: text, content, body, …]", "NAME")


@dataclass
class Records(Texts):
    """How a corpus is read."""

    id_column: str | None = opt(None, "Column or key of the id; '': none. [default: id, _id, doc_id, …]", "NAME")
    encoding: str = opt("utf-8-sig", "Encoding of text files, such as gb18030.", "NAME")
    split: str | None = opt(None, "Which one, in a folder of several datasets.", "NAME")
    max_chars: int = opt(MAX_CHARS, "The longest text; longer ones are set aside.", "N", min=1)
    strict: bool = opt(False, "Stop at the first record that would be set aside.")
    passages: str | None = opt(
        None, "Cut long texts into passages of N tokens that overlap by M; each gets a vector.", "N:M"
    )
    part_size: int | None = opt(
        None, "Records in a part: the most that a kill can lose. [default: a minute's work]", "N", min=1
    )

    @property
    def settings(self) -> dict[str, Any]:
        """As ``encode_corpus`` takes it."""
        return {one.name: getattr(self, one.name) for one in fields(Records)}

    def open(self, input: str) -> Any:
        """The input, its first record read: what is wrong with it is told before a model is loaded."""
        if input != "-":
            places.expect_there("INPUT", input)
        from ..corpus.records import Reading
        from ..corpus.source import open_source

        names = ("text_column", "id_column", "encoding", "split", "max_chars")
        reading = Reading(**{name: getattr(self, name) for name in names})
        return open_source(lines_of_stdin() if input == "-" else input, reading).begun()


@dataclass
class Engine:
    """Where a corpus is encoded."""

    panel: ClassVar[str] = "Where it runs"
    engine: str = choice("local", ENGINES, "On this machine, or on a Ray cluster.")
    workers: int | None = opt(None, "Processes. [default: this one; with ray, one for each GPU or node]", "N", min=1)
    devices: str | None = opt(None, "Where the processes run, as cuda:0,cuda:1.", "D,D")

    @property
    def settings(self) -> dict[str, Any]:
        """As ``encode_corpus`` takes it."""
        devices = None if self.devices is None else [name for name in self.devices.split(",") if name]
        return {"engine": self.engine, "workers": self.workers, "devices": devices}


def lines_of_stdin() -> Iterable[str]:
    """Texts from standard input, one a line."""
    return (line.rstrip("\r\n") for line in sys.stdin if line.strip())


def texts_of(file: str, column: str | None) -> Iterable[str]:
    """The texts of a file or of standard input; the first is read, so that what is wrong is told now."""
    from itertools import chain

    if file == "-":
        texts = iter(lines_of_stdin())
    else:
        places.expect_there("FILE", file)
        from ..corpus import read_documents

        texts = (document.text for document in read_documents(file, text_column=column))
    first = next(texts, None)
    if first is None:
        raise ValueError(f"FILE {file!r} is empty: there are no texts.")
    return chain([first], texts)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns of their widths; the first has the names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
