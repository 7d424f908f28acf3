"""Commands that score: compare, evaluate, tune."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from .app import CheckedCommand, app, dumped, given, pairs, quiet, telling_what_is_kept
from .options import AsJson, Base, Device, Dtype, Model, Trust

if TYPE_CHECKING:
    from ..evaluation import Task

Words = list[str] | None
Columns = Annotated[Words, Option("--column", metavar="ROLE=NAME", help="A column, such as text1=premise. Repeatable.")]
Labels = Annotated[Words, Option("--label", metavar="LABEL=N", help="A label, such as entailment=1. Repeatable.")]
Kind = Annotated[str | None, Option(metavar="KIND", help="STS, Classification, … [default: by the columns]")]
Train = Annotated[Path | None, Option(metavar="FILE", help="Table that a classifier is trained on.")]
Limit = Annotated[int | None, Option(metavar="N", min=1, help="Use N items of a table, drawn at random.")]
Prompts = Annotated[str | None, Option(metavar="NAME", help="Instructions: nosink, echo, or a YAML file.")]
Out = Annotated[Path | None, Option(metavar="FILE", help="Append each result to this file, as a JSON line.")]
Figure = Annotated[Path | None, Option(metavar="FILE", help="Draw the scores into this file (.png, .svg).")]
Seed = Annotated[int, Option(metavar="N", min=0, help="Seed of all random draws.")]


@app.command(cls=CheckedCommand)
def compare(
    base: Base,
    table: Annotated[str, Argument(metavar="TABLE", help="Labelled items: a table, a BEIR folder, CoNLL lines, …")],
    methods: Annotated[list[str], Argument(metavar="METHOD", help="Short forms, such as echo:pooling=mean.")],
    vary: Annotated[str | None, Option(metavar="X=VALUES", help="Score several values, as layer=1,2,3.")] = None,
    metric: Annotated[str | None, Option(metavar="NAME", help="paper: that of the papers. [default: by kind]")] = None,
    kind: Kind = None,
    column: Columns = None,
    label: Labels = None,
    train: Train = None,
    limit: Limit = None,
    prompts: Prompts = None,
    out: Out = None,
    figure: Figure = None,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on a labelled table, with 95 % intervals, and test which differences are significant.

    Methods with the same input and masks share their forward passes.
    Examples: st-reba compare mini pairs.tsv prompteol reba; st-reba compare mini pairs.tsv echo --vary repeats=2,3,4
    """
    from ..evaluation import run
    from ..evaluation.results import markdown

    quiet()
    options: dict[str, Any] = {"metric": metric, "prompts": prompts, "out": out, "figure": figure, "seed": seed}
    options |= _reading(kind, column, label, train, limit)
    options["loading"] = given(device=device, dtype=dtype)
    if vary is None:
        found = run.compare(base, table, methods, **options)
        rows = {"results": [asdict(each) for each in found.results]}
        rows["differences"] = [asdict(each) for each in found.differences]
        typer.echo(dumped(rows, indent=2) if as_json else str(found))
        return
    from ..methods import read_value

    option, equals, values = vary.partition("=")
    if not equals:
        raise ValueError(f"--vary {vary!r}: write OPTION=VALUE,VALUE, as repeats=2,3.")
    frame = run.curve(base, table, methods, option, [read_value(each) for each in values.split(",")], **options)
    typer.echo(dumped(json.loads(frame.to_json(orient="index"))) if as_json else markdown(frame))


