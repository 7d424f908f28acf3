"""Reading: every format and table gives the same documents, and a bad record is set aside alone, with its place."""

from __future__ import annotations

import gzip
import io
import re
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from reading import BLANK, records, texts, write

from st_reba.corpus import Document, Reject, read_documents, readers
from st_reba.corpus.records import Reading
from st_reba.corpus.source import open_source

# Lines


def test_txt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.TXT", b"\xef\xbb\xbf" + "一\r\n\n  \ntwo\u2028lines \nlast".encode())
    assert list(read_documents(path)) == [Document("一"), Document("two\u2028lines "), Document("last")]
    chinese = write(tmp_path / "b.txt.gz", "中文".encode("gb18030"))
    assert list(read_documents(chinese, encoding="gb18030")) == [Document("中文")]


def test_jsonl(tmp_path: Path) -> None:
    lines = '"bare"\n{"text": "a", "x": [1]}\n\n{"id": null, "text": "\\ud800"}\n{"text": "b", "id": 7}'
    path = write(tmp_path / "a.jsonl", lines)
    # The first object has no id, and a later one has.
    assert records(path) == [Document("bare"), Document("a", None, {"x": [1]}), Document("\ufffd"), Document("b", "7")]
    named = write(tmp_path / "b.jsonl", '{"body": "t", "key": "k", "id": 3}')
    assert records(named, text_column="body", id_column="key") == [Document("t", "k", {"id": 3})]
    assert records(named, id_column="") == [Document("t", None, {"key": "k", "id": 3})]


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ","), ("tsv.gz", "\t")])
def test_csv(tmp_path: Path, suffix: str, mark: str) -> None:
    long = "长" * 200_000
    # As pandas writes them, with a column of numbers that has no name.
    content = f'|id|text|lang\r\n0|1|"a, ""b""\r\nc"|en\r\n\r\n1||{long}|zh\r\n'.replace("|", mark)
    path = write(tmp_path / f"a.{suffix}", b"\xef\xbb\xbf" + content.encode())
    assert records(path) == [
        Document('a, "b"\r\nc', "1", {"": "0", "lang": "en"}),
        Document(long, None, {"": "1", "lang": "zh"}),
    ]
    unnamed = records(path, text_column="text", id_column="lang")[0]
    assert isinstance(unnamed, Document) and (unnamed.id, unnamed.metadata) == ("en", {"": "0", "id": "1"})
    assert next(read_documents(path, id_column="text")).id == 'a, "b"\r\nc'
    assert next(read_documents(path, id_column="")).metadata == {"": "0", "id": "1", "lang": "en"}


# What one line holds, after a good one and before another; its kind, and what the reason says.
BAD: list[tuple[str, str | bytes, str]] = [
    ("a.txt", b"bad \xff", "not UTF-8: byte 0xff; .*gb18030"),
    ("a.jsonl.gz", b'"\xc3"', "not UTF-8: "),
    ("a.csv", b"\xe4\xb8,2", "not UTF-8: "),
    ("a.jsonl", '{"text": ', "wrong type: not JSON .*one JSON object"),
    ("a.jsonl", "[" * 100_000, "wrong type: not JSON"),
    ("a.jsonl", '{"text": "x", "n": NaN}', "wrong type: not JSON .NaN is no JSON number"),
    ("a.jsonl", "[1]", "wrong type: neither a JSON object nor a JSON string"),
    ("a.jsonl", '{"body": "x", "id": 1}', "no text: it has no 'text', only 'body', 'id'"),
    ("a.jsonl", '{"text": null}', "no text: it is empty"),
    ("a.jsonl", '{"text": 3}', "wrong type: the text is of type int"),
    ("a.jsonl", '{"text": "x", "id": true}', "wrong type: the id is of type bool"),
    ("a.jsonl", '{"text": "x", "id": ""}', "wrong type: the id is empty"),
    ("a.jsonl", '{"text": "x", "id": "\\ud800"}', "wrong type: the id is no valid Unicode"),
    ("a.csv", " ,2", "no text: it is empty"),
    ("a.csv", "b,2,3", "wrong type: 3 fields, but the header has 2 columns"),
    ("a.tsv", "b", "wrong type: 1 fields"),
    ("a.tsv", '"Yes" he said\t1', "wrong type: .*in quotes"),
    ("a.csv", '"never closed', "wrong type: .*in quotes"),
]


