"""Tables of every format, well formed and not."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from st_reba.corpus.tables import read_rows, read_table


def rows(path: Path, data: str | bytes, **options: str) -> list[object]:
    """The rows; in place of one that cannot be read, its line and the kind of the reason."""
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    found = read_rows(path, name="a", **options)
    return [row if isinstance(row, dict) else (place, row.partition(":")[0]) for place, row in found]


def test_delimited(tmp_path: Path) -> None:
    found = rows(tmp_path / "a.csv", '\ufefftext,n\n"a ""b"", c",1\n"two\nlines",2\n\nplain,3\r\n')
    assert found == [{"text": 'a "b", c', "n": "1"}, {"text": "two\nlines", "n": "2"}, {"text": "plain", "n": "3"}]
    # A longer field than Python's csv allows by default.
    assert rows(tmp_path / "a.csv", f"text\n{'b' * 200_000}\n") == [{"text": "b" * 200_000}]
    # Quotes of a .tsv are text unless the whole file can be read with them.
    assert rows(tmp_path / "a.tsv", 'text\tn\n"say" it\t1\n6" pipe\t2\n') == [
        {"text": '"say" it', "n": "1"}, {"text": '6" pipe', "n": "2"},
    ]  # fmt: skip
    assert rows(tmp_path / "b.tsv", 'text\tn\n"a\tb"\t1\n"c ""d"""\t2\n') == [
        {"text": "a\tb", "n": "1"}, {"text": 'c "d"', "n": "2"},
    ]  # fmt: skip
    assert len(rows(tmp_path / "a.tsv", 'text\tn\n"He\t1\nasked\t2\nit."\t3\n')) == 3
    assert rows(tmp_path / "a.tsv", 'text\n"two\nlines"\n') == [{"text": "two\nlines"}]
    assert rows(tmp_path / "a.tsv", 'text\tn\n"two\nlines"\t1\n') == [{"text": "two\nlines", "n": "1"}]
    assert rows(tmp_path / "a.tsv", 'text\tn\n"a\tb"\n') == [{"text": '"a', "n": 'b"'}]


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.csv", 'text,n\n"two\nlines",1\na,b,c\n"x"y,2\nok,3\n"open,4\nmore,5\n') == [
        {"text": "two\nlines", "n": "1"}, ("a, line 4", "wrong type"), ("a, line 5", "wrong type"),
        {"text": "ok", "n": "3"}, ("a, line 7", "wrong type"), {"text": "more", "n": "5"},
    ]  # fmt: skip
    path = tmp_path / "a.jsonl"
    assert rows(path, '{"text": "a"}\n\n{"text": \n[1]\n"b"\n' + "[" * 10**5) == [
        {"text": "a"}, ("a, line 3", "wrong type"), ("a, line 4", "wrong type"), {"text": "b"},
        ("a, line 6", "wrong type"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="line 3"):
        read_table(path)


def test_encodings(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.txt", "狗猫鱼\n".encode("gb18030"), encoding="gb18030") == [{"text": "狗猫鱼"}]
    found = rows(tmp_path / "a.txt", "ok\r\n狗猫鱼\n".encode("gb18030"))
    assert found == [{"text": "ok"}, ("a, line 2", "not utf-8")]
    assert rows(tmp_path / "a.txt", "狗\n".encode("utf-16")) == [{"text": "狗"}]
    assert rows(tmp_path / "a.txt", "\ufeff狗\n", encoding="UTF-8") == [{"text": "狗"}]
    for name, text in (("a.csv", "年,text\n1,a\n"), ("a.jsonl", '{"text": "a", "b": ["狗"]}')):
        assert rows(tmp_path / name, text.encode("gb18030"))[0][1] == "not utf-8"  # type: ignore[index]
    with pytest.raises(ValueError, match="encoding=.x. is not known"):
        rows(tmp_path / "a.txt", "a", encoding="x")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b""), ("a.csv", b"a,a\n1,2\n"), ("a.parquet", b"PAR1 nonsense"), ("a.xyz", b"a"),
        ("a.csv.gz", gzip.compress(b"a\n1\n" * 1000, mtime=0)[:-20]), ("a.csv.gz", b"nonsense"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match="a\\."):
        rows(tmp_path / name, data)
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "missing")


def test_a_table_has_columns_and_types(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "score": 1.5}\n{"text": "b"}\n"c"\n', encoding="utf-8")
    table = read_table(tmp_path / "a.jsonl")
    assert list(table["text"]) == ["a", "b", "c"] and table["score"].dtype == float and table["score"].isna().sum() == 2
    (tmp_path / "a.csv").write_text("id,score\n007,NA\n", encoding="utf-8")
    assert read_table(tmp_path / "a.csv").to_dict("records") == [{"id": "007", "score": "NA"}]


def test_parquet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fixed = pa.array([b"x"] * 600, pa.binary(1))
    table = pa.table(
        {"text": ["a"] * 600, "n": range(600), "raw": [b"x"] * 600, "fixed": fixed, "__index_level_0__": range(600)}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    found = list(read_rows(tmp_path / "a.parquet", name="a"))
    assert "columns of bytes are left out: raw, fixed" in caplog.text
    assert found[-1] == ("a, row 599", {"text": "a", "n": 599}) and len(found) == 600
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="text"):
        read_table(tmp_path / "a.parquet")


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".tsv"])
def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("st_reba.corpus.text_files.MOST_CHARS", 50)
    with pytest.raises(ValueError, match="line 2"):
        rows(tmp_path / f"a{suffix}", '"a"\n' + "b" * 120)
    assert rows(tmp_path / "a.md", "b" * 51) == [("a, the text", "too long")]
    assert rows(tmp_path / "a.md", "b" * 50) == [{"text": "b" * 50}]
    assert rows(tmp_path / "a.txt", "b" * 49 + "\nc") == [{"text": "b" * 49}, {"text": "c"}]
