"""Where documents come from: tables by column, folders, iterables; and what is none of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reading import BLANK, records, texts, write

from st_reba.corpus import Document, Reject
from st_reba.corpus.records import Reading
from st_reba.corpus.source import open_source

TABLE = {"_id": [7, 8, 9], "n": [1.5, float("nan"), None], "body": ["a", "  ", "c"]}


def table(kind: str) -> Any:
    if kind == "Arrow":
        return pytest.importorskip("pyarrow").table(TABLE)
    if kind == "datasets":
        return pytest.importorskip("datasets").Dataset.from_dict(TABLE)
    if kind == "polars":
        return pytest.importorskip("polars").DataFrame(TABLE, strict=False)
    # Filtered rows keep the numbers of the others.
    pandas = pytest.importorskip("pandas")
    return pandas.concat([pandas.DataFrame({"_id": [6]}), pandas.DataFrame(TABLE)])[1:].astype({"_id": int})


@pytest.mark.parametrize("kind", ["pandas", "polars", "Arrow", "datasets"])
def test_tables_are_read_by_column(kind: str) -> None:
    given = table(kind)
    name = {"Arrow": "Table", "datasets": "Dataset"}.get(kind, "DataFrame")
    assert open_source(given).total == 3
    assert records(given) == [
        Document("a", "7", {"n": 1.5}),
        Reject(f"the {name}, row 1", BLANK, "8", ""),
        Document("c", "9", {"n": None}),
    ]
    assert records(given, id_column="")[0] == Document("a", None, {"_id": 7, "n": 1.5})
    with pytest.raises(ValueError, match=f"the {name}: no column 'abstract'; there: '_id', 'n', 'body'"):
        open_source(given, Reading("abstract")).begun()
    with pytest.raises(ValueError, match="ids belong to an iterable of texts"):
        open_source(given, ids=["a", "b", "c"])


def test_tables_that_cannot_be_read() -> None:
    pa, datasets, pandas = (pytest.importorskip(name) for name in ("pyarrow", "datasets", "pandas"))
    with pytest.raises(ValueError, match="the Table: the header names 'text' twice"):
        records(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]))
    with pytest.raises(TypeError, match="the DatasetDict holds several datasets, 'train'; give one"):
        open_source(datasets.DatasetDict({"train": datasets.Dataset.from_dict(TABLE)}))
    with pytest.raises(ValueError, match="the DataFrame: a column .*Expected bytes, got a 'int'.*one type"):
        open_source(pandas.DataFrame({"text": ["a", 3]}))


def test_columns_and_streams_are_iterables() -> None:
    """One column is an iterable of texts, and a dataset that is streamed one of dictionaries."""
    pandas, polars, datasets = (pytest.importorskip(name) for name in ("pandas", "polars", "datasets"))
    assert texts(pandas.Series(["a", None, "c"], index=[5, 6, 7])) == ["a", None, "c"]
    assert texts(polars.Series(["a", "c"])) == ["a", "c"]
    streamed = datasets.Dataset.from_dict(TABLE).to_iterable_dataset()
    assert records(streamed)[0] == Document("a", "7", {"n": 1.5})


def test_folders_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict({"text": ["a", "", "c", "d"], "id": ["x", "y", "z", None], "n": [1, 2, 3, 4]})
    made.save_to_disk(str(tmp_path / "one"), num_shards=2)
    assert records(tmp_path / "one") == [
        Document("a", "x", {"n": 1}),
        Reject("one, row 1", BLANK, "y", ""),
        Document("c", "z", {"n": 3}),
        Document("d", None, {"n": 4}),
    ]
    datasets.DatasetDict({"train": made, "test": made.select([3])}).save_to_disk(str(tmp_path / "two"))
    assert records(tmp_path / "two", split="test") == [Document("d", None, {"n": 4})]
    for folder, split, message in (
        ("two", None, "holds several splits: choose one of train, test"),
        ("two", "dev", "no split 'dev': .*test"),
        ("one", "train", "split='train': .* does not hold several datasets"),
    ):
        with pytest.raises(ValueError, match=message):
            open_source(tmp_path / folder, Reading(split=split))
    write(tmp_path / "two" / "dataset_dict.json", "{")
    with pytest.raises(ValueError, match="dataset_dict.json: not a list of splits"):
        open_source(tmp_path / "two", Reading(split="test"))


def test_folders_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "b.txt", "b1\nb2\n")
    write(folder / "a" / "z.jsonl.gz", b'"z"\n{"text": ""}\n')
    write(folder / "a.csv", "text\nc\n")
    for name in ("a/README.md", ".hidden/h.txt", ".h.txt", "out/corpus.json", "out/documents/0.txt"):
        write(folder / name, '"not to be read"')
    found = records(folder)
    assert [one.text for one in found] == ["c", "z", "", "b1", "b2"]
    assert isinstance(found[2], Reject) and found[2].place == "a/z.jsonl.gz, line 2"
    assert texts([folder / "b.txt", folder / "a"]) == ["b1", "b2", "z", None]
    # Which file a text comes from is asked of folders of small ones.
    kept = {each.text: each.metadata for each in found if isinstance(each, Document)}
    assert kept["b1"] == {"file": "b.txt"} and not kept["c"] and not kept["z"]
    with pytest.raises(ValueError, match="out: an encoded corpus, not a folder of texts"):
        open_source(folder / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: no file that can be read.*\\.parquet"):
        open_source(tmp_path / "empty")


def test_iterables() -> None:
    given: list[Any] = [
        "a",
        Document("b", "x", {"k": (1, float("nan"))}),
        {"text": "c", "id": 5, "lang": "en"},
        3,
        None,
        " ",
        {"t": 1},
    ]
    found = records(iter(given))
    assert found[:3] == [Document("a"), Document("b", "x", {"k": [1, None]}), Document("c", "5", {"lang": "en"})]
    assert [str(one) for one in found[3:]] == [
        "record 3: wrong type: a int, not a text; give strings, Documents or dicts with a text",
        "record 4: wrong type: a NoneType, not a text; give strings, Documents or dicts with a text",
        f"record 5: {BLANK}",
        "record 6: no text: it has no 'text', only 't'; give it one",
    ]


def test_iterables_are_read_lazily() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[str]:
        for number in range(10):
            taken.append(number)
            yield str(number)

    source = open_source(numbers())
    assert source.total is None and open_source(["a"]).total == 1 and taken == []
    begun = source.begun()
    assert taken == [0]
    assert texts(begun) == [str(number) for number in range(10)]
    with pytest.raises(ValueError, match="the list: no documents: it is empty"):
        open_source([]).begun()


def test_ids() -> None:
    assert records(["a", "b"], ids=["x", "y"]) == [Document("a", "x"), Document("b", "y")]
    assert isinstance(records(["a"], ids=[3])[0], Reject)
    with pytest.raises(ValueError, match="2 texts, but 1 ids"):
        open_source(["one", "two"], ids=["a"])
    for ids, message in ((["a"], "more texts than the 1 ids"), (["a", "b", "c"], "more ids than the 2 texts")):
        with pytest.raises(ValueError, match=message):
            records(iter(["one", "two"]), ids=iter(ids))
    with pytest.raises(ValueError, match="record 0 has the id 'x'"):
        records([Document("one", id="x")], ids=["a"])
    with pytest.raises(TypeError, match="ids is one string"):
        open_source(["a"], ids="a")


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (Document("a"), {}, TypeError, "one Document"),
        (b"text", {}, TypeError, "one bytes"),
        (7, {}, TypeError, "one int"),
        ({"text": ["a"]}, {}, TypeError, "one dict with the keys 'text'"),
        ("no such text", {}, ValueError, "the suffix '' is not supported"),
        (["a"], {"split": "train"}, ValueError, "split='train' belongs to a folder of datasets"),
        (["a"], {"max_chars": 0}, ValueError, "max_chars=0"),
        (Path(__file__), {"ids": ["a"]}, ValueError, "ids belong to an iterable"),
    ],
)
def test_bad_input(source: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        records(source, **options)
