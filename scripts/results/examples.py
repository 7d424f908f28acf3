#!/usr/bin/env python
"""What examples in a prompt bring: similarity by wordings, numbers of examples, and draws of them.

    python scripts/results/examples.py DATA smollm2=FOLDER gemma3=FOLDER

DATA is a folder of public sets: sts/sts-dev.csv, sts/sts-test.csv and
sts/semeval/YEAR.NAME.test.tsv. Scores are Spearman's correlation × 100 on pairs of STS-B's dev part
and of STS 2012 that share no sentence with STS-B's test part or with STS 2013 to 2016. Prints a
line a wording and number of examples: the mean over draws, and the range.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from st_reba.evaluation.readouts import encode_methods, load_base
from st_reba.methods import Method
from st_reba.prompts import EXAMPLES, TOPIC_LINE, TOPIC_QUESTION, join_examples

Pair = tuple[float, str, str]
WORDINGS = {
    "topic": (TOPIC_QUESTION, TOPIC_LINE),
    "in a word": (TOPIC_QUESTION, 'The text: "{text}" In a word: "'),
    "keyword": ("", 'Text: "{text}" Keyword: "'),
}
# Of which examples are drawn, beside those of the package.
MORE_EXAMPLES = (
    ("The chef chops onions in a small kitchen.", "Cooking"),
    ("Two boys kick a ball across the yard.", "Football"),
    ("Shares of the airline fell after the report.", "Loss"),
    ("The bridge was closed because of the flood.", "Closure"),
    ("An old man sleeps on a bench in the park.", "Sleeping"),
    ("The court rejected the appeal of the mayor.", "Rejection"),
    ("You should restart the router first.", "Advice"),
    ("A woman plays the violin on the stage.", "Music"),
    ("Nobody knows why the bees are dying.", "Mystery"),
    ("Three dogs run through the snow.", "Dogs"),
    ("The new law raises taxes on fuel.", "Taxes"),
    ("I missed the last train home.", "Delay"),
    ("Scientists found water under the ice of Mars.", "Discovery"),
    ("He repairs bicycles in his garage.", "Repair"),
    ("The team won the final after extra time.", "Victory"),
    ("Police arrested a man at the station.", "Arrest"),
)


def read_pairs(path: Path, score_column: int) -> list[Pair]:
    """Scored pairs of a file whose columns are separated by tabs."""
    scored_pairs: list[Pair] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        columns = line.split("\t")
        first_text, second_text = columns[score_column + 1 : score_column + 3]
        scored_pairs.append((float(columns[score_column]), first_text, second_text))
    return scored_pairs


def read_years(folder: Path, years: Sequence[int]) -> list[Pair]:
    """All pairs of SemEval's years."""
    scored_pairs: list[Pair] = []
    for year in years:
        for path in sorted(folder.glob(f"sts/semeval/{year}.*.tsv")):
            scored_pairs += read_pairs(path, 0)
    return scored_pairs


def development_sets(folder: Path, size: int) -> dict[str, list[Pair]]:
    """Pairs that share no sentence with what results report."""
    reported_pairs = read_pairs(
        folder / "sts" / "sts-test.csv",
        4,
    ) + read_years(folder, range(2013, 2017))
    reported_texts: set[str] = set()
    for _, first_text, second_text in reported_pairs:
        reported_texts |= {first_text, second_text}
    all_pairs = {
        "STS-B dev": read_pairs(folder / "sts" / "sts-dev.csv", 4),
        "STS 2012": read_years(folder, [2012]),
    }
    development: dict[str, list[Pair]] = {}
    for name, scored_pairs in all_pairs.items():
        unseen_pairs = [pair for pair in scored_pairs if reported_texts.isdisjoint(pair[1:])]
        development[name] = Random(7).sample(unseen_pairs, min(size, len(unseen_pairs)))
    return development


def correlation(
    text_vectors: NDArray[np.float32],
    row_of_text: dict[str, int],
    scored_pairs: Sequence[Pair],
) -> float:
    """Spearman's correlation × 100 of cosines and scores."""
    first_rows = [row_of_text[pair[1]] for pair in scored_pairs]
    second_rows = [row_of_text[pair[2]] for pair in scored_pairs]
    cosines = np.sum(text_vectors[first_rows] * text_vectors[second_rows], axis=1)
    scores = [pair[0] for pair in scored_pairs]
    return 100 * float(spearmanr(cosines, scores).statistic)


def score_template(
    base_model: SentenceTransformer,
    template: str,
    development: dict[str, list[Pair]],
) -> dict[str, float]:
    """The mean of both sets, by reading."""
    row_of_text: dict[str, int] = {}
    for scored_pairs in development.values():
        for _, *texts in scored_pairs:
            for text in texts:
                row_of_text.setdefault(text, len(row_of_text))
    states = Method("prompteol", template=template)
    outputs = Method("prompteol", template=template, read="attention")
    vectors_by_method = encode_methods(
        base_model,
        [states, outputs],
        list(row_of_text),
        check=False,
    )
    scores: dict[str, float] = {}
    for method, text_vectors in vectors_by_method.items():
        correlations = [
            correlation(text_vectors, row_of_text, scored_pairs)
            for scored_pairs in development.values()
        ]
        scores[method.read] = float(np.mean(correlations))
    return scores


def measure_base(
    name: str,
    folder: str,
    run_options: argparse.Namespace,
) -> None:
    """Print the rows of a base."""
    base_model = load_base(folder, dtype="bfloat16")
    development = development_sets(run_options.data, run_options.pairs)
    pool = [*EXAMPLES, *MORE_EXAMPLES]
    for wording, (question, line) in WORDINGS.items():
        for count in run_options.counts:
            draw_count = run_options.draws if count else 1
            scores_by_reading: dict[str, list[float]] = {
                "states": [],
                "attention": [],
            }
            for draw in range(draw_count):
                examples = Random(100 * count + draw).sample(pool, count)
                template = join_examples(question, line, examples, '"')
                for reading, score in score_template(base_model, template, development).items():
                    scores_by_reading[reading].append(score)
            cells: list[str] = []
            for scores in scores_by_reading.values():
                cells.append(f"{np.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})")
            print(
                f"| {name} | {wording} | {count} | {draw_count} | {' | '.join(cells)} |", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", metavar="DATA", type=Path)
    parser.add_argument("bases", metavar="NAME=FOLDER", nargs="+")
    parser.add_argument(
        "--counts",
        type=int,
        nargs="+",
        default=[0, 1, 4, 8],
        help="numbers of examples",
    )
    parser.add_argument("--draws", type=int, default=5, help="draws of examples for each number")
    parser.add_argument("--pairs", type=int, default=250, help="pairs of each set")
    run_options = parser.parse_args()
    print(
        "| base | wording | examples | draws | states | attention outputs |\n|---|---|--:|--:|--:|--:|"
    )
    for base_argument in run_options.bases:
        name, _, folder = base_argument.partition("=")
        measure_base(name, folder, run_options)


if __name__ == "__main__":
    main()
