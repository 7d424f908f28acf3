"""Commands that score: compare, evaluate, tune."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from .. import progress
from .app import (
    command,
    describing_stops,
    drop_unset,
    parse_pairs,
    silence_loading,
    to_json,
)
from .options import AsJson, Base, Device, Dtype, Model, TextColumn, TextEncoding, Trust
from .streams import STARTING, print_error

ColumnPairs = Annotated[
    list[str] | None,
    Option("--column", metavar="ROLE=NAME", help="A column, such as text1=premise. Repeatable."),
]
LabelPairs = Annotated[
    list[str] | None,
    Option("--label", metavar="LABEL=N", help="A label, such as entailment=1. Repeatable."),
]
TaskKind = Annotated[
    str | None,
    Option("--kind", metavar="KIND", help="STS, Classification, … [default: by the columns]"),
]
TrainFile = Annotated[
    Path | None, Option("--train", metavar="FILE", help="Table that a classifier is trained on.")
]
ItemLimit = Annotated[
    int | None,
    Option("--limit", metavar="N", min=1, help="Use N items of a table, drawn at random."),
]
Prompts = Annotated[
    str | None, Option(metavar="NAME", help="Instructions: nosink, echo, or a YAML file.")
]
ResultsFile = Annotated[
    Path | None,
    Option("--out", metavar="FILE", help="Append each result to this file, as a JSON line."),
]
FigureFile = Annotated[
    Path | None,
    Option("--figure", metavar="FILE", help="Draw the scores into this file (.png, .svg)."),
]
Seed = Annotated[int, Option(metavar="N", min=0, help="Seed of all random draws.")]


@command
def compare(
    base: Base,
    table: Annotated[
        str,
        Argument(metavar="TABLE", help="Labelled items: a table, a BEIR folder, CoNLL lines, …"),
    ],
    methods: Annotated[
        list[str], Argument(metavar="METHOD", help="Short forms, such as echo:pooling=mean.")
    ],
    varied_option: Annotated[
        str | None,
        Option("--vary", metavar="X=VALUES", help="Score several values, such as layer=1,2,3."),
    ] = None,
    metric: Annotated[
        str | None, Option(metavar="NAME", help="paper: that of the papers. [default: by kind]")
    ] = None,
    task_kind: TaskKind = None,
    column_pairs: ColumnPairs = None,
    label_pairs: LabelPairs = None,
    train_file: TrainFile = None,
    item_limit: ItemLimit = None,
    text_encoding: TextEncoding = None,
    prompts: Prompts = None,
    results_file: ResultsFile = None,
    figure_file: FigureFile = None,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on a labelled table, with 95 % intervals, and test which differences are significant.

    Methods with the same input and masks share their forward passes.
    Examples: st-reba compare mini pairs.tsv prompteol reba; st-reba compare mini pairs.tsv echo
    --vary repeats=2,3,4
    """
    with progress.step(STARTING):
        from ..evaluation import run
        from ..evaluation.results import markdown

        silence_loading()
    options = _reading_options(
        task_kind, column_pairs, label_pairs, train_file, item_limit, text_encoding
    )
    options.update(metric=metric, prompts=prompts, out=results_file, figure=figure_file, seed=seed)
    options["loading"] = drop_unset(device=device, dtype=dtype)
    if varied_option is None:
        with progress.step(f"Comparing on {table}"):
            comparison = run.compare(base, table, methods, **options)
        if not as_json:
            typer.echo(str(comparison))
            return
        fields = asdict(comparison)
        for difference, difference_fields in zip(
            comparison.differences, fields["differences"], strict=True
        ):
            difference_fields["significant"] = difference.significant
        typer.echo(to_json(fields, indent=2))
        return
    option_name, values = _parse_varied_option(varied_option)
    with progress.step(f"Comparing on {table}"):
        score_table = run.curve(base, table, methods, option_name, values, **options)
    if as_json:
        typer.echo(to_json(json.loads(score_table.to_json(orient="index"))))
    else:
        typer.echo(markdown(score_table))


def _parse_varied_option(varied_option: str) -> tuple[str, list[object]]:
    from ..methods import read_value

    option_name, equals, value_words = varied_option.partition("=")
    if not equals:
        raise ValueError(f"--vary {varied_option!r}: write OPTION=VALUE,VALUE, as repeats=2,3.")
    return option_name, list(map(read_value, value_words.split(",")))


