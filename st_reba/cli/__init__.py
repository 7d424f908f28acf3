"""The command ``st-reba``: argument parsing only; every command is one function elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..version import __version__
from . import attention, compose, corpus, evaluate, hub, index, models, onnx, postfilter, push, vectors, zoo

__all__ = ["main", "parser"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``st-reba``; returns the exit status."""
    options = _parse(arguments)
    if not options.verbose:
        from transformers.utils import logging

        # A bar a file of weights would drown what is printed; downloads keep theirs.
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    status = 0
    try:
        status = int(options.command(options) or 0)
    except BrokenPipeError:
        # The reader, as `head`, has had enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as error:
        print("; ".join(["st-reba: interrupted", *map(str, error.args)]), file=sys.stderr)
        return 130
    except Exception as error:
        if options.verbose:
            raise
        # Messages of the libraries may be several lines long.
        message = " ".join(str(error).split())
        known = isinstance(error, (OSError, ValueError, TypeError, ImportError))
        print(
            f"st-reba: {message if known else f'{type(error).__name__}: {message} (--verbose shows more)'}",
            file=sys.stderr,
        )
        return 2
    return status


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse; FILE and QUERY may also stand behind the options, where argparse does not look for them."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    late = [argument for argument in rest if argument == "-" or not argument.startswith("-")]
    if options.command is index.search:
        options.query += late
        late = []
    elif len(late) == 1 and options.command is vectors.encode and options.file is None:
        options.file = late.pop()
    if unknown := [argument for argument in rest if argument.startswith("-") and argument != "-"] + late:
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is vectors.encode and options.file is None:
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
    models.add_demo(commands)
    models.add_build(commands)
    zoo.add_zoo(commands)
    vectors.add_encode(commands)
    vectors.add_words(commands)
    corpus.add_encode_corpus(commands)
    index.add_index(commands)
    models.add_info(commands)
    hub.add_verify(commands)
    push.add_push(commands)
    onnx.add_export_onnx(commands)
    evaluate.add_evaluate(commands)
    evaluate.add_compare(commands)
    evaluate.add_report(commands)
    compose.add_compose(commands)
    attention.add_attention(commands)
    postfilter.add_postfilter(commands)
    return top
