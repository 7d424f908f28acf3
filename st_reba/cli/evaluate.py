"""The commands that measure methods: evaluate, compare, report."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import add_running, count, new_command, pairs, positive

if TYPE_CHECKING:
    from ..evaluation.methods import Base
    from ..evaluation.results import Result

BUDGETS = ("total", "content")
LANGUAGES = ("en", "zh")
METRICS = ("main", "paper", "both")
METHODS = "classical,echo,reba"
COMPARED = "classical,prompteol,echo,reba"
MTEB_SEED = 42
_FILES = (
    "Files of your own: .csv, .tsv, .jsonl, .json or .parquet with named columns, id||text||text||score lines,\n"
    "STSBenchmark, CoNLL. The columns tell what they hold; or say so: KIND=FILE, with one of\n"
    "  STS PairClassification Triples Classification Clustering Reranking Retrieval NER WordSense\n"
)


def add_evaluate(commands: Any) -> None:
    command = new_command(
        commands,
        "evaluate",
        "Score methods on tasks. Every result is a file in the folder --out: the same command goes on where it was\n"
        "stopped, and st-reba report makes tables and figures of one folder or more.\n\n"
        f"{_FILES}"
        "Beside files: toy (Echo's structures); with mteb installed also C-MTEB, MTEB-15, MTEB-MINI, MTEB-56, and\n"
        "mteb's tasks and benchmarks by their names.",
        "  st-reba evaluate mini --tasks pairs.tsv SLPWC_v1.csv toy\n"
        "  st-reba evaluate ckiplab/gpt2-base-chinese --tasks C-MTEB --max-tokens 512 --out table3\n"
        "  st-reba evaluate mini my_model --tasks Reranking=clicks.jsonl --columns document=title",
        evaluate,
    )
    command.add_argument(
        "models", metavar="MODEL", nargs="*", help="base models ('mini', a folder, a Hub id), or saved ones"
    )
    command.add_argument("--tasks", metavar="TASK", nargs="+", default=[], help="files and names, as above")
    command.add_argument("--list", action="store_true", help="print the papers' sets of tasks, and do nothing else")
    _add_scoring(command)
    command.add_argument(
        "--out", type=Path, default=Path("results"), metavar="FOLDER", help="of results (default: %(default)s)"
    )


def add_compare(commands: Any) -> None:
    command = new_command(
        commands,
        "compare",
        f"Compare methods on files of your own: a table with intervals, which methods differ, and figures.\n\n{_FILES}",
        "  st-reba compare pairs.tsv\n"
        "  st-reba compare pairs.tsv --model my_base --methods classical,prompteol,echo,reba",
        compare,
    )
    command.add_argument("tasks", metavar="FILE", nargs="+", help="labelled files")
    command.add_argument(
        "--model", dest="models", action="append", metavar="MODEL", help="a base, or a saved model (default: mini)"
    )
    _add_scoring(command, COMPARED)
    command.add_argument(
        "--out", type=Path, default=Path("comparison"), metavar="FOLDER", help="(default: %(default)s)"
    )


def add_report(commands: Any) -> None:
    command = new_command(
        commands,
        "report",
        "Make tables and figures of folders of results, beside the numbers that the papers print.\n\n"
        "Without --out the tables are printed as Markdown. With it, report.md and figures/*.png are written there, or\n"
        "nothing is; an earlier report in that folder is replaced, and a folder with anything else is refused.",
        "  st-reba evaluate mini --tasks pairs.tsv --out results\n"
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


def _add_scoring(command: argparse.ArgumentParser, default: str = METHODS) -> None:
    """Methods, data, and how much of a text is read."""
    command.add_argument(
        "--methods",
        metavar="LIST",
        nargs="+",
        help="reba, echo-3, classical:pooling=mean, nosink:setting=mask0-bidir,k=4, recipe.yaml; commas or spaces "
        f"between (default: {default})",
    )
    data = command.add_argument_group("files of your own")
    data.add_argument(
        "--columns", type=pairs, metavar="ROLE=NAME,…", help="where names are not guessed, as text1=asked"
    )
    data.add_argument("--labels", type=pairs, metavar="LABEL=VALUE,…", help="what labels stand for, as yes=1,no=0")
    data.add_argument(
        "--train", metavar="FILE", help="what a classifier learns from (default: the other items, by fifths)"
    )
    data.add_argument("--limit", type=positive, metavar="N", help="use N items of each file, drawn by the seed")
    data.add_argument("--seed", type=count, default=0, help="of these draws (default: %(default)s)")
    data.add_argument(
        "--skip-bad-lines", action="store_true", help="leave out lines that cannot be read, and name them"
    )
    data.add_argument("--word-separator", default=" ", metavar="TEXT", help="NER: between two words ('' in Chinese)")
    data.add_argument("--subtoken", choices=("first", "last"), default="first", help="NER: token of a word")
    data.add_argument("--layers", type=layers, default="last", metavar="LIST", help="WordSense: all, last, or as 0,3,6")
    runs = command.add_argument_group("how texts are read")
    runs.add_argument("--max-tokens", type=numbers, metavar="N", help="of a text; several (16,32,64) make a curve")
    runs.add_argument(
        "--budget",
        choices=BUDGETS,
        default="total",
        help="what N counts: total: positions of all copies together, so that methods cost alike; content: tokens of "
        "one copy (default: %(default)s)",
    )
    runs.add_argument("--templates", type=positive, metavar="N", help="score each method with N drawn templates")
    runs.add_argument("--language", choices=LANGUAGES, default="en", help="of these (default: %(default)s)")
    runs.add_argument(
        "--prompts", metavar="NAME", help="instructions before the texts: nosink, echo, none, or a YAML file"
    )
    runs.add_argument("--mteb-seed", type=count, default=MTEB_SEED, help="of what mteb draws (default: %(default)s)")
    runs.add_argument("--revision", help="Hub revision of the models")
    runs.add_argument("--tokenizer", help="folder or Hub id whose tokenizer is used instead")
    size = runs.add_mutually_exclusive_group()
    size.add_argument("--batch-tokens", metavar="N", type=positive, help="positions a forward pass, padding included")
    size.add_argument("--batch-size", metavar="N", type=positive, help="texts a forward pass, in place of that")
    add_running(command)
    command.add_argument("--stop", action="store_true", help="stop at the first task that fails")
    command.add_argument("--json", action="store_true", help="print the results as JSON")


def evaluate(options: argparse.Namespace) -> int:
    if options.list:
        from ..evaluation.mteb_tasks import suites

        for suite in suites().values():
            print(f"{suite.name}: {len(suite.names)} tasks ({suite.source})")
            for kind, names in suite.tasks.items():
                print(f"  {kind}: {', '.join(names)}")
        return 0
    if not options.models or not options.tasks:
        raise ValueError("name a model and --tasks, as: st-reba evaluate mini --tasks pairs.tsv")
    found, failures = _scored(options)
    if found or options.json:
        _show(found, options)
    return _failed(failures)


def compare(options: argparse.Namespace) -> int:
    from ..evaluation.report import report_of, write_report
    from ..evaluation.results import Results

    options.models = options.models or ["mini"]
    if options.methods is None and not all(_base(options, name).saved for name in options.models):
        options.methods = [COMPARED]
    found, failures = _scored(options)
    if options.json:
        _show(found, options)
    elif found:
        made = report_of(Results(options.out), found, "both")
        path = write_report(made, options.out / "report")
        print(f"{made.to_markdown()}\n{path} has it, with figures beside it")
    return _failed(failures)


def _scored(options: argparse.Namespace) -> tuple[Sequence[Result], Sequence[str]]:
    """Run an evaluation; what was found, and what failed."""
    from ..evaluation.run import TasksFailed, tasks_of
    from ..evaluation.run import evaluate as run

    if options.verbose:
        # So a task that fails is told with its traceback.
        logging.getLogger("st_reba").setLevel(logging.DEBUG)
    tasks = tasks_of(
        options.tasks,
        columns=options.columns,
        labels=options.labels,
        train=options.train,
        limit=options.limit,
        seed=options.seed,
        bad_lines="skip" if options.skip_bad_lines else "error",
        separator=options.word_separator,
        subtoken=options.subtoken,
    )
    try:
        found = run(
            [_base(options, name) for name in options.models],
            tasks,
            None if options.methods is None else ",".join(options.methods),
            options.out,
            max_tokens=options.max_tokens,
            budget=options.budget,
            templates=options.templates,
            language=options.language,
            prompts=options.prompts,
            layers=options.layers,
            batch_size=options.batch_size,
            batch_tokens=options.batch_tokens,
            seed=options.mteb_seed,
            stop=options.stop,
            command=shlex.join(["st-reba", *sys.argv[1:]]),
            show_progress_bar=False if options.json else None,
            say=lambda line: print(line, file=sys.stderr),
        )
    except TasksFailed as error:
        return error.results, error.failures
    return found, ()


def _base(options: argparse.Namespace, name: str) -> Base:
    from ..evaluation.methods import Base

    return Base(
        name,
        revision=options.revision,
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )


def _show(results: Sequence[Result], options: argparse.Namespace) -> None:
    """Print results: a line each, or JSON."""
    if options.json:
        print(json.dumps([result.to_json() for result in results], ensure_ascii=False, indent=2))
        return
    rows = [("task", "model", "method", "metric", "score", "items")]
    rows += [(each.task, each.base, _method(each), each.main, _score(each), str(each.items)) for each in results]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
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


def _failed(failures: Sequence[str]) -> int:
    for failure in failures:
        print(f"st-reba: {failure}", file=sys.stderr)
    if failures:
        print(
            f"st-reba: {len(failures)} failed. The rest is kept, and the same command goes on from there.",
            file=sys.stderr,
        )
    return 1 if failures else 0


def report(options: argparse.Namespace) -> None:
    if options.no_figures and options.out is None:
        raise ValueError("--no-figures: without --out no figure is drawn. Drop the option, or give --out FOLDER.")
    from ..evaluation.report import make_report, write_report

    made = make_report(options.results, options.metric)
    path = None if options.out is None else write_report(made, options.out, figures=not options.no_figures)
    if options.json:
        print(json.dumps(made.to_json(), ensure_ascii=False, indent=2))
    else:
        print(made.to_markdown() if path is None else path, end="" if path is None else "\n")


def layers(text: str) -> str | list[int]:
    """``all``, ``last``, or numbers with commas between."""
    if text in ("all", "last"):
        return text
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give all, last, or numbers with commas, as 0,3,6") from None


def numbers(text: str) -> list[int]:
    """Whole numbers from 1 on, with commas between."""
    return [positive(number) for number in text.split(",")]
