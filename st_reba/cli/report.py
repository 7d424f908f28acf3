"""The command that makes tables and figures of results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .options import new_command

METRICS = ("main", "paper", "both")


def add_report(commands: Any) -> None:
    command = new_command(
        commands,
        "report",
        "Make tables and figures of folders of results, beside the numbers that the papers print.\n\n"
        "Without --out the tables are printed as Markdown. With it, report.md and figures/*.png are written there, or\n"
        "nothing is; an earlier report in that folder is replaced, and a folder with anything else is refused.",
        "  st-reba evaluate mteb --tasks STS=pairs.tsv --model mini --out results\n"
        "  st-reba report results --out report\n"
        "  st-reba report results-before results-after --metric main",
        report,
    )
    command.add_argument(
        "results", metavar="RESULTS", nargs="+", help="folders that st-reba evaluate wrote (its --out)"
    )
    command.add_argument("--out", type=Path, metavar="FOLDER", help="write report.md and figures there")
    command.add_argument("--no-figures", action="store_true", help="--out: report.md alone, without matplotlib")
    command.add_argument(
        "--metric",
        choices=METRICS,
        default="both",
        help="main: the tasks' own; paper: the papers'; both: a second table where they differ (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print all of it as JSON")


def report(options: argparse.Namespace) -> None:
    if options.no_figures and options.out is None:
        raise ValueError("--no-figures: without --out no figure is drawn. Drop the option, or give --out FOLDER.")
    from ..evaluation.reporting import make_report, write_report

    made = make_report(options.results, options.metric)
    path = None
    if options.out is not None:
        path = write_report(made, options.out, figures=not options.no_figures)
    if options.json:
        print(json.dumps(made.to_json(), ensure_ascii=False, indent=2))
    elif path is None:
        print(made.to_markdown(), end="")
    else:
        drawn = 0 if options.no_figures else len(made.figures)
        print(f"{path} (tables: {len(made.tables)}, figures: {drawn})")
