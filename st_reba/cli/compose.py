"""The command compose: find what goes best together on a base model, or NoSink's k and k0, by labelled items."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from .options import add_running, count, new_command, pairs, positive


def add_compose(commands: Any) -> None:
    command = new_command(
        commands,
        "compose",
        "Find how a base model becomes the best embedder for your labelled items, and write the recipe.\n\n"
        "FILE holds pairs with scores or labels, triples, texts with classes, or a ranking (.csv, .tsv, .jsonl,\n"
        ".parquet), or id||text||text||score lines; with --preset nosink also words with tags (CoNLL columns).\n"
        "Half of it chooses, the other half tells what the choice is worth. Every step is kept: the same command goes\n"
        "on where it was stopped.",
        "  st-reba compose mini pairs.tsv composed --minutes 10\n"
        "  st-reba build composed/recipe.yaml my_model\n\n"
        "  st-reba compose mini pairs.tsv tuned --preset nosink\n"
        "  st-reba compose mini clicks.jsonl composed --kind Reranking --columns document=title",
        compose,
    )
    command.add_argument("base", metavar="BASE", help="'mini' (embedded), a folder, or a Hub id")
    command.add_argument("file", metavar="FILE", help="the labelled items")
    command.add_argument("out", metavar="OUT", type=Path, help="the folder of the run: recipe, report, table, figure")
    command.add_argument(
        "--preset",
        choices=("compose", "nosink"),
        default="compose",
        help="compose: templates, copies, layer plans, layers, poolings and post-filters together; nosink: that "
        "paper's choice of k and k0 (default: %(default)s)",
    )
    command.add_argument("--kind", help="of the items: STS, Reranking, ... (default: as the columns tell)")
    command.add_argument(
        "--columns", type=pairs, metavar="ROLE=NAME,…", help="where names are not guessed, as text1=asked"
    )
    command.add_argument("--labels", type=pairs, metavar="LABEL=VALUE,…", help="what labels stand for, as yes=1,no=0")
    command.add_argument("--test", metavar="FILE", help="hold out this file, and nothing of FILE")
    command.add_argument("--train", metavar="FILE", help="classes, tags: classifiers learn from this, and nothing else")
    command.add_argument(
        "--validation", type=float, default=0.5, metavar="SHARE", help="of FILE that chooses (default: %(default)s)"
    )
    command.add_argument("--limit", type=positive, metavar="N", help="use N items of each file, drawn by the seed")
    command.add_argument("--seed", type=count, default=0, help="of all draws (default: %(default)s)")
    command.add_argument("--skip-bad-lines", action="store_true", help="leave out lines that cannot be read")
    command.add_argument("--word-separator", default=" ", metavar="TEXT", help="NER: between two words ('' in Chinese)")
    command.add_argument("--subtoken", choices=("first", "last"), default="first", help="NER: token of a word")
    own = command.add_argument_group("of the preset compose")
    own.add_argument("--minutes", type=_above_zero, metavar="M", help="draw as many arms as fit into M minutes")
    own.add_argument("--tokens", type=positive, metavar="N", help="draw as many arms as fit into N positions run")
    own.add_argument(
        "--speed",
        type=_above_zero,
        default=0.5,
        metavar="SHARE",
        help="of the base's work that a fast method may take; the best such is reported too (default: %(default)s)",
    )
    own.add_argument("--space", metavar="FILE", help="a YAML file of what is searched (docs/COMPOSING.md)")
    own = command.add_argument_group("of the preset nosink")
    own.add_argument("--everything", action="store_true", help="every setting and k, as in the paper's figures")
    own.add_argument("--pooling", choices=("mean", "last"), default="mean", help="(default: %(default)s)")
    own.add_argument("--m", type=positive, default=1, help="sink tokens that are hidden (default: %(default)s)")
    command.add_argument("--max-seq-length", type=positive, metavar="N", help="positions of a text")
    command.add_argument("--revision", help="Hub revision of the base")
    command.add_argument("--json", action="store_true", help="print what was found as JSON")
    add_running(command)


def compose(options: argparse.Namespace) -> None:
    from ..evaluation.data import read_task
    from ..evaluation.search import compose as search
    from ..evaluation.space import read_space

    space = None if options.space is None else read_space(options.space)
    reading: dict[str, Any] = {
        "columns": options.columns,
        "labels": options.labels,
        "limit": options.limit,
        "seed": options.seed,
        "bad_lines": "skip" if options.skip_bad_lines else "error",
        "separator": options.word_separator,
        "subtoken": options.subtoken,
    }
    task = read_task(options.file, options.kind, train=options.train, **reading)
    test = None if options.test is None else read_task(options.test, task.kind, **reading)
    names = "preset validation minutes tokens speed everything pooling m dtype device max_seq_length revision seed"
    report = search(
        options.base,
        task,
        options.out,
        space=space,
        test=test,
        **{name: getattr(options, name) for name in names.split()},
        trust_remote_code=options.trust_remote_code,
        say=(lambda line: None) if options.json else print,
        command=shlex.join(["st-reba", *sys.argv[1:]]),
    )
    if options.json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))


def _above_zero(text: str) -> float:
    """A number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
