"""What labels and signals say about every composition, from the vectors that encode.py kept.

    python scripts/tune_evidence/score.py FOLDER out/shallow results/shallow

Writes ``results/shallow.jsonl``, a line a composition and set; ``….npz``: the evidence of each test item, by which
intervals are made, what the crops of each text say, and each text's neighbours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measures
import numpy as np
from encode import DONE, opened, texts_of
from numpy.typing import NDArray
from sets import FILTERS, Set, arms, reads, sets
from tqdm.auto import tqdm

from st_reba.evaluation import make_task
from st_reba.evaluation.crossfit import Sample, folds_of
from st_reba.evaluation.items import units
from st_reba.evaluation.signals import reciprocal_ranks
from st_reba.evaluation.trials import NO_FILTER, Trial

# Texts whose geometry is measured.
MEASURED = 300
Vectors = NDArray[np.float64]


class Scorer:
    """One set's labels and signals, for any vectors of all its texts."""

    def __init__(self, given: Set, place: dict[str, int]) -> None:
        self.set = given
        every = given.everything()
        # Where its texts are among those of all sets, and in its own order.
        self.rows = np.asarray([place[text] for text in every], np.intp)
        own = {text: number for number, text in enumerate(every)}

        def rows(texts: Any) -> NDArray[np.intp]:
            return np.asarray([own[text] for text in texts], np.intp)

        self.texts = rows(given.texts)
        self.dev, self.test = rows(given.dev.items.texts), rows(given.test.whole.texts)
        # The choice by labels has no learnt filter to be fair to: three folds teach classifiers.
        self.folds = folds_of(given.dev.items, parts=3) if given.dev.items.learns else []
        self.shown = {how: (rows(first), rows(second)) for how, (first, second) in given.shown.items()}
        self.hidden = make_task("Classification", given.hidden).items if given.hidden else None
        self.hidden_rows = rows(self.hidden.texts) if self.hidden else None
        self.hidden_folds = folds_of(self.hidden, parts=3) if self.hidden else []
        self.labels = np.asarray([label for _, label in given.hidden])
        self.label_rows = rows(text for text, _ in given.hidden)

    def filtered(self, vectors: Vectors, wanted: Any) -> Vectors | None:
        """All texts' vectors behind a filter that is fitted on the unlabelled ones; None: they are too few or flat."""
        if wanted == NO_FILTER:
            return vectors
        found = Sample(vectors[self.texts], vectors).filtered(wanted)
        return None if found is None else units(found)

    def labelled(self, vectors: Vectors) -> tuple[float, float, Any]:
        """Score on dev, score on test, and the evidence of the test items."""
        dev, test = self.set.dev.items, self.set.test
        if self.folds:
            own = vectors[self.dev]
            first = sum(fold.score(own[fold.places]) for fold in self.folds) / len(self.folds)
        else:
            first = dev.metrics[dev.main](dev.evidence(vectors[self.dev]))
        evidence = test.evidence(vectors[self.test])
        return first, test.items.metrics[test.items.main](evidence), evidence

    def signals(self, vectors: Vectors) -> tuple[dict[str, float], dict[str, NDArray[np.float64]], NDArray[np.intp]]:
        """Every signal, the more the better as its paper has it; by way, what views say of each text; neighbours."""
        ranks = {how: reciprocal_ranks(vectors[first], vectors[second]) for how, (first, second) in self.shown.items()}
        found = {how: float(each.mean()) for how, each in ranks.items()}
        some = vectors[self.texts[:MEASURED]]
        first, second = self.shown["overlap"]
        found |= {
            "RankMe": measures.rank_me(some),
            "TwoNN": measures.two_nn(some),
            "isotropy": measures.isotropy(some),
            "alignment": -measures.alignment(vectors[first], vectors[second]),
            "uniformity": -measures.uniformity(some),
            "hubness": -measures.hubness(some),
        }
        if self.hidden is not None:
            own = vectors[self.hidden_rows]
            found["hidden words"] = sum(f.score(own[f.places]) for f in self.hidden_folds) / len(self.hidden_folds)
            found["hidden, near"] = measures.same_near(vectors[self.label_rows], self.labels)
        return found, ranks, measures.nearest(some)


def compositions(folder: Path, texts: int) -> Iterator[tuple[Trial, Vectors, int, float]]:
    """Every composition, its base's vectors of all texts without the filter, the depth, and what it costs."""
    plain = json.loads((folder / "0" / DONE).read_text())
    depth = plain["depth"]
    for number, arm in enumerate(arms(depth)):
        if not (folder / str(number) / DONE).exists():
            continue
        positions = json.loads((folder / str(number) / DONE).read_text())["tokens"] / plain["tokens"]
        encoded = opened(folder, number, depth, texts)
        for read in reads(arm, depth):
            vectors = encoded[read]
            if np.isfinite(vectors).all():
                for wanted in FILTERS:
                    trial = Trial(arm, read, wanted)
                    yield trial, vectors, depth, positions * trial.layers(depth) / depth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="the folder with data and mini")
    parser.add_argument("vectors", type=Path, help="what encode.py wrote")
    parser.add_argument("out", type=Path, help="where the results go, without an ending")
    options = parser.parse_args()
    languages = json.loads((options.vectors / "0" / DONE).read_text())["languages"]
    texts = texts_of(options.shared, languages)
    place = {text: number for number, text in enumerate(texts)}
    found = sets(options.shared / "data", options.shared / "mini/tokens-30M.u16.xz", languages)
    scorers = [Scorer(each, place) for each in found]
    lines, arrays = [], {}
    every = compositions(options.vectors, len(texts))
    for number, (trial, vectors, depth, cost) in enumerate(tqdm(every, desc=options.vectors.name)):
        for scorer in scorers:
            filtered = scorer.filtered(vectors[scorer.rows], trial.filter)
            if filtered is None:
                continue
            dev, test, evidence = scorer.labelled(filtered)
            signals, ranks, near = scorer.signals(filtered)
            line = {
                "base": options.vectors.name,
                "set": scorer.set.name,
                "use": scorer.set.use,
                "number": number,
                "arm": str(trial.arm),
                "read": str(trial.read),
                "filter": str(trial.filter),
                "paper": trial.paper(depth),
                "cost": round(cost, 4),
                "dev": dev,
                "test": test,
                "signals": signals,
            }
            lines.append(json.dumps(line, ensure_ascii=False))
            arrays[f"{scorer.set.name}/{number}/evidence"] = evidence.astype(np.float32)
            arrays[f"{scorer.set.name}/{number}/ranks"] = np.stack(list(ranks.values())).astype(np.float32)
            arrays[f"{scorer.set.name}/{number}/near"] = near.astype(np.int16)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    np.savez_compressed(options.out.with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main()
