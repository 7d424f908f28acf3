"""Tables of every format, well formed and not."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from st_reba.corpus.tables import holds_bytes, read_rows, read_table, table_rows

WRONG = "wrong type"


def rows(path: Path, content: str | bytes, **options: str) -> list[object]:
    """The rows; in place of an unreadable one, its line and the kind of the reason."""
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    readable_rows: list[object] = []
    for row_place, row in read_rows(path, name="a", **options):
        if isinstance(row, str):
            reason_kind, _, _ = row.partition(":")
            readable_rows.append((row_place, reason_kind))
        else:
            readable_rows.append(row)
    return readable_rows


def test_quotes_of_csv_enclose_fields(tmp_path: Path) -> None:
    content = '\ufefftext,n\n"a ""b"", c",1\n"two\nlines",2\n\nplain,3\r\n"He,it\nruns",yes\n'
    assert rows(tmp_path / "a.csv", content) == [
        {"text": 'a "b", c', "n": "1"},
        {"text": "two\nlines", "n": "2"},
        {"text": "plain", "n": "3"},
        {"text": "He,it\nruns", "n": "yes"},
    ]


def test_fields_may_be_longer_than_python_allows_by_default(tmp_path: Path) -> None:
    long_text = "b" * 200_000
    assert rows(tmp_path / "a.csv", f"text\n{long_text}\n") == [{"text": long_text}]


@pytest.mark.parametrize(
    ("content", "expected_rows"),
    [
        (
            'text\tn\n"say" it\t1\n6" pipe\t2\n',
            [{"text": '"say" it', "n": "1"}, {"text": '6" pipe', "n": "2"}],
        ),
        (
            'text\tn\n"a\tb"\t1\n"c ""d"""\t2\n',
            [{"text": "a\tb", "n": "1"}, {"text": 'c "d"', "n": "2"}],
        ),
        ('text\n"two\nlines"\n', [{"text": "two\nlines"}]),
        ('text\tn\n"two\nlines"\t1\n', [{"text": "two\nlines", "n": "1"}]),
        ('text\tn\n\n"a\tb"\t1\n', [{"text": "a\tb", "n": "1"}]),
        ('text\tn\n"a\tb"\n', [{"text": '"a', "n": 'b"'}]),
    ],
)
def test_quotes_of_tsv_enclose_fields_if_all_rows_can_be_read_so(
    tmp_path: Path,
    content: str,
    expected_rows: list[object],
) -> None:
    assert rows(tmp_path / "a.tsv", content) == expected_rows


def test_quotes_of_tsv_that_join_whole_rows_are_text(tmp_path: Path) -> None:
    content = 'text\tn\n"He\t1\nasked\t2\nit."\t3\n'
    assert len(rows(tmp_path / "a.tsv", content)) == 3


def test_a_quote_that_joins_rows_is_told_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\nd1,a\nd2,"b\nd3,c\nd4,d"\n', encoding="utf-8")
    rows_read = list(read_rows(tmp_path / "a.csv", name="a"))
    reason = str(rows_read[1][1])
    assert "it would swallow lines 4 to 5, which are rows by themselves" in reason
    assert [cells for _, cells in rows_read[2:]] == [
        {"id": "d3", "text": "c"},
        {"id": "d4", "text": 'd"'},
    ]


def test_a_quote_that_joins_few_rows_into_no_row_costs_its_own_line(tmp_path: Path) -> None:
    """Though their cells are not alike."""
    content = 'id,text,n\n1,z,"open,en\n7,b,zh\nx y,c",fr\n'
    assert rows(tmp_path / "a.csv", content) == [
        ("a, line 2", WRONG),
        {"id": "7", "text": "b", "n": "zh"},
        {"id": "x y", "text": 'c"', "n": "fr"},
    ]


