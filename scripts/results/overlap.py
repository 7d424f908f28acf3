#!/usr/bin/env python
"""Whether the pairs that chose something share sentences with what the pages report.

    python scripts/results/overlap.py DATA

DATA is a folder of public sets, as for results.py. Prints, for each choice and each reported set,
how many of its pairs (or captions) hold a sentence of the choosing pairs, letter for letter, and in
parentheses where case, spaces and punctuation are ignored. The status is 1 if a choice that is said
to share no sentence has one, letter for letter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bases import SELECTION_PAIRS

from examples import (
    STSB_SCORE_COLUMN,
    Pair,
    development_sets,
    read_captions,
    read_pairs,
    read_years,
)
from st_reba.evaluation import read_task

REPORTED_YEARS = range(2013, 2017)
# The sentences of a pair, or one caption.
Item = tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """What labels chose.

    Args:
        name: What was chosen, and by which sets.
        sentences: Of the choosing pairs.
        is_separate: The pages say that no reported pair holds one of these.
    """

    name: str
    sentences: list[str]
    is_separate: bool = False


def letters_and_digits(sentence: str) -> str:
    """A sentence without case, spaces and punctuation."""
    return "".join(character for character in sentence.casefold() if character.isalnum())


def items_of(pairs: Iterable[Pair]) -> list[Item]:
    """Pairs without their scores."""
    return [(first_text, second_text) for _, first_text, second_text in pairs]


def sentences_of(pairs: Iterable[Pair]) -> list[str]:
    """Both sentences of every pair."""
    sentences: list[str] = []
    for item in items_of(pairs):
        sentences += item
    return sentences


def count_shared(
    choosing_sentences: Iterable[str],
    reported_items: Iterable[Item],
    spelling: Callable[[str], str] = str,
) -> int:
    """Reported items that hold a choosing sentence, compared as ``spelling`` writes it."""
    choosing_spellings = set(map(spelling, choosing_sentences))
    shared_count = 0
    for item in reported_items:
        shared_count += not choosing_spellings.isdisjoint(map(spelling, item))
    return shared_count


def english_choices(folder: Path) -> list[Choice]:
    """What the pages on English sentences and captions say that labels chose."""
    development_path = folder / "sts" / "sts-dev.csv"
    development_pairs = read_pairs(development_path, STSB_SCORE_COLUMN)
    unseen_pairs: list[Pair] = []
    for pairs in development_sets(folder, "en", sys.maxsize):
        unseen_pairs += pairs
    wording_pairs = development_pairs + read_years(folder, [2014, 2016])
    nosink_sentences = read_task(development_path, limit=SELECTION_PAIRS).texts
    return [
        Choice(
            "the default: STS-B dev and STS 2012, filtered",
            sentences_of(unseen_pairs),
            is_separate=True,
        ),
        Choice(f"NoSink's k: {SELECTION_PAIRS} pairs of STS-B dev", list(nosink_sentences)),
        Choice("prompteol-says: pairs of STS-B dev, STS14, STS16", sentences_of(wording_pairs)),
    ]


def english_reports(folder: Path) -> dict[str, list[Item]]:
    """The sets that these pages report, whole."""
    test_path = folder / "sts" / "sts-test.csv"
    reports = {"STS-B test": items_of(read_pairs(test_path, STSB_SCORE_COLUMN))}
    for year in REPORTED_YEARS:
        reports[f"STS{year % 100}"] = items_of(read_years(folder, [year]))
    reports["captions"] = [(caption,) for caption in read_captions(folder)]
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", metavar="DATA", type=Path)
    folder = parser.parse_args().data
    reports = english_reports(folder)
    columns = [f"{name} ({len(items):,})" for name, items in reports.items()]
    print(f"| chosen by | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    broken_promises: list[str] = []
    for choice in english_choices(folder):
        cells: list[str] = []
        for items in reports.values():
            exact_count = count_shared(choice.sentences, items)
            loose_count = count_shared(choice.sentences, items, letters_and_digits)
            cells.append(f"{exact_count} ({loose_count})")
            if choice.is_separate and exact_count:
                broken_promises.append(choice.name)
        print(f"| {choice.name} | {' | '.join(cells)} |", flush=True)
    if broken_promises:
        sys.exit(f"Shares sentences with what is reported: {broken_promises[0]}")


if __name__ == "__main__":
    main()
