"""The command ``st-reba``: how a command is checked and run, and how errors are printed."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, TypeVar

import typer
from typer import Option
from typer.core import TyperCommand

from ..modules.version import __version__
from . import streams
from .wording import ClickParameter, CommandWords, name_option_of_value, names_an_option_first

# Options that may be blank: a blank id_column means "none", the others are text.
_MAY_BE_BLANK = frozenset({"id_column", "template", "prompt", "message", "where"})
_INTERRUPTED = 130
# Characters of a word in an error: longer than any path, and a long value must not hide the remedy.
_MAX_WORD_LENGTH = 300
# Errors whose message is enough; the traceback of any other is a report of a bug.
_EXPECTED_ERRORS = (ValueError, OSError, ImportError, RuntimeError, sqlite3.Error, MemoryError)

Command = TypeVar("Command", bound=Callable[..., Any])

app = typer.Typer(
    help="Turn decoder-only language models into text embedders, without training. Start: st-reba build mini my_model",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


class _CheckedCommand(TyperCommand):
    """A command that refuses blank words: pathlib takes "" for the current folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        parameter: Any
        for parameter in self.params:
            fault = _fault_of_value(values.get(parameter.name), parameter)
            if fault is not None:
                raise typer.BadParameter(fault, ctx=ctx, param=parameter)
        try:
            return list(super().parse_args(ctx, args))
        except typer.BadParameter as error:
            value = values.get(str(error.param.name)) if error.param is not None else None
            # Click does not always quote the value, such as a number that it cannot read.
            if isinstance(value, str) and value not in error.message:
                error.message = f"{value!r:.60}: {error.message}."
            raise


def command(function: Command) -> Command:
    """Enter a function into ``app``, as a command whose words are checked."""
    return app.command(cls=_CheckedCommand)(function)


def _fault_of_value(value: object, parameter: ClickParameter) -> str | None:
    may_be_blank = parameter.name in _MAY_BE_BLANK
    for word in value if isinstance(value, (list, tuple)) else (value,):
        if not isinstance(word, str):
            continue
        if not word.strip():
            if may_be_blank:
                continue
            return "it is blank; give a value, or leave it out."
        # Bytes that the locale cannot decode arrive as lone surrogates, in names of files too.
        is_undecoded = any("\ud800" <= letter <= "\udfff" for letter in word)
        if is_undecoded and not os.path.lexists(word):
            return f"{word!r:.60} is not UTF-8, and no file has that name; correct it."
    return None


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"st-reba {__version__}")
        raise typer.Exit


@app.callback()
def _add_top_options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


class Stopped(Exception):
    """A command was stopped, by Ctrl+C or by ``kill``; the message describes what is kept."""

    def __init__(self, message: str, status: int = _INTERRUPTED) -> None:
        super().__init__(message)
        self.status = status


class _Terminated(BaseException):
    """The signal of ``kill``."""


@contextmanager
def describing_stops(describe_progress: Callable[[], str]) -> Iterator[None]:
    """Inside the ``with`` block, a stop by Ctrl+C or ``kill`` is reported with what is kept."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous_handler = None
    if in_main_thread:  # no other thread may set a handler
        previous_handler = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(describe_progress()) from None
    except _Terminated:
        raise Stopped(describe_progress(), 128 + signal.SIGTERM) from None
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, previous_handler)


def _terminate(*_: object) -> None:
    raise _Terminated


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The command line without the program's name; None: that of the process.

    Returns:
        The exit status: 0 for success, 1 for an error or the answer "no", 2 for wrong usage, 130
        if stopped from the keyboard, 141 if nothing reads the output.
    """
    output = streams.prepare()
    # bitsandbytes logs missing kernels even when it is not used.
    logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)
    command_line = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command_error: Exception | None = None
    exit_status = 0
    try:
        with streams.printing_progress():
            exit_status = _run(command_line)
    except Exception as error:
        command_error = error
    output_error = output.finish()
    if isinstance(output_error, BrokenPipeError):
        return streams.CLOSED_PIPE
    if output_error is not None:
        return _fail(f"standard output: {output_error.strerror}; free space, or write elsewhere", 1)
    if command_error is not None:
        return _report(command_error, command_line)
    return exit_status


