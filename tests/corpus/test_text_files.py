"""Files and streams that are not what their name says: read as what they are, or refused with a remedy."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import pytest

import st_reba
from st_reba.corpus import Document, Reject
from st_reba.corpus.source import open_source, read_stream, read_texts

LINES = [f"d{number},Line {number} is about trains.,en\n" for number in range(1, 11)]


def read(path: Path, content: str | bytes, **options: Any) -> list[Document | Reject]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(open_source(path, **options).read())


def ids_and_places(records: list[Document | Reject]) -> tuple[list[str | None], list[str]]:
    ids = [record.id for record in records if isinstance(record, Document)]
    return ids, [record.place for record in records if isinstance(record, Reject)]


@pytest.mark.parametrize(
    "later_lines",
    [
        {},
        {8: 'd9,"a quoted text",en\n'},
        {8: 'd9,"a ""twice"" quoted, text",en\n'},
        {8: 'd9,5",en\n'},
        {5: 'd6,closes in the next line",en\n'},
        {6: 'd7,"two\nlines",en\n'},
    ],
    ids=[
        "to the end",
        "quoted later",
        "quotes in quotes later",
        "closed by chance",
        "closed at once",
        "multi-line later",
    ],
)
def test_a_quote_that_nobody_closes_costs_its_own_line(tmp_path: Path, later_lines: dict[int, str]) -> None:
    lines = LINES.copy()
    lines[4] = 'd5,"A quote that nobody closes,en\n'
    for index, line in later_lines.items():
        lines[index] = line
    records = read(tmp_path / "a.csv", "id,text,lang\n" + "".join(lines))
    ids, places = ids_and_places(records)
    assert ids == ["d1", "d2", "d3", "d4", "d6", "d7", "d8", "d9", "d10"]
    assert places == ["a.csv, line 6"]
    with pytest.raises(ValueError, match=r"line 6: .*quote opens in this line and is not closed"):
        list(open_source(tmp_path / "a.csv").strict().read())


def test_texts_of_several_lines_stay_whole(tmp_path: Path) -> None:
    poem = "Roses, red\nViolets, blue\nSugar, sweet"
    prose = "one, two\nthree, four, five\nsix, seven"
    records = read(tmp_path / "a.csv", f'id,text\n1,"{poem}"\n2,b\n')
    assert records == [Document(poem, "1"), Document("b", "2")]
    records = read(tmp_path / "a.csv", f'id,text,lang\n1,"{prose}",en\n2,"{prose}",en\n')
    assert [record.text for record in records] == [prose, prose]


def test_an_open_quote_in_the_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: a quote opens"):
        read(tmp_path / "a.csv", 'id,"text,lang\n1,a,b\n')


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_the_separator_is_recognized(tmp_path: Path, name: str, separator: str) -> None:
    table = f'id{separator}text\n1{separator}"Hallo{separator} Welt, ""ja"""\n2{separator}3.5 or 3:5\n'.encode()
    records = read(tmp_path / name, gzip.compress(table) if name.endswith(".gz") else table)
    assert records == [Document(f'Hallo{separator} Welt, "ja"', "1"), Document("3.5 or 3:5", "2")]


def test_separators_of_excel_and_of_one_column(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", "sep=;\r\nid;text\r\n1;a, b\r\n") == [Document("a, b", "1")]
    assert read(tmp_path / "a.csv", "id\ttext\n1\tä\n".encode("utf-16")) == [Document("ä", "1")]
    assert read(tmp_path / "a.csv", "text\na; b\nc; d\n") == [Document("a; b"), Document("c; d")]
    with pytest.raises(ValueError, match=r"'id~text'; columns are separated by ',', ';'"):
        read(tmp_path / "a.csv", "id~text\n1~a\n")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["A dog runs.\nNaïve cats.\n", "你好\n银行\n"])
def test_wide_text_without_a_mark_is_refused(tmp_path: Path, encoding: str, text: str) -> None:
    for name in ("a.txt", "a.csv", "a.jsonl", "a.md"):
        with pytest.raises(ValueError, match=f"a NUL, as UTF-16 .* encoding='{encoding}'"):
            read(tmp_path / name, text.encode(encoding))
    wanted = [Document(line) for line in text.split()] if " " not in text else None
    records = read(tmp_path / "a.txt", text.encode(encoding), encoding=encoding)
    assert wanted in (None, records) and len(records) == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_mark_tells_the_encoding(tmp_path: Path, encoding: str) -> None:
    assert read(tmp_path / "a.txt", "狗\n猫\n".encode(encoding)) == [Document("狗"), Document("猫")]


def test_a_nul_far_into_a_file_costs_its_line(tmp_path: Path) -> None:
    records = read(tmp_path / "a.txt", "text\n" * 20_000 + "b\0c\nlast\n")
    assert len(records) == 20_002 and ids_and_places(records)[1] == ["a.txt, line 20001"]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson"])
def test_json_arrays_are_read(tmp_path: Path, name: str) -> None:
    rows = '[{"id": 1, "text": "a, ]"},\n\n {"id": 2, "text": "b"}, "c", 7]'
    *documents, reject = read(tmp_path / name, rows)
    assert documents == [Document("a, ]", "1"), Document("b", "2"), Document("c")]
    assert isinstance(reject, Reject) and reject.place == f"{name}, item 4 (line 3)"
    long_array = "[" + ",".join(f'{{"text": "{"long " * 500}{number}"}}' for number in range(100)) + "]"
    assert len(read(tmp_path / name, long_array)) == 100


