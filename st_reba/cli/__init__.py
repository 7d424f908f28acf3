"""The command ``st-reba``: each command is one function here, which calls one function elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from ..version import __version__

try:
    # In the order of the help. A new file of commands is one more name here.
    from . import models, vectors, index, serve, evaluate, choose, explore, share  # noqa: F401  # isort: skip
    from .app import app
except KeyboardInterrupt:
    raise SystemExit(130) from None

__all__ = ["app", "main"]


def _version(value: bool) -> None:
    if value:
        print(f"st-reba {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print it."),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``st-reba``; returns the exit status."""
    given = None if arguments is None else list(arguments)
    return int(typer.main.get_command(app).main(args=given, prog_name="st-reba", standalone_mode=False) or 0)
