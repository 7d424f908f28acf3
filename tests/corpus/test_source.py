"""Every kind of input gives the same documents."""

from __future__ import annotations

import gzip
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from st_reba.corpus import Document, Reject
from st_reba.corpus.records import Columns, checked, plain
from st_reba.corpus.source import open_source

ROWS = [{"id": "a", "text": "猫 sleeps", "year": 2019}, {"id": "b", "text": 'a "dog"', "year": 2024}]
WANTED = [Document(row["text"], row["id"], {"year": row["year"]}) for row in ROWS]


def read(input: Any, **options: Any) -> list[Document | Reject]:
    return list(open_source(input, **options).read())


@pytest.mark.parametrize(
    "input",
    [
        ROWS,
        iter(ROWS),
        WANTED,
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).astype({"text": "string"}),
        pl.DataFrame(ROWS),
        pa.Table.from_pylist(ROWS),
        {"read by": "datasets"},
    ],
    ids=["dicts", "iterator", "documents", "pandas", "strings", "polars", "arrow", "datasets"],
)
def test_tables_in_memory(input: Any) -> None:
    if isinstance(input, dict):
        input = pytest.importorskip("datasets").Dataset.from_list(ROWS)
    assert read(input) == WANTED


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of the format that its name says."""
    frame = pd.DataFrame(rows)
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    text = {
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "json": json.dumps(rows),
        "csv": frame.to_csv(index=False),
        "tsv": frame.to_csv(index=False, sep="\t"),
        "txt": "\n".join(row["text"] for row in rows if "text" in row),
    }[suffix]
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.csv.gz", "A.JSONL.GZ", "a.parquet"])
def test_files(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name.lower(), ROWS).rename(tmp_path / name)
    text = ".csv" in name or ".tsv" in name
    wanted = [Document(one.text, one.id, {"year": str(one.metadata["year"])}) for one in WANTED] if text else WANTED
    assert read(str(path)) == read(path) == wanted


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path / "b.jsonl", ROWS)
    write(tmp_path / "a.txt", [{"text": "cat"}])
    write(tmp_path / "more" / "c.csv", [{"body": "ship", "doc_id": 7}])
    (tmp_path / ".hidden.txt").write_text("hidden", encoding="utf-8")
    (tmp_path / "picture.png").touch()
    wanted = [Document("cat", None, {"file": "a.txt", "line": 1}), *WANTED, Document("ship", "7")]
    assert read(tmp_path) == wanted
    assert [one.text for one in read([tmp_path / "more" / "c.csv", tmp_path / "a.txt"])] == ["ship", "cat"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no folder of texts"):
        read(tmp_path / "empty")


def test_datasets_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data, "test": data.select([1])}).save_to_disk(tmp_path / "two")
    assert read(tmp_path / "one") == WANTED and read(tmp_path / "two", split="test") == WANTED[1:]
    for path, split in (("two", None), ("two", "x"), ("one", "train")):
        with pytest.raises(ValueError, match="split"):
            read(tmp_path / path, split=split)


@pytest.mark.parametrize(
    ("input", "options", "error"),
    [
        ([], {}, ValueError),
        ({"text": "a"}, {}, TypeError),
        (Document("a"), {}, TypeError),
        (7, {}, TypeError),
        (b"cat", {}, TypeError),
        ([{"x": "a"}], {}, ValueError),
        ([{"text": "a"}], {"text_column": "x"}, ValueError),
        ([{"text": "a"}], {"id_column": "x"}, ValueError),
        (["a", "b"], {"ids": ["1"]}, ValueError),
        (["a"], {"ids": ["1", "2"]}, ValueError),
        (["a"], {"ids": "1"}, TypeError),
        ([Document("a", "b")], {"ids": ["1"]}, ValueError),
        (pd.DataFrame(ROWS), {"ids": ["1", "2"]}, ValueError),
        (["a"], {"split": "train"}, ValueError),
        (pd.DataFrame({"text": []}), {}, ValueError),
    ],
)
def test_refused(input: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        read(input, **options)


def test_columns() -> None:
    rows = [{"body": "cat", "_id": 1}, {"body": "dog", "_id": None, "more": 1}, {"other": 1}]
    assert read(rows)[:2] == [Document("cat", "1"), Document("dog", None, {"more": 1})]
    assert read(rows)[2].kind == "no text"  # type: ignore[union-attr]
    named = read([{"a": "cat", "text": "dog"}], text_column="a", id_column="")
    assert named[0] == Document("cat", None, {"text": "dog"})
    assert read([{"text": "cat"}, {"text": "dog", "id": "x"}])[1].id == "x"  # ids may begin later
    assert read(["cat", "dog"], ids=["x", "y"])[1] == Document("dog", "y")
    assert Columns(id="").resolved(["text", "id"]).id == ""


def test_missing_cells() -> None:
    table = pd.DataFrame({"text": ["cat", None, "dog"], "id": [1, 2, np.nan], "n": [pd.NA, 1, 2], "t": [pd.NaT] * 3})
    found = read(table)
    assert found[0] == Document("cat", "1") and found[2] == Document("dog", None, {"n": 2})
    assert isinstance(found[1], Reject) and found[1].place == "the DataFrame, row 1"


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (Document(" \n"), "no text"),
        (Document(None), "no text"),  # type: ignore[arg-type]
        (Document(7), "wrong type"),  # type: ignore[arg-type]
        (Document("a" * 11), "too long"),
        (Document("a", ""), "wrong type"),
        (Document("a", 7), "wrong type"),  # type: ignore[arg-type]
        (Document("a", "\ud800"), "wrong type"),
        (Document("a", "b\0c"), "wrong type"),
        (Document("a", "b", {1: 2}), "wrong type"),  # type: ignore[dict-item]
        (Document("a", "b", {"a": {1, 2}}), "wrong type"),
        (Document("a", "b", [1]), "wrong type"),  # type: ignore[arg-type]
    ],
)
def test_documents_that_are_set_aside(document: Document, kind: str) -> None:
    found = checked(document, "here", 10)
    assert isinstance(found, Reject) and found.kind == kind and found.place == "here"


def test_metadata_as_json() -> None:
    value = {"a": date(2020, 1, 2), "b": Decimal("1.5"), "c": np.float32(0.5), "d": np.array([1]), "e": float("inf")}
    assert plain(value) == {"a": "2020-01-02", "b": "1.5", "c": 0.5, "d": [1], "e": None}
    assert checked(Document("a\ud800"), "here") == Document("a\ufffd")
