"""The commands that measure methods: evaluate, compare, report."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from . import places
from .app import app, command
from .options import Batches, Output, Running, arg, choice, numbers, opt, pairs, table

if TYPE_CHECKING:
    from ..evaluation.methods import Base
    from ..evaluation.results import Result

_PANEL = "Measure"
# Written out, so that help needs no library; the tests hold them against the package.
BUDGETS = ("total", "content")
LANGUAGES = ("en", "zh")
METRICS = ("main", "paper", "both")
METHODS = "classical,echo,reba"
COMPARED = "classical,prompteol,echo,reba"
MTEB_SEED = 42
_FILE = re.compile(r"=|\.(csv|tsv|txt|jsonl?|parquet|ya?ml|gz)$")
_KEPT = "all results so far are kept in --out; run the same command again to continue"


@dataclass
class Items:
    """How files of labelled items are read."""

    panel: ClassVar[str] = "Files of your own"
    columns: str | None = opt(None, "Columns with unusual names, as text1=asked.", "ROLE=NAME,…")
    labels: str | None = opt(None, "What the labels mean, as yes=1,no=0.", "LABEL=VALUE,…")
    train: str | None = opt(
        None, "What classifiers learn from. [default: for each fifth of the items the other four]", "FILE"
    )
    limit: int | None = opt(None, "Use N items of each file, drawn at random.", "N", min=1)
    seed: int = opt(0, "Seed of all random draws.", "N", min=0)
    skip_bad_lines: bool = opt(False, "Leave out lines that cannot be read, and name them.")
    word_separator: str = opt(" ", "NER: between two words ('' in Chinese).", "TEXT")
    subtoken: str = choice("first", ("first", "last"), "NER: which token stands for a word.")

    @property
    def reading(self) -> dict[str, Any]:
        """As ``read_task`` takes it, but for ``train``."""
        return {
            "columns": pairs(self.columns, "--columns"),
            "labels": pairs(self.labels, "--labels"),
            "limit": self.limit,
            "seed": self.seed,
            "bad_lines": "skip" if self.skip_bad_lines else "error",
            "separator": self.word_separator,
            "subtoken": self.subtoken,
        }


@dataclass
class Scoring(Batches):
    """How texts are read, and by whom."""

    methods: list[str] | None = opt(
        None,
        f"reba, echo-3, classical:pooling=mean, nosink:setting=mask0-bidir,k=4, recipe.yaml; with commas "
        f"between, or repeated. [default: {METHODS}; of compare {COMPARED}]",
        "LIST",
    )
    max_tokens: str | None = opt(None, "The most tokens of a text; several, as 16,32,64, give a curve.", "N,…")
    budget: str = choice(
        "total",
        BUDGETS,
        "What --max-tokens counts. total: positions of all copies together, so that methods cost alike; content: "
        "tokens of one copy.",
    )
    templates: int | None = opt(None, "Score each method with N drawn templates.", "N", min=1)
    language: str = choice("en", LANGUAGES, "Of the drawn templates.")
    prompts: str | None = opt(None, "Instructions before the texts: nosink, echo, none, or a YAML file.", "NAME")
    layers: str = opt("last", "WordSense: all, last, or numbers as 0,3,6.", "LIST")
    mteb_seed: int = opt(MTEB_SEED, "Seed of what mteb draws.", "N", min=0)
    revision: str | None = opt(None, "Hub revision of the models.", "REF")
    tokenizer: str | None = opt(None, "Folder or Hub id of a tokenizer, in place of the models' own.", "NAME")
    stop: bool = opt(False, "Stop at the first task that fails.")

    def base(self, name: str, run: Running) -> Base:
        from ..evaluation.methods import Base

        return Base(name, self.revision, self.tokenizer, run.dtype, run.device, run.trust_remote_code)


@command(app, _PANEL, interrupted=_KEPT, names={"models": "--model"})
def evaluate(
    *,
    items: Items,
    scoring: Scoring,
    run: Running,
    out: Output,
    tasks: list[str] | None = arg("TASK...", "Files and names, see above.", None),
    model: list[str] | None = opt(None, "A base model, or a saved one; repeatable.", "MODEL"),
    list_tasks: bool = opt(False, "Print the papers' sets of tasks, and do nothing else.", None, "--list"),
    to: Path = opt(Path("results"), "The folder of results.", "FOLDER", "--out"),
) -> int:
    """Score methods on tasks, and keep every result.

    A TASK is a file with named columns (.csv, .tsv, .jsonl, .json, .parquet), id||text||text||score lines,
    STSBenchmark, CoNLL or a SLPWC table. The columns show what it holds; or name the kind, as KIND=FILE, with one of
    STS, PairClassification, Triples, Classification, Clustering, Reranking, Retrieval, NER, WordSense.

    A TASK is also toy (Echo's structures); and, with mteb installed, C-MTEB, MTEB-15, MTEB-MINI, MTEB-56, or any name
    that mteb knows.

    Each result is a file in --out. If the command was stopped, run it again to continue. st-reba report makes tables
    and figures of one folder or more.

    Examples:
        st-reba evaluate pairs.tsv toy --model mini
        st-reba evaluate Reranking=clicks.jsonl --columns document=title --model mini
        st-reba evaluate C-MTEB --model ckiplab/gpt2-base-chinese --max-tokens 512
    """
    if list_tasks:
        from ..evaluation.mteb_tasks import suites

        for suite in suites().values():
            print(f"{suite.name}: {len(suite.names)} tasks ({suite.source})")
            for kind, names in suite.tasks.items():
                print(f"  {kind}: {', '.join(names)}")
        return 0
    if not model or not tasks:
        raise ValueError("Name a TASK and a --model, as: st-reba evaluate pairs.tsv --model mini")
    found, failures = _scored(tasks, model, scoring.methods, to, items, scoring, run, out)
    if found or out.json:
        _show(found, to, out)
    return _failed(failures)


@command(app, _PANEL, interrupted=_KEPT)
def compare(
    *,
    items: Items,
    scoring: Scoring,
    run: Running,
    out: Output,
    tasks: list[str] = arg("FILE...", "Labelled files, as for st-reba evaluate."),
    model: list[str] | None = opt(None, "A base model, or a saved one; repeatable. [default: mini]", "MODEL"),
    to: Path = opt(Path("comparison"), "The folder of the results and the report.", "FOLDER", "--out"),
) -> int:
    """Compare methods on files of your own: a table with intervals, which methods differ, and figures.

    Examples:
        st-reba compare pairs.tsv
        st-reba compare pairs.tsv --model my_base --methods classical,reba-3
    """
    models = model or ["mini"]
    methods = scoring.methods
    bases = any(name in places.EMBEDDED or places.kind_of(name) == "a base model" for name in models)
    if methods is None and (bases or not all(scoring.base(name, run).saved for name in models)):
        methods = [COMPARED]
    found, failures = _scored(tasks, models, methods, to, items, scoring, run, out)
    if out.json:
        _show(found, to, out)
    elif found:
        from ..evaluation.report import make_report, write_report

        made = make_report([to], "both", only=found)
        path = write_report(made, to / "report")
        out.answer(f"{made.to_markdown()}\n{path} has it, with figures beside it")
    return _failed(failures)


def _scored(
    tasks: Sequence[str],
    models: Sequence[str],
    methods: Sequence[str] | None,
    to: Path,
    items: Items,
    scoring: Scoring,
    run: Running,
    out: Output,
) -> tuple[Sequence[Result], Sequence[str]]:
    """Run an evaluation; what was found, and what failed."""
    layers = scoring.layers if scoring.layers in ("all", "last") else numbers(scoring.layers, "--layers")
    for name in models:
        places.expect_base("--model", name)
    for word in tasks:
        if _FILE.search(word):
            places.expect_there("FILE", word.partition("=")[2] or word)
    from ..evaluation.data import read_tasks
    from ..evaluation.methods import read_methods

    if methods is not None:
        read_methods(",".join(methods))
    reading = {"train": items.train, **items.reading}
    # Files are read now; other names, of which mteb knows thousands, once it is loaded.
    named = [each for word in tasks for each in (read_tasks([word], **reading) if _FILE.search(word) else [word])]
    from ..evaluation.run import TasksFailed, tasks_of
    from ..evaluation.run import evaluate as score

    if out.verbose:
        # So a task that fails is told with its traceback.
        logging.getLogger("st_reba").setLevel(logging.DEBUG)
    try:
        found = score(
            [scoring.base(name, run) for name in models],
            tasks_of(named, **reading),
            None if methods is None else ",".join(methods),
            to,
            max_tokens=numbers(scoring.max_tokens, "--max-tokens"),
            budget=scoring.budget,  # type: ignore[arg-type]
            templates=scoring.templates,
            language=scoring.language,  # type: ignore[arg-type]
            prompts=scoring.prompts,
            layers=layers,  # type: ignore[arg-type]
            **scoring.sizes,
            seed=scoring.mteb_seed,
            stop=scoring.stop,
            command=shlex.join(["st-reba", *sys.argv[1:]]),
            show_progress_bar=out.bar,
            say=(lambda line: None) if out.quiet else (lambda line: print(line, file=sys.stderr)),
        )
    except TasksFailed as error:
        return error.results, error.failures
    return found, ()


def _show(results: Sequence[Result], to: Path, out: Output) -> None:
    """Print results: a line each, or JSON."""
    rows = [("task", "model", "method", "metric", "score", "items")]
    rows += [(each.task, each.base, _method(each), each.main, _score(each), str(each.items)) for each in results]
    lines = [
        f"{who}: {len(names)} left out, {reason}: {', '.join(map(_short, names[:5]))}{', …' * (len(names) > 5)}"
        for who, reason, names in _left_out(results)
    ]
    out.answer("\n".join([table(rows), *lines]), [result.to_json() for result in results], indent=2)
    if not out.json:
        out.report(f"\n{to}: st-reba report {shlex.quote(str(to))} makes tables and figures")


def _left_out(results: Sequence[Result]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Whose, why and which items were left out; told once of a task if it is the same for all of its methods."""
    methods: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for each in results:
        for reason, names in each.left_out.items():
            if names:
                methods.setdefault((each.task, reason, tuple(names)), []).append(_method(each))
    runs = Counter(each.task for each in results)
    return [
        (task if len(of) == runs[task] else f"{task}, {', '.join(of)}", reason, names)
        for (task, reason, names), of in methods.items()
    ]


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


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
            f"st-reba: {len(failures)} failed. The rest is kept: run the same command again to continue.",
            file=sys.stderr,
        )
    return 1 if failures else 0