def test_lines_of_a_text_may_have_as_many_commas_as_the_table(tmp_path: Path) -> None:
    """Three lines of four cells that are not alike may be so by chance."""
    content = 'id,a,b,text\n1,x,y,"for one\nand two,three,or,more\nthen,five,six,seven"\n'
    assert rows(tmp_path / "a.csv", content) == [
        {
            "id": "1",
            "a": "x",
            "b": "y",
            "text": "for one\nand two,three,or,more\nthen,five,six,seven",
        }
    ]


def test_four_lines_of_four_cells_are_rows(tmp_path: Path) -> None:
    """So many commas are not there by chance."""
    content = 'id,a,b,text\n1,x,y,"open\nand two,three,or,more\nthen,4,5,6\nlast,7,8,9"\n'
    assert rows(tmp_path / "a.csv", content) == [
        ("a, line 2", WRONG),
        {"id": "and two", "a": "three", "b": "or", "text": "more"},
        {"id": "then", "a": "4", "b": "5", "text": "6"},
        {"id": "last", "a": "7", "b": "8", "text": '9"'},
    ]


@pytest.mark.parametrize("label", ["en", "1"])
def test_lines_that_end_alike_are_rows(tmp_path: Path, label: str) -> None:
    """Few as they are."""
    lines = ['big cat,"open', "old dog,b", 'red fish,c"']
    content = "text,note,n\n" + "".join(f"{line},{label}\n" for line in lines)
    assert rows(tmp_path / "a.csv", content) == [
        ("a, line 2", WRONG),
        {"text": "old dog", "note": "b", "n": label},
        {"text": "red fish", "note": 'c"', "n": label},
    ]


def test_a_quote_in_the_last_line_is_told_as_one_that_nobody_closes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,n\n"open,1', encoding="utf-8")
    ((_, reason),) = read_rows(tmp_path / "a.csv", name="a")
    assert "a quote opens in this line and is not closed (unexpected end" in str(reason)


def test_unreadable_rows_of_csv_cost_their_lines(tmp_path: Path) -> None:
    content = 'text,n\n"two\nlines",1\na,b,c\n"x"y,2\nok,3\n"open,4\nmore,5\n'
    assert rows(tmp_path / "a.csv", content) == [
        {"text": "two\nlines", "n": "1"},
        ("a, line 4", WRONG),
        ("a, line 5", WRONG),
        {"text": "ok", "n": "3"},
        ("a, line 7", WRONG),
        {"text": "more", "n": "5"},
    ]


@pytest.mark.parametrize(("header", "columns"), [("text", "1 column"), ("text,n", "2 columns")])
def test_rows_with_too_many_fields_say_how_many(header: str, columns: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\na,b,c\n", encoding="utf-8")
    ((_, reason),) = read_rows(tmp_path / "a.csv", name="a")
    assert f"3 fields, but {columns} in the first line" in str(reason)


def test_unreadable_rows_of_jsonl_cost_their_lines(tmp_path: Path) -> None:
    content = '{"text": "a"}\n\n{"text": \n[1]\n"b"\n' + "[" * 10**5
    assert rows(tmp_path / "a.jsonl", content) == [
        {"text": "a"},
        ("a, line 3", WRONG),
        ("a, line 4", WRONG),
        {"text": "b"},
        ("a, line 6", WRONG),
    ]
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3"):
        read_table(tmp_path / "a.jsonl")


def test_an_encoding_may_be_named(tmp_path: Path) -> None:
    content = "狗猫鱼\n".encode("gb18030")
    assert rows(tmp_path / "a.txt", content, encoding="gb18030") == [{"text": "狗猫鱼"}]
    assert rows(tmp_path / "a.txt", "\ufeff狗\n", encoding="UTF-8") == [{"text": "狗"}]
    with pytest.raises(ValueError, match="encoding=.x. is not known"):
        rows(tmp_path / "a.txt", "a", encoding="x")


@pytest.mark.parametrize("encoding", [None, "gb18030"])
@pytest.mark.parametrize(
    "marked_encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-8"]
)
def test_a_mark_names_the_encoding(
    tmp_path: Path, marked_encoding: str, encoding: str | None
) -> None:
    """Also where another is named, for the other files of a folder."""
    content = "\ufeff狗\n".encode(marked_encoding)
    assert rows(tmp_path / "a.txt", content, encoding=encoding) == [{"text": "狗"}]


