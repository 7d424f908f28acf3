"""The commands for texts and vectors, from a file of texts to an export."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

import st_reba
from st_reba.cli import app, main
from st_reba.cli.search import parse_where
from st_reba.corpus import Corpus

RECORDS = [
    {"id": "a", "text": "Cats sleep.", "year": 2019},
    {"id": "b", "text": "Ships sail.", "year": 2024},
    {"text": " "},
]


def write_records(file: Path, *records: dict[str, Any]) -> Path:
    lines = list(map(json.dumps, records))
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "model"
    st_reba.build("mini", "reba", pooling="mean").save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def texts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three records, one of them blank."""
    return write_records(tmp_path_factory.mktemp("texts") / "texts.jsonl", *RECORDS)


@pytest.fixture
def index_folder(model_folder: Path, texts_file: Path, tmp_path: Path) -> Path:
    """An index of both texts."""
    folder = tmp_path / "index"
    run("index", texts_file, folder, "--model", model_folder)
    return folder


@pytest.fixture
def bread_file(tmp_path: Path) -> Path:
    """A record that the index does not have, and a blank one."""
    return write_records(
        tmp_path / "more.jsonl", {"id": "c", "text": "Bread rises."}, {"text": " "}
    )


def invoke(*arguments: object, input: str = "") -> Result:
    stream = io.BufferedReader(io.BytesIO(input.encode()))  # type: ignore[arg-type]
    with (
        patch("st_reba.cli.vectors.standard_input", return_value=stream),
        patch("st_reba.cli.search.standard_input", return_value=stream),
    ):
        return CliRunner().invoke(app, list(map(str, arguments)), standalone_mode=False)


def run(*arguments: object, input: str = "") -> str:
    """The output of a command that succeeds; its exception is raised."""
    result = invoke(*arguments, input=input)
    if result.exception is not None:
        raise result.exception
    assert not result.return_value
    return result.stdout


