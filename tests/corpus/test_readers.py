"""Readers: every format, every reason to set a record aside with its place, and what stops at once."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from st_reba.corpus import Document, Reject, read_documents, readers
from st_reba.corpus.source import open_source
from st_reba.tables import LineError, csv_records


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def records(source: Any, **options: Any) -> list[Document | Reject]:
    return list(open_source(source, **options).records())


def texts(source: Any, **options: Any) -> list[str]:
    found = records(source, **options)
    assert all(isinstance(record, Document) for record in found), found
    return [record.text for record in found if isinstance(record, Document)]


# Strictly, one file


def test_read_txt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.TXT", b"\xef\xbb\xbf" + "一\r\n\n  \ntwo\u2028lines \nlast".encode())
    assert list(read_documents(path)) == [Document("一"), Document("two\u2028lines "), Document("last")]
    chinese = write(tmp_path / "b.txt", "中文".encode("gb18030"))
    assert list(read_documents(chinese, encoding="gb18030")) == [Document("中文")]


def test_read_jsonl(tmp_path: Path) -> None:
    lines = '{"text": "a", "id": 7, "x": [1]}\n\n"bare"\n{"id": null, "text": "\\ud800"}\n{"text": "b", "id": "q"}'
    assert list(read_documents(write(tmp_path / "a.jsonl", lines))) == [
        Document("a", "7", {"x": [1]}),
        Document("bare"),
        Document("\ufffd"),
        Document("b", "q"),
    ]
    other = read_documents(tmp_path / "a.jsonl", text_column="id", id_column="text")
    with pytest.raises(ValueError, match="line 1: 'id' is a JSON number, not a string"):
        next(other)


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ","), ("tsv", "\t")])
def test_read_csv(tmp_path: Path, suffix: str, mark: str) -> None:
    long = "长" * 200_000
    content = f'id|text|lang\r\n1|"a, ""b""\r\nc"|en\r\n\r\n|{long}|zh\r\n'.replace("|", mark)
    path = write(tmp_path / f"a.{suffix}", b"\xef\xbb\xbf" + content.encode())
    documents = list(read_documents(path))
    assert documents == [Document('a, "b"\r\nc', "1", {"lang": "en"}), Document(long, None, {"lang": "zh"})]
    assert next(read_documents(path, text_column="lang", id_column="text")).id == 'a, "b"\r\nc'
    assert next(read_documents(path, id_column="text")).id == 'a, "b"\r\nc'


BAD = [
    ("a.txt", b"ok\nbad \xff\n", "line 2: not UTF-8 .byte 0xff.*gb18030"),
    ("a.jsonl", b'"ok"\n\n"\xc3"\n', "line 3: not UTF-8"),
    ("a.csv", b"text\nok\n\xe4\xb8\n", "line 3: not UTF-8"),
    ("a.jsonl", '"ok"\n{"text": \n', "line 2: not JSON .*one JSON object"),
    ("a.jsonl", "[" * 100_000, "line 1: not JSON"),
    ("a.jsonl", "[1]", "line 1: a JSON array"),
    ("a.jsonl", "null", "line 1: a JSON null"),
    ("a.jsonl", '{"body": "x", "id": 1}', "line 1: no key 'text'; there: 'body', 'id'; .*text_column"),
    ("a.jsonl", '{"text": null}', "line 1: 'text' is a JSON null"),
    ("a.jsonl", '{"text": "x", "id": true}', "line 1: 'id' is a JSON boolean"),
    ("a.jsonl", '{"text": "x", "id": ""}', "line 1: the id is empty"),
    ("a.jsonl", '{"text": " "}', "line 1: no text"),
    ("a.jsonl", '""', "line 1: no text"),
    ("a.csv", "text,id\nok,1\n ,2\n", "line 3: no text"),
    ("a.csv", "text,id\na,1\nb,2,3\n", "line 3: 3 fields, but the header has 2"),
    ("a.tsv", "text\tid\nb\n", "line 2: 1 fields"),
    ("a.tsv", 'text\tid\n"Yes" he said\t1\n', "line 2: .*in quotes"),
    ("a.csv", 'text\nok\n"never closed\nmore\n', "line 3: .*in quotes"),
]
FATAL = [
    ("a.csv", "body,id\nx,1\n", "line 1: no column 'text'; there: 'body', 'id'"),
    ("a.csv", "", "line 1: the file is empty"),
    ("a.csv", "text,text\n", "line 1: the header names 'text' twice"),
    ("a.csv", b"text,\xff\n", "line 1: not UTF-8"),
    ("a.tsv", 'text\t"b" c\nx\ty\n', "line 1: .*in quotes"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD + FATAL)
def test_unreadable_lines(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path}/{name}, {message}"):
        list(read_documents(write(tmp_path / name, content)))


def test_unreadable_paths(tmp_path: Path) -> None:
    for read in (read_documents, open_source):
        with pytest.raises(ValueError, match="'.json' is not supported; use one of .txt, .jsonl, .csv, .tsv"):
            read(write(tmp_path / "a.json", "[]"))
        with pytest.raises(FileNotFoundError, match="no such file"):
            read(tmp_path / "a.txt")
        path = write(tmp_path / "a.jsonl", '{"text": "x"}\n')
        with pytest.raises(ValueError, match="unknown encoding 'utf-88'"):
            read(path, encoding="utf-88")
    with pytest.raises(ValueError, match='"-" .* is not supported'):
        read_documents("-")
    with pytest.raises(ValueError, match="no key 'key'; .*id_column"):
        next(read_documents(path, id_column="key"))
    utf16 = write(tmp_path / "b.txt", "one\ntwo\n".encode("utf-16") + b"\x00\xd8")
    for read in (read_documents, lambda path, **options: records(path, **options)):
        with pytest.raises(ValueError, match="b.txt, after line .*not utf-16"):
            list(read(utf16, encoding="utf-16"))


def test_reading_streams(tmp_path: Path) -> None:
    documents = read_documents(write(tmp_path / "a.txt", b"line\n" * 100_000 + b"\xff"))
    assert next(documents).text == "line"
    with pytest.raises(ValueError, match="line 100001: not UTF-8"):
        list(documents)


# Set aside


@pytest.mark.parametrize(("name", "content", "message"), BAD)
@pytest.mark.parametrize("zipped", [False, True])
def test_set_aside(tmp_path: Path, name: str, content: str | bytes, message: str, zipped: bool) -> None:
    """The record is set aside with its place, and those around it are read."""
    raw = (content.encode() if isinstance(content, str) else content).rstrip(b"\n")
    last = {"a.jsonl": b'"after"', "a.csv": b'"after"', "a.tsv": b"after", "a.txt": b"after"}[name]
    if name[-3:] in ("csv", "tsv") and b"id" in raw.split(b"\n")[0]:
        last += b",9" if name == "a.csv" else b"\t9"
    raw += b"\n" + last + b"\n"
    path = write(tmp_path / (f"{name}.gz" if zipped else name), gzip.compress(raw) if zipped else raw)
    found = records(path)
    (bad,) = [record for record in found if isinstance(record, Reject)]
    place, _, reason = message.partition(": ")
    assert bad.place == f"{path.name}, {place}" and re.search(reason, bad.reason)
    assert (bad.text is None) == ("'text' is a JSON null" in message) and len(bad.text or "") <= 80
    assert isinstance(found[-1], Document) and found[-1].text == "after"
    assert (found[0] == Document("ok", "1" if "id" in str(content)[:8] else None)) == ("ok" in str(content))


@pytest.mark.parametrize(("name", "content", "message"), FATAL)
def test_a_bad_header_stops(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}, {message}"):
        records(write(tmp_path / name, content))


def test_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text over the bound is named; a line over its own bound is never held whole."""
    path = write(tmp_path / "a.txt", "x" * 50 + "\n" + "y" * 51 + "\nend\n")
    found = records(path, max_chars=50)
    assert [type(record) for record in found] == [Document, Reject, Document]
    assert str(found[1]).startswith("a.txt, line 2: the text has 51 characters, more than 50; ")
    assert "--max-chars" in str(found[1])
    monkeypatch.setattr(readers, "MAX_LINE", 1000)
    for name, head, line, last in (
        ("b.txt", "", "{}\n", "end\n"),
        ("b.jsonl", "", '"{}"\n', '"end"'),
        ("b.csv", "text,id\n", '"{}",1\n', "end,2\n"),
        ("b.csv.gz", "text,id\n", '"first\n{}",1\n', "end,2\r\n"),
    ):
        content = head + line.format("z" * 1_000_000) + last
        write(tmp_path / name, gzip.compress(content.encode()) if name.endswith("gz") else content)
        found = records(tmp_path / name, max_chars=50)
        long = [record for record in found if isinstance(record, Reject) and "the line has 1,000,00" in record.reason]
        # Of a row of several lines, its first line is set aside for it, then the long one.
        assert len(long) == 1 + ("first" in line) and "more than 1,000; " in long[0].reason
        assert isinstance(found[-1], Document) and found[-1].text == "end"
    # At the bound itself, with and without an end of line.
    for text in ("w" * 999 + "\n", "w" * 1000, "w" * 1000 + "\n", "w" * 1001):
        (reject,) = records(write(tmp_path / "c.txt", text), max_chars=83)
        assert ("the line has" in str(reject)) == (len(text) > 1000) != ("the text has" in str(reject))


