"""Rows of labelled files, the files, and items as the rows that they were made of."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from st_reba.evaluation.items import Items, Ranking, Tags

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not on this machine")
PAIRS = [(f"第{n}句", f'sentence, "{n % 7}"', float(n % 6)) for n in range(20)]
MARKED = [(f"a {n}", f"b {n % 5}", n % 3 % 2) for n in range(30)]
TEXTS = [(f"text {n}", "odd" if n % 2 else "even") for n in range(60)]
TRIPLES = [(f"a {n}", f"b {n}", f"c {n % 4}") for n in range(12)]
GRADES = [(f"q {n // 4}", f"d {n % 9}", float(n % 4 % 3)) for n in range(48)]
SENTENCE = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n"
ROWS: dict[str, tuple[tuple[str, ...], list[Any]]] = {
    "STS": (("text1", "text2", "score"), PAIRS),
    "PairClassification": (("text1", "text2", "label"), MARKED),
    "Triples": (("anchor", "positive", "negative"), TRIPLES),
    "Classification": (("text", "label"), TEXTS),
    "Clustering": (("text", "label"), TEXTS),
    "Reranking": (("query", "document", "relevance"), GRADES),
    "Retrieval": (("query", "document", "relevance"), GRADES),
}
Write = Callable[[str, Any], Path]


def values(items: Items) -> list[tuple[Any, ...]]:
    """Items as the rows that they were made of."""
    if isinstance(items, Ranking):
        return [
            (items.texts[query], items.texts[place], grade)
            for query, documents, grades in items.items
            for place, grade in zip(documents, grades, strict=True)
        ]
    if isinstance(items, Tags):
        return [(words, tags) for _, words, tags in items.items]
    known = 0 if items.kind == "Triples" else 1
    return [
        (*(items.texts[place] for place in items.texts_of(item)), *item[len(item) - known :]) for item in items.items
    ]


def table(names: Sequence[str], rows: Sequence[Sequence[Any]], delimiter: str) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows([names, *rows])
    return out.getvalue()


BARE = {
    "e.txt": "".join(f"2012test-0000||{a}||{b}||{s}\n" for a, b, s in PAIRS),
    "e.txt.gz": "".join(f"2012test-0000||{a}||{b}||{s}\n" for a, b, s in PAIRS),
    "f.csv": "".join(f"main\tMSRvid\t2012\t1\t{s}\t{a}\t{b}\n" for a, b, s in PAIRS),
    "g.csv": "\ufeff" + "".join(f"main\tMSRvid\t2012\t1\t{s}\t{a}\t{b}\tsource\tsource\n" for a, b, s in PAIRS),
}


def literal(message: str) -> str:
    """A message as a pattern in which only ``.*`` is special."""
    return ".*".join(map(re.escape, message.split(".*")))
