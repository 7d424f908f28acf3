"""Files and streams that do not fit their name are recognized, or refused with a remedy."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

import st_reba
from st_reba.corpus import Document, Reject
from st_reba.corpus.source import open_source, read_stream, read_texts

LINES = [f"d{number},Line {number} is about trains.,en\n" for number in range(1, 11)]


def read(path: Path, file_content: str | bytes, **options: Any) -> list[Document | Reject]:
    if isinstance(file_content, str):
        file_content = file_content.encode()
    path.write_bytes(file_content)
    return list(open_source(path, **options).read())


def ids_and_places(records: list[Document | Reject]) -> tuple[list[str | None], list[str]]:
    """Ids of documents, and places of rejects."""
    document_ids = []
    reject_places = []
    for record in records:
        if isinstance(record, Document):
            document_ids.append(record.id)
        else:
            reject_places.append(record.place)
    return document_ids, reject_places


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
def test_a_quote_that_nobody_closes_costs_its_own_line(
    tmp_path: Path,
    later_lines: dict[int, str],
) -> None:
    lines = LINES.copy()
    lines[4] = 'd5,"A quote that nobody closes,en\n'
    for line_index, line in later_lines.items():
        lines[line_index] = line
    records = read(tmp_path / "a.csv", "id,text,lang\n" + "".join(lines))
    document_ids, reject_places = ids_and_places(records)
    assert document_ids == ["d1", "d2", "d3", "d4", "d6", "d7", "d8", "d9", "d10"]
    assert reject_places == ["a.csv, line 6"]
    with pytest.raises(ValueError, match=r"line 6: .*quote opens in this line and is not closed"):
        list(open_source(tmp_path / "a.csv").strict().read())


def test_texts_of_several_lines_stay_whole(tmp_path: Path) -> None:
    poem = "Roses, red\nViolets, blue\nSugar, sweet"
    prose = "one, two\nthree, four, five\nsix, seven"
    records = read(tmp_path / "a.csv", f'id,text\n1,"{poem}"\n2,b\n')
    assert records == [Document(poem, "1"), Document("b", "2")]
    records = read(tmp_path / "a.csv", f'id,text,lang\n1,"{prose}",en\n2,"{prose}",en\n')
    assert [record.text for record in records] == [prose, prose]


@pytest.mark.parametrize(
    "text",
    [
        "Société Dupont\n12, rue de la Paix",
        "Steps:\n8, 9 and 10 are optional",
        "Hello\nd2, come here",
        "Price\n12,50 euros",
        "Sizes\nA4,of a printer",
        f"Digits of pi\n{'3' * 5000},and so on",
        "\n".join(f"flour{number}, 50 g" for number in range(12)),
    ],
)
def test_a_text_whose_lines_look_like_rows_stays_whole(tmp_path: Path, text: str) -> None:
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "text"], ["7", text], ["12", "A different text"]])
    records = list(open_source(tmp_path / "a.csv").read())
    assert records == [Document(text, "7"), Document("A different text", "12")]


def test_a_quote_that_joins_rows_is_noticed_where_spaces_follow_separators(tmp_path: Path) -> None:
    lines = 'd1, a, en\nd2, "open, en\nd3, b, en\nd4, c", en\nd5, d, en\n'
    document_ids, reject_places = ids_and_places(read(tmp_path / "a.csv", f"id, text, n\n{lines}"))
    assert document_ids == ["d1", "d3", "d4", "d5"]
    assert reject_places == ["a.csv, line 3"]


def test_an_open_quote_in_the_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: a quote opens"):
        read(tmp_path / "a.csv", 'id,"text,lang\n1,a,b\n')


@pytest.mark.parametrize("file_name", ["a.csv", "a.tsv", "a.csv.gz"])
@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_the_separator_is_recognized(
    tmp_path: Path,
    file_name: str,
    separator: str,
) -> None:
    rows = ["id;text", '1;"Hallo; Welt, ""ja"""', "2;3.5 or 3:5", ""]
    file_content = "\n".join(rows).replace(";", separator).encode()
    if file_name.endswith(".gz"):
        file_content = gzip.compress(file_content)
    records = read(tmp_path / file_name, file_content)
    assert records == [Document(f'Hallo{separator} Welt, "ja"', "1"), Document("3.5 or 3:5", "2")]