def test_encode_writes_a_vector_file(model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "v.npy"
    output = run("encode", model_folder, "-", "--out", file, input="你好\n再见\n")
    assert np.load(file).shape == (2, 192)
    assert output == f"{file}: 2 vectors of 192 dimensions\n"


def test_encode_prints_json_lines(model_folder: Path) -> None:
    line = run("encode", model_folder, input="你好\n")
    assert line.startswith('{"text": "你好", ')
    assert len(json.loads(line)["vector"]) == 192


def test_encode_finds_a_word_in_its_text(model_folder: Path) -> None:
    line = json.loads(run("encode", model_folder, "--word", "银行", input="他在银行取钱\n"))
    assert (line["start"], line["end"]) == (2, 4)


@pytest.mark.parametrize(("options", "dtype"), [([], "float32"), (["--float16"], "float16")])
def test_encode_writes_a_corpus(
    options: list[str], dtype: str, model_folder: Path, texts_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "corpus"
    assert "2 documents" in run("encode", model_folder, texts_file, "--out", out, *options)
    assert Corpus(out).vectors(0).dtype.name == dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--out v.npy", "v.npy"),
        ("--word b", "'b' is not in"),
        ("--out new --word a", "--word a does not"),
        ("--workers 2", "--workers 2"),
        ("--float16", "--float16 does not go with"),
        ("--out new --task query", "--task query"),
        ("--encoding x", "encoding='x'"),
        ("--out new/v.npy", "no such folder"),
        ("--out file", "file: already there, and not a folder"),
    ],
)
def test_encode_refuses_options_that_do_not_fit(
    options: str,
    message: str,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v.npy").touch()
    Path("file").touch()
    with pytest.raises((ValueError, FileExistsError, FileNotFoundError), match=message):
        run("encode", model_folder, "-", *options.split(), input="a\n")


def test_encode_refuses_texts_of_which_none_can_be_encoded(
    model_folder: Path, tmp_path: Path
) -> None:
    blank_file = write_records(tmp_path / "blank.jsonl", {"text": " "})
    with pytest.raises(ValueError, match=r"blank\.jsonl: .*no text"):
        run("encode", model_folder, blank_file, "--out", tmp_path / "corpus")


def test_encode_refuses_a_folder_where_it_may_not_write(model_folder: Path, tmp_path: Path) -> None:
    with (
        patch("os.access", return_value=False),
        pytest.raises(PermissionError, match="nothing can be written there"),
    ):
        run("encode", model_folder, "-", "--out", tmp_path / "v.npy", input="a\n")


def test_index_counts_documents(model_folder: Path, texts_file: Path, tmp_path: Path) -> None:
    assert "2 documents" in run("index", texts_file, tmp_path / "index", "--model", model_folder)


def test_index_adds_documents_once(index_folder: Path, texts_file: Path, bread_file: Path) -> None:
    assert "1 added" in run("index", bread_file, index_folder, "--add")
    result = invoke("index", bread_file, index_folder, "--add")
    assert "1 unchanged" in result.stdout
    assert "set aside: 1 no text; first" in result.stderr
    assert "2 unchanged" in run("index", texts_file, index_folder, "--add")


def test_index_replaces_documents_of_the_same_id(index_folder: Path, tmp_path: Path) -> None:
    changed_file = write_records(tmp_path / "changed.jsonl", {"id": "b", "text": "Bread falls."})
    change = json.loads(run("index", changed_file, index_folder, "--upsert", "--json"))
    assert change["replaced"] == 1
    assert change["count"] == 2


def test_search_applies_conditions(index_folder: Path) -> None:
    queries = ["Cats sleep.", "Cats run."]
    output = run("search", index_folder, *queries, "--where", "year>2019", "--json")
    for line in output.splitlines():
        assert [result["id"] for result in json.loads(line)["results"]] == ["b"]


def test_search_repeats_queries_unless_there_is_one(index_folder: Path) -> None:
    queries = ["Cats sleep.", "Ships sail."]
    results = ["  1. 1.0000  a  Cats sleep.", "  1. 1.0000  b  Ships sail."]
    lines = [queries[0], results[0], queries[1], results[1]]
    assert run("search", index_folder, "-k", 1, *queries).splitlines() == lines
    assert run("search", index_folder, "-k", 1, input="\n".join(queries)).splitlines() == lines
    assert run("search", index_folder, "-k", 1, queries[0]).splitlines() == results[:1]


def test_search_prints_ten_results(model_folder: Path, tmp_path: Path) -> None:
    lines = [f"Cats sleep {number}." for number in range(12)]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    run("index", tmp_path / "lines.txt", tmp_path / "index", "--model", model_folder)
    assert len(run("search", tmp_path / "index", "Cats sleep.").splitlines()) == 10


def test_search_explains_scores(index_folder: Path) -> None:
    output = run("search", index_folder, "-k", 1, "Cats sleep.", "--explain")
    line_pattern = r"  1\. 1\.0000 \(vectors 1\.0000, words \d\.\d{4}\)  a  Cats sleep\.\n"
    assert re.fullmatch(line_pattern, output)


def test_search_prints_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    st_reba.Index.build(st_reba.build("mini"), ["bread \x1b[31mred", "water"], tmp_path / "index")
    output = run("search", tmp_path / "index", "bread", "--mode", "words")
    assert output.endswith("bread \ufffd[31mred\n")


def test_search_shortens_long_texts(tmp_path: Path) -> None:
    whole_text = f"bread {'a' * 294}"
    long_text = f"water {'a' * 295}"
    st_reba.Index.build(st_reba.build("mini"), [whole_text, long_text], tmp_path / "index")
    for query, shown_text in (("bread", whole_text), ("water", f"{long_text[:300]}…")):
        output = run("search", tmp_path / "index", query, "--mode", "words")
        assert output.endswith(f"  {shown_text}\n")


def test_search_by_words_ignores_operators(index_folder: Path) -> None:
    output = run("search", index_folder, '"sailing" OR *', "--mode", "words", "--json")
    (result,) = json.loads(output)["results"]
    assert result["id"] == "b"
    assert "word_score" not in result


@pytest.mark.parametrize(("year", "is_empty"), [(2000, False), (3000, True)])
def test_search_says_that_nothing_was_found(year: int, is_empty: bool, index_folder: Path) -> None:
    result = invoke("search", index_folder, "a", "--where", f"year>{year}")
    assert ("nothing found" in result.stderr) is is_empty


def test_info_of_an_index_shows_its_bookkeeping_only_as_json(index_folder: Path) -> None:
    assert {"indexed_count", "first_pending_key"} <= json.loads(
        run("info", index_folder, "--json")
    ).keys()
    facts = run("info", index_folder)
    assert "documents: 2" in facts
    assert "indexed_count" not in facts


def test_verify_checks_an_index(index_folder: Path) -> None:
    assert json.loads(run("verify", index_folder, "--json"))["documents"] == 2


def test_prune_deletes_and_compacts(index_folder: Path, tmp_path: Path) -> None:
    deleted = f"{index_folder}: 1 deleted; 1 documents\n"
    assert run("prune", index_folder, "a") == deleted
    compacted = f"{index_folder}: 1 vectors removed from the disk; 1 documents\n"
    assert run("prune", index_folder, "--compact") == compacted
    assert "1 vectors" in run("export", index_folder, tmp_path / "all.parquet")


@pytest.mark.parametrize(
    "words",
    [
        "index FILE INDEX",
        "index FILE INDEX --add --upsert",
        "index FILE INDEX --add --overwrite",
        "prune INDEX",
        "search INDEX",
        "search INDEX a --where x",
    ],
)
def test_commands_refuse_options_that_do_not_fit(
    words: str, index_folder: Path, bread_file: Path
) -> None:
    paths = {"FILE": bread_file, "INDEX": index_folder}
    with pytest.raises((ValueError, FileNotFoundError)):
        run(*[paths.get(word, word) for word in words.split()])


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("index FILE INDEX --add --whiten", "--whiten"),
        ("prune INDEX 3 --whiten", "--compact"),
        ("index FILE INDEX --add --no-tokens", "--no-tokens"),
        ("prune INDEX --compact --no-tokens", "--no-tokens"),
        ("index FILE INDEX --add --passages 256:32", "--passages"),
        ("search INDEX a --encoding utf-16", "--encoding utf-16 does not go with queries"),
    ],
)
def test_refusals_name_the_option(
    words: str, option: str, index_folder: Path, bread_file: Path
) -> None:
    paths = {"FILE": bread_file, "INDEX": index_folder}
    with pytest.raises(ValueError, match=option):
        run(*[paths.get(word, word) for word in words.split()])