def test_lines_are_read_with_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = readers._open

    class Spy:
        def __init__(self, file: Any) -> None:
            self.file = file

        def readline(self, limit: int) -> Any:
            asked.append(limit)
            return self.file.readline(limit)

        def __enter__(self) -> Spy:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

    monkeypatch.setattr(readers, "MAX_LINE", 1000)
    monkeypatch.setattr(readers, "_open", lambda *args: Spy(real(*args)))
    records(write(tmp_path / "a.txt", "z" * 100_000 + "\nend"), max_chars=9)
    assert set(asked) == {1000} and len(asked) >= 101


def test_stray_quotes_take_no_other_row(tmp_path: Path) -> None:
    content = 'text,id\n"open,1\nsecond,2\nthird,3\n"four" x,4\n"five\nlines",5\n"six,6\nseven,7\n'
    found = records(write(tmp_path / "a.csv", content))
    assert [record.text for record in found if isinstance(record, Document)] == [
        "second",
        "third",
        "five\nlines",
        "seven",
    ]
    assert [(r.place, r.text) for r in found if isinstance(r, Reject)] == [
        ("a.csv, line 2", '"open,1'),
        ("a.csv, line 5", '"four" x,4'),
        ("a.csv, line 8", '"six,6'),
    ]


def test_csv_records_numbers_lines() -> None:
    lines: list[str | LineError] = ["a,b\n", LineError("too long"), "\n", '1,"\n', '2"\n', '"x" y\n', "3,4\n"]
    assert [(line, row if isinstance(row, list) else None) for line, row, _ in csv_records(lines, ",")] == [
        (1, ["a", "b"]),
        (2, None),
        (4, ["1", "\n2"]),
        (6, None),
        (7, ["3", "4"]),
    ]


