"""Texts in Chinese and English: a filter each, one on balanced samples, one on all, or one of the other language.

    python scripts/tune_evidence/languages.py FOLDER out/mini results/languages.jsonl

A line a base, filter, reading and way; the file grows. Quality: Spearman on STS-B-zh, on STSBenchmark, and on both
sets' pairs in one list. Signal: the MRR of overlapping crops, of both languages in one list.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from encode import texts_of
from score import compositions
from sets import sets
from tqdm.auto import tqdm

from st_reba.evaluation.crossfit import Sample
from st_reba.evaluation.items import units
from st_reba.evaluation.metrics import spearman
from st_reba.evaluation.signals import reciprocal_ranks
from st_reba.evaluation.trials import NO_FILTER

# English texts beside 800 Chinese ones, where one sample is not balanced.
FEW = 90


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("shared", "vectors", "out"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    found = {each.name: each for each in sets(options.shared / "data", options.shared / "mini/tokens-30M.u16.xz")}
    texts = texts_of(options.shared, ["zh", "en"])
    both = [found["STS-B-zh"], found["STSBenchmark"]]
    every = list(dict.fromkeys(text for each in both for text in each.everything()))
    number = {text: row for row, text in enumerate(texts)}
    rows_of_both = np.asarray([number[text] for text in every])
    place = {text: row for row, text in enumerate(every)}
    whole = [np.asarray([place[text] for text in each.texts]) for each in both]
    test = [np.asarray([place[text] for text in each.test.items.texts]) for each in both]
    crops = [[np.asarray([place[text] for text in side]) for side in each.shown["overlap"]] for each in both]
    samples = {
        "each": whole,
        "balanced": [np.concatenate(whole)] * 2,
        "all, 9 to 1": [np.concatenate([whole[0], whole[1][:FEW]])] * 2,
        "Chinese alone": [whole[0]] * 2,
    }
    with options.out.open("a", encoding="utf-8") as out:
        for trial, vectors, *_ in tqdm(compositions(options.vectors, len(texts))):
            vectors = vectors[rows_of_both]
            ways: dict[str, Any] = samples if trial.filter != NO_FILTER else {"none": whole}
            for way, fitted in ways.items():
                spaces = [vectors, vectors]
                if trial.filter != NO_FILTER:
                    kept = [Sample(vectors[rows], vectors).filtered(trial.filter) for rows in fitted]
                    if any(each is None for each in kept):
                        continue
                    spaces = [units(each) for each in kept if each is not None]
                evidence = [s.test.items.evidence(v[r]) for s, v, r in zip(both, spaces, test, strict=True)]
                sides = [np.concatenate([v[c[n]] for v, c in zip(spaces, crops, strict=True)]) for n in (0, 1)]
                line = {
                    "base": options.vectors.name,
                    "filter": str(trial.filter),
                    "trial": f"{trial.arm}; {trial.read}",
                    "way": way,
                    "zh": spearman(evidence[0]),
                    "en": spearman(evidence[1]),
                    "both": spearman(np.concatenate(evidence)),
                    "signal": float(reciprocal_ranks(*sides).mean()),
                    "signal zh": float(reciprocal_ranks(*(spaces[0][rows] for rows in crops[0])).mean()),
                    "signal en": float(reciprocal_ranks(*(spaces[1][rows] for rows in crops[1])).mean()),
                }
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
