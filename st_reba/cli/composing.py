"""The composed search of the command tune: its options, and which of them belong to it alone."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .labelled import reading
from .options import positive

# What only one of both searches takes: the option's name here and on the command line, and its value by default.
_ONLY_TUNE = {
    "everything": False,
    "train": None,
    "word_separator": " ",
    "subtoken": "first",
    "pooling": None,
    "m": None,
    "prompt": None,
    "batch_size": None,
}
_ONLY_COMPOSE = {"minutes": None, "tokens": None, "speed": None, "space": None}


def add_composing(command: argparse.ArgumentParser) -> None:
    """The options of the composed search."""
    group = command.add_argument_group("the composed search")
    group.add_argument(
        "--compose",
        action="store_true",
        help="search templates, copies, layer plans, layers, poolings and post-filters together, in place of k and k0",
    )
    group.add_argument("--minutes", type=above_zero, metavar="M", help="draw as many arms as fit into M minutes")
    group.add_argument("--tokens", type=positive, metavar="N", help="draw as many arms as fit into N positions run")
    group.add_argument(
        "--speed",
        type=above_zero,
        metavar="SHARE",
        help="of the base's work that a fast method may take (default: 0.5); the best such is reported too",
    )
    group.add_argument("--space", metavar="FILE", help="a YAML file of what is searched (default: docs/COMPOSING.md)")


def check_search(options: argparse.Namespace) -> None:
    """Refuse options of the other search."""
    wrong = _ONLY_TUNE if options.compose else _ONLY_COMPOSE
    for name, default in wrong.items():
        if getattr(options, name) != default:
            flag = f"--{name.replace('_', '-')}"
            if not options.compose:
                raise ValueError(f"{flag} belongs to the composed search. Add --compose, or drop {flag}.")
            raise ValueError(
                f"{flag} belongs to the search for k and k0{_REMEDIES.get(name, '')}. Drop {flag}, or drop --compose."
            )


_REMEDIES = {
    "everything": ", while the composed one goes through its whole space unless --minutes or --tokens is given",
    "train": ": where --compose learns from labels (classes), it learns from the validation part",
    "word_separator": ": tags are not searched by --compose",
    "subtoken": ": tags are not searched by --compose",
    "pooling": ", while --compose tries every pooling (--space FILE with 'pooled: [mean]' narrows it)",
    "m": ", while --compose hides one sink token",
    "prompt": ": --compose runs texts by themselves and in templates (--space FILE with 'templates: [...]')",
    "batch_size": ", while --compose fills its batches by positions",
}


def compose(options: argparse.Namespace) -> None:
    from ..evaluation import compose as search
    from ..evaluation import read_parts, read_space

    space = None if options.space is None else read_space(options.space)
    read: dict[str, Any] = reading(options)
    parts = read_parts(
        options.file,
        options.kind,
        test=options.test,
        validation=options.validation,
        **{name: read[name] for name in ("columns", "limit", "seed", "bad_lines")},
    )
    report = search(
        options.base,
        parts,
        options.out,
        space=space,
        minutes=options.minutes,
        tokens=options.tokens,
        **({} if options.speed is None else {"speed": options.speed}),
        dtype=options.dtype,
        device=options.device,
        max_seq_length=options.max_seq_length,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        say=(lambda line: None) if options.json else print,
    )
    if options.json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))


def above_zero(text: str) -> float:
    """A number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