@pytest.mark.parametrize(("name", "line", "reason"), BAD)
def test_a_bad_record_is_set_aside_alone(tmp_path: Path, name: str, line: str | bytes, reason: str) -> None:
    raw = line.encode() if isinstance(line, str) else line
    head, good = {
        "txt": (b"ok", b"ok"),
        "json": (b'{"text": "ok"}', b'"ok"'),
        "csv": (b"text,id\nok,1", b"ok,3"),
        "tsv": (b"text\tid\nok\t1", b"ok\t3"),
    }[re.sub("l?(.gz)?$", "", name.partition(".")[2])]
    path = write(tmp_path / name, b"\n".join((head, raw, good)) + b"\n")
    first, bad, last = records(path)
    assert isinstance(first, Document) and isinstance(last, Document) and first.text == last.text == "ok"
    assert isinstance(bad, Reject) and bad.place == f"{name}, line {head.count(bytes([10])) + 2}"
    assert re.match(reason, bad.reason) and "; " in bad.reason and bad.kind == reason.partition(":")[0]
    assert len(bad.text or "") <= 80
    with pytest.raises(ValueError, match=re.escape(f"{path.parent}/{bad}")):
        list(read_documents(path))


FATAL: list[tuple[str, str | bytes, str]] = [
    ("a.csv", "title,id\nx,1\n", "line 1: no column that usually holds the text; there: 'title', 'id'; .*text_column"),
    ("a.csv", "", "line 1: the file is empty"),
    ("a.csv", "text,text\n", "line 1: the header names 'text' twice"),
    ("a.csv", b"text,\xff\n", "line 1: not UTF-8"),
    ("a.tsv", 'text\t"b" c\nx\ty\n', "line 1: .*in quotes"),
    ("a.jsonl", '\n{"title": "x"}', "line 2: no column that usually holds the text"),
]


@pytest.mark.parametrize(("name", "content", "message"), FATAL)
def test_wrong_columns_stop_at_once(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}, {message}"):
        open_source(write(tmp_path / name, content)).begun()


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    good = write(tmp_path / "a.txt", "x")
    for read in (read_documents, lambda path, **options: open_source(path, Reading(**options))):
        with pytest.raises(ValueError, match="'.json' is not supported; use one of .txt, .jsonl, .csv, .tsv"):
            read(write(tmp_path / "a.json", "[]"))
        with pytest.raises(FileNotFoundError, match="no such file"):
            read(tmp_path / "b.txt")
        with pytest.raises(ValueError, match="unknown encoding 'utf-88'"):
            read(good, encoding="utf-88")
    with pytest.raises(ValueError, match='"-" .*cannot be read twice'):
        open_source("-")
    utf16 = write(tmp_path / "c.txt", "one\ntwo\n".encode("utf-16") + b"\x00\xd8")
    with pytest.raises(ValueError, match="c.txt, after line .*not utf-16"):
        records(utf16, encoding="utf-16")


def test_files_are_streamed(tmp_path: Path) -> None:
    documents = read_documents(write(tmp_path / "a.txt", b"line\n" * 100_000 + b"\xff"))
    assert next(documents).text == "line"
    with pytest.raises(ValueError, match="line 100001: not UTF-8"):
        list(documents)


# Lengths


def test_a_long_text_is_set_aside(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "x" * 50 + "\n" + "y" * 51 + "\nend\n")
    assert texts(path, max_chars=50) == ["x" * 50, None, "end"]
    assert "line 2: too long: the text has 51 characters, more than 50; " in str(records(path, max_chars=50)[1])