@pytest.mark.parametrize("cut", [10, 200, -9, -1])
def test_damaged_gzip(tmp_path: Path, cut: int) -> None:
    lines = "".join(f"line {number} {number * 7919 % 10007}\n" for number in range(2000))
    whole = gzip.compress(lines.encode(), mtime=0)
    path = write(tmp_path / "a.txt.gz", whole[:cut])
    with pytest.raises(ValueError, match=r"a.txt.gz, after line \d+: damaged or truncated gzip"):
        records(path)
    write(path, whole[:100] + bytes(100) + whole[200:])
    with pytest.raises(ValueError, match="damaged or truncated gzip"):
        records(path)
    with pytest.raises(ValueError, match="damaged or truncated gzip"):
        records(write(path, "no gzip at all\n"))


# Parquet and datasets


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    moment = datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=UTC)
    path = parquet(
        tmp_path / "part-3.parquet",
        {
            "text": pa.array(["a", None, "  ", "\u4e00" * 9]).dictionary_encode(),
            "id": pa.array([1, 2, 3, None], pa.int32()),
            "score": [0.5, 1.0, 1.0, float("nan")],
            "day": [date(2024, 2, 29)] * 4,
            "moment": pa.array([moment] * 4, pa.timestamp("ns", "UTC")),
            "nested": [{"list": [1, 2], "day": date(2024, 1, 1)}] * 4,
            "flag": [True, None, None, None],
            "image": [b"\x00"] * 4,
            "__index_level_0__": [5, 6, 7, 8],
        },
        row_group_size=2,
    )
    with pytest.warns(UserWarning, match="left out of the metadata.*'image' .binary."):
        found = records(path, max_chars=9)
    metadata = {
        "score": 0.5,
        "day": "2024-02-29",
        "moment": "2024-02-29T12:30:00.250000+00:00",
        "nested": {"list": [1, 2], "day": "2024-01-01"},
        "flag": True,
    }
    assert found[0] == Document("a", "1", metadata)
    assert found[3] == Document("\u4e00" * 9, None, {**metadata, "score": None, "flag": None})
    assert [str(record).partition(";")[0] for record in found[1:3]] == [
        "part-3.parquet, row 1: 'text' is null, not a string",
        "part-3.parquet, row 2: no text: it is empty or blank",
    ]
    with pytest.warns(UserWarning):
        assert next(read_documents(path)).text == "a"


