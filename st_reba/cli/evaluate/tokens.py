"""evaluate ner, evaluate domain: linear classifiers on frozen vectors of words and of texts."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..labelled import add_labelled, add_words, reading
from ..options import new_command
from .common import add_drawing, add_model, add_results, base_of, methods_of, results_of, running, show


def add_ner(commands: Any) -> None:
    command = new_command(
        commands,
        "ner",
        "Score methods on named entities: entity F1 of a logistic regression on frozen word vectors.\n\n"
        "TRAIN holds a word and its columns a line, and a blank line after each sentence (CoNLL-2003). A word's\n"
        "vector is that of its first token (--subtoken): ReBA's e_i, or the hidden state in the last copy; how\n"
        "sentences are pooled changes nothing. The vectors of all training words are in memory at once, words x\n"
        "dimension x 4 bytes: 3.1 GiB for CoNLL-2003 and 4,096 dimensions. --limit trains on a sample. Every result\n"
        "is kept: the same command goes on where it was stopped.",
        "  st-reba evaluate ner train.txt --validation valid.txt --test test.txt --model mini --name CoNLL-2003\n"
        "  st-reba evaluate ner train.txt --model mini --methods nosink:setting=mask0-bidir,k=2 --limit 2000",
        ner,
    )
    command.add_argument("file", metavar="TRAIN", help="the classifier is trained on it")
    command.add_argument("--validation", metavar="FILE", help="for the validation F1 (default: a fifth of TRAIN)")
    command.add_argument("--test", metavar="FILE", help="for the scores (default: a fifth of TRAIN)")
    add_words(command)
    _add_rest(command, "sentences of each file")


def add_domain(commands: Any) -> None:
    command = new_command(
        commands,
        "domain",
        "Score methods on classes of texts: accuracy and macro F1 of a logistic regression (LBFGS, 100 iterations) on\n"
        "frozen sentence vectors.\n\n"
        "FILE is .csv, .tsv or .jsonl with a text and a label a row. Of it alone 60 % are for training, 20 % for\n"
        "validation, and 20 % for the scores, every class in the same shares; further files take the place of a part.\n"
        "Every result is kept: the same command goes on where it was stopped.",
        "  st-reba evaluate domain reviews.csv --model mini --methods classical,echo,reba\n"
        "  st-reba evaluate domain dev.jsonl --train train.jsonl --test test.jsonl --model mini --name TNEWS",
        domain,
    )
    command.add_argument("file", metavar="FILE", help="texts with labels")
    command.add_argument("--train", metavar="FILE", help="train on this, and on nothing of FILE")
    command.add_argument("--test", metavar="FILE", help="score on this, and on nothing of FILE")
    _add_rest(command, "texts of each file")


def ner(options: argparse.Namespace) -> None:
    from ...evaluation import read_task
    from ...evaluation.linear import evaluate_ner

    file, train = (options.validation, options.file) if options.validation else (options.file, None)
    task: Any = read_task(file, "tags", train=train, test=options.test, **reading(options))
    _run(evaluate_ner, task, options)


def domain(options: argparse.Namespace) -> None:
    from ...evaluation import read_task
    from ...evaluation.linear import evaluate_domain

    task: Any = read_task(options.file, "classes", train=options.train, test=options.test, **reading(options))
    _run(evaluate_domain, task, options)


def _add_rest(command: argparse.ArgumentParser, items: str) -> None:
    command.add_argument("--name", help="what tables call the task (default: the first file's name)")
    command.add_argument("--prompt", help="in front of every text")
    add_labelled(command)
    add_model(command)
    add_drawing(command, items)
    add_results(command)


def _run(evaluate: Any, task: Any, options: argparse.Namespace) -> None:
    base = base_of(options)
    methods, results = methods_of(options, base), results_of(options)
    drawn = {"limit": options.limit, "seed": options.seed or None}
    found = evaluate(
        base,
        methods,
        replace(task, name=options.name or Path(options.file).stem),
        results,
        prompt=options.prompt,
        settings={name: value for name, value in drawn.items() if value is not None},
        **running(options),
    )
    show(found, options)
