"""How few texts suffice: the choice by 50, 200 and 800 texts, drawn again and again.

    python scripts/tune_evidence/sizes.py ../shared out/mini out/mini-views results/mini results/sizes.json

A filter is fitted on the drawn texts alone, so that few texts allow few filters. And: filters fitted on the views of
other texts, in five folds, instead of on whole texts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from encode import texts_of
from score import compositions
from sets import EVERY_WAY, sets
from tqdm.auto import tqdm

from st_reba.evaluation.crossfit import Sample
from st_reba.evaluation.items import units
from st_reba.evaluation.signals import reciprocal_ranks, views
from st_reba.evaluation.trials import NO_FILTER

SIZES, DRAWS, FOLDS = (50, 200, 800), 8, 5


def mrr(first: Any, second: Any, sample: Any, wanted: Any) -> float | None:
    """The signal behind a filter of a sample."""
    if wanted != NO_FILTER:
        both = Sample(sample, np.concatenate([first, second])).filtered(wanted)
        if both is None:
            return None
        first, second = np.split(units(both), [len(first)])
    return float(reciprocal_ranks(first, second).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("shared", "vectors", "every_view", "scored", "out"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    scored = [json.loads(line) for line in options.scored.with_suffix(".jsonl").open(encoding="utf-8")]
    quality = {(row["set"], row["number"]): row["test"] for row in scored}
    found = sets(options.shared / "data", options.shared / "mini/tokens-30M.u16.xz")
    given = [each for each in found if each.name in EVERY_WAY]
    whole, shown = (texts_of(options.shared, ["zh", "en"], every) for every in (False, True))
    place = [{text: number for number, text in enumerate(texts)} for texts in (whole, shown)]
    rows: dict[str, Any] = {}
    for each in given:
        found_views = views(each.texts)
        rows[each.name] = (
            np.asarray([place[0][each.texts[row]] for row in found_views.rows]),
            np.asarray([place[1][text] for text in found_views.first]),
            np.asarray([place[1][text] for text in found_views.second]),
        )
    draws = {
        (name, size): [
            np.random.default_rng(draw).permutation(len(rows[name][0]))[:size]
            for draw in range(DRAWS if size < 800 else 1)
        ]
        for name in rows
        for size in SIZES
    }
    # By set, size and draw: of each composition the signal; and by set: fitted on views of other folds.
    signals: dict[Any, dict[int, float]] = {}
    # PromptEOL's arm, the last one, may be missing in the second.
    both = zip(compositions(options.vectors, len(whole)), compositions(options.every_view, len(shown)), strict=False)
    for number, ((trial, wholes, _), (_, crops, _)) in enumerate(tqdm(both)):
        for name, (own, first, second) in rows.items():
            for size in SIZES:
                for draw, some in enumerate(draws[name, size]):
                    value = mrr(crops[first[some]], crops[second[some]], wholes[own[some]], trial.filter)
                    if value is not None:
                        signals.setdefault((name, size, draw), {})[number] = value
            parts = []
            for fold in range(FOLDS):
                asked = np.arange(len(own)) % FOLDS == fold
                sample = np.concatenate([crops[first[~asked]], crops[second[~asked]]])
                parts.append(mrr(crops[first[asked]], crops[second[asked]], sample, trial.filter))
            if None not in parts:
                signals.setdefault((name, "views", 0), {})[number] = float(np.mean(parts))  # type: ignore[arg-type]
            parts = []
            for fold in range(FOLDS):
                asked = np.arange(len(own)) % FOLDS == fold
                parts.append(mrr(crops[first[asked]], crops[second[asked]], wholes[own], trial.filter))
            if None not in parts:
                signals.setdefault((name, "wholes", 0), {})[number] = float(np.mean(parts))  # type: ignore[arg-type]
    lines = []
    for (name, size, draw), values in signals.items():
        chosen = max(values, key=lambda number: values[number])
        best = max(value for (at, _), value in quality.items() if at == name)
        order = [sorted(values), [values[n] for n in sorted(values)], [quality[name, n] for n in sorted(values)]]
        lines.append(
            {
                "set": name,
                "size": size,
                "draw": draw,
                "compositions": len(values),
                "chosen": chosen,
                "quality": quality[name, chosen],
                "best": best,
                "signals": order[1],
                "numbers": order[0],
            }
        )
    options.out.write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
