"""The command ``st-reba``: how a command is checked and run, and how errors are printed."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand

from ..modules.version import __version__
from . import streams
from .wording import CommandWords, name_option_of_value, names_an_option_first

# Options that may be blank: one says "none", the others are text.
_MAY_BE_BLANK = frozenset({"id_column", "template", "prompt", "message", "word", "where"})

_INTERRUPTED = 130
# Characters of a word of an error: more than a path has, and a value that went wrong does not hide the remedy.
_MAX_WORD = 300

app = typer.Typer(
    help="Turn decoder-only language models into text embedders, without training. Start: st-reba build mini my_model",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


class CheckedCommand(TyperCommand):
    """A command that refuses words that are blank or no text: pathlib takes "" for the folder where it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        parameter: Any
        for parameter in self.params:
            value = values.get(str(parameter.name))
            for word in value if isinstance(value, (list, tuple)) else (value,):
                fault = _fault_of_word(word, may_be_blank=parameter.name in _MAY_BE_BLANK)
                if fault is not None:
                    raise typer.BadParameter(fault, ctx=ctx, param=parameter)
        try:
            return list(super().parse_args(ctx, args))
        except typer.BadParameter as error:
            value = values.get(str(error.param.name)) if error.param is not None else None
            if isinstance(value, str) and value not in error.message:  # as of a number that is none
                error.message = f"{value!r:.60}: {error.message}."
            raise


def _fault_of_word(word: object, *, may_be_blank: bool) -> str | None:
    if not isinstance(word, str):
        return None
    if not word.strip():
        return None if may_be_blank else "it is blank; give a value, or leave it out."
    # Bytes of a command line that are not of the locale's encoding are lone surrogates, also in names of files.
    if any("\ud800" <= letter <= "\udfff" for letter in word) and not os.path.lexists(word):
        return f"{word!r:.60} is not UTF-8, and no file has that name; correct it."
    return None


def _version(value: bool) -> None:
    if value:
        print(f"st-reba {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


class Stopped(Exception):
    """A command was stopped, from the keyboard or by ``kill``; the message tells what it keeps."""

    def __init__(self, message: str, status: int = _INTERRUPTED) -> None:
        super().__init__(message)
        self.status = status


class _Terminated(BaseException):
    """The signal of ``kill``."""


@contextmanager
def telling_what_is_kept(describe: Callable[[], str]) -> Iterator[None]:
    """Within the ``with`` block, a stop from the keyboard or by ``kill`` tells what the command keeps."""
    in_main_thread = threading.current_thread() is threading.main_thread()  # others may set no handler
    previous = signal.signal(signal.SIGTERM, _terminate) if in_main_thread else None
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(describe()) from None
    except _Terminated:
        raise Stopped(describe(), 128 + signal.SIGTERM) from None
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, previous)


def _terminate(*_: object) -> None:
    raise _Terminated


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The command line without the program's name; None: that of the process.

    Returns:
        The exit status: 0 done, 1 an error or the answer "no", 2 wrong usage, 130 stopped from the keyboard, 141 nobody
        reads the output.
    """
    output = streams.prepare()
    # It tells of kernels that it does without, whatever model is loaded.
    logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    error: Exception | None = None
    status = 0
    try:
        status = _run(words)
    except Exception as raised:
        error = raised
    output_fault = output.finish()
    if isinstance(output_fault, BrokenPipeError):
        return streams.CLOSED_PIPE
    if output_fault is not None:
        return _fail(f"standard output: {output_fault.strerror}; free space, or write elsewhere", 1)
    return status if error is None else _report(error, words)


def _run(words: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        status = int(command.main(args=words, prog_name="st-reba", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except SystemExit as typer_exit:  # of a closed pipe
        status = int(typer_exit.code or 0)
    # Some versions of typer return the status and say nothing.
    return _fail("Stopped.", _INTERRUPTED) if status == _INTERRUPTED else status


def _report(error: Exception, words: list[str]) -> int:
    """Print an error on one line, in the words of the command line; an error of ours is raised again."""
    if isinstance(error, Stopped):
        return _fail(f"Stopped. {error}", error.status)
    # Click's own errors; its classes are private to typer in some versions.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "st-reba"
        return _fail(f"{error.format_message()} Help: {path} --help", 2)
    if not isinstance(error, (ValueError, OSError, ImportError, RuntimeError, sqlite3.Error, MemoryError)):
        raise error
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        message = f"{error.filename}: {error.strerror}"
    message = name_option_of_value(in_options(message, words[0]), words)
    is_of_value = isinstance(error, (ValueError, FileNotFoundError)) or _is_of_long_name(error)
    is_usage = is_of_value and names_an_option_first(message)
    return _fail(message, 2 if is_usage else 1)


def _is_of_long_name(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG


def in_options(message: str, command: str) -> str:
    """A message of the package, or of one of its records, in the words of a command."""
    commands: Any = getattr(typer.main.get_command(app), "commands", {})
    return CommandWords.of_command(commands[command]).translate(message) if command in commands else message


def _fail(message: str, status: int) -> int:
    words = [word if len(word) <= _MAX_WORD else f"{word[:_MAX_WORD]}…" for word in message.split()]
    streams.print_error(f"st-reba: {' '.join(words)}")
    return status


def quiet() -> None:
    """Silence the libraries that load models; downloads keep their bars."""
    hub: Any = import_module("huggingface_hub.utils")
    downloads = not hub.are_progress_bars_disabled()
    import_module("transformers.utils.logging").disable_progress_bar()
    # It tells of a name that is none on the Hub, before the error says so.
    logging.getLogger("sentence_transformers.util.file_io").setLevel(logging.ERROR)
    if downloads:
        hub.enable_progress_bars()


def given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value is not False and value != {}}


def pairs(words: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE words as a dictionary."""
    if wrong := [each for each in words or [] if "=" not in each.lstrip("=")]:
        raise ValueError(f"{option} {wrong[0]!r}: write NAME=VALUE")
    return dict(each.split("=", 1) for each in words or [])


def dumped(value: Any, indent: int | None = None) -> str:
    """A value as JSON, which is valid in whatever encoding it is printed; no number that JSON lacks is in it."""
    options: dict[str, Any] = {"ensure_ascii": not streams.is_utf8(sys.stdout), "indent": indent, "default": str}
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        # NaN and infinity become null, as in all that the package writes.
        return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
