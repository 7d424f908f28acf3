"""The command ``st-reba``: its commands, the options that several have, and how errors are printed."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from ..modules.version import __version__

app = typer.Typer(
    help="Turn decoder-only language models into text embedders, without training. Start: st-reba build mini my_model",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)

Model = Annotated[str, Argument(metavar="MODEL", help="Saved model: a folder or Hub id.")]
Out = Annotated[Path, Argument(metavar="OUT", help="Folder to write.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace what is there.")]
Device = Annotated[str | None, Option(metavar="DEVICE", help="Device, such as cuda. [default: a GPU if there is one]")]
Dtype = Annotated[str | None, Option(metavar="TYPE", help="Number type of the weights: float32, bfloat16 or float16.")]
Revision = Annotated[str | None, Option(metavar="REVISION", help="Branch, tag or commit on the Hub.")]
Trust = Annotated[bool, Option("--trust-remote-code", help="Run code from the model's repository.")]
Task = Annotated[Literal["query", "document"] | None, Option(help="Encode as queries or documents, if these differ.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]


def _version(value: bool) -> None:
    if value:
        print(f"st-reba {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
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
    # It tells of kernels that it does without, whatever model is loaded.
    logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)
    try:
        command = typer.main.get_command(app)
        arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        return int(command.main(args=arguments, prog_name="st-reba", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except (ValueError, OSError, ImportError, RuntimeError, sqlite3.Error) as error:
        # Messages of the package name its arguments; other libraries' stay as they are.
        named = re.compile(r"\b(overwrite|trust_remote_code)=True\b( \(--[a-z-]+\))?")
        message = named.sub(lambda found: f"--{found[1].replace('_', '-')}", str(error) or type(error).__name__)
        return _fail(message, 1)
    except Exception as error:
        # Click's own errors; its classes are private to typer in some versions.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "st-reba"
        return _fail(f"{error.format_message()} Help: {path} --help", 2)


def _fail(message: str, status: int) -> int:
    print(f"st-reba: {' '.join(message.split())}", file=sys.stderr)
    return status


def quiet() -> None:
    """Silence the libraries that load models; downloads keep their bars."""
    hub: Any = import_module("huggingface_hub.utils")
    downloads = not hub.are_progress_bars_disabled()
    import_module("transformers.utils.logging").disable_progress_bar()
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
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
