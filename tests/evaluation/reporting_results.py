"""Results made up for the tests of reports."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from st_reba.evaluation.methods import Method, read_methods
from st_reba.evaluation.report import make_report
from st_reba.evaluation.results import Result, Results

GPT2 = "ckiplab/gpt2-base-chinese"
METHODS = ("classical", "echo", "reba", "reba-3", "reba:pooling=mean", "reba-10")
TASKS = ("AFQMC", "LCQMC", "STSB")


def method(words: str) -> Method:
    return read_methods(words)[0]


def result(
    task: str,
    words: str,
    scores: float | Mapping[str, float],
    *,
    kind: str = "STS",
    base: str = "mini",
    main: str = "cosine_spearman",
    data: str = "",
    **values: Any,
) -> Result:
    """One result; ``words`` are its method's, ``data`` stands for what else its identity depends on."""
    used = method(words)
    key = json.dumps([kind, task, base, used.name, values.get("settings"), data], default=str)
    values = {"texts": 10, "tokens": 50, "seconds": 2.0, "items": 5, "versions": {"torch": "2.0"}, **values}
    known = {main: scores} if isinstance(scores, float) else dict(scores)
    identity = hashlib.sha256(key.encode()).hexdigest()
    return Result(kind, task, base, used.name, identity, known, main, arguments=dict(used.arguments), **values)


def write(folder: Path, *results: Result, draws: Any = None) -> Path:
    """A folder of results; ``draws`` are by identity: evidence, and draws by metric."""
    kept = Results(folder)
    with kept.writing():
        for number, each in enumerate(results):
            kept.add(each, *(draws or {}).get(each.identity, ()))
            # One after the other, whatever the file system's clock tells apart.
            os.utime(kept._path(each), (number, number))
    return folder


def parsed(markdown: str) -> list[list[dict[str, str]]]:
    """The tables of a Markdown text: a list of rows a table, each cell by its column's head."""
    tables: list[list[dict[str, str]]] = []
    heads: list[str] = []
    for line in [*markdown.splitlines(), ""]:
        if not line.startswith("|"):
            heads = []
            continue
        cells = [
            cell.replace("\0", "|") for cell in (part.strip() for part in line[1:-1].replace("\\|", "\0").split("|"))
        ]
        if not heads:
            heads = cells
            tables.append([])
        elif set("".join(cells)) - set("-:"):
            assert len(cells) == len(heads), line
            tables[-1].append(dict(zip(heads, cells, strict=True)))
    return tables


def many(seed: int = 0) -> list[Result]:
    """Two bases, six methods, three tasks, two metrics, with intervals."""
    draw = random.Random(seed)
    made = []
    for base in ("mini", "org/other"):
        for words in METHODS:
            for task in TASKS:
                scores = {"cosine_spearman": draw.random(), "cosine_pearson": draw.random()}
                bounds = {name: (value - 0.01, value + 0.02) for name, value in scores.items()}
                texts = draw.randrange(10, 1000)
                made.append(
                    result(
                        task, words, scores, base=base, paper="cosine_pearson", intervals=bounds, texts=texts,
                        tokens=draw.randrange(100, 100000), seconds=draw.random() * 100,
                    )
                )  # fmt: skip
    return made


def tables(*folders: Path, metric: Any = "both") -> list[list[dict[str, str]]]:
    """The tables of a report of folders."""
    return parsed(make_report(folders, metric).to_markdown())