@pytest.mark.parametrize(
    ("file_content", "expected_document"),
    [
        (b"sep=;\r\nid;text\r\n1;a, b\r\n", Document("a, b", "1")),
        ("id\ttext\n1\t\u00e4\n".encode("utf-16"), Document("\u00e4", "1")),
        (b"text\na; b\n", Document("a; b")),
        (b"text,a;b\ncat,x;y\n", Document("cat", metadata={"a;b": "x;y"})),
        (b'id, text\n1, "a, b"\n', Document("a, b", "1")),
        (b'sep=,\nid, "text"\n1, a\n', Document("a", "1")),
        (b" id,text \n1, a\n", Document(" a", "1")),
        (b"text\n a\n", Document(" a")),
        (b"id, text,n\n1, a,2\n", Document(" a", "1", {"n": "2"})),
    ],
    ids=[
        "named",
        "UTF-16",
        "one column",
        "two that fit",
        "spaces",
        "named, spaces",
        "spaces in names alone",
        "space in one column",
        "space after one separator",
    ],
)
def test_separators_of_excel_and_of_one_column(
    tmp_path: Path,
    file_content: bytes,
    expected_document: Document,
) -> None:
    assert read(tmp_path / "a.csv", file_content) == [expected_document]


def test_a_separator_that_fits_half_of_the_lines_is_recognized(tmp_path: Path) -> None:
    document, reject = read(tmp_path / "a.csv", "id;text\n1;a\n2;b;c\n")
    assert document == Document("a", "1")
    assert isinstance(reject, Reject)


def test_the_error_about_an_unknown_separator_names_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'id~text'; columns are separated by ',', ';'"):
        read(tmp_path / "a.csv", "id~text\n1~a\n")


@pytest.mark.parametrize("separator", [";", "|", "\t"])
def test_a_title_above_the_names_of_the_columns_is_not_offered_as_the_text(
    tmp_path: Path, separator: str
) -> None:
    """Whoever names it with text_column indexes the separators and the ids."""
    rows = "".join(f"{number}{separator}a cat\n" for number in range(5))
    with pytest.raises(ValueError, match="'Report 2024'; columns are .* named in the first line"):
        read(tmp_path / "a.csv", f"Report 2024\nid{separator}text\n{rows}")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["A dog runs.\nNaïve cats.\n", "你好\n银行\n"])
def test_wide_text_without_a_mark_is_refused(
    tmp_path: Path,
    encoding: str,
    text: str,
) -> None:
    for file_name in ("a.txt", "a.csv", "a.jsonl", "a.md"):
        with pytest.raises(ValueError, match=f"a NUL, as UTF-16 .* encoding='{encoding}'"):
            read(tmp_path / file_name, text.encode(encoding))
    records = read(tmp_path / "a.txt", text.encode(encoding), encoding=encoding)
    assert records == [Document(line) for line in text.splitlines()]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_mark_tells_the_encoding(
    tmp_path: Path,
    encoding: str,
) -> None:
    assert read(tmp_path / "a.txt", "狗\n猫\n".encode(encoding)) == [Document("狗"), Document("猫")]


def test_a_nul_far_into_a_file_costs_its_line(tmp_path: Path) -> None:
    records = read(tmp_path / "a.txt", "text\n" * 20_000 + "b\0c\nlast\n")
    assert len(records) == 20_002
    _, reject_places = ids_and_places(records)
    assert reject_places == ["a.txt, line 20001"]


