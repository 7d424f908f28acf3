"""Every kind of input gives the same documents."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from st_reba.corpus import Document, Reject
from st_reba.corpus.records import describe_rejects, preview, to_json_value, validate
from st_reba.corpus.source import open_source, read_texts

Rows = list[dict[str, Any]]
ROWS: Rows = [
    {"id": "a", "text": "猫 sleeps", "year": 2019},
    {"id": "b", "text": 'a "dog"', "year": 2024},
]
EXPECTED = [Document(row["text"], row["id"], {"year": row["year"]}) for row in ROWS]


def read(input: Any, **options: Any) -> list[Document | Reject]:
    return list(open_source(input, **options).read())


@pytest.mark.parametrize(
    "input",
    [
        ROWS,
        iter(ROWS),
        EXPECTED,
        pd.DataFrame(ROWS),
        pl.DataFrame(ROWS),
        pa.Table.from_pylist(ROWS).to_reader(),
    ],
    ids=["dicts", "iterator", "documents", "pandas", "polars", "arrow"],
)
def test_tables_in_memory_are_read(input: Any) -> None:
    assert read(input) == EXPECTED


def test_data_sets_and_their_streams_are_read() -> None:
    datasets = pytest.importorskip("datasets")
    assert read(datasets.Dataset.from_list(ROWS)) == EXPECTED
    assert read(datasets.IterableDataset.from_generator(lambda: iter(ROWS))) == EXPECTED


def write(
    file_path: Path,
    table_rows: Rows,
) -> Path:
    """A file of the format of its name."""
    data_frame = pd.DataFrame(table_rows)
    if ".jsonl" in file_path.name:
        data_frame.to_json(file_path, orient="records", lines=True)
    elif file_path.suffix == ".parquet":
        data_frame.to_parquet(file_path)
    elif ".tsv" in file_path.name:
        data_frame.to_csv(file_path, index=False, sep="\t")
    else:
        data_frame.to_csv(file_path, index=False)
    return file_path


@pytest.mark.parametrize("file_name", ["a.jsonl", "A.JSONL.GZ", "a.parquet"])
def test_files_of_typed_values_are_read(
    tmp_path: Path,
    file_name: str,
) -> None:
    file_path = write(tmp_path / file_name.lower(), ROWS).rename(tmp_path / file_name)
    assert read(file_path) == EXPECTED
    assert read(str(file_path)) == EXPECTED


@pytest.mark.parametrize("file_name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_files_of_strings_are_read(
    tmp_path: Path,
    file_name: str,
) -> None:
    documents = read(write(tmp_path / file_name, ROWS))
    assert documents == [
        Document("猫 sleeps", "a", {"year": "2019"}),
        Document('a "dog"', "b", {"year": "2024"}),
    ]


@pytest.fixture
def mixed_folder(tmp_path: Path) -> Path:
    """Tables and texts, and files that are not texts."""
    for folder_name in ("more", "model", "corpus/documents", "empty"):
        (tmp_path / folder_name).mkdir(parents=True)
    write(tmp_path / "b.jsonl", ROWS)
    (tmp_path / "a.txt").write_text("cat\n", encoding="utf-8")
    write(tmp_path / "more" / "c.csv", [{"body": "ship", "doc_id": 7}])
    (tmp_path / "more" / ".hidden.txt").write_text("hidden", encoding="utf-8")
    (tmp_path / "picture.png").touch()
    (tmp_path / "LICENSE").touch()
    (tmp_path / "model" / "modules.json").touch()
    (tmp_path / "model" / "README.md").write_text("card", encoding="utf-8")
    (tmp_path / "corpus" / "corpus.json").touch()
    write(tmp_path / "corpus" / "rejects.jsonl", [{"place": "record 1", "text": "rejected"}])
    write(tmp_path / "corpus" / "documents" / "00000.parquet", ROWS)
    return tmp_path


def test_the_texts_of_a_folder_are_read(
    mixed_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = Document("cat", None, {"file": "a.txt", "line": 1})
    assert read(mixed_folder) == [line, *EXPECTED, Document("ship", "7")]
    assert "not read: 1 without a suffix, 1 .png; convert them to" in caplog.text


def test_the_commonest_suffixes_that_are_not_read_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("cat\n", encoding="utf-8")
    for suffix_number in range(9):
        for file_number in range(9 - suffix_number):
            (tmp_path / f"{file_number}.x{suffix_number}").touch()
    assert len(read(tmp_path)) == 1
    assert "not read: 9 .x0, 8 .x1," in caplog.text
    assert ", 2 .x7; convert them to" in caplog.text


def test_tables_of_a_folder_may_have_different_columns(mixed_folder: Path) -> None:
    source = open_source(mixed_folder)
    assert list(source.read())
    assert source.columns == {"text_column": None, "id_column": None}


@pytest.mark.parametrize(
    ("folder_name", "reason"), [("empty", "no texts"), ("corpus", "an encoded corpus")]
)
def test_folders_without_texts_are_refused(
    mixed_folder: Path,
    folder_name: str,
    reason: str,
) -> None:
    with pytest.raises(ValueError, match=reason):
        read(mixed_folder / folder_name)


def test_rows_of_a_folder_without_an_id_name_their_file(tmp_path: Path) -> None:
    table_rows = [{"text": "cat", "year": 2019}, {"text": "ship", "year": 2024}]
    for file_name in ("b.jsonl", "c.csv", "d.parquet"):
        write(tmp_path / file_name, table_rows)
    array = '[{"text":\n"cat"},\n{"text": "ship"}]\n'
    (tmp_path / "e.jsonl").write_text(array, encoding="utf-8")
    metadata = []
    for source_record in read(tmp_path):
        assert isinstance(source_record, Document)
        if source_record.text == "ship":
            metadata.append((source_record.metadata, source_record.position_keys))
    assert metadata == [
        ({"file": "b.jsonl", "year": 2024, "line": 2}, ("line",)),
        ({"file": "c.csv", "year": "2024", "line": 3}, ("line",)),
        ({"file": "d.parquet", "year": 2024, "row": 1}, ("row",)),
        ({"file": "e.jsonl", "line": 3}, ("line",)),
    ]


def test_rows_of_a_single_file_do_not_name_it(tmp_path: Path) -> None:
    (document,) = read(write(tmp_path / "a.jsonl", [{"text": "cat", "year": 2019}]))
    assert document == Document("cat", None, {"year": 2019})


@pytest.mark.parametrize(
    "place", [{"file": "own.py", "line": 7}, {"file": "own.py"}, {"line": 7}, {"row": 7}]
)
def test_columns_that_name_a_file_stay(tmp_path: Path, place: dict[str, Any]) -> None:
    write(tmp_path / "a.jsonl", [{"text": "king", **place, "id": None}])
    (document,) = read(tmp_path)
    assert document == Document("king", None, place)


def test_the_position_does_not_count_in_the_content_of_a_document() -> None:
    first = Document("cat", None, {"file": "a.txt", "line": 1}, position_keys=("line",))
    moved = Document("cat", None, {"file": "a.txt", "line": 9}, position_keys=("line",))
    assert first.content_hash == moved.content_hash
    in_other_file = Document("cat", None, {"file": "b.txt", "line": 1}, position_keys=("line",))
    assert first.content_hash != in_other_file.content_hash
    with_line_of_its_own = Document("cat", None, {"file": "a.txt", "line": 1})
    assert first.content_hash != with_line_of_its_own.content_hash
    # A document with an id is recognized by all that it has.
    assert replace(first, id="a").content_hash != replace(moved, id="a").content_hash


def test_the_order_of_keys_does_not_count_in_the_content_of_a_document() -> None:
    document = Document("cat", None, {"a": 1, "b": {"c": 2, "d": 3}})
    reordered = Document("cat", None, {"b": {"d": 3, "c": 2}, "a": 1})
    assert reordered.content_hash == document.content_hash
    other_type = Document("cat", None, {"a": 1.0, "b": {"c": 2, "d": 3}})
    assert other_type.content_hash != document.content_hash


def test_the_digest_of_a_document_is_that_which_indexes_hold() -> None:
    """If it changed, an index would not recognize the documents that it holds."""
    document = Document("狗", "a", {"c": [1, 1.5], "b": None})
    content = '{"id": "a", "metadata": {"b": null, "c": [1, 1.5]}, "text": "狗"}'
    expected_digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    assert document.content_hash == expected_digest


def test_times_of_numpy_are_iso_strings() -> None:
    moment = np.datetime64("2024-05-01T10:00:00.5", "ns")
    row = {"text": "cat", "at": moment, "both": np.array([moment]), "took": moment - moment}
    (document,) = open_source([row]).read()
    assert isinstance(document, Document)
    iso_text = "2024-05-01T10:00:00.500000"
    assert document.metadata == {"at": iso_text, "both": [iso_text], "took": "0:00:00"}


@pytest.mark.parametrize("unit", ["ns", "ps", "fs", "as"])
def test_times_of_numpy_may_be_finer_than_those_of_python(unit: str) -> None:
    duration = np.timedelta64(2, "us").astype(f"timedelta64[{unit}]")
    assert to_json_value(duration) == "0:00:00.000002"


@pytest.fixture
def folder_of_texts(tmp_path: Path) -> Path:
    """Files that are one document each, or none."""
    (tmp_path / "more").mkdir()
    (tmp_path / "a.md").write_bytes("\ufeff# 猫\r\n\r\nIt sleeps.\n".encode())
    (tmp_path / "blank.md").write_text(" \n", encoding="utf-8")
    (tmp_path / "e\udcb0.md").write_text("Names are bytes.", encoding="utf-8")
    (tmp_path / "more" / "b.rst").write_text("Ships\n=====\n", encoding="utf-8")
    (tmp_path / "more" / "c.md").write_bytes(b"\xff")
    return tmp_path


CAT = Document("# 猫\n\nIt sleeps.\n", "a.md", {"file": "a.md"})


def test_files_may_be_one_document(folder_of_texts: Path) -> None:
    cat, oddly_named, ships, reject = read(folder_of_texts)
    assert cat == CAT
    assert oddly_named.id == r"e\xb0.md"
    assert ships == Document("Ships\n=====\n", "more/b.rst", {"file": "more/b.rst"})
    assert isinstance(reject, Reject)
    assert reject.place == "more/c.md, the text"
    assert reject.kind == "not utf-8"


def test_texts_alone_are_read_with_a_warning_of_rejects(
    folder_of_texts: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert read(folder_of_texts / "a.md") == [CAT]
    (oddly_named,) = read(folder_of_texts / "e\udcb0.md")
    assert oddly_named.id == "e\ufffd.md"
    assert read_texts(folder_of_texts / "a.md") == [CAT.text]
    assert not caplog.text
    write(folder_of_texts / "d.csv", [{"body": "ship"}])
    expected_texts = [CAT.text, "ship", "Names are bytes.", "Ships\n=====\n"]
    assert read_texts(folder_of_texts, "body") == expected_texts
    assert "1 records are set" in caplog.text


def test_folders_of_datasets_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list(ROWS)
    splits = datasets.DatasetDict({"train": dataset, "test": dataset.select([1])})
    splits.save_to_disk(tmp_path / "two")
    assert read(tmp_path / "two" / "train") == EXPECTED
    assert read(tmp_path / "two" / "test") == EXPECTED[1:]
    with pytest.raises(ValueError, match=r"two.train"):
        read(tmp_path / "two")


@pytest.mark.parametrize(
    ("input", "options", "error", "part_of_message"),
    [
        ([], {}, ValueError, "the list: no documents"),
        ({"text": "a"}, {}, TypeError, "the input is one dict"),
        (Document("a"), {}, TypeError, "the input is a Document"),
        (7, {}, TypeError, "the input is a int"),
        ([{}], {}, ValueError, "there: none; name one with text_column"),
        ([{"x": "a"}], {}, ValueError, "there: 'x'; name one with text_column"),
        ([{"x": "a", "y;": "b"}], {}, ValueError, "there: 'x', 'y;'; name one with text_column"),
        ([{"text": "a"}], {"text_column": "x"}, ValueError, "text_column='x' is not a column"),
        ([{"text": "a"}], {"id_column": "x"}, ValueError, "id_column='x' is not a column"),
        ([{"text": "a"}], {"id_column": "text"}, ValueError, "name another id_column"),
        (pd.DataFrame({"text": []}), {}, ValueError, "the DataFrame: no documents"),
        ([{f"c{n}": "a" for n in range(21)}], {}, ValueError, "'c18', 'c19'; name one"),
    ],
)
def test_inputs_and_columns_that_do_not_fit_are_refused(
    input: Any,
    options: dict[str, Any],
    error: type[Exception],
    part_of_message: str,
) -> None:
    with pytest.raises(error, match=part_of_message):
        read(input, **options)


def test_usual_names_of_columns_are_found() -> None:
    table_rows = [
        {"body": "cat", "_id": 1},
        {"body": "dog", "_id": None, "more": 1},
        {"other": 1},
        7,
    ]
    cat, dog, without_text, wrong_type = read(table_rows)
    assert cat == Document("cat", "1")
    assert dog == Document("dog", None, {"more": 1})
    assert isinstance(without_text, Reject)
    assert without_text.kind == "no text"
    assert isinstance(wrong_type, Reject)
    assert wrong_type.kind == "wrong type"
    assert open_source(table_rows).columns == {"text_column": "body", "id_column": "_id"}


def test_ids_may_be_uuids() -> None:
    document_id = UUID("12345678123456781234567812345678")
    expected = [Document("cat", str(document_id), {"owner": str(document_id)})]
    assert read([{"text": "cat", "id": document_id, "owner": document_id}]) == expected
    if hasattr(pa, "uuid"):  # from pyarrow 18 on
        ids = pa.array([document_id.bytes], pa.uuid())
        assert read(pa.table({"text": ["cat"], "id": ids, "owner": ids})) == expected


def test_values_that_are_no_ids_are_left_out_or_rejected() -> None:
    rows = [{"text": "cat", "id": ""}, {"text": "dog", "id": True}, {"text": "ship", "id": 1.5}]
    without_id, *rejects = read(rows)
    assert without_id == Document("cat")
    for reject, shown_id in zip(rejects, ["True", "1.5"], strict=True):
        assert isinstance(reject, Reject)
        assert reject.reason.startswith(f"wrong type: the id '{shown_id}' is not a valid string")


def test_bytes_in_place_of_the_text_are_rejected() -> None:
    (reject,) = read([{"text": b"raw", "id": "a"}])
    assert isinstance(reject, Reject)
    assert (reject.kind, reject.id) == ("wrong type", "a")


def test_rejects_of_an_input_stay() -> None:
    reject = Reject("standard input, line 1", "not utf-8: byte 0xff")
    assert read(["cat", reject]) == [Document("cat"), reject]


def test_the_column_of_the_texts_is_not_that_of_the_ids() -> None:
    assert read([{"id": "cat", "_id": "x"}], text_column="id") == [Document("cat", "x")]


def test_columns_may_be_named() -> None:
    documents = read([{"a": "cat", "text": "dog"}], text_column="a", id_column="")
    assert documents == [Document("cat", None, {"text": "dog"})]


def test_the_first_id_may_be_in_a_later_record() -> None:
    table_rows = [{"text": "cat"}, {"text": "dog", "id": "x"}]
    assert read(table_rows)[1] == Document("dog", "x")
    assert open_source(table_rows).columns["id_column"] is None
    remembered = {"text_column": "text", "id_column": "key"}
    table_rows[1]["key"] = "y"
    assert read(table_rows, remembered_columns=remembered)[1] == Document("dog", "y", {"id": "x"})


def test_a_source_is_read_once() -> None:
    source = open_source(["cat", "dog"])
    assert len(list(source.read())) == 2
    with pytest.raises(ValueError, match="once"):
        source.read()


def test_missing_cells_are_left_out() -> None:
    cells = {
        "text": ["cat", None, "dog"],
        "id": [1, 2, np.nan],
        "n": [pd.NA, 1, 2],
        "t": [pd.NaT] * 3,
    }
    cat, reject, dog = read(pd.DataFrame(cells))
    assert cat == Document("cat", "1")
    assert isinstance(reject, Reject)
    assert reject.place == "the DataFrame, row 1"
    assert dog == Document("dog", None, {"n": 2})


FRAME = pd.DataFrame(ROWS)


@pytest.mark.parametrize(
    "data_frame",
    [
        FRAME.set_index("id"),
        FRAME.set_index(["year", "id"]),
        FRAME.set_index("id", drop=False),
        FRAME.set_index("text"),
    ],
    ids=["id", "two levels", "id and column", "text"],
)
def test_a_named_index_of_pandas_is_a_column(data_frame: pd.DataFrame) -> None:
    assert read(data_frame) == EXPECTED


@pytest.mark.parametrize("series_name", ["text", "anything"])
def test_a_named_index_of_a_series_is_its_id(series_name: str) -> None:
    series = FRAME.set_index("id")["text"].rename(series_name)
    assert read(series) == [Document("猫 sleeps", "a"), Document('a "dog"', "b")]


def test_a_named_index_of_pandas_is_a_column_of_parquet(tmp_path: Path) -> None:
    FRAME.set_index("id").to_parquet(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == EXPECTED


def test_an_unnamed_index_of_pandas_is_left_out() -> None:
    unnamed = FRAME.drop(columns="id").set_axis([7, 7])
    assert [source_record.id for source_record in read(unnamed)] == [None, None]


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two columns have one name"):
        read(pd.DataFrame([["a", "b"]], columns=["text", "text"]))


PICTURE = {"bytes": b"raw", "path": None}
ROWS_WITH_IMAGES: Rows = [
    {"text": "a", "image": PICTURE, "more": [PICTURE]},
    {"text": "b", "image": None, "more": []},
]


def make_input_with_images(input_kind: str) -> Any:
    tables = {
        "dicts": list,
        "pandas": pd.DataFrame,
        "polars": pl.DataFrame,
        "arrow": pa.Table.from_pylist,
    }
    if input_kind in tables:
        return tables[input_kind](ROWS_WITH_IMAGES)
    datasets = pytest.importorskip("datasets")
    if input_kind == "generator":
        return datasets.IterableDataset.from_generator(lambda: iter(ROWS_WITH_IMAGES))
    dataset = datasets.Dataset.from_list(ROWS_WITH_IMAGES)
    if input_kind == "images":
        return dataset.cast_column("image", datasets.Image())
    if input_kind == "stream":
        return dataset.to_iterable_dataset()
    return dataset


@pytest.mark.parametrize(
    "input_kind", ["dataset", "images", "stream", "generator", "dicts", "pandas", "polars", "arrow"]
)
def test_images_are_left_out_with_one_warning(
    input_kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = read(make_input_with_images(input_kind))
    assert first == Document("a")
    assert second.text == "b"
    (warning,) = caplog.messages
    assert warning.endswith(": image, more")


DEEP_LIST: list[Any] = []
for _ in range(3000):
    DEEP_LIST = [DEEP_LIST]


@pytest.mark.parametrize(
    ("fields", "reject_kind"),
    [
        ((" \n",), "no text"),
        ((None,), "no text"),
        ((7,), "wrong type"),
        (("a" * 1_000_001,), "too long"),
        (("a", ""), "wrong type"),
        (("a", 7), "wrong type"),
        (("a", "\ud800"), "wrong type"),
        (("a", "b\0c"), "wrong type"),
        (("a", "b", {1: 2}), "wrong type"),
        (("a", "b", {"a": {1, 2}}), "wrong type"),
        (("a", "b", {"a": ["b\0c"]}), "wrong type"),
        (("a", "b", {"a\0b": 1}), "wrong type"),
        (("a", "b", [1]), "wrong type"),
        (("a", "b", {"a": DEEP_LIST}), "wrong type"),
    ],
)
def test_wrong_documents_are_rejected(
    fields: Any,
    reject_kind: str,
) -> None:
    reject = validate(Document(*fields), "here")
    assert isinstance(reject, Reject)
    assert reject.kind == reject_kind
    assert reject.place == "here"
    assert reject.id == ("b" if "b" in fields[1:2] else None)


def test_valid_documents_are_cleaned() -> None:
    assert validate(Document("a\ud800"), "here") == Document("a\ufffd")
    longest = Document("a" * 1_000_000)
    assert validate(longest, "here") == longest


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("a\n b", "a b"),
        ("a\ud800", "a\ufffd"),
        ("a" * 80, "a" * 80),
        ("a" * 81, "a" * 79 + "…"),
    ],
)
def test_a_preview_is_one_short_line(
    value: str | None,
    expected: str | None,
) -> None:
    assert preview(value) == expected


def test_metadata_are_converted_to_json() -> None:
    metadata = {
        "date": date(2020, 1, 2),
        "time": time(10, 5),
        "decimal": Decimal("1.5"),
        "number": np.float32(0.5),
        "array": np.array([1]),
        "infinite": float("inf"),
    }
    assert to_json_value(metadata) == {
        "date": "2020-01-02",
        "time": "10:05:00",
        "decimal": "1.5",
        "number": 0.5,
        "array": [1],
        "infinite": None,
    }


def test_keys_of_metadata_are_strings() -> None:
    with pytest.raises(ValueError, match="the key 1 is a int, not a string"):
        to_json_value({"pages": {1: "title"}})


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"]),
        pa.chunked_array([["a"], ["b"]]),
        pl.Series(["a", "b"]),
        pd.Series(["a", "b"]),
    ],
    ids=["array", "chunks", "polars", "pandas"],
)
def test_columns_alone_are_texts(column: Any) -> None:
    assert read(column) == [Document("a"), Document("b")]


def test_a_folder_of_texts_may_be_called_documents(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.md").write_text("cat", encoding="utf-8")
    (document,) = read(tmp_path)
    assert document.id == "documents/a.md"


def test_a_folder_of_texts_may_have_a_file_called_as_the_header_of_a_corpus(
    tmp_path: Path,
) -> None:
    (tmp_path / "corpus.json").touch()
    (tmp_path / "a.md").write_text("cat", encoding="utf-8")
    (document,) = read(tmp_path)
    assert document.id == "a.md"


@pytest.mark.parametrize(
    ("count", "subject"), [(1, "1 record is"), (2, "all 2 records are"), (3, "all 3 records are")]
)
def test_up_to_three_rejects_are_all_described(count: int, subject: str) -> None:
    rejects = [Reject("here", "no text: it is blank")] * count
    examples = " | ".join(map(str, rejects))
    assert describe_rejects(rejects) == f"no documents: {subject} set aside: {examples}"


@pytest.mark.parametrize("value", [pl.DataFrame({"text": ["a"]}).lazy(), 5])
def test_the_error_about_an_unreadable_input_names_its_type(value: Any) -> None:
    message = f"the input is a {type(value).__name__}; give a file, a table, or a list"
    with pytest.raises(TypeError, match=message):
        open_source(value)
