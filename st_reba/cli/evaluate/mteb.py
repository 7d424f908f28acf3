"""evaluate mteb: methods on mteb's tasks, the papers' sets of them, or data of one's own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..options import count, new_command, positive
from .common import add_model, add_results, base_of, methods_of, results_of, running, show

if TYPE_CHECKING:
    from ...evaluation.results import Result

SEED = 42


def add_mteb(actions: Any) -> None:
    command = new_command(
        actions,
        "mteb",
        "Score methods on tasks of mteb (C-MTEB, MTEB-15, MTEB-MINI, MTEB-56, or any by name), or on files of your\n"
        "own that become tasks of mteb. A result is kept as soon as it is known: the same command goes on where it\n"
        "was stopped. mteb's own files lie in OUT/mteb. Needs the extra mteb.",
        "  st-reba evaluate mteb --tasks STS=pairs.tsv --model mini --methods classical,echo,reba\n"
        "  st-reba evaluate mteb --tasks C-MTEB --model ckiplab/gpt2-base-chinese --max-tokens 512 --out table3\n"
        "  st-reba evaluate mteb --tasks MTEB-15 --model TinyLlama/TinyLlama_v1.1 --methods nosink:setting=mask0-bidir",
        mteb,
    )
    command.add_argument(
        "--tasks",
        metavar="TASK",
        nargs="+",
        required=True,
        help="C-MTEB, MTEB-15, MTEB-MINI, MTEB-56; names of mteb's tasks or benchmarks; KIND=PATH, as STS=pairs.tsv or "
        "Retrieval=folder; a file of tasks (.yaml)",
    )
    command.add_argument(
        "--list", action=_List, nargs=0, help="print the papers' sets and their tasks by kind, and do nothing else"
    )
    command.add_argument(
        "--prompts",
        metavar="NAME",
        help="instructions before the texts: nosink, echo, none, or a YAML file of tasks and instructions (default: "
        "the set's own: nosink for MTEB-15, none for the others)",
    )
    add_drawing(command)
    command.add_argument("--stop", action="store_true", help="stop at the first task that fails")
    add_model(command)
    add_results(command)


def mteb(options: argparse.Namespace) -> int:
    from ...evaluation.benchmark import evaluate_mteb

    base, results = base_of(options), results_of(options)
    methods, tasks = methods_of(options, base), tasks_of(options)
    return scored(
        options,
        lambda: evaluate_mteb(
            base,
            methods,
            tasks,
            results,
            prompts=options.prompts,
            seed=options.seed,
            stop=options.stop,
            show_progress_bar=False if options.json else None,
            **running(options),
        ),
    )


def scored(options: argparse.Namespace, run: Callable[[], Sequence[Result]]) -> int:
    """Run an evaluation of tasks, and show what it gave, even where some failed; returns the exit status."""
    from ...evaluation.benchmark import TasksFailed

    try:
        found = run()
    except TasksFailed as error:
        if error.results:
            show(error.results, options)
        for failure in error.failures:
            print(f"st-reba: {failure}", file=sys.stderr)
        print(
            f"st-reba: {len(error.failures)} failed. The rest is kept, and the same command goes on from there.",
            file=sys.stderr,
        )
        return 1
    show(found, options)
    return 0


def add_drawing(command: argparse.ArgumentParser) -> None:
    """What is drawn from data of one's own, and by which seed."""
    command.add_argument(
        "--limit", type=positive, metavar="N", help="use N items of files of your own, drawn by the seed"
    )
    command.add_argument("--seed", type=count, default=SEED, help="of all draws (default: %(default)s, as mteb's)")


def tasks_of(options: argparse.Namespace) -> list[Any]:
    """The tasks that a command names: names as they are, files of one's own as mteb's objects, read once."""
    from ...evaluation.benchmark.suites import is_local

    tasks: list[Any] = []
    for word in options.tasks:
        if is_local(word):
            from ...evaluation.benchmark.local import read_local

            tasks += read_local(word, limit=options.limit, seed=options.seed)
        else:
            tasks.append(word)
    if options.limit is not None and not any(is_local(word) for word in options.tasks):
        raise ValueError(f"--limit {options.limit}: mteb's own tasks are scored whole. Drop the option.")
    return tasks


class _List(argparse.Action):
    """Print the suites and end, as --help does: no model has to be named."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any, **options: Any) -> None:
        from ...evaluation.benchmark import suites

        for suite in suites().values():
            print(f"{suite.name}: {len(suite.names)} tasks ({suite.source})")
            for kind, names in suite.tasks.items():
                print(f"  {kind}: {', '.join(names)}")
        parser.exit()