@pytest.mark.parametrize("file_name", ["a.json", "a.jsonl", "a.ndjson"])
def test_json_arrays_are_read(
    tmp_path: Path,
    file_name: str,
) -> None:
    rows = '[{"id": 1, "text": "a, ]"},\n\n {"id": 2, "text": "b"}, "c", 7]'
    *documents, reject = read(tmp_path / file_name, rows)
    assert documents == [Document("a, ]", "1"), Document("b", "2"), Document("c")]
    assert isinstance(reject, Reject)
    assert reject.place == f"{file_name}, item 4 (line 3)"


@pytest.mark.parametrize("file_name", ["a.json", "a.jsonl", "a.ndjson"])
def test_long_json_arrays_are_read(
    tmp_path: Path,
    file_name: str,
) -> None:
    long_row = {"text": "long " * 500}
    assert len(read(tmp_path / file_name, json.dumps([long_row] * 100))) == 100


@pytest.mark.parametrize("file_name", ["a.json", "a.ndjson"])
def test_a_broken_line_of_json_costs_itself(
    tmp_path: Path,
    file_name: str,
) -> None:
    records = read(tmp_path / file_name, '{"text": "a"}\n{"text": \n"b"\n')
    first, reject, last = records
    assert (first, last) == (Document("a"), Document("b"))
    assert isinstance(reject, Reject)


def test_the_first_line_of_a_jsonl_may_be_broken(tmp_path: Path) -> None:
    reject, document = read(tmp_path / "a.jsonl", '{"text": \n"b"\n')
    assert isinstance(reject, Reject)
    assert document == Document("b")


def test_json_values_may_take_several_lines(tmp_path: Path) -> None:
    file_content = '{\n "text": "a"\n}\n{\n "text": "b"}'
    assert read(tmp_path / "a.json", file_content) == [Document("a"), Document("b")]


@pytest.mark.parametrize(
    ("file_name", "file_content"),
    [
        ("a.jsonl", '"a"\n\ufeff"b"\n'),
        ("a.json", '[\r\n\t"a",\r\n\t"b"\r\n]\r\n'),
        ("a.json", '\n ["a", "b"]'),
        ("a.jsonl", '\n["a",\n"b"]'),
        ("a.json", '{\n"text": "a"}\n\ufeff{\n"text": "b"}'),
    ],
    ids=["joined lines", "indented", "space before", "line before", "joined values"],
)
def test_marks_and_white_space_between_values_of_json_are_skipped(
    tmp_path: Path,
    file_name: str,
    file_content: str,
) -> None:
    assert read(tmp_path / file_name, file_content) == [Document("a"), Document("b")]


@pytest.mark.parametrize(
    "file_content",
    [
        '[{"text": "a"},\n{"text":}]',
        '[{"text": "a"},\n{"te',
        '["a"\n"b"]',
        '["a"]\n["b"]',
        '["a"\n',
        '["a",\n' + "[" * 10**5,
        "\n" + '{"a": ' * 10**5,
    ],
    ids=["no value", "cut in a key", "no comma", "two arrays", "no end", "too deep", "deep line"],
)
def test_broken_json_is_refused(
    tmp_path: Path,
    file_content: str,
) -> None:
    with pytest.raises(ValueError, match="line 2: no JSON: "):
        read(tmp_path / "a.json", file_content)


def test_the_length_of_json_values_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by itself, also where it begins late in what is read at once."""
    monkeypatch.setattr("st_reba.corpus.text_files.MAX_CHARS", 80)
    monkeypatch.setattr("st_reba.corpus.json_rows._CHUNK", 128)
    texts = [letter * 50 for letter in "abcd"]
    records = read(tmp_path / "a.json", json.dumps(texts))
    assert records == [Document(text) for text in texts]
    with pytest.raises(ValueError, match="or a value of more than 80 characters"):
        read(tmp_path / "a.json", f'["{"c" * 200}"]')


def test_a_number_of_json_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it lies across what is read at once."""
    monkeypatch.setattr("st_reba.corpus.json_rows._CHUNK", 64)
    text = "a" * 59
    document, reject = read(tmp_path / "a.json", f'["{text}",12]')
    assert document == Document(text)
    assert isinstance(reject, Reject)


