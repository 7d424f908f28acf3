"""evaluate sweep: curves over token budgets, numbers of copies, or templates."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ..options import new_command, positive
from .common import add_model, add_results, base_of, methods_of, results_of, running
from .mteb import add_drawing, scored, tasks_of

LANGUAGES = ("en", "zh")


def add_sweep(actions: Any) -> None:
    command = new_command(
        actions,
        "sweep",
        "Score methods on tasks again and again, over one thing: token budgets (tokens), numbers of copies (repeats),\n"
        "or templates drawn at random (prompts). Every point is kept; st-reba report draws the curves.",
        "  st-reba evaluate sweep tokens 16 32 64 128 --tasks STS=pairs.tsv --model mini\n"
        "  st-reba evaluate sweep repeats 1 2 3 4 --tasks STS=pairs.tsv --model mini --methods echo,reba\n"
        "  st-reba evaluate sweep prompts 12 --language zh --tasks STS=pairs.tsv --model mini",
        sweep,
    )
    command.add_argument("over", choices=("tokens", "repeats", "prompts"), help="what changes from point to point")
    command.add_argument(
        "values", metavar="N", nargs="+", type=positive, help="tokens, or copies; of prompts one number: how many"
    )
    command.add_argument("--tasks", metavar="TASK", nargs="+", required=True, help="as for evaluate mteb")
    command.add_argument("--language", choices=LANGUAGES, default="en", help="of templates (default: %(default)s)")
    add_drawing(command)
    add_model(command)
    add_results(command)


def sweep(options: argparse.Namespace) -> int:
    from ...evaluation import sweeps

    base, results = base_of(options), results_of(options)
    methods, tasks = methods_of(options, base), tasks_of(options)
    rest = {**running(options), "seed": options.seed, "show_progress_bar": False if options.json else None}
    if options.over != "prompts" and options.language != "en":
        raise ValueError(f"--language {options.language}: only prompts have one. Drop it, or: evaluate sweep prompts …")
    if options.over == "repeats":
        run = partial(sweeps.sweep_repeats, base, methods, tasks, results, options.values, **rest)
    elif options.over == "tokens":
        if options.max_tokens is not None:
            raise ValueError(f"--max-tokens {options.max_tokens}: tokens are what changes here. Drop the option.")
        del rest["limit"]
        run = partial(sweeps.sweep_tokens, base, methods, tasks, results, options.values, of=options.budget, **rest)
    else:
        if len(options.values) > 1:
            raise ValueError(f"prompts {' '.join(map(str, options.values))}: give one number, how many templates.")
        (number,) = options.values
        run = partial(sweeps.sweep_prompts, base, methods, tasks, results, number, language=options.language, **rest)
    return scored(options, run)
