"""Every kind of input gives the same documents."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from st_reba.corpus import Document, Reject
from st_reba.corpus.records import preview, to_json_value, validate
from st_reba.corpus.source import open_source, read_texts

ROWS = [{"id": "a", "text": "猫 sleeps", "year": 2019}, {"id": "b", "text": 'a "dog"', "year": 2024}]
WANTED = [Document(row["text"], row["id"], {"year": row["year"]}) for row in ROWS]


def read(input: Any, **options: Any) -> list[Document | Reject]:
    return list(open_source(input, **options).read())


@pytest.mark.parametrize(
    "input",
    [ROWS, iter(ROWS), WANTED, pd.DataFrame(ROWS), pl.DataFrame(ROWS), pa.Table.from_pylist(ROWS).to_reader(), "", "a"],
    ids=["dicts", "iterator", "documents", "pandas", "polars", "arrow", "datasets", "stream"],
)
def test_tables_in_memory(input: Any) -> None:
    if isinstance(input, str):
        datasets = pytest.importorskip("datasets")
        streamed = datasets.IterableDataset.from_generator(lambda: iter(ROWS))
        input = streamed if input else datasets.Dataset.from_list(ROWS)
    assert read(input) == WANTED


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of the format that its name says."""
    frame = pd.DataFrame(rows)
    if ".jsonl" in path.name:
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.csv.gz", "A.JSONL.GZ", "a.parquet"])
def test_files(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name.lower(), ROWS).rename(tmp_path / name)
    text = ".csv" in name or ".tsv" in name
    wanted = [Document(one.text, one.id, {"year": str(one.metadata["year"])}) for one in WANTED] if text else WANTED
    assert read(str(path)) == read(path) == wanted


def test_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path / "b.jsonl", ROWS)
    (tmp_path / "a.txt").write_text("cat\n", encoding="utf-8")
    write(tmp_path / "more" / "c.csv", [{"body": "ship", "doc_id": 7}])
    (tmp_path / "more" / ".hidden.txt").write_text("hidden", encoding="utf-8")
    (tmp_path / "picture.png").touch()
    # A corpus or a model that was saved in the folder is no text.
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "modules.json").touch()
    (tmp_path / "model" / "README.md").write_text("card", encoding="utf-8")
    (tmp_path / "corpus" / "documents").mkdir(parents=True)
    (tmp_path / "corpus" / "corpus.json").touch()
    write(tmp_path / "corpus" / "documents" / "00000.parquet", ROWS)
    wanted = [Document("cat", None, {"file": "a.txt", "line": 1}), *WANTED, Document("ship", "7")]
    assert read(tmp_path) == wanted and "1 .png" in caplog.text
    opened = open_source(tmp_path)
    assert list(opened.read()) and opened.columns == {"text_column": None, "id_column": None}  # each table has its own
    (tmp_path / "empty").mkdir()
    for name, reason in (("empty", "no texts"), ("corpus", "an encoded corpus")):
        with pytest.raises(ValueError, match=reason):
            read(tmp_path / name)


def test_rows_of_a_folder_without_an_id_name_their_file(tmp_path: Path) -> None:
    rows = [{"text": "cat", "year": 2019}, {"text": "ship", "year": 2024}]
    for name in ("b.jsonl", "c.csv", "d.parquet"):
        write(tmp_path / name, rows)
    (tmp_path / "e.jsonl").write_text('[{"text":\n"cat"},\n{"text": "ship"}]\n', encoding="utf-8")
    write(tmp_path / "f.jsonl", [{"text": "king", "file": "own.py", "line": 7, "id": None}])
    documents = [record for record in read(tmp_path) if isinstance(record, Document)]
    assert [document.metadata for document in documents if document.text == "ship"] == [
        {"file": "b.jsonl", "year": 2024, "line": 2},
        {"file": "c.csv", "year": "2024", "line": 3},
        {"file": "d.parquet", "year": 2024, "row": 1},
        {"file": "e.jsonl", "line": 3},
    ]
    assert documents[-1].metadata == {"file": "own.py", "line": 7}  # columns of the reader's own stay
    assert [record.metadata for record in read(tmp_path / "b.jsonl")] == [{"year": 2019}, {"year": 2024}]