def test_an_index_is_whitened_and_not(model_folder: Path, tmp_path: Path) -> None:
    lines = [f"Cats and ships number {number} sleep." for number in range(25)]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    index_folder = tmp_path / "index"
    build_words = ["index", tmp_path / "lines.txt", index_folder, "--model", model_folder]
    fitted = "center:texts=25,queries=25"
    assert f"whitened by {fitted}" in run(*build_words, "--whiten")
    assert f"whitening: {fitted}" in run("info", index_folder)
    run("prune", index_folder, "--compact", "--no-whiten")
    assert json.loads(run("info", index_folder, "--json"))["whitening"] is None
    assert "whitened by" not in run(*build_words, "--no-whiten", "--overwrite")
    run("prune", index_folder, "--compact", "--whiten")
    assert json.loads(run("info", index_folder, "--json"))["whitening"] == fitted


@pytest.mark.slow
def test_tokens_are_left_out_on_request(model_folder: Path, tmp_path: Path) -> None:
    lines = [f"Cats and ships number {number} sleep." for number in range(110)]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    index_folder = tmp_path / "index"

    def token_dimension() -> int:
        facts = json.loads(run("info", index_folder, "--json"))
        return int(facts["token_dimension"])

    run("index", tmp_path / "lines.txt", index_folder, "--model", model_folder, "--no-tokens")
    assert token_dimension() == 0
    run("prune", index_folder, "--compact", "--whiten")
    assert token_dimension() > 0
    run("prune", index_folder, "--compact", "--whiten", "--no-tokens")
    assert token_dimension() == 0


def test_index_reads_a_file_in_its_encoding(model_folder: Path, tmp_path: Path) -> None:
    texts_file = tmp_path / "texts.txt"
    texts_file.write_bytes("银行的利率\n猫在睡觉\n".encode("gb18030"))
    index_folder = tmp_path / "index"
    run("index", texts_file, index_folder, "--model", model_folder, "--encoding", "gb18030")
    assert "银行的利率" in run("search", index_folder, "银行", "--mode", "words")


