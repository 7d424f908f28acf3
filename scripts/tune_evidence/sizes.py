"""How few texts suffice: what 50, 200, 400 and 800 unlabelled texts say, drawn again and again.

    python scripts/tune_evidence/sizes.py FOLDER out/mini results/sizes.jsonl

A line a set, size and draw; the file grows.

Filters are fitted on the drawn texts alone, so that few texts allow few filters; at most 120 of them are shown twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from encode import DONE, texts_of
from score import compositions
from sets import SOME, sets
from tqdm.auto import tqdm

from st_reba.evaluation.crossfit import Sample
from st_reba.evaluation.items import units
from st_reba.evaluation.signals import reciprocal_ranks, views
from st_reba.evaluation.trials import NO_FILTER

SIZES, DRAWS = (50, 200, 400, 800), 8


def mrr(first: Any, second: Any, sample: Any, wanted: Any) -> float | None:
    """The signal behind a filter of a sample; None: it is too small."""
    if wanted != NO_FILTER:
        both = Sample(sample, np.concatenate([first, second])).filtered(wanted)
        if both is None:
            return None
        first, second = np.split(units(both), [len(first)])
    return float(reciprocal_ranks(first, second).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("shared", "vectors", "out"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    languages = json.loads((options.vectors / "0" / DONE).read_text())["languages"]
    found = sets(options.shared / "data", options.shared / "mini/tokens-30M.u16.xz", languages)
    texts = texts_of(options.shared, languages)
    place = {text: number for number, text in enumerate(texts)}
    # By set, size and draw: places of the drawn texts, and of the first and second views of some of them.
    drawn: dict[Any, Any] = {}
    for each in (one for one in found if one.name in SOME):
        first, second = ([place[text] for text in side] for side in each.shown["overlap"])
        shown = np.asarray(views(each.texts).rows[: len(first)])
        others = np.setdiff1d(np.arange(len(each.texts)), shown)
        for size in SIZES:
            for draw in range(DRAWS if size < len(each.texts) else 1):
                generator = np.random.default_rng(draw)
                some = generator.permutation(len(shown))[:size]
                rest = generator.permutation(others)[: max(0, size - len(some))]
                whole = [place[each.texts[row]] for row in (*shown[some], *rest)]
                drawn[each.name, size, draw] = (whole, np.asarray(first)[some], np.asarray(second)[some])
    signals: dict[Any, dict[int, float]] = {key: {} for key in drawn}
    for number, (trial, vectors, *_) in enumerate(tqdm(compositions(options.vectors, len(texts)))):
        for key, (whole, one, other) in drawn.items():
            value = mrr(vectors[one], vectors[other], vectors[whole], trial.filter)
            if value is not None:
                signals[key][number] = value
    base = options.vectors.name
    with options.out.open("a", encoding="utf-8") as out:
        for (name, size, draw), values in signals.items():
            line = {"base": base, "set": name, "size": size, "draw": draw}
            out.write(json.dumps({**line, "numbers": list(values), "signals": list(values.values())}) + "\n")


if __name__ == "__main__":
    main()