def test_a_long_line_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read in bounded pieces, set aside, and what follows is read."""
    asked: list[int | None] = []

    class Spy(io.TextIOWrapper):
        def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
            asked.append(size)
            return super().readline(-1 if size is None else size)

    monkeypatch.setattr(readers, "MAX_LINE", 1000)
    monkeypatch.setattr(readers, "open", lambda path, mode, **own: Spy(path.open("rb"), **own), raising=False)
    for name, head, line, last in (
        ("a.txt", "", "{}\n", "end\n"),
        ("a.jsonl", "", '"{}"\n', '"end"'),
        ("a.csv", "text,id\n", '"{}",1\n', "end,2\n"),
        ("b.csv", "text,id\n", '"first\n{}",1\n', "end,2\r\n"),
    ):
        found = records(write(tmp_path / name, head + line.format("z" * 100_000) + last), max_chars=50)
        # Of a row of several lines, its first line is set aside for it, then the long one.
        (long,) = [one for one in found if isinstance(one, Reject) and "the line has 100,0" in one.reason][-1:]
        assert long.kind == "too long" and "more than 1,000; " in long.reason
        assert isinstance(found[-1], Document) and found[-1].text == "end"
    assert set(asked) == {1000} and len(asked) > 400
    # At the bound itself, with and without an end of line.
    for text in ("w" * 999 + "\n", "w" * 1000, "w" * 1000 + "\n", "w" * 1001):
        (reject,) = records(write(tmp_path / "c.txt", text), max_chars=83)
        assert ("the line has" in str(reject)) == (len(text) > 1000) != ("the text has" in str(reject))


def test_stray_quotes_take_no_other_row(tmp_path: Path) -> None:
    content = 'text,id\n"open,1\nsecond,2\nthird,3\n"four" x,4\n"five\nlines",5\n"six,6\nseven,7\n'
    found = records(write(tmp_path / "a.csv", content))
    assert [one.text for one in found if isinstance(one, Document)] == ["second", "third", "five\nlines", "seven"]
    bad = [(one.place[-6:], one.text) for one in found if isinstance(one, Reject)]
    assert bad == [("line 2", '"open,1'), ("line 5", '"four" x,4'), ("line 8", '"six,6')]


def test_damaged_gzip(tmp_path: Path) -> None:
    lines = "".join(f"line {number} {number * 7919 % 10007}\n" for number in range(2000))
    whole = gzip.compress(lines.encode(), mtime=0)
    path = tmp_path / "a.txt.gz"
    for content in (whole[:10], whole[:200], whole[:-1], whole[:100] + bytes(100) + whole[200:], b"no gzip at all\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a.txt.gz, after line \d+: damaged or truncated gzip"):
            records(path)


# Tables, by column


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    moment = datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=UTC)
    path = parquet(
        tmp_path / "a.parquet",
        {
            "text": pa.array(["a", None, "  ", "\u4e00" * 9]).dictionary_encode(),
            "id": pa.array([1, 2, 3, None], pa.int32()),
            "score": [0.5, 1.0, 1.0, float("nan")],
            "day": [date(2024, 2, 29)] * 4,
            "moment": pa.array([moment] * 4, pa.timestamp("ns", "UTC")),
            "price": [Decimal("9.90")] * 4,
            "nested": [{"list": [1, 2], "day": date(2024, 1, 1)}] * 4,
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
        "price": "9.90",
        "nested": {"list": [1, 2], "day": "2024-01-01"},
    }
    assert found[0] == Document("a", "1", metadata)
    assert found[3] == Document("\u4e00" * 9, None, {**metadata, "score": None})
    assert [str(one) for one in found[1:3]] == [f"a.parquet, row 1: {BLANK}", f"a.parquet, row 2: {BLANK}"]


def test_parquet_that_cannot_be_read(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"text": ["t"], "n": [1], "x": [0.5]})
    refused: list[tuple[dict[str, Any], str]] = [
        ({"text_column": "body"}, "a.parquet: no column 'body'; there: 'text', 'n', 'x'; .*--text-column"),
        ({"text_column": "n"}, "a.parquet: the column 'n' holds int64, not strings"),
        ({"id_column": "x"}, "the column 'x' holds double, not strings or whole numbers; .*--id-column"),
    ]
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            open_source(path, Reading(**options)).begun()
    whole = path.read_bytes()
    for content in (b"nothing", whole[:-20]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="a.parquet: not a Parquet file, or damaged"):
            records(path)


def test_values_that_python_cannot_hold(tmp_path: Path) -> None:
    """One row is set aside, not its neighbours."""
    pa = pytest.importorskip("pyarrow")
    raw = [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0\4\0\0\0"), pa.py_buffer(b"a\xff\xfec")]
    found = records(parquet(tmp_path / "a.parquet", {"text": pa.Array.from_buffers(pa.string(), 3, raw)}))
    assert [getattr(one, "text", None) for one in found] == ["a", None, "c"]
    assert "row 1: wrong type: a value cannot be read ('utf-8' codec" in str(found[1])
    far = pa.array([1, 2, 10**15], pa.timestamp("s"))
    assert texts(parquet(tmp_path / "b.parquet", {"text": ["a", "b", "c"], "when": far})) == ["a", "b", None]


@pytest.mark.parametrize("kind", ["parquet", "table"])
def test_rows_are_taken_a_batch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Also of one large row group, and of a table in memory."""
    pa = pytest.importorskip("pyarrow")
    rows: list[int] = []
    real = readers._rows

    def counted(batch: Any) -> Iterator[Any]:
        rows.append(batch.num_rows)
        return real(batch)

    monkeypatch.setattr(readers, "_rows", counted)
    columns = {"text": [f"text {number}" for number in range(5000)]}
    source = pa.table(columns) if kind == "table" else parquet(tmp_path / "a.parquet", columns)
    reading = open_source(source).read()
    for _ in range(300):
        next(reading)
    assert rows == [256, 256]
    assert len(list(reading)) == 4700 and sum(rows) == 5000


@pytest.mark.parametrize(("module", "read"), [("pyarrow.parquet", "a.parquet"), ("datasets", "saved")])
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, read: str) -> None:
    for name in ("a.parquet", "saved/state.json", "saved/dataset_info.json"):
        write(tmp_path / name, "{}")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"{module.partition('.')[0]}.*pip install 'st-reba\\[corpus\\]'"):
        records(tmp_path / read)
