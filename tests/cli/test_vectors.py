"""The commands for texts and vectors, from a file of texts to an export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import st_reba
from st_reba.cli import app, main
from st_reba.cli.vectors import parse_where
from st_reba.corpus import Corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model and a file of three records, one of them blank."""
    folder = tmp_path_factory.mktemp("vectors")
    st_reba.build("mini", "reba", pooling="mean").save_pretrained(str(folder / "model"))
    rows = [{"id": "a", "text": "Cats sleep.", "year": 2019}, {"id": "b", "text": "Ships sail.", "year": 2024}]
    lines = [json.dumps(row) for row in [*rows, {"text": " "}]]
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def run(*arguments: object, input: str | None = None) -> Any:
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=input, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert not result.return_value
    return result.stdout


def test_encode(folder: Path, tmp_path: Path) -> None:
    model = folder / "model"
    run("encode", model, "-", "--out", tmp_path / "v.npy", input="你好\n再见\n")
    assert np.load(tmp_path / "v.npy").shape == (2, 192)
    line = run("encode", model, input="你好\n")
    assert line.startswith('{"text": "你好", ') and len(json.loads(line)["vector"]) == 192
    word = json.loads(run("encode", model, "--word", "银行", input="他在银行取钱\n"))
    assert (word["start"], word["end"]) == (2, 4)
    assert "2 documents" in run("encode", model, folder / "texts.jsonl", "--out", tmp_path / "corpus")
    run("encode", model, folder / "texts.jsonl", "--out", tmp_path / "half", "--float16")
    assert [Corpus(tmp_path / name).vectors(0).dtype.name for name in ("corpus", "half")] == ["float32", "float16"]
    new, there = ["--out", tmp_path / "w"], ["--out", tmp_path / "v.npy"]
    for options, said in (
        (there, "v.npy"), (["--word", "b"], "'b' is not in"), ([*new, "--word", "a"], "--word a does not"),
        (["--workers", 2], "--workers 2"), ([*new, "--task", "query"], "--task query"),
        (["--encoding", "x"], "encoding='x'"), (["--out", tmp_path / "w" / "v.npy"], "no such folder"),
    ):  # fmt: skip
        with pytest.raises((ValueError, FileExistsError, FileNotFoundError), match=said):
            run("encode", model, "-", *options, input="a\n")


