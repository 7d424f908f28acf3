"""Labelled items of real sentences, searches of them on a tiny model, and scores by other libraries."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

import st_reba
from st_reba.evaluation.data import Task, make_task
from st_reba.evaluation.heldout import Parts
from st_reba.evaluation.items import Items
from st_reba.evaluation.methods import Base
from st_reba.evaluation.search import compose
from st_reba.evaluation.search_report import Report
from st_reba.evaluation.space import Space

SENTENCES: list[dict[str, str]] = [
    json.loads(line)
    for line in (files("st_reba") / "demo" / "sentences.jsonl").read_text(encoding="utf-8").splitlines()
]
TEXTS = [row["text"] for row in SENTENCES]
SMALL = Space(
    templates=(None, "prompteol"),
    kinds=("bidirectional",),
    sinks=False,
    layers=((1, 1, "mean"), (0, 2, "mean")),
    pooled=("mean", "reba mean"),
    filters=("center", {"kind": "abtt", "r": 1}),
)
# The papers' methods and little else.
NARROW = {"templates": [None], "kinds": ["forward"], "layers": [1], "pooled": ["mean"], "filters": ["none"]}
WITH_THE = [text for text in TEXTS if " the " in text]


def rows_of(kind: str, count: int) -> list[tuple[Any, ...]]:
    """Rows of a labelled file, by the sentences' topics."""
    made: list[tuple[Any, ...]] = []
    for n in range(count):
        row, near, other = SENTENCES[n], SENTENCES[n + 1], SENTENCES[(7 * n + 1) % len(SENTENCES)]
        text = row["text"]
        if kind == "STS":
            second = near if n % 3 == 0 else other
            alike = 2 * (row["topic"] == second["topic"]) + (row["lang"] == second["lang"])
            made.append((text, second["text"], alike + n % 5 / 10))
        elif kind == "PairClassification":
            made.append((text, near["text"] if n % 2 else other["text"], n % 2))
        elif kind in ("Classification", "Clustering"):
            made.append((text, row["topic"]))
        elif kind == "Triples":
            made.append((text, near["text"], other["text"]))
        elif kind == "Reranking":
            for place, step in enumerate((1, 2, 5, 40, 90)):
                made.append((text, SENTENCES[(n + step) % len(SENTENCES)]["text"], max(0, 2 - place)))
        elif kind == "WordSense":
            made.append(("the", *(WITH_THE[(n + step) % len(WITH_THE)] for step in (0, 1, 5, 9)), n % 4))
        else:
            # The English ones, whose words stand apart.
            words = SENTENCES[n + len(SENTENCES) // 2]["text"].rstrip(".").split()
            made.append((words, ["B-X" if word[0].isupper() else "O" for word in words]))
    return made


def task_of(kind: str, count: int, **options: Any) -> Task:
    """A task of so many items."""
    return make_task(kind, rows_of(kind, count), "my items", **options)


def run(base: Any, task: Any, out: Path, **options: Any) -> tuple[Report, list[str]]:
    said: list[str] = []
    given = {"show_progress_bar": False, "say": said.append, **options}
    if options.get("preset") != "nosink":
        given = {"space": SMALL, **given}
    return compose(Base(base("gpt2"), dtype=given.pop("dtype", None), device="cpu"), task, out, **given), said


def rescored(model: Any, parts: Parts, part: Items, learn: Items | None = None) -> float:
    """A score by scipy and scikit-learn."""
    if part.kind == "Classification" and learn is not None:
        known, asked = ([items.texts[item[0]] for item in items.items] for items in (learn, part))
        fitted = LogisticRegression(max_iter=100).fit(model.encode(known), [item[1] for item in learn.items])
        return float(np.mean(fitted.predict(model.encode(asked)) == [item[1] for item in part.items]))
    if part.kind == "WordSense":
        fours = st_reba.encode_words(model, part.words).reshape(len(part), 4, -1)  # type: ignore[attr-defined]
        odd = [int(cdist(four, four, "cosine").sum(axis=0).argmax()) for four in fours]
        return float(np.mean([one == item[2] for one, item in zip(odd, part.items, strict=True)]))
    vectors = model.encode(list(part.texts)).astype(float)
    if part.kind == "STS":
        cosines = [vectors[one] @ vectors[two] for one, two, _ in part.items]
        return float(spearmanr(np.round(cosines, 6), [item[2] for item in part.items]).statistic)
    return part.metrics[part.main](part.evidence(vectors))


def found_each_other(first: Any, second: Any) -> float:
    """The mean reciprocal rank in both directions, in plain loops; what is as near stands before."""
    units = [[row / np.sqrt((row * row).sum()) for row in np.asarray(side, np.float64)] for side in (first, second)]
    total = 0.0
    for asked, others in (units, units[::-1]):
        for place, vector in enumerate(asked):
            near = [round(float((vector * other).sum()), 6) for other in others]
            total += 1 / sum(each >= near[place] for each in near)
    return total / 2 / len(units[0])