def test_settings_in_a_folder_are_no_texts(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "package.json").write_text('{"name": "x"}', encoding="utf-8")
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-8")
    assert len(list(open_source(tmp_path).read())) == 1
    assert "not read: 1 .json; name each by itself, or convert it to another of" in caplog.text


def test_a_file_of_a_folder_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes("text\n".encode("utf-16-le"))
    (tmp_path / "c.csv.gz").write_bytes(b"no gzip")
    _, reject_places = ids_and_places(list(open_source(tmp_path).read()))
    assert reject_places == ["b.txt", "c.csv.gz"]


SUFFIXES = [".txt", ".jsonl", ".json", ".csv", ".tsv", ".md"]


def compressible(suffix: str) -> bytes:
    """Content that a file with this suffix may have."""
    if suffix == ".json":
        return b'["a"]\n'
    return b'"text"\n' * 500


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_compressed_files_are_read_by_their_name(
    tmp_path: Path,
    suffix: str,
) -> None:
    compressed = gzip.compress(compressible(suffix))
    assert read(tmp_path / f"a{suffix}.gz", compressed)
    with pytest.raises(ValueError, match="compressed by gzip; let its name end in .gz"):
        read(tmp_path / f"a{suffix}", compressed)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_compressed_files_are_refused(
    tmp_path: Path,
    suffix: str,
) -> None:
    file_content = compressible(suffix)
    compressed = gzip.compress(file_content)
    damages = {
        file_content: "gzip did not write it",
        compressed[:-9]: "cut or damaged",
        compressed[:-8] + b"\0" * 8: "cut or damaged",
    }
    for damaged_content, reason in damages.items():
        with pytest.raises(ValueError, match=f"a{suffix}.gz: .*{reason}"):
            read(tmp_path / f"a{suffix}.gz", damaged_content)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ValueError, match=r"pipe\.txt: no regular file"):
        open_source(tmp_path / "pipe.txt")


@pytest.mark.parametrize("path", ["", " "])
def test_a_blank_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="names no file or folder"):
        open_source(path)


def test_compressed_parquet_is_not_supported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"suffix '\.parquet\.gz' is not supported"):
        read(tmp_path / "a.b.parquet.gz", b"")


@pytest.mark.parametrize("encoding", ["", "nonsense", "base64", "undefined", "a\0"])
def test_unknown_encodings_are_refused(
    tmp_path: Path,
    encoding: str,
) -> None:
    message = r"^encoding=.* is not known; name one of text"
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "a.txt", "a\n", encoding=encoding)
    with pytest.raises(ValueError, match=message):
        read_bytes(b"a\n", encoding)


DIGITS = "9" * 5_000
LINES_WITH_LONG_INTEGERS = [
    f'{{"text": "a", "n": {DIGITS}}}',
    f'{{"text": "b", "id": {DIGITS}}}',
    f'{{"text": {DIGITS}}}',
    '{"text": "c"}',
]


def check_rejects_of_long_integers(records: list[Document | Reject]) -> None:
    *rejects, expected_document = records
    assert expected_document == Document("c")
    assert len(rejects) == 3
    for reject in rejects:
        assert isinstance(reject, Reject)


def test_integers_that_python_does_not_write_reject_their_records(tmp_path: Path) -> None:
    lines = "\n".join(LINES_WITH_LONG_INTEGERS)
    array = ",".join(LINES_WITH_LONG_INTEGERS)
    number = 10**5_000
    rows = [{"text": "a", "n": number}, {"text": "b", "id": number}, {"text": number}]
    check_rejects_of_long_integers(read(tmp_path / "a.jsonl", lines))
    check_rejects_of_long_integers(read(tmp_path / "a.json", f"[{array}]"))
    check_rejects_of_long_integers(list(open_source([*rows, {"text": "c"}]).read()))


