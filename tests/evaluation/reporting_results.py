"""Results made up for the tests of reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from st_reba.evaluation.methods import Method, read_methods
from st_reba.evaluation.results import Result, Results

GPT2 = "ckiplab/gpt2-base-chinese"


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


def write(folder: Path, *results: Result) -> Path:
    """A folder of results."""
    kept = Results(folder)
    for each in results:
        kept.add(each)
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
