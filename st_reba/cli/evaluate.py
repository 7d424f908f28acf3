"""Commands that score: compare, evaluate, tune."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import AsJson, Device, Dtype, Trust, app, dumped, given, pairs, quiet

Columns = Annotated[list[str] | None, typer.Option("--column", help="A column's role, as text1=premise. Repeatable.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="A label's value, as entailment=1. Repeatable.")]
Kind = Annotated[str | None, typer.Option(help="STS, PairClassification, Classification, …; default: by the columns.")]
Train = Annotated[Path | None, typer.Option(help="What a classifier learns from.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use so many items, drawn by the seed.")]
Prompts = Annotated[str | None, typer.Option(help="Instructions: nosink, echo, or a YAML file.")]
Out = Annotated[Path | None, typer.Option(help="Append a JSON line a result to this file.")]
Figure = Annotated[Path | None, typer.Option(help="Draw the scores to this file (.png, .svg).")]
Seed = Annotated[int, typer.Option(help="Of all draws.")]


@app.command()
def compare(
    base: Annotated[str, typer.Argument(help="mini, a folder, a Hub id, a recipe.")],
    table: Annotated[str, typer.Argument(help="Labelled items: a table, a BEIR folder, CoNLL lines, …")],
    methods: Annotated[list[str], typer.Argument(help="In the short form, as echo:pooling=mean.")],
    vary: Annotated[str | None, typer.Option(help="Score over an option's values, as layer=1,2,3.")] = None,
    metric: Annotated[str | None, typer.Option(help="paper: the papers'; default: the kind's main one.")] = None,
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
    """Compare methods on a labelled table, with 95 % intervals and which differences are significant.

    Methods with the same input and masks share their forward passes.

    Examples:
        st-reba compare mini pairs.tsv classical:pooling=mean echo:pooling=mean reba prompteol
        st-reba compare mini pairs.tsv echo:pooling=mean reba --vary repeats=2,3,4
    """
    from ..evaluation import run

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
    typer.echo(frame.to_json(orient="index", force_ascii=False) if as_json else run.markdown(frame))


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A saved model: its folder or Hub id.")],
    tasks: Annotated[list[str], typer.Argument(help="Files, KIND=FILE, toy, C-MTEB, MTEB-15, a task of mteb, …")],
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

    Examples:
        st-reba evaluate my_model pairs.tsv Clustering=topics.csv toy
        st-reba evaluate my_model C-MTEB --out results.jsonl
    """
    import pandas as pd

    from ..evaluation import run
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
    typer.echo(run.markdown(pd.DataFrame(rows).set_index("task")))


@app.command()
def tune(
    base: Annotated[str, typer.Argument(help="mini, a folder, a Hub id, a recipe.")],
    texts: Annotated[Path, typer.Argument(help="Texts like yours: .txt (one a line), a table, or a folder of these.")],
    out: Annotated[Path, typer.Argument(help="The folder of the run: recipe, model, report.")],
    labels: Annotated[Path | None, typer.Option(help="Labelled pairs, classes or a ranking; these choose.")] = None,
    kind: Kind = None,
    column: Columns = None,
    label: Labels = None,
    sample: Annotated[int, typer.Option(min=50, help="Draw so many of the texts.")] = 1000,
    most_cost: Annotated[float | None, typer.Option(help="What a method may cost: multiples of one pass.")] = None,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Find how a base becomes the best embedder for texts, without labels or with them, and save it.

    Finished passes are kept in OUT: the same command goes on where it was stopped.

    Examples:
        st-reba tune mini texts.txt tuned
        st-reba tune mini texts.txt tuned --labels pairs.tsv
    """
    from ..corpus.source import read_texts
    from ..evaluation.tasks import read_task
    from ..evaluation.tune import tune as search

    columns = pairs(column, "--column")
    found = read_texts(texts, columns.pop("text", None))
    options: dict[str, Any] = {"sample": sample, "most_cost": most_cost, "seed": seed}
    options |= given(device=device, dtype=dtype)
    if labels is not None:
        options["labels"] = read_task(labels, **given(kind=kind, columns=columns, labels=pairs(label, "--label")))
    elif kind or columns or label:
        raise ValueError("--kind, --label and --column (but text=…) are about the table of --labels.")
    quiet()
    report = search(base, found, out, say=lambda line: typer.echo(line, err=True), **options)
    typer.echo(dumped(asdict(report), indent=2) if as_json else str(report))


def _reading(
    kind: str | None, column: list[str] | None, label: list[str] | None, train: Path | None, limit: int | None
) -> dict[str, Any]:
    named = {"columns": pairs(column, "--column"), "labels": pairs(label, "--label")}
    return given(kind=kind, train=train, limit=limit, **named)
