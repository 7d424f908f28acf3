"""Files with named columns: every layout, which column has which role, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from labelled import (
    PAIRS,
    ROWS,
    TRIPLES,
    Write,
    literal,
    table,
    values,
)

from st_reba.evaluation.data import make_task, read_task


def layouts(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A file of every layout that has named columns, with one more of no meaning."""
    names, rows = ("extra", *names), [("x", *row) for row in rows]
    objects = [dict(zip(names, row, strict=True)) for row in rows]
    found: dict[str, Any] = {
        "a.csv": table(names, rows, ","),
        "b.tsv": "\ufeff" + table(names, rows, "\t").replace("\r\n", "\n\n"),
        "c.jsonl": objects,
        "d.json": objects,
        "e.json": "\ufeff\n" + json.dumps(objects, indent=1),
        "f.ndjson": objects,
    }
    found |= {f"{name}.gz": found[name] for name in ("a.csv", "b.tsv", "c.jsonl", "e.json")}
    return found


@pytest.mark.parametrize("kind", ROWS)
def test_every_layout_with_columns(write: Write, kind: str) -> None:
    import pyarrow
    import pyarrow.parquet

    names, rows = ROWS[kind]
    wanted = make_task(kind, rows).items
    assert values(wanted) == rows
    for name, content in layouts(names, rows).items():
        task = read_task(write(name, content), kind)
        assert values(task.items) == values(wanted), name
        assert (task.kind, task.name, task.fingerprint) == (kind, name[0], wanted.fingerprint)
        if kind in ("STS", "Triples", "Classification"):
            assert read_task(name).fingerprint == wanted.fingerprint
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, zip(*rows, strict=True), strict=True))), "g.parquet")
    assert read_task("g.parquet", kind).fingerprint == wanted.fingerprint


def test_columns_by_name(write: Write) -> None:
    write("x.csv", table(("premise", "hypothesis", "degree", "text"), [(*row, "z") for row in PAIRS], ","))
    names = {"text1": "premise", "text2": "hypothesis", "score": "degree"}
    for kind in (None, "STS"):
        task = read_task("x.csv", kind, columns=names)
        assert values(task.items) == PAIRS
        assert task.how == "text1 from 'premise', text2 from 'hypothesis', score from 'degree'"
    # One role is enough where the others are guessed; a name goes before a guess.
    write("y.csv", table(("text", "title", "degree"), [(a, b, s) for a, b, s in TRIPLES], ","))
    assert values(read_task("y.csv", "Classification", columns={"text": "title", "label": "degree"}).items)[0] == (
        "b 0",
        "c 0",
    )
    assert read_task("y.csv", columns={"label": "degree"}).how == "text from 'text', label from 'degree'"


COLUMNS: dict[str, tuple[str | None, dict[str, str], str]] = {
    "unknown layout": (
        None,
        {},
        "no columns for anchor, positive, negative (Triples) or text1, text2, score (STS) or text, label "
        "(Classification) were found; there are ['one', 'two', 'degree']. Name them, as --columns anchor=one",
    ),
    "of a kind": (
        "Reranking",
        {},
        "no columns for query, document, relevance (Reranking) were found; there are ['one', 'two', 'degree']",
    ),
    "some": ("STS", {"text1": "one"}, "no columns for text1, text2, score (STS) were found; there are ['one', 'two'"),
    "gone": ("STS", {"text1": "first"}, "there is no column 'first'; there are ['one', 'two', 'degree']"),
    "role": ("STS", {"texts": "one"}, "'texts' is not known: choose from ['text1', 'text2', 'score']. Did you mean"),
    "role of none": (None, {"words": "one"}, "'words' is not known: choose from ['anchor', 'positive', "),
    "twice": ("STS", {"text1": "one", "text2": "one", "score": "degree"}, "no columns for text1, text2, score (STS)"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_are_not_there(write: Write, name: str) -> None:
    kind, columns, message = COLUMNS[name]
    write("x.csv", table(("one", "two", "degree"), PAIRS, ","))
    with pytest.raises(ValueError, match=literal(message)) as error:
        read_task("x.csv", kind, columns=columns)
    # A table may have no header at all.
    assert ("give the file a first line that names its columns" in str(error.value)) == ("no columns" in message)
    objects = [dict(zip(("one", "two", "degree"), row, strict=True)) for row in PAIRS]
    for path in ("x.jsonl", "x.json"):
        write(path, objects if path == "x.jsonl" else json.dumps(objects))
        with pytest.raises(ValueError, match=literal(message)):
            read_task(path, kind, columns=columns)