def test_escaped_surrogates_are_no_fault_of_the_encoding(tmp_path: Path) -> None:
    lines = '{"text": "a\\ud83d", "k": "\\udc80"}\n'
    assert read(tmp_path / "a.jsonl", lines) == [Document("a\ufffd", metadata={"k": "\ufffd"})]


def read_bytes(
    file_content: bytes,
    encoding: str | None = None,
) -> list[Document | Reject]:
    stream = io.BufferedReader(io.BytesIO(file_content))  # type: ignore[arg-type]
    return list(read_stream(stream, "standard input", encoding))


@pytest.mark.parametrize("file_content", ["狗\n\n\n\ufeff猫".encode(), "狗\n猫\n".encode("utf-16")])
def test_streams_are_read_as_files_are(file_content: bytes) -> None:
    assert read_bytes(file_content) == [Document("狗"), Document("猫")]


def test_a_line_of_a_stream_is_read_before_the_next_is_there() -> None:
    reading_end, writing_end = os.pipe()
    with os.fdopen(reading_end, "rb") as stream, os.fdopen(writing_end, "wb", 0) as writer:
        writer.write("狗\n".encode())
        records = read_stream(stream, "standard input")
        assert next(records) == Document("狗")
        writer.write("猫\n".encode())
        assert next(records) == Document("猫")


def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="standard input: no documents: it is empty"):
        read_bytes(b"")


def test_the_encoding_of_a_stream_may_be_named() -> None:
    file_content = "银行\n".encode("gb18030")
    assert read_bytes(file_content, "gb18030") == [Document("银行")]
    (reject,) = read_bytes(file_content)
    assert isinstance(reject, Reject)
    assert reject.place == "standard input, line 1"
    assert reject.kind == "not utf-8"


def test_wide_text_in_a_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="standard input, line 1: .*encoding='utf-16-le'"):
        read_bytes("bank\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="standard input, line 2: not utf-8: a NUL"):
        read_bytes(b"bank\nb\0ank\n")


@pytest.fixture
def unreadable_table(tmp_path: Path) -> Path:
    path = tmp_path / "a.csv"
    path.write_text("My report\nid,text\n1,a\n2,b\n3,c\n", encoding="utf-8")
    return path


def test_where_nothing_can_be_read_the_first_reasons_are_named(unreadable_table: Path) -> None:
    subject = "all 4 records are set aside"
    with pytest.raises(
        ValueError, match=rf"{subject}: a.csv, line 2: .* \| a.csv, line 3: .* \| …"
    ):
        read_texts(unreadable_table)


def test_an_index_of_nothing_names_the_first_reasons(
    tmp_path: Path,
    unreadable_table: Path,
) -> None:
    model = st_reba.build("mini")
    message = "no documents: all 4 records are set aside: a.csv, line 2: .*first line"
    with pytest.raises(ValueError, match=message):
        st_reba.Index.build(model, unreadable_table, tmp_path / "index", strict=False)


def test_remedies_name_encodings_that_can_help(tmp_path: Path) -> None:
    """Of one byte for a letter there are many, and each decodes most bytes of the others."""
    (tmp_path / "a.txt").write_bytes("f\u00fcr\n".encode("cp1252"))
    (reject,) = open_source(tmp_path / "a.txt").read()
    assert "not utf-8: byte 0xfc; " in str(reject)
    assert "'gb18030' (Chinese) or encoding='cp1252' (Western Europe)" in str(reject)
    (tmp_path / "b.txt").write_bytes("Hund\n".encode("utf-16-be"))
    with pytest.raises(ValueError, match=r"does not start with BOM.*encoding='utf-16-le'$"):
        list(open_source(tmp_path / "b.txt", encoding="utf-16").read())