def test_json_of_other_shapes(tmp_path: Path) -> None:
    lines = '{"text": "a"}\n{"text": \n"b"\n'
    for name in ("a.json", "a.ndjson"):
        first, bad, last = read(tmp_path / name, lines)
        assert (first, last) == (Document("a"), Document("b")) and isinstance(bad, Reject)
    assert read(tmp_path / "a.json", '{\n "text": "a"\n}\n{\n "text": "b"}') == [Document("a"), Document("b")]
    for broken in ('[{"text": "a"},\n{"text":}]', '[{"text": "a"},\n{"te', '["a"\n"b"]', '["a"]\n["b"]', '["a"\n'):
        with pytest.raises(ValueError, match="line 2: no JSON: "):
            read(tmp_path / "a.json", broken)


def test_settings_in_a_folder_are_no_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "package.json").write_text('{"name": "x"}', encoding="utf-8")
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-8")
    assert len(list(open_source(tmp_path).read())) == 1 and "not read: 1 .json" in caplog.text


def test_a_file_of_a_folder_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes("text\n".encode("utf-16-le"))
    (tmp_path / "c.csv.gz").write_bytes(b"no gzip")
    assert ids_and_places(list(open_source(tmp_path).read()))[1] == ["b.txt", "c.csv.gz"]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json", ".csv", ".tsv", ".md"])
def test_compressed_files(tmp_path: Path, suffix: str) -> None:
    content = b'["a"]\n' if suffix == ".json" else b'"text"\n' * 500
    compressed = gzip.compress(content)
    path = tmp_path / f"a{suffix}.gz"
    assert read(path, compressed)
    for damaged, reason in (
        (content, "gzip did not write it"),
        (compressed[:-9], "cut or damaged"),
        (compressed[:-8] + b"\0" * 8, "cut or damaged"),
    ):
        with pytest.raises(ValueError, match=f"a{suffix}.gz: .*{reason}"):
            read(path, damaged)
    with pytest.raises(ValueError, match="compressed by gzip; let its name end in .gz"):
        read(tmp_path / f"a{suffix}", compressed)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ValueError, match=r"pipe\.txt: no regular file"):
        open_source(tmp_path / "pipe.txt")
    for blank in ("", " "):
        with pytest.raises(ValueError, match="names no file or folder"):
            open_source(blank)
    with pytest.raises(ValueError, match=r"suffix '\.parquet\.gz' is not supported"):
        read(tmp_path / "a.parquet.gz", b"")


@pytest.mark.parametrize("encoding", ["", "nonsense", "base64", "undefined", "a\0"])
def test_encodings_that_are_none(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ValueError, match=r"encoding=.* is not known; name one of text"):
        read(tmp_path / "a.txt", "a\n", encoding=encoding)


def test_integers_that_python_does_not_write(tmp_path: Path) -> None:
    digits = "9" * 5_000
    lines = f'{{"text": "a", "n": {digits}}}\n{{"text": "b", "id": {digits}}}\n{{"text": {digits}}}\n{{"text": "c"}}\n'
    array = f"[{lines.strip().replace(chr(10), ',')}]"
    number = 10**5_000
    rows = [{"text": "a", "n": number}, {"text": "b", "id": number}, {"text": number}, {"text": "c"}]
    for records in (
        read(tmp_path / "a.jsonl", lines),
        read(tmp_path / "a.json", array),
        list(open_source(rows).read()),
    ):
        assert records[3] == Document("c") and all(isinstance(record, Reject) for record in records[:3])


def test_escaped_surrogates_are_no_fault_of_the_encoding(tmp_path: Path) -> None:
    lines = '{"text": "a\\ud83d", "k": "\\udc80"}\n'
    assert read(tmp_path / "a.jsonl", lines) == [Document("a\ufffd", metadata={"k": "\ufffd"})]


def test_streams_are_read_as_files_are() -> None:
    def records(content: bytes, encoding: str | None = None) -> list[Document | Reject]:
        return list(read_stream(io.BytesIO(content), "standard input", encoding))  # type: ignore[arg-type]

    assert (
        records("狗\n\n\ufeff猫".encode()) == records("狗\n猫\n".encode("utf-16")) == [Document("狗"), Document("猫")]
    )
    assert records("银行\n".encode("gb18030"), "gb18030") == [Document("银行")]
    (reject,) = records("银行\n".encode("gb18030"))
    assert isinstance(reject, Reject) and reject.place == "standard input, line 1" and reject.kind == "not utf-8"
    with pytest.raises(ValueError, match="standard input, line 1: .*encoding='utf-16-le'"):
        records("bank\n".encode("utf-16-le"))


def test_where_nothing_can_be_read_the_first_reasons_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("My report\nid,text\n1,a\n2,b\n3,c\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"all 4 records are set aside: a.csv, line 2: .* \| a.csv, line 3: .* \| …"):
        read_texts(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"no documents: all 4 records are set aside: a.csv, line 2: .*first line"):
        st_reba.Index.build(st_reba.build("mini"), tmp_path / "a.csv", tmp_path / "index", strict=False)


def test_remedies_name_encodings_that_can_help(tmp_path: Path) -> None:
    """Of one byte for a letter there are many, and each decodes most bytes of the others."""
    (tmp_path / "a.txt").write_bytes("f\u00fcr\n".encode("cp1252"))
    (reject,) = open_source(tmp_path / "a.txt").read()
    assert "'gb18030' (Chinese) or encoding='cp1252' (Western Europe)" in str(reject)
    (tmp_path / "b.txt").write_bytes("Hund\n".encode("utf-16-be"))
    with pytest.raises(ValueError, match=r"does not start with BOM.*encoding='utf-16-le'$"):
        list(open_source(tmp_path / "b.txt", encoding="utf-16").read())