def test_lines_of_another_encoding_are_unreadable(tmp_path: Path) -> None:
    content = "ok\r\n狗猫鱼\n".encode("gb18030")
    assert rows(tmp_path / "a.txt", content) == [{"text": "ok"}, ("a, line 2", "not utf-8")]


@pytest.mark.parametrize(
    ("name", "text", "row_place"),
    [
        ("a.csv", "年,text\n1,a\n", "a, line 2"),
        ("a.jsonl", '{"text": "a", "b": ["狗"]}', "a, line 1"),
        ("a.json", '[{"text": "a", "b": ["狗"]}]', "a, item 1 (line 1)"),
    ],
)
def test_cells_and_names_of_another_encoding_are_unreadable(
    tmp_path: Path,
    name: str,
    text: str,
    row_place: str,
) -> None:
    content = text.encode("gb18030")
    assert rows(tmp_path / name, content) == [(row_place, "not utf-8")]


def test_a_line_of_json_in_another_encoding_costs_itself(tmp_path: Path) -> None:
    content = '"a"\n"狗"\n"b"\n'.encode("gb18030")
    expected_rows = [{"text": "a"}, ("a, line 2", "not utf-8"), {"text": "b"}]
    assert rows(tmp_path / "a.jsonl", content) == expected_rows


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.csv", b"a,a\n1,2\n"),
        ("a.parquet", b"PAR1 nonsense"),
        ("a.xyz", b"a"),
        ("a.csv.gz", gzip.compress(b"a\n1\n" * 1000, mtime=0)[:-20]),
        ("a.csv.gz", b"nonsense"),
    ],
)
def test_files_that_are_no_whole_tables_are_refused(
    tmp_path: Path,
    name: str,
    content: bytes,
) -> None:
    with pytest.raises(ValueError, match="a\\."):
        rows(tmp_path / name, content)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "missing")


def test_bytes_and_unnamed_levels_of_parquet_are_left_out(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = pa.table(
        {
            "text": ["a"] * 600,
            "n": range(600),
            "raw": [b"x"] * 600,
            "fixed": pa.array([b"x"] * 600, pa.binary(1)),
            "__index_level_0__": range(600),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    parquet_rows = list(read_rows(tmp_path / "a.parquet", name="a"))
    assert "columns of bytes are left out: raw, fixed" in caplog.text
    assert len(parquet_rows) == 600
    assert parquet_rows[-1] == ("a, row 599", {"text": "a", "n": 599})


@pytest.mark.parametrize(
    "array",
    [
        pa.array([b"x"], pa.large_binary()),
        pa.array([b"x"], pa.binary_view()),
        pa.array([b"x"]).dictionary_encode(),
    ],
    ids=["large", "view", "dictionary"],
)
def test_bytes_are_left_out_in_every_type_of_arrow(array: pa.Array) -> None:
    table = pa.table({"text": ["a"], "raw": array})
    assert list(table_rows(table) or ()) == [("the Table, row 0", {"text": "a"})]


def test_rows_of_a_long_table_in_memory_are_read_once() -> None:
    table = pa.table({"n": range(600)})
    numbers = [row["n"] for _, row in table_rows(table) or () if isinstance(row, dict)]
    assert numbers == list(range(600))


class Picture:
    """As a library of pictures has them."""

    __module__ = "PIL.Image"


class Sound:
    """As a library of sounds has them."""

    __module__ = "torchcodec.decoders"


class Video:
    """As the datasets library has them."""

    __module__ = "datasets.features"


@pytest.mark.parametrize(
    ("value", "is_of_bytes"),
    [
        (["text", b"raw"], True),
        (("text", b"raw"), True),
        (bytearray(b"raw"), True),
        (memoryview(b"raw"), True),
        ([], False),
        (np.array([b"raw"]), True),
        (np.array([b"raw", 1], object), True),
        (np.array([(1, b"raw")], "i8,S3"), True),
        (np.array([1.5]), False),
        (Picture(), True),
        (Sound(), True),
        (Video(), True),
    ],
    ids=[
        "list",
        "tuple",
        "bytearray",
        "memoryview",
        "empty list",
        "bytes of NumPy",
        "objects of NumPy",
        "records of NumPy",
        "numbers",
        "picture",
        "sound",
        "video",
    ],
)
def test_bytes_are_recognized_within_other_values(value: object, is_of_bytes: bool) -> None:
    assert holds_bytes(value) == is_of_bytes


UNUSABLE_TABLES = {
    "two columns have one name": pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["b"])], names=["text", "text"]
    ),
    "the column 'until' holds a value that Python cannot represent": pa.table(
        {"text": ["a"], "until": pa.array([253402300800], pa.timestamp("s"))}
    ),
}


