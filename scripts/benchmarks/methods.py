"""Part `methods`: every method's time and memory against Echo-2's, over the length of the texts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from .aims import Aim
from .batches import draw_lengths, make_texts
from .measuring import Run, fitting_rows
from .memory import available
from .mistakes import UsageError
from .models import saved_model
from .pipelines import (
    WORDS,
    Loader,
    Work,
    chunked_works,
    nosink_works,
    plain_works,
    reba_works,
)
from .report import Report
from .rivals import HELD, RIVALS, STACKED, attention_bytes, check_equal, rival_works
from .works import measure_works

if TYPE_CHECKING:
    from torch import Tensor

    from st_reba import RepeatTransformer

# Positions for a template beside both copies.
ROOM = 64
LAST = "ReBA-2 last"
# Where ReBA should cost hardly more than the repetition itself; shorter texts are dominated by what is not attention.
LONG_ENOUGH = 128
MEMORY = 1.05
OURS = {LAST: 1.05, "ReBA-2 mean": 1.10, WORDS: 1.15}
RIVAL_LENGTH = 512
RIVAL = (Aim(2.0, at_least=True, of=LAST), Aim(3.0, "memory", at_least=True, of=LAST))
# Of the memory that is free, what a rival may take.
SHARE = 0.8


@dataclass(frozen=True)
class Case:
    """Texts of up to `length` content tokens; `rows` of them in the batch, None: as many as fit."""

    length: int
    mix: str
    rows: int | None


QUICK = (Case(32, "uniform", 1), Case(128, "uniform", 1), Case(512, "uniform", 1), Case(64, "realistic", 4))


def planned(options: argparse.Namespace) -> list[Case]:
    """The cases to measure. A single text has no mix of lengths."""
    if options.quick:
        return list(QUICK)
    cases = [
        Case(length, mix, rows)
        for length in options.lengths
        for mix in options.mix
        for rows in options.batch_size
        if mix == "uniform" or rows != 1
    ]
    if not cases:
        raise UsageError(
            "--mix realistic --batch-size 1: a single text has no mix of lengths. Give --batch-size fits, or a number "
            "from 2 on."
        )
    return cases


def aims_for(name: str, length: int) -> tuple[Aim, ...]:
    """What a variant should reach at a length."""
    if name in OURS and length >= LONG_ENOUGH:
        return (Aim(OURS[name]), Aim(MEMORY, "memory"))
    return RIVAL if name == STACKED and length == RIVAL_LENGTH else ()


def run_methods(options: argparse.Namespace, report: Report) -> None:
    """Measure every method in every case."""
    import torch

    cases = planned(options)
    longest = max(case.length for case in cases)
    with saved_model(options.model, 2 * longest + ROOM) as folder:
        loader = Loader(folder, options.dtype, options.device, {})
        baseline, *works = plain_works(loader)
        reba, model = reba_works(loader)
        transformer = cast("RepeatTransformer", model[0])
        works += [*reba, *chunked_works(loader, options.chunk, longest, report.notes)]
        works += nosink_works(loader, transformer.depth)
        rivals = rival_works(loader, model)
    if options.only:
        works, rivals = ([work for work in each if _wanted(work, options.only)] for each in (works, rivals))
        if not works and not rivals:
            raise UsageError(f"--only {' '.join(options.only)} leaves nothing to measure: give a part of a row's name")
    with torch.inference_mode():
        for case in cases:
            rows = _rows(case, baseline, options)
            lengths = draw_lengths(case.length, case.mix, rows, options.seed)
            texts = make_texts(lengths, options.seed)
            chosen = [work for work in works if case.length >= work.shortest]
            whole = attention_bytes(transformer, rows, 2 * case.length)
            fitting = _fitting(rivals, whole, case, rows, options.device, report.notes)
            told = {
                "length": case.length,
                "lengths": case.mix,
                "batch": "fits" if case.rows is None else str(case.rows),
                "batch_size": rows,
                "tokens": sum(lengths),
            }
            report.add(measure_works("methods", told, [baseline, *chosen, *fitting], texts, aims_for, options, check))


def _wanted(work: Work, words: Sequence[str]) -> bool:
    return any(word.lower() in work.name.lower() for word in words)


def _rows(case: Case, baseline: Work, options: argparse.Namespace) -> int:
    """Texts of a batch."""
    if case.rows is not None:
        return case.rows

    def once(rows: int) -> Run:
        return baseline.forward(make_texts(draw_lengths(case.length, case.mix, rows, options.seed), options.seed))

    return fitting_rows(once, options.seconds)


def _fitting(rivals: Sequence[Work], whole: int, case: Case, rows: int, device: str, notes: list[str]) -> list[Work]:
    """The rivals whose attention there is memory for."""
    free = available(device)
    kept = []
    for rival in rivals:
        needed = whole * HELD[rival.name]
        if needed <= SHARE * free:
            kept.append(rival)
        else:
            notes.append(
                f"{rival.name} was left out at n = {case.length}, {case.mix}, {rows} texts: it would need about "
                f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            )
    return kept


def check(vectors: Mapping[str, object]) -> None:
    """Whether the rivals give ReBA's vectors."""
    for name in RIVALS:
        if name in vectors:
            check_equal(name, cast("Tensor", vectors[name]), cast("Tensor", vectors[LAST]))