@app.command(cls=CheckedCommand)
def evaluate(
    model: Model,
    tasks: Annotated[list[str], Argument(metavar="TASK", help="Files, KIND=FILE, toy, C-MTEB, a task of mteb, …")],
    kind: Kind = None,
    column: Columns = None,
    label: Labels = None,
    train: Train = None,
    limit: Limit = None,
    prompts: Prompts = None,
    out: Out = None,
    figure: Figure = None,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Score a saved model on tasks.

    Examples: st-reba evaluate my_model pairs.tsv Clustering=topics.csv toy; st-reba evaluate my_model C-MTEB
    """
    import pandas as pd

    from ..evaluation import run
    from ..evaluation.results import markdown
    from ..safety import load

    quiet()
    loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"prompts": prompts, "out": out, "figure": figure, "seed": seed}
    results = run.evaluate(loaded, tasks, **options, **_reading(kind, column, label, train, limit))
    if as_json:
        typer.echo(dumped([asdict(each) for each in results], indent=2))
        return
    rows = []
    for each in results:
        low, high = each.interval or (None, None)
        rows.append({"task": each.task, "metric": each.metric, "score": each.score, "low": low, "high": high})
    typer.echo(markdown(pd.DataFrame(rows).set_index("task")))


@app.command(cls=CheckedCommand)
def tune(
    base: Base,
    texts: Annotated[Path, Argument(metavar="TEXTS", help="Yours: .txt (one a line), a table, a folder of these.")],
    out: Annotated[Path, Argument(metavar="OUT", help="Folder to write: recipe, model, report.")],
    purpose: Annotated[
        Literal["similarity", "search"], Option("--for", help="What the vectors are for; search: TEXTS are documents.")
    ] = "similarity",
    labels: Annotated[
        Path | None, Option(metavar="FILE", help="Choose by labelled pairs, classes, a ranking, a BEIR folder.")
    ] = None,
    kind: Kind = None,
    column: Columns = None,
    label: Labels = None,
    sample: Annotated[int, Option(metavar="N", min=50, help="Use N of the texts, drawn at random.")] = 1000,
    most_cost: Annotated[float | None, Option(metavar="X", help="Highest cost, in passes through the base.")] = None,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Find the method that suits a base and your texts, with or without labels, and save the model.

    If it is stopped, the same command resumes it: finished passes are kept in OUT.
    Examples: st-reba tune mini texts.txt tuned; st-reba tune mini documents.jsonl tuned --for search
    """
    from ..corpus.source import read_texts
    from ..evaluation.tune import tune as search

    columns = pairs(column, "--column")
    found = read_texts(texts, columns.pop("text", None))
    options: dict[str, Any] = {"purpose": purpose, "sample": sample, "most_cost": most_cost, "seed": seed}
    options |= given(device=device, dtype=dtype)
    if labels is not None:
        options["labels"] = _labels_of(labels, purpose, kind, columns, pairs(label, "--label"))
    elif kind or columns or label:
        raise ValueError("--kind, --label and --column (but text=…) are about the table of --labels.")
    quiet()
    with telling_what_is_kept(lambda: f"Passes that were finished are kept in {out}; the same command goes on."):
        report = search(base, found, out, say=lambda line: typer.echo(line, err=True), **options)
    typer.echo(dumped(asdict(report), indent=2) if as_json else str(report))
    typer.echo(f"The model is in {out / 'model'}, the recipe and the report beside it.", err=True)


def _labels_of(
    path: Path,
    purpose: str,
    kind: str | None,
    columns: dict[str, str],
    labels: dict[str, str],
) -> Task:
    from ..evaluation.retrieval_items import read_rankings
    from ..evaluation.tasks import read_task

    reading = given(columns=columns, labels=labels)
    if purpose == "similarity":
        return read_task(path, kind, **reading)
    if kind is not None and kind.casefold() != "retrieval":
        raise ValueError(f"--kind {kind}: --for search chooses by the kind Retrieval. Drop it.")
    return read_rankings(path, **reading)


def _reading(
    kind: str | None, column: list[str] | None, label: list[str] | None, train: Path | None, limit: int | None
) -> dict[str, Any]:
    named = {"columns": pairs(column, "--column"), "labels": pairs(label, "--label")}
    return given(kind=kind, train=train, limit=limit, **named)