@command
def evaluate(
    model: Model,
    tasks: Annotated[
        list[str], Argument(metavar="TASK", help="Files, KIND=FILE, toy, C-MTEB, a task of mteb, …")
    ],
    task_kind: TaskKind = None,
    column_pairs: ColumnPairs = None,
    label_pairs: LabelPairs = None,
    train_file: TrainFile = None,
    item_limit: ItemLimit = None,
    text_encoding: TextEncoding = None,
    prompts: Prompts = None,
    results_file: ResultsFile = None,
    figure_file: FigureFile = None,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Score a saved model on tasks.

    Examples: st-reba evaluate my_model pairs.tsv Clustering=topics.csv toy; st-reba evaluate
    my_model C-MTEB
    """
    with progress.step(STARTING):
        import pandas as pd

        from ..evaluation import run
        from ..evaluation.results import markdown

        silence_loading()
    with progress.step(f"Scoring {model}"):
        results = run.evaluate(
            model,
            tasks,
            loading={"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code},
            prompts=prompts,
            out=results_file,
            figure=figure_file,
            seed=seed,
            **_reading_options(
                task_kind, column_pairs, label_pairs, train_file, item_limit, text_encoding
            ),
        )
    result_rows = list(map(asdict, results))
    if as_json:
        typer.echo(to_json(result_rows, indent=2))
        return
    for row in result_rows:
        row["low"], row["high"] = row["interval"] or (None, None)
    score_table = pd.DataFrame(result_rows).set_index("task")
    typer.echo(markdown(score_table[["metric", "score", "low", "high"]]))


LabelsPath = Annotated[
    Path | None,
    Option(
        "--labels",
        metavar="FILE",
        help="Choose by labelled pairs, classes, a ranking, a BEIR folder.",
    ),
]
Purpose = Annotated[
    Literal["similarity", "search"],
    Option("--for", help="What the vectors are for; search: TEXTS are documents."),
]


@command
def tune(
    base: Base,
    texts: Annotated[
        Path,
        Argument(metavar="TEXTS", help="Yours: .txt (one per line), a table, a folder of these."),
    ],
    out: Annotated[Path, Argument(metavar="OUT", help="Folder to write: recipe, model, report.")],
    purpose: Purpose = "similarity",
    text_column: TextColumn = None,
    labels_path: LabelsPath = None,
    task_kind: TaskKind = None,
    column_pairs: ColumnPairs = None,
    label_pairs: LabelPairs = None,
    sample: Annotated[
        int, Option(metavar="N", min=50, help="Use N of the texts, drawn at random.")
    ] = 1000,
    max_cost: Annotated[
        float | None, Option(metavar="X", help="Highest cost, in passes through the base.")
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Find the method that suits a base and your texts, with or without labels, and save the model.

    If it is stopped, the same command resumes it: finished passes are kept in OUT.
    Examples: st-reba tune mini texts.txt tuned; st-reba tune mini documents.jsonl tuned --for
    search
    """
    with progress.step(STARTING):
        from ..corpus.source import read_texts
        from ..evaluation.tasks import read_task
        from ..evaluation.tune import tune as tune_model

        silence_loading()
    columns = parse_pairs(column_pairs, "--column")
    tuning_texts = read_texts(texts, text_column)
    options = drop_unset(device=device, dtype=dtype)
    if labels_path is not None:
        labels_kind = task_kind or ("Retrieval" if purpose == "search" else None)
        label_values = parse_pairs(label_pairs, "--label")
        reading_options = drop_unset(columns=columns, labels=label_values)
        options["labels"] = read_task(labels_path, labels_kind, **reading_options)
    elif task_kind or columns or label_pairs:
        raise ValueError(
            "--kind, --label and --column describe the table given as --labels. For that of TEXTS, give --text-column."
        )
    kept_passes = f"Finished passes are kept in {out}; run the same command to resume."
    with describing_stops(lambda: kept_passes), progress.step(f"Tuning {base}"):
        report = tune_model(
            base,
            tuning_texts,
            out,
            purpose=purpose,
            sample=sample,
            max_cost=max_cost,
            seed=seed,
            report_step=print_error,
            **options,
        )
    typer.echo(to_json(asdict(report), indent=2) if as_json else str(report))
    print_error(f"The model is in {out / 'model'}, the recipe and the report beside it.")


def _reading_options(
    task_kind: str | None,
    column_pairs: list[str] | None,
    label_pairs: list[str] | None,
    train_file: Path | None,
    item_limit: int | None,
    text_encoding: str | None,
) -> dict[str, Any]:
    return drop_unset(
        kind=task_kind,
        columns=parse_pairs(column_pairs, "--column"),
        labels=parse_pairs(label_pairs, "--label"),
        train=train_file,
        limit=item_limit,
        encoding=text_encoding,
    )
