"""The command ``st-reba``: its commands, and how errors are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ..version import __version__

app = typer.Typer(
    help="Any decoder-only language model as a text embedder, without training. Start: st-reba build mini my_model",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        print(f"st-reba {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The command line without the program's name; None: that of the process.

    Returns:
        The exit status: 0 done, 1 an error or the answer "no", 2 wrong usage, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show Chinese must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        given = None if arguments is None else list(arguments)
        command = typer.main.get_command(app)
        return int(command.main(args=given, prog_name="st-reba", standalone_mode=False) or 0)
    except BrokenPipeError:  # the reader, as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        return _fail(str(error) or type(error).__name__, 1)
    except Exception as error:
        # Click's own errors; its classes are private to typer in some versions.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "st-reba"
        message = error.format_message()
        return _fail(f"{message} Help: {path} --help", 2) if message else 2


def _fail(message: str, status: int) -> int:
    print(f"st-reba: {' '.join(message.split())}", file=sys.stderr)
    return status


# They enter their commands into ``app``, in the order of the help.
from . import models, vectors, evaluate, serve  # noqa: E402, F401, I001