def _run(command_line: list[str]) -> int:
    try:
        result = typer.main.get_command(app).main(
            args=command_line, prog_name="st-reba", standalone_mode=False
        )
        exit_status = int(result or 0)
    except (KeyboardInterrupt, typer.Abort):
        exit_status = _INTERRUPTED
    except SystemExit as typer_exit:  # of a closed pipe
        exit_status = int(typer_exit.code or 0)
    # Some versions of typer return this status and print nothing.
    if exit_status == _INTERRUPTED:
        return _fail("Stopped.", _INTERRUPTED)
    return exit_status


def _report(error: Exception, command_line: list[str]) -> int:
    """Print an expected error on one line, in the command line's words; raise any other again."""
    if isinstance(error, Stopped):
        return _fail(f"Stopped. {error}", error.status)
    # Click's own errors, whose classes some versions of typer keep private.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        command_path = "st-reba" if context is None else context.command_path
        return _fail(f"{error.format_message()} Help: {command_path} --help", 2)
    if not isinstance(error, _EXPECTED_ERRORS):
        raise error
    is_value_error = isinstance(error, (ValueError, FileNotFoundError))
    message = str(error) or type(error).__name__
    if isinstance(error, OSError):
        is_value_error |= error.errno == errno.ENAMETOOLONG
        if error.strerror and isinstance(error.filename, str):
            message = f"{error.filename}: {error.strerror}"
    message = name_option_of_value(in_options(message, command_line[0]), command_line)
    return _fail(message, 2 if is_value_error and names_an_option_first(message) else 1)


def in_options(message: str, command_name: str) -> str:
    """A message of the package, reworded for the command line."""
    commands: Any = getattr(typer.main.get_command(app), "commands", {})
    if command_name not in commands:
        return message
    return CommandWords.of_command(commands[command_name]).translate(message)


def _fail(message: str, exit_status: int) -> int:
    words: list[str] = []
    for word in message.split():
        is_short = len(word) <= _MAX_WORD_LENGTH
        words.append(word if is_short else f"{word[:_MAX_WORD_LENGTH]}…")
    streams.print_error(f"st-reba: {' '.join(words)}")
    return exit_status


def silence_loading() -> None:
    """Silence the libraries that load models; downloads keep their progress bars."""
    hub: Any = import_module("huggingface_hub.utils")
    has_bars = not hub.are_progress_bars_disabled()
    import_module("transformers.utils.logging").disable_progress_bar()
    # It logs that a name is not on the Hub before our error says so.
    logging.getLogger("sentence_transformers.util.file_io").setLevel(logging.ERROR)
    if has_bars:
        hub.enable_progress_bars()


def drop_unset(**options: Any) -> dict[str, Any]:
    """The options that were set: those that are neither None, False nor empty."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != {}
    }


def parse_pairs(words: Sequence[str] | None, option_name: str) -> dict[str, str]:
    """NAME=VALUE words as a dictionary."""
    pairs: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ValueError(f"{option_name} {word!r}: write NAME=VALUE")
        if name in pairs:
            raise ValueError(f"{option_name} {word!r}: {name} is given twice")
        pairs[name] = value
    return pairs


def to_json(value: object, indent: int | None = None) -> str:
    """A value as JSON, in ASCII if the output cannot hold all letters; NaN and infinity are null."""
    is_ascii = not streams.is_utf8(sys.stdout)
    encoder = json.JSONEncoder(ensure_ascii=is_ascii, indent=indent, default=str, allow_nan=False)
    try:
        return encoder.encode(value)
    except ValueError:
        text = json.dumps(value, default=str)
        return encoder.encode(json.loads(text, parse_constant=lambda constant: None))