def test_an_index(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert "2 documents" in run("index", folder / "texts.jsonl", index, "--model", folder / "model")
    row = '{"id": "c", "text": "Bread rises."}'
    (tmp_path / "more.jsonl").write_text(row + '\n{"text": " "}', encoding="utf-8")
    assert "1 added" in run("index", tmp_path / "more.jsonl", index, "--add")
    again = CliRunner().invoke(app, ["index", str(tmp_path / "more.jsonl"), str(index), "--add"])
    assert "1 unchanged" in again.stdout and "set aside: 1 no text; first" in again.stderr
    assert "2 unchanged" in run("index", folder / "texts.jsonl", index, "--add")
    (tmp_path / "more.jsonl").write_text(row.replace("rises", "falls"), encoding="utf-8")
    changed = json.loads(run("index", tmp_path / "more.jsonl", index, "--upsert", "--json"))
    assert (changed["replaced"], changed["count"]) == (1, 3)
    found = run("search", index, "Cats sleep.", "Cats run.", "--where", "year>2019", "--json").splitlines()
    assert [[one["id"] for one in json.loads(line)["results"]] for line in found] == [["b"], ["b"]]
    asked, line = ["Cats sleep.", "Ships sail."], "  1. 1.0000  {}  {}"
    found = [line.format(*each) for each in zip("ab", asked, strict=True)]
    several = [asked[0], found[0], asked[1], found[1]]
    assert run("search", index, "-k", 1, *asked).splitlines() == several
    assert run("search", index, "-k", 1, input="\n".join(asked)).splitlines() == several
    assert run("search", index, "-k", 1, asked[0]).splitlines() == found[:1]
    explained = run("search", index, "-k", 1, asked[0], "--explain")
    assert re.fullmatch(r"  1\. 1\.0000 \(vectors 1\.0000, words \d\.\d{4}\)  a  Cats sleep\.\n", explained)
    by_words = json.loads(run("search", index, '"sailing" OR *', "--mode", "words", "--json"))["results"]
    assert [(result["id"], "word_score" in result) for result in by_words] == [("b", False)]
    said = [CliRunner().invoke(app, ["search", str(index), "a", "--where", f"year>{n}"]).stderr for n in (2000, 3000)]
    assert ["nothing found" in each for each in said] == [False, True]
    told, shown = json.loads(run("info", index, "--json")), run("info", index)
    assert (
        "documents: 3" in shown
        and {"indexed_count", "first_pending_key"} <= told.keys()
        and "indexed_count" not in shown
    )
    assert json.loads(run("verify", index, "--json"))["documents"] == 3
    assert run("prune", index, "a") == f"{index}: 1 deleted; 2 documents\n"
    assert run("prune", index, "--compact") == f"{index}: 1 vectors removed from the disk; 2 documents\n"
    assert "2 vectors" in run("export", index, tmp_path / "all.parquet")
    more = ["index", tmp_path / "more.jsonl", index]
    refused = (more, [*more, "--add", "--upsert"], [*more, "--add", "--overwrite"], ["prune", index], ["search", index])
    for arguments in (*refused, ["search", index, "a", "--where", "x"]):
        with pytest.raises((ValueError, FileNotFoundError)):
            run(*arguments)


def test_an_index_is_whitened_and_not(folder: Path, tmp_path: Path) -> None:
    lines = [f"Cats and ships number {number} sleep." for number in range(25)]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    index = tmp_path / "index"
    build = ["index", tmp_path / "lines.txt", index, "--model", folder / "model"]
    assert "whitened by center:texts=25,queries=25" in run(*build, "--whiten")
    assert "whitening: center:texts=25,queries=25" in run("info", index)
    run("prune", index, "--compact", "--no-whiten")
    assert json.loads(run("info", index, "--json"))["whitening"] is None
    assert "whitened by" not in run(*build, "--no-whiten", "--overwrite")
    run("prune", index, "--compact", "--whiten")
    assert json.loads(run("info", index, "--json"))["whitening"] == "center:texts=25,queries=25"
    with pytest.raises(ValueError, match="--whiten"):
        run("index", tmp_path / "lines.txt", index, "--add", "--whiten")
    with pytest.raises(ValueError, match="--compact"):
        run("prune", index, "3", "--whiten")


def test_a_folder_of_texts(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    files = {"a.txt": "Cats sleep.\n\nShips sail.\n", "b.txt": "Bread rises.\n", "c.pdf": "", "d": ""}
    for name, lines in files.items():
        (texts / name).write_text(lines, encoding="utf-8")
    run("index", texts, tmp_path / "index", "--model", folder / "model")
    assert "not read: 1 .pdf, 1 without a suffix" in caplog.text
    assert "a.txt, line 3  Ships sail." in run("search", tmp_path / "index", "Ships sail.", "-k", 1)
    assert "3 documents; 3 unchanged" in run("index", texts, tmp_path / "index", "--add")
    assert main(["index", str(texts), str(tmp_path / "index"), "--upsert"]) == 1
    with pytest.raises(ValueError, match="--passages"):
        run("index", texts, tmp_path / "index", "--add", "--passages", "256:32")


def test_index_tells_what_follows_and_search_names_the_file_of_a_row(folder: Path, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    pd.DataFrame({"text": ["Cats sleep.", "Ships sail."]}).to_parquet(tables / "a.parquet")
    (tables / "b.jsonl").write_text('{"text": "Bread rises."}\n', encoding="utf-8")
    arguments = ["index", tables, tmp_path / "index", "--model", folder / "model"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.stderr.splitlines() == [
        f"Loading {folder / 'model'}, then encoding {tables} ...",
        f"Next: st-reba search {tmp_path / 'index'} 'a question'",
    ]
    assert "a.parquet, row 1  Ships sail." in run("search", tmp_path / "index", "Ships sail.", "-k", 1)
    assert "b.jsonl, line 1  Bread rises." in run("search", tmp_path / "index", "Bread rises.", "-k", 1)


def test_conditions() -> None:
    assert parse_where(["a>1", "a<3", "b!=c=d"]) == {"a": {">": 1, "<": 3}, "b": {"!=": "c=d"}}
    assert parse_where(["a=true", 'b = "1"']) == {"a": {"=": True}, "b": {"=": "1"}}
    for wrong in (["lang"], ["{a"], ["=x"], ["a!=1", "a!=2"]):
        with pytest.raises(ValueError):
            parse_where(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "INDEX", "cats", "--mode", "words", "--where", "year>=[1]"], '--where: "year" >= [1]: use one of'),
        (["search", "INDEX", "cats"], "name its folder or Hub id, as --model 'my_model'"),
        (["encode", "MODEL", "-"], "standard input: no documents: it is empty"),
        (["encode", "MODEL", "FILE", "--word", ""], "--word '' is no word"),
    ],
)
def test_messages_name_what_stands_on_the_command_line(
    arguments: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "lines.txt").write_text("Cats sleep.", encoding="utf-8")
    (tmp_path / "no_lines.txt").touch()
    monkeypatch.setattr("sys.stdin", (tmp_path / "no_lines.txt").open(encoding="utf-8"))
    index = tmp_path / "index"
    st_reba.Index.build(st_reba.build("mini"), ["Cats sleep."], index)
    paths = {"INDEX": index, "MODEL": folder / "model", "FILE": tmp_path / "lines.txt"}
    words = [str(paths.get(word, word)) for word in arguments]
    assert main(words) in (1, 2)
    assert message in capsys.readouterr().err