def test_files_that_are_one_document(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "a.md").write_bytes("\ufeff# 猫\r\n\r\nIt sleeps.\n".encode())
    (tmp_path / "blank.md").write_text(" \n", encoding="utf-8")
    (tmp_path / "e\udcb0.md").write_text("Names are bytes.", encoding="utf-8")
    (tmp_path / "more" / "b.rst").write_text("Ships\n=====\n", encoding="utf-8")
    (tmp_path / "more" / "c.md").write_bytes(b"\xff")
    write(tmp_path / "d.csv", [{"body": "ship"}])
    first, second, named, third, bad = read(tmp_path, text_column="body")
    assert named.id == "e\ufffd.md"
    assert first == Document("# 猫\n\nIt sleeps.\n", "a.md", {"file": "a.md"})
    assert second == Document("ship", None, {"file": "d.csv", "line": 2})
    assert third == Document("Ships\n=====\n", "more/b.rst", {"file": "more/b.rst"})
    assert isinstance(bad, Reject) and bad.place == "more/c.md, the text" and bad.kind == "not utf-8"
    assert read(tmp_path / "a.md") == [first] and read_texts(tmp_path / "a.md") == [first.text] and not caplog.text
    assert read_texts(tmp_path, "body") == [first.text, "ship", named.text, third.text]
    assert "1 records are set" in caplog.text


def test_datasets_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": data, "test": data.select([1])}).save_to_disk(tmp_path / "two")
    assert read(tmp_path / "two" / "train") == WANTED and read(tmp_path / "two" / "test") == WANTED[1:]
    with pytest.raises(ValueError, match=r"two.train"):
        read(tmp_path / "two")


