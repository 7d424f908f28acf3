"""The commands that measure methods: evaluate words, mteb, ner, domain, toy, sweep."""

from __future__ import annotations

import argparse
from typing import Any

from . import mteb, structures, sweep, tokens, words


def add_evaluate(commands: Any) -> None:
    group = commands.add_parser(
        "evaluate",
        help="Measure methods on tasks: words, mteb, ner, domain, toy, sweep.",
        description="Measure methods on tasks. Every result is a file in the folder --out, so that a run goes on\n"
        "where it was stopped, and st-reba report makes tables and figures of one folder or more.",
        epilog="example:\n  st-reba evaluate mteb --tasks STS=pairs.tsv --model mini\n  st-reba report results",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(required=True, metavar="ACTION")
    words.add_words(actions)
    mteb.add_mteb(actions)
    tokens.add_ner(actions)
    tokens.add_domain(actions)
    structures.add_toy(actions)
    sweep.add_sweep(actions)
