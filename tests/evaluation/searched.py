"""Labelled items of real sentences, for the tests of the search."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from st_reba.evaluation.data import Task, make_task

SENTENCES: list[dict[str, str]] = [
    json.loads(line)
    for line in (files("st_reba") / "demo" / "sentences.jsonl").read_text(encoding="utf-8").splitlines()
]
TEXTS = [row["text"] for row in SENTENCES]
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