def test_parquet_refuses(tmp_path: Path) -> None:
    for options, message in (
        ({"text_column": "body"}, "a.parquet: no column 'body'; there: 'text', 'n', 'x'; .*--text-column"),
        ({"text_column": "n"}, "a.parquet: the column 'n' holds int64, not strings"),
        ({"id_column": "x"}, "the column 'x' holds double, not strings or whole numbers; .*--id-column"),
        ({"id_column": "key"}, "no column 'key'.*--id-column"),
    ):
        with pytest.raises(ValueError, match=message):
            records(parquet(tmp_path / "a.parquet", {"text": ["t"], "n": [1], "x": [0.5]}), **options)
    whole = (tmp_path / "a.parquet").read_bytes()
    for content in (b"nothing", whole[:-20]):
        with pytest.raises(ValueError, match="b.parquet: not a Parquet file, or damaged"):
            records(write(tmp_path / "b.parquet", content))


def test_parquet_values_that_cannot_be_read(tmp_path: Path) -> None:
    """A value that Python cannot hold sets one row aside, not its neighbours."""
    pa = pytest.importorskip("pyarrow")
    text = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0\4\0\0\0"), pa.py_buffer(b"a\xff\xfec")]
    )
    far = pa.array([1, 2, 10**15], pa.timestamp("s"))
    found = records(parquet(tmp_path / "a.parquet", {"text": text}))
    assert [getattr(record, "text", None) for record in found] == ["a", None, "c"]
    assert str(found[1]).startswith("a.parquet, row 1: a value cannot be read ('utf-8' codec")
    found = records(parquet(tmp_path / "b.parquet", {"text": ["a", "b", "c"], "when": far}))
    assert [type(record) for record in found] == [Document, Document, Reject]