def test_index_reads_a_folder_of_texts(
    model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts_folder = tmp_path / "texts"
    texts_folder.mkdir()
    files = {
        "a.txt": "Cats sleep.\n\nShips sail.\n",
        "b.txt": "Bread rises.\n",
        "c.pdf": "",
        "d": "",
    }
    for name, lines in files.items():
        (texts_folder / name).write_text(lines, encoding="utf-8")
    index_folder = tmp_path / "index"
    run("index", texts_folder, index_folder, "--model", model_folder)
    assert "not read: 1 .pdf, 1 without a suffix; convert them to" in caplog.text
    assert "a.txt, line 3  Ships sail." in run("search", index_folder, "Ships sail.", "-k", 1)
    assert "3 documents; 3 unchanged" in run("index", texts_folder, index_folder, "--add")
    assert main(["index", str(texts_folder), str(index_folder), "--upsert"]) == 1


@pytest.fixture
def tables_folder(tmp_path: Path) -> Path:
    """Tables of two kinds."""
    folder = tmp_path / "tables"
    folder.mkdir()
    table = pd.DataFrame({"text": ["Cats sleep.", "Ships sail."]})
    table.to_parquet(folder / "a.parquet")
    write_records(folder / "b.jsonl", {"text": "Bread rises."})
    return folder


def test_index_names_the_next_command(
    model_folder: Path, tables_folder: Path, tmp_path: Path
) -> None:
    new_folder = tmp_path / "new"
    result = invoke("index", tables_folder, new_folder, "--model", model_folder)
    assert result.stderr.splitlines() == [
        f"Indexing {tables_folder} with {model_folder} ...",
        f"Next: st-reba search {new_folder} 'a question'",
    ]


def test_search_names_the_file_of_a_row(
    model_folder: Path, tables_folder: Path, tmp_path: Path
) -> None:
    index_folder = tmp_path / "index"
    run("index", tables_folder, index_folder, "--model", model_folder)
    assert "a.parquet, row 1  Ships sail." in run("search", index_folder, "Ships sail.", "-k", 1)
    assert "b.jsonl, line 1  Bread rises." in run("search", index_folder, "Bread rises.", "-k", 1)


def test_conditions_are_parsed() -> None:
    assert parse_where(["a>1", "a<3", "b!=c=d"]) == {
        "a": {">": 1, "<": 3},
        "b": {"!=": "c=d"},
    }
    assert parse_where(["a=true", 'b = "1"']) == {"a": {"=": True}, "b": {"=": "1"}}
    assert parse_where(["a==1", "b=NaN"]) == {"a": {"=": 1}, "b": {"=": "NaN"}}
    assert parse_where(['a={"has": "x"}', "a!=y"]) == {"a": {"has": "x", "!=": "y"}}


@pytest.mark.parametrize(
    "conditions", [["lang"], ["{a"], ["=x"], ["a!=1", "a!=2"], ["a!=1", 'a={"!=": 2}']]
)
def test_conditions_that_are_wrong_are_refused(conditions: list[str]) -> None:
    with pytest.raises(ValueError):
        parse_where(conditions)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["search", "INDEX", "cats", "--mode", "words", "--where", "year>=[1]"],
            '--where: "year" >= [1]: use one of',
        ),
        (["search", "INDEX", "cats"], "name its folder or Hub id, such as --model 'my_model'"),
        (["encode", "MODEL", "-"], "standard input: no documents: it is empty"),
    ],
)
def test_messages_name_words_of_the_command_line(
    arguments: list[str],
    message: str,
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines_file = tmp_path / "lines.txt"
    lines_file.write_text("Cats sleep.", encoding="utf-8")
    empty_file = tmp_path / "no_lines.txt"
    empty_file.touch()
    monkeypatch.setattr("sys.stdin", empty_file.open(encoding="utf-8"))
    # This index does not know where its model is.
    index_folder = tmp_path / "index"
    st_reba.Index.build(st_reba.build("mini"), ["Cats sleep."], index_folder)
    paths = {"INDEX": index_folder, "MODEL": model_folder, "FILE": lines_file}
    command_line = [str(paths.get(word, word)) for word in arguments]
    assert main(command_line) in (1, 2)
    assert message in capsys.readouterr().err