@command(app, _PANEL)
def report(
    *,
    results: list[Path] = arg("RESULTS...", "Folders of st-reba evaluate (its --out)."),
    out: Output,
    to: Path | None = opt(None, "Write report.md and figures there.", "FOLDER", "--out"),
    no_figures: bool = opt(False, "With --out: report.md alone, without matplotlib."),
    metric: str = choice(
        "both", METRICS, "main: the tasks' own; paper: the papers'; both: a second table where they differ."
    ),
) -> None:
    """Make tables and figures of folders of results, beside the papers' numbers.

    Without --out the tables are printed as Markdown. With it, report.md and figures/*.png are written there, all of
    them or none. An earlier report in that folder is replaced; a folder with anything else is refused.

    Examples:
        st-reba report results --out report
        st-reba report results-before results-after --metric main
    """
    if no_figures and to is None:
        raise ValueError("--no-figures: without --out no figure is drawn. Drop the option, or give --out FOLDER.")
    for folder in results:
        places.expect_results("RESULTS", folder)
    from ..evaluation.report import make_report, write_report

    made = make_report(results, metric)  # type: ignore[arg-type]
    path = None if to is None else write_report(made, to, figures=not no_figures)
    out.answer(made.to_markdown().rstrip("\n") if path is None else path, made.to_json(), indent=2)