def test_parquet_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken a batch at a time, also of one large row group."""
    import st_reba.corpus.arrow as arrow

    rows: list[int] = []
    real = arrow._rows
    monkeypatch.setattr(arrow, "_rows", lambda batch: rows.append(batch.num_rows) or real(batch))
    path = parquet(tmp_path / "a.parquet", {"text": [f"text {n}" for n in range(5000)]})
    reading = open_source(path).records()
    for _ in range(300):
        next(reading)
    assert rows == [256, 256]
    assert len(list(reading)) == 4700 and sum(rows) == 5000


@pytest.mark.parametrize(("module", "read"), [("pyarrow.parquet", "a.parquet"), ("datasets", "saved")])
def test_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, read: str) -> None:
    write(tmp_path / "a.parquet", "x")
    write(tmp_path / "saved" / "state.json", "{}")
    write(tmp_path / "saved" / "dataset_info.json", "{}")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"{module.partition('.')[0]}.*pip install 'st-reba\\[corpus\\]'"):
        records(tmp_path / read)


def test_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict({"text": ["a", "", "c", "d"], "id": ["x", "y", "z", None], "n": [1, 2, 3, 4]})
    made.save_to_disk(str(tmp_path / "one"), num_shards=2)
    one = records(tmp_path / "one")
    assert one == [
        Document("a", "x", {"n": 1}),
        Reject("one, row 1", "no text: it is empty or blank; leave the record out or give it a text", "y", ""),
        Document("c", "z", {"n": 3}),
        Document("d", None, {"n": 4}),
    ]
    assert records(made)[2:] == one[2:]  # in memory: it is an iterable of dictionaries
    datasets.DatasetDict({"train": made, "test": made.select([3])}).save_to_disk(str(tmp_path / "two"))
    for split, message in (
        (None, "holds several splits: choose one of train, test"),
        ("dev", "no split 'dev': .*test"),
    ):
        with pytest.raises(ValueError, match=message):
            open_source(tmp_path / "two", split=split)
    assert records(tmp_path / "two", split="test") == [Document("d", None, {"n": 4})]
    with pytest.raises(ValueError, match="no column 'body'"):
        records(tmp_path / "one", text_column="body")
    with pytest.raises(ValueError, match="split='train' belongs to a folder that DatasetDict"):
        open_source(tmp_path / "one", split="train")
    with pytest.raises(TypeError, match="one DatasetDict with the keys 'train'"):
        open_source(datasets.DatasetDict({"train": made}))
    identity = open_source(tmp_path / "two", split="test").identity
    assert identity is not None and identity["split"] == "test" and len(identity["files"]) >= 3
    write(tmp_path / "two" / "dataset_dict.json", "{")
    with pytest.raises(ValueError, match="dataset_dict.json: not a list of splits"):
        open_source(tmp_path / "two", split="test")


# Folders and several paths


def test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "b.txt", "b1\nb2\n")
    write(folder / "a" / "z.jsonl.gz", gzip.compress(b'"z"\n{"text": ""}\n'))
    write(folder / "a.csv", "text\nc\n")
    write(folder / "a" / "README.md", "no text file")
    write(folder / ".hidden" / "h.txt", "hidden\n")
    write(folder / ".h.txt", "hidden\n")
    write(folder / "out" / "corpus.json", "{}")
    write(folder / "out" / "rejects.jsonl", '"what an earlier run set aside"\n')
    source = open_source(folder)
    found = list(source.records())
    assert [getattr(record, "text", None) for record in found] == ["c", "z", "", "b1", "b2"]
    assert isinstance(found[2], Reject) and found[2].place == "a/z.jsonl.gz, line 2"
    assert source.identity is not None
    assert [(file["name"], file["bytes"]) for file in source.identity["files"]] == [
        (name, (folder / name).stat().st_size) for name in ("a.csv", "a/z.jsonl.gz", "b.txt")
    ]
    assert json.loads(json.dumps(source.identity)) == source.identity
    assert texts([folder / "b.txt", folder / "a.csv"]) == ["b1", "b2", "c"]
    several = open_source([folder / "a", folder / "b.txt"]).identity
    assert several is not None and [file["name"] for file in several["files"]] == ["a/z.jsonl.gz", "b.txt"]
    with pytest.raises(ValueError, match="out: an encoded corpus, not a folder of texts"):
        open_source(folder / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: no file that can be read.*\\.parquet"):
        open_source(tmp_path / "empty")


def test_identity_tells_change(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n")
    same = open_source(path).identity
    assert same == open_source(str(path)).identity and "/" not in json.dumps(same)
    assert open_source(path, max_chars=9).identity != same != open_source(path, encoding="utf-8").identity
    write(path, "one\ntwo\n")
    assert open_source(path).identity != same


# Iterables


def test_iterables() -> None:
    given: list[Any] = [
        "a",
        Document("b", "x", {"k": (1, 2)}),
        {"text": "c", "id": 5, "lang": "en"},
        3,
        None,
        " ",
        {"t": 1},
    ]
    found = records(iter(given))
    assert found[:3] == [Document("a"), Document("b", "x", {"k": [1, 2]}), Document("c", "5", {"lang": "en"})]
    assert [str(record).partition(";")[0] for record in found[3:]] == [
        "record 3: a int, not a text",
        "record 4: a NoneType, not a text",
        "record 5: no text: it is empty or blank",
        "record 6: no key 'text'",
    ]
    bad: list[Any] = [Document("a", id=5), Document("a", metadata={"x": object()}), Document(7)]  # type: ignore[arg-type]
    assert [str(record)[:24] for record in records(bad)] == [
        "record 0: the id is a in",
        "record 1: the metadata c",
        "record 2: the text is a ",
    ]
    assert records([{"body": "t", "key": "k"}], text_column="body", id_column="key") == [Document("t", "k")]


def test_iterables_are_read_lazily() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[str]:
        for number in range(10):
            taken.append(number)
            yield str(number)

    source = open_source(numbers())
    assert source.identity is None and source.total is None and open_source(["a"]).total == 1
    reading = source.records()
    assert taken == []
    assert [next(reading), next(reading)] == [Document("0"), Document("1")] and taken == [0, 1]


def test_ids() -> None:
    assert records(["a", "b"], ids=["x", "y"]) == [Document("a", "x"), Document("b", "y")]
    assert isinstance(records(["a"], ids=[3])[0], Reject)
    for ids in (["a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="2 texts, but"):
            open_source(["one", "two"], ids=ids)
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
        (["a"], {"split": "train"}, ValueError, "split='train'"),
        (["a"], {"max_chars": 0}, ValueError, "max_chars=0"),
        (Path(__file__), {"ids": ["a"]}, ValueError, "ids belong to an iterable"),
    ],
)
def test_bad_input(source: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_source(source, **options)
