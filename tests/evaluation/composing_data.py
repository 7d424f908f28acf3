"""Labelled files of real sentences, and small spaces, for the tests of the composed search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from st_reba.evaluation import Filter, Space

SENTENCES: list[dict[str, str]] = [
    json.loads(line)
    for line in (files("st_reba") / "demo" / "sentences.jsonl").read_text(encoding="utf-8").splitlines()
]
TEXTS = [row["text"] for row in SENTENCES]


def rows_of(kind: str, count: int) -> list[dict[str, Any]]:
    """Rows of a labelled file, by the sentences' topics."""
    made: list[dict[str, Any]] = []
    for n in range(count):
        row, other = SENTENCES[n], SENTENCES[(7 * n + 1) % len(SENTENCES)]
        if kind == "pairs":
            near = SENTENCES[n + 1] if n % 3 == 0 else other
            made.append({"text1": row["text"], "text2": near["text"], "score": score(row, near) + n % 5 / 10})
        elif kind == "classes":
            made.append({"text": row["text"], "label": row["topic"]})
        elif kind == "triples":
            made.append({"anchor": row["text"], "positive": SENTENCES[n + 1]["text"], "negative": other["text"]})
        else:
            for place, step in enumerate((1, 2, 5, 40, 90, 133)):
                document = SENTENCES[(n + step) % len(SENTENCES)]
                made.append({"query": row["text"], "document": document["text"], "relevance": max(0, 2 - place)})
    return made


def score(one: dict[str, str], other: dict[str, str]) -> float:
    """How alike two sentences are, by what is known of them."""
    return float(2 * (one["topic"] == other["topic"]) + (one["lang"] == other["lang"]))


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


# Two layers, one converted in several ways, and a filter of each sort that few texts allow.
SMALL = Space(
    templates=(None, "prompteol"),
    kinds=("bidirectional",),
    sinks=False,
    layers=((1, 1, "mean"), (6, 6, "mean"), (0, 2, "mean")),
    pooled=("mean", "end", "reba mean"),
    filters=(Filter("center"), Filter("standardize")),
)