@pytest.mark.parametrize(
    ("input", "options", "error"),
    [
        ([], {}, ValueError), ({"text": "a"}, {}, TypeError), (Document("a"), {}, TypeError), (7, {}, TypeError),
        ([{"x": "a"}], {}, ValueError), ([{"text": "a"}], {"text_column": "x"}, ValueError),
        ([{"text": "a"}], {"id_column": "x"}, ValueError), ([{"text": "a"}], {"id_column": "text"}, ValueError),
        (pd.DataFrame({"text": []}), {}, ValueError),
    ],
)  # fmt: skip
def test_refused(input: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        read(input, **options)


def test_columns() -> None:
    rows = [{"body": "cat", "_id": 1}, {"body": "dog", "_id": None, "more": 1}, {"other": 1}, 7]
    assert read(rows)[:2] == [Document("cat", "1"), Document("dog", None, {"more": 1})]
    assert [one.kind for one in read(rows)[2:]] == ["no text", "wrong type"]  # type: ignore[union-attr]
    assert open_source(rows).columns == {"text_column": "body", "id_column": "_id"}
    named = read([{"a": "cat", "text": "dog"}], text_column="a", id_column="")
    assert named[0] == Document("cat", None, {"text": "dog"})
    late = [{"text": "cat"}, {"text": "dog", "id": "x"}]  # ids may begin later
    assert read(late)[1] == Document("dog", "x") and open_source(late).columns["id_column"] is None
    assert read(pl.Series(["cat"])) == [Document("cat")]
    once = open_source(rows)
    assert len(list(once.read())) == 4
    with pytest.raises(ValueError, match="once"):
        once.read()


def test_missing_cells() -> None:
    table = pd.DataFrame({"text": ["cat", None, "dog"], "id": [1, 2, np.nan], "n": [pd.NA, 1, 2], "t": [pd.NaT] * 3})
    found = read(table)
    assert found[0] == Document("cat", "1") and found[2] == Document("dog", None, {"n": 2})
    assert isinstance(found[1], Reject) and found[1].place == "the DataFrame, row 1"


def test_a_named_index_of_pandas_is_a_column(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS)
    indexed = frame.set_index("id")
    assert read(indexed) == WANTED
    assert read(frame.set_index(["year", "id"])) == WANTED
    assert read(frame.set_index("id", drop=False)) == WANTED
    assert read(frame.set_index("text")) == WANTED
    series = [Document(document.text, document.id) for document in WANTED]
    assert read(indexed["text"]) == series
    assert read(frame.set_index("id")["text"].rename("anything")) == series
    indexed.to_parquet(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == WANTED
    unnamed = frame.drop(columns="id").set_axis([7, 7])
    assert [record.id for record in read(unnamed)] == [None, None]
    with pytest.raises(ValueError, match="two columns have one name"):
        read(pd.DataFrame([["a", "b"]], columns=["text", "text"]))


PICTURE = {"bytes": b"raw", "path": None}


@pytest.mark.parametrize("kind", ["dataset", "images", "stream", "generator", "dicts", "pandas", "polars", "arrow"])
def test_images_are_left_out_with_one_warning(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": "a", "image": PICTURE, "more": [PICTURE]}, {"text": "b", "image": None, "more": []}]
    input: Any = {"dicts": list, "pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.Table.from_pylist}.get(
        kind
    )
    if input is not None:
        input = input(rows)
    else:
        datasets = pytest.importorskip("datasets")
        dataset = datasets.Dataset.from_list(rows)
        if kind == "images":
            dataset = dataset.cast_column("image", datasets.Image())
        if kind == "stream":
            dataset = dataset.to_iterable_dataset()
        if kind == "generator":
            dataset = datasets.IterableDataset.from_generator(lambda: iter(rows))
        input = dataset
    first, second = read(input)
    assert (first, second.text) == (Document("a"), "b")
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["image, more"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ((" \n",), "no text"), ((None,), "no text"), ((7,), "wrong type"), (("a" * 1_000_001,), "too long"),
        (("a", ""), "wrong type"), (("a", 7), "wrong type"), (("a", "\ud800"), "wrong type"),
        (("a", "b\0c"), "wrong type"), (("a", "b", {1: 2}), "wrong type"), (("a", "b", {"a": {1, 2}}), "wrong type"),
        (("a", "b", [1]), "wrong type"),
    ],
)  # fmt: skip
def test_documents_that_are_set_aside(fields: Any, kind: str) -> None:
    found = validate(Document(*fields), "here")
    assert isinstance(found, Reject) and found.kind == kind and found.place == "here"
    assert found.id is None or found.id == "b"


def test_beginning() -> None:
    assert [preview(each) for each in (None, "a\n b", "a" * 81)] == [None, "a b", "a" * 79 + "…"]


def test_metadata_as_json() -> None:
    value = {"a": date(2020, 1, 2), "b": Decimal("1.5"), "c": np.float32(0.5), "d": np.array([1]), "e": float("inf")}
    assert to_json_value(value) == {"a": "2020-01-02", "b": "1.5", "c": 0.5, "d": [1], "e": None}
    assert validate(Document("a\ud800"), "here") == Document("a\ufffd")
    assert validate(longest := Document("a" * 1_000_000), "here") == longest


def test_columns_of_arrow_are_texts() -> None:
    for column in (pa.array(["a", "b"]), pa.chunked_array([["a"], ["b"]])):
        assert [record.text for record in open_source(column).read()] == ["a", "b"]


def test_what_cannot_be_read_is_named() -> None:
    for value in (pl.DataFrame({"text": ["a"]}).lazy(), 5):
        with pytest.raises(TypeError, match=f"the input is a {type(value).__name__}; give a file, a table, or a list"):
            open_source(value)
