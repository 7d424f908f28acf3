"""Run a part and report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .depth import run_depth
from .figures import check_figures, draw
from .layers import run_layers
from .long import run_long
from .memory import keep_memory
from .methods import run_methods
from .mistakes import UsageError, WrongRival
from .options import build_parser
from .padding import run_padding
from .report import Report, header

DEFAULT = "methods"
PARTS: dict[str, Callable[[argparse.Namespace, Report], None]] = {
    "methods": run_methods,
    "long": run_long,
    "layers": run_layers,
    "depth": run_depth,
    "padding": run_padding,
}
# So little that it only shows that everything runs.
SMOKE: dict[str, dict[str, Any]] = {
    "methods": {"lengths": [8, 16], "batch_size": [2], "chunk": 8},
    "long": {"lengths": [16, 32], "chunk": 8},
    "layers": {"lengths": [24], "batch_size": 4},
    "depth": {"lengths": [24], "batch_size": 4},
    "padding": {"lengths": [24], "count": 40, "batch_tokens": [256]},
}
# So that the longest case has one round, and all are done in less than three minutes on two cores.
QUICK: dict[str, Any] = {"rounds": 5, "case_limit": 20.0}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' own progress bars off the terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def check(options: argparse.Namespace) -> None:
    """Find mistakes before anything is measured."""
    if find_spec("st_reba") is None:
        raise UsageError("st_reba is not installed. Run: pip install .")
    if getattr(options, "device", "cpu") == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("--device cuda: torch sees no GPU. Use --device cpu.")
    for name in ("json", "markdown", "figures"):
        file: Path | None = getattr(options, name, None)
        if file and not file.parent.is_dir():
            raise UsageError(f"--{name} {file}: no such folder. Make it first.")
        if file and file.exists() and file.is_dir() != (name == "figures"):
            raise UsageError(f"--{name} {file}: is a {'folder' if file.is_dir() else 'file'}. Give another name.")
    if options.figures:
        check_figures()


def run(options: argparse.Namespace, arguments: Sequence[str]) -> Report:
    """Measure a part."""
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    options.keeps_memory = keep_memory()
    report = Report(header(options, arguments), file=options.json)
    with quiet():
        PARTS[options.part](options, report)
    return report


def write(options: argparse.Namespace, reports: Sequence[Report]) -> None:
    """Print the tables, and write Markdown and figures where asked for."""
    markdown = "\n".join(report.as_markdown() for report in reports)
    print(markdown, end="")
    if options.markdown:
        options.markdown.write_text(markdown, encoding="utf-8")
    if options.figures:
        options.figures.mkdir(exist_ok=True)
        for report in reports:
            for file in draw(report.records, report.title, options.figures, report.name):
                print(f"wrote {file}", file=sys.stderr)
        if not any(options.figures.iterdir()):
            print("no figure: nothing was measured at two lengths or more", file=sys.stderr)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; without a part it is that of `methods`."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = [DEFAULT, *arguments]
    options = build_parser().parse_args(arguments)
    if getattr(options, "quick", False):
        vars(options).update(QUICK)
    if getattr(options, "smoke", False):
        vars(options).update(SMOKE[options.part], model="tiny", rounds=2, threads=1)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run one part; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    try:
        check(options)
        if options.part == "report":
            reports = [Report.read(file) for file in options.files]
        else:
            reports = [run(options, arguments)]
        write(options, reports)
    except (UsageError, WrongRival) as error:
        print(f"benchmark.py: error: {error}", file=sys.stderr)
        return 2
    return 0
