"""Works on a batch of texts, measured against the first of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .aims import Aim
from .measuring import AGAIN, Check, Meter, Record, Run, Variant, measure
from .pipelines import Work


def _same(run: Run) -> Run:
    """Nothing is left to prepare: the features are ready."""
    return run


def measure_works(
    part: str,
    case: Mapping[str, Any],
    works: Sequence[Work],
    texts: Sequence[str],
    aims: Callable[[str, int], Sequence[Aim]],
    options: argparse.Namespace,
    check: Check | None = None,
) -> list[Record]:
    """Measure works on the same texts.

    Args:
        part: The part of the benchmark.
        case: What the report says of the case; its `length` goes to `aims`.
        works: The baseline first.
        texts: The texts, one batch.
        aims: For a variant's name and a length: what it should reach.
        options: The command line's.
        check: Sees each work's vectors, by name, before anything is timed.
    """
    from tqdm import tqdm

    variants = []
    for work in works:
        run = work.whole(texts) if options.end_to_end else work.forward(texts)
        chosen = aims(work.name, case["length"])
        detail = {} if work.copies is None else {"copies": work.copies}
        variants.append(Variant(work.name, partial(_same, run), chosen, detail))
    baseline, *others = variants
    # The baseline once more: how far it is from 1 is the noise.
    others.insert(0, Variant(baseline.name + AGAIN, baseline.prepare, (), baseline.detail))
    told = {
        **case,
        "timed": "from text to vectors" if options.end_to_end else "forward on ready features",
    }
    meter = Meter(options.device, options.clock, options.rounds, limit=options.case_limit)
    title = f"n = {case['length']}, {case['lengths']}, batch of {case['batch_size']}"
    with tqdm(total=options.rounds * len(others), desc=title, unit="run", file=sys.stderr) as bar:
        return measure(part, told, case["tokens"], baseline, others, meter, bar.update, check)
