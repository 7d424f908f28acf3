"""What the evaluations share: which model, which methods, how much of a text, and where results go."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..options import add_running, count, positive

if TYPE_CHECKING:
    from ...evaluation.methods import Base, Limit, Method
    from ...evaluation.results import Result, Results

BUDGETS = ("total", "content")
METHODS = "classical,echo,reba"


def add_model(command: argparse.ArgumentParser, methods: str = METHODS) -> None:
    """The model, its methods, and how it runs."""
    command.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a base model ('mini', a folder, a Hub id), or a saved embedder, which has a method of its own",
    )
    command.add_argument(
        "--methods",
        metavar="LIST",
        help="with commas between: reba, echo-3, classical:pooling=mean, nosink:setting=mask0-bidir,k=4, recipe.yaml "
        f"(default: {methods})",
    )
    command.add_argument("--revision", help="Hub revision of the model")
    command.add_argument("--tokenizer", help="folder or Hub id whose tokenizer is used instead")
    command.add_argument(
        "--max-tokens", type=positive, metavar="N", help="of a text, as --budget counts (default: what the model takes)"
    )
    command.add_argument(
        "--budget",
        choices=BUDGETS,
        default="total",
        help="total: N positions for all copies together, so that methods cost alike; content: N tokens a copy "
        "(default: %(default)s)",
    )
    size = command.add_mutually_exclusive_group()
    size.add_argument("--batch-tokens", metavar="N", type=positive, help="positions a forward pass, padding included")
    size.add_argument("--batch-size", metavar="N", type=positive, help="texts a forward pass, in place of that")
    add_running(command)


def add_results(command: argparse.ArgumentParser) -> None:
    """Where results go, and how they are shown."""
    command.add_argument(
        "--out", type=Path, default=Path("results"), metavar="FOLDER", help="folder of results (default: %(default)s)"
    )
    command.add_argument("--json", action="store_true", help="print the results as JSON")


def add_drawing(command: argparse.ArgumentParser, what: str = "items") -> None:
    """A sample of the data."""
    command.add_argument("--limit", type=positive, metavar="N", help=f"use N {what}, drawn by the seed")
    command.add_argument("--seed", type=count, default=0, help="of all draws (default: %(default)s)")


def base_of(options: argparse.Namespace) -> Base:
    """The model that a command names."""
    from ...evaluation.methods import Base

    return Base(
        options.model,
        revision=options.revision,
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )


def methods_of(options: argparse.Namespace, base: Base, default: str = METHODS) -> list[Method]:
    """The methods that a command names."""
    from ...evaluation.methods import methods_for

    return methods_for(base, options.methods, default)


def limit_of(options: argparse.Namespace) -> Limit:
    """How much of a text is read."""
    from ...evaluation.methods import Limit

    return Limit(options.max_tokens, options.budget)


def results_of(options: argparse.Namespace) -> Results:
    """The folder of results."""
    from ...evaluation.results import Results

    return Results(options.out)


def command_line() -> str:
    """What was typed, for results to name."""
    return shlex.join(["st-reba", *sys.argv[1:]])


def show(results: Sequence[Result], options: argparse.Namespace) -> None:
    """Print results: a line each, or JSON."""
    if options.json:
        print(json.dumps([result.to_json() for result in results], ensure_ascii=False, indent=2))
        return
    rows = [("task", "method", "metric", "score", "items")]
    rows += [(each.task, _method(each), each.main, _score(each), str(each.items)) for each in results]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    # Layers and settings of a method leave out the same.
    left_out = {
        (each.task, each.method, reason): names for each in results for reason, names in each.left_out.items() if names
    }
    for (task, method, reason), names in left_out.items():
        print(f"{task}, {method}: {len(names)} left out, {reason}: {', '.join(names[:5])}{', …' * (len(names) > 5)}")
    print(f"\n{options.out}: st-reba report {shlex.quote(str(options.out))} makes tables and figures")


def _method(result: Result) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items() if name != "seed")
    return f"{result.method} ({settings})" if settings else result.method


def _score(result: Result) -> str:
    score = f"{result.scores[result.main]:.4f}"
    if result.main not in result.intervals:
        return score
    low, high = result.intervals[result.main]
    return f"{score} [{low:.4f}, {high:.4f}]"


def running(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments that every evaluation takes."""
    return {
        "limit": limit_of(options),
        "batch_size": options.batch_size,
        "batch_tokens": options.batch_tokens,
        "command": command_line(),
    }
