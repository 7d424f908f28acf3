"""evaluate words: which of four sentences uses a word in another sense?"""

from __future__ import annotations

import argparse
from typing import Any

from ..options import new_command
from .common import add_drawing, add_model, add_results, base_of, methods_of, results_of, running, show


def add_words(commands: Any) -> None:
    command = new_command(
        commands,
        "words",
        "Score methods on word senses: in which of four sentences does a word mean something else? The answer is the\n"
        "sentence whose word vector is farthest from the other three, by Euclidean and by cosine distance.\n\n"
        "FILE is .csv or .tsv with a question a row, or .json with senses:\n"
        "  问题,选项1,选项2,选项3,选项4,答案\n"
        "      as SLPWC and WSD were published: the word stands in 问题 between “ ”, and 答案 is A, B, C or D\n"
        "  word,sentence1,sentence2,sentence3,sentence4,answer\n"
        "      the same in English\n"
        '  {"word": {"sense": ["sentence", ...]}}\n'
        "      of each word three sentences of one sense and one of another are drawn, by the seed\n"
        "A word that stands several times in a sentence is taken where it stands first. Questions that cannot be\n"
        "used are counted and named. Every result is kept: the same command goes on where it was stopped.",
        "  st-reba evaluate words SLPWC_v1.csv WSD_v1.csv --model mini --methods classical,echo,reba\n"
        "  st-reba evaluate words wsd_senses.json --model mini --methods echo-3,reba-3 --layers all --seed 1 --json",
        words,
    )
    command.add_argument("files", metavar="FILE", nargs="+", help="questions or senses; a result each")
    command.add_argument(
        "--layers",
        type=layers,
        default="last",
        metavar="LIST",
        help="whose hidden states stand for the words: all, last, or numbers, as 0,3,6 or --layers=-2,-1; 0: the "
        "embeddings. All come out of one run; only the last has passed the final norm (default: %(default)s)",
    )
    add_model(command)
    add_drawing(command, "questions of each file")
    add_results(command)


def words(options: argparse.Namespace) -> None:
    from ...evaluation.words import evaluate_words, read_words

    tasks = [read_words(file, limit=options.limit, seed=options.seed) for file in options.files]
    base = base_of(options)
    methods, results = methods_of(options, base), results_of(options)
    show(evaluate_words(base, methods, tasks, results, layers=options.layers, **running(options)), options)


def layers(text: str) -> str | list[int]:
    """``all``, ``last``, or numbers with commas between."""
    if text in ("all", "last"):
        return text
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give all, last, or numbers with commas, as 0,3,6") from None
