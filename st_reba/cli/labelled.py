"""How commands read labelled files: options that tune and the evaluations share."""

from __future__ import annotations

import argparse
from typing import Any


def add_labelled(command: argparse.ArgumentParser) -> None:
    """How the columns of a labelled file are found."""
    command.add_argument("--column", action="append", default=[], metavar="ROLE=NAME", help="as text1=sentence_a")
    command.add_argument("--skip-bad-lines", action="store_true", help="leave out lines that cannot be read")


def add_words(command: argparse.ArgumentParser) -> None:
    """How words become a sentence, and tokens a word."""
    command.add_argument(
        "--word-separator", default=" ", metavar="TEXT", help="tags: between two words ('' in Chinese)"
    )
    command.add_argument("--subtoken", choices=("first", "last"), default="first", help="tags: token of a word")


def reading(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of ``read_task``."""
    arguments = {
        "columns": dict(_column(each) for each in options.column) or None,
        "limit": options.limit,
        "seed": options.seed,
        "bad_lines": "skip" if options.skip_bad_lines else "error",
    }
    if hasattr(options, "subtoken"):
        arguments |= {"separator": options.word_separator, "subtoken": options.subtoken}
    return arguments


def _column(text: str) -> tuple[str, str]:
    role, equals, name = text.partition("=")
    if not role or not equals or not name:
        raise ValueError(f"--column {text!r}: write ROLE=NAME, as in --column text1=sentence_a.")
    return role, name