@pytest.mark.parametrize("problem", UNUSABLE_TABLES)
def test_tables_that_are_not_damaged_say_what_is_wrong(problem: str, tmp_path: Path) -> None:
    table = UNUSABLE_TABLES[problem]
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"a.parquet: {problem}"):
        read_table(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"the Table: {problem}"):
        list(table_rows(table) or ())


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".tsv"])
def test_a_line_without_end_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    monkeypatch.setattr("st_reba.corpus.text_files.MAX_CHARS", 50)
    with pytest.raises(ValueError, match="line 2"):
        rows(tmp_path / f"a{suffix}", '"a"\n' + "b" * 120)


def test_lines_and_texts_may_have_the_greatest_length(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("st_reba.corpus.text_files.MAX_CHARS", 50)
    assert rows(tmp_path / "a.md", "b" * 51) == [("a, the text", "too long")]
    assert rows(tmp_path / "a.md", "b" * 50) == [{"text": "b" * 50}]
    assert rows(tmp_path / "a.txt", "b" * 49 + "\nc") == [{"text": "b" * 49}, {"text": "c"}]


def test_a_table_of_jsonl_has_types(tmp_path: Path) -> None:
    content = '{"text": "a", "score": 1.5}\n{"text": "b"}\n"c"\n'
    (tmp_path / "a.jsonl").write_text(content, encoding="utf-8")
    table = read_table(tmp_path / "a.jsonl")
    assert table["text"].tolist() == ["a", "b", "c"]
    assert table["score"].dtype == float
    assert table["score"].isna().tolist() == [False, True, True]


def test_a_table_of_csv_has_strings(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,score\n007,NA\n", encoding="utf-8")
    assert read_table(tmp_path / "a.csv").to_dict("records") == [{"id": "007", "score": "NA"}]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_lone_surrogates_of_a_table_are_replaced(suffix: str, tmp_path: Path) -> None:
    """As in a text that an index takes: pandas would refuse them without a row."""
    row = r'{"text\ud800": "a\udc00", "several": ["b", "\ud800"], "score": 1}'
    (tmp_path / f"a{suffix}").write_text(f"{row}\n{row}\n", encoding="utf-8")
    clean_row = {"text\ufffd": "a\ufffd", "several": ["b", "\ufffd"], "score": 1}
    assert read_table(tmp_path / f"a{suffix}").to_dict("records") == [clean_row] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"},', "the array does not end"),
        ('[{"text": "a"} {"text": "b"}]', "neither a comma nor the end of the array"),
        ('[{"text": "a"}] {"text": "b"}', "something follows the end of the array"),
        ('{"text": "a"} ]', "a closing bracket without an opening one"),
    ],
)
def test_json_that_is_cut_or_goes_on_is_refused(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        rows(tmp_path / "a.json", content)
