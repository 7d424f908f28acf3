"""search and index: what they print, change and refuse."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import TEXTS, Refused, Run
from sentence_transformers import SentenceTransformer

from st_reba import cli
from st_reba.corpus import part
from st_reba.index import Index

FILES = {
    "a.txt": "\n".join(TEXTS),
    "a.csv": "id,text,row\n" + "\n".join(f"d{row},{text},{row}" for row, text in enumerate(TEXTS)),
}


@pytest.mark.parametrize("name", FILES)
def test_build_and_search(run: Run, saved: Path, model: SentenceTransformer, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    status, out, _ = run("index", "build", saved / "model", tmp_path / name, tmp_path / "index")
    assert status == 0 and "3 vectors of 192" in out
    queries = ["银行", "a cat on a roof"]
    # QUERY may stand behind options too.
    status, out, err = run("search", tmp_path / "index", queries[0], "-n", 2, queries[1], "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert (status, err) == (0, "") and [each["query"] for each in found] == queries
    scores = model.encode_query(queries) @ model.encode_document(TEXTS).T
    for each, row in zip(found, scores, strict=True):
        order = np.argsort(-row)[:2]
        assert [result["rank"] for result in each["results"]] == [1, 2]
        assert [result["text"] for result in each["results"]] == [TEXTS[one] for one in order]
        assert [result["id"] for result in each["results"]] == [
            str(one) if name == "a.txt" else f"d{one}" for one in order
        ]
        assert np.allclose([result["score"] for result in each["results"]], row[order], atol=1e-4)
        if name != "a.txt":
            assert [int(result["metadata"]["row"]) for result in each["results"]] == order.tolist()
    status, out, _ = run("search", tmp_path / "index", queries[0])
    lines = out.splitlines()
    assert status == 0 and len(lines) == 3 and lines[0].split()[0] == "1."
    assert lines[0].endswith(found[0]["results"][0]["text"])


def test_build_again(run: Run, refused: Refused, saved: Path, tmp_path: Path) -> None:
    arguments = ["index", "build", saved / "model", saved / "texts.txt", tmp_path / "index"]
    status, out, _ = run(*arguments, "--json")
    report = json.loads(out)
    built = {"path": str(tmp_path / "index"), "documents": 3, "dimension": 192, "metric": "cosine", "factory": "Flat"}
    assert status == 0 and {key: report[key] for key in built} == built
    assert (report["recall"], report["rejected"]) == (None, {})
    before = (tmp_path / "index" / "index.sqlite").read_bytes()
    assert "already there; give another path, or --overwrite to replace an index" in refused(*arguments)
    assert (tmp_path / "index" / "index.sqlite").read_bytes() == before
    assert run(*arguments, "--overwrite", "-q") == (0, "", "")
    assert "not an index" in refused(*arguments[:-1], saved / "model", "--overwrite")


def test_build_of_an_encoded_corpus(run: Run, saved: Path, tmp_path: Path) -> None:
    assert run("encode-corpus", saved / "model", saved / "texts.txt", tmp_path / "corpus")[0] == 0
    options = ("--factory", "HNSW8", "--parameters", "efSearch=32")
    assert run("index", "build", saved / "model", tmp_path / "corpus", tmp_path / "index", *options)[0] == 0
    about = json.loads(run("info", tmp_path / "index", "--json")[1])
    assert (about["documents"], about["factory"], about["parameters"]) == (3, "HNSW8", "efSearch=32")


def test_where_queries_come_from(run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, standard input, or one after the other; conditions choose among documents."""
    (tmp_path / "a.csv").write_text(FILES["a.csv"], encoding="utf-8")
    assert run("index", "build", saved / "model", tmp_path / "a.csv", tmp_path / "index")[0] == 0
    (tmp_path / "queries.txt").write_text("ship\n\ncat\n")
    search = ["search", tmp_path / "index", "--ids-only", "--json", "--where", "row>=1"]
    found = [json.loads(line) for line in run(*search, "--queries", tmp_path / "queries.txt")[1].splitlines()]
    assert [each["query"] for each in found] == ["ship", "cat"]
    assert all({result["id"] for result in each["results"]} == {"d1", "d2"} for each in found)
    assert all(set(result) == {"rank", "score", "id"} for result in found[0]["results"])
    for more in ([], ["--queries", "-"]):
        assert [json.loads(line) for line in run(*search, *more, stdin="ship\ncat\n")[1].splitlines()] == found


def test_queries_are_asked_for(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked = iter(["ship", "cat", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(asked))
    assert cli.main(["search", str(saved / "index"), "--top", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.count("  1. ") == 2 and "an empty line or Ctrl-D ends" in err


def test_ctrl_c_says_what_is_kept(run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    real = part.encode_batch

    def interrupted(*arguments: Any, **options: Any) -> Any:
        done.append(1)
        if len(done) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(part, "encode_batch", interrupted)
    arguments = ["index", "build", saved / "model", saved / "texts.txt", tmp_path / "index", "--part-size", "1"]
    status, out, err = run(*arguments)
    assert (status, out) == (130, "")
    assert err.endswith(
        "st-reba: interrupted; 2 of 3 parts are encoded and kept; run the same command again to continue\n"
    )
    assert run(*arguments)[0] == 0 and len(done) == 4


def test_life_of_an_index(run: Run, refused: Refused, copied: Path, tmp_path: Path) -> None:
    """add, upsert, delete, compact, export, info and verify say what they did."""
    index = copied / "index"
    (tmp_path / "more.jsonl").write_text('{"text": "Bread rises.", "id": "b"}\n{"text": "new", "id": "0"}\n')
    out = run("index", "add", index, tmp_path / "more.jsonl")[1]
    assert "1 added, set aside: 1 id in the index" in out and "index upsert replaces" in out and "4 documents" in out
    assert "1 replaced, 1 unchanged; 4 documents" in run("index", "upsert", index, tmp_path / "more.jsonl")[1]
    assert "nope" in refused("index", "delete", index, "b", "nope")
    assert "no id" in refused("index", "delete", index)
    (tmp_path / "ids.txt").write_text("b\nnope\n")
    gone = ("--ids", tmp_path / "ids.txt", "--missing", "ignore", "--json")
    assert json.loads(run("index", "delete", index, *gone)[1])["deleted"] == 1
    about = json.loads(run("info", index, "--json")[1])
    assert (about["documents"], about["pending"], about["deleted"]) == (3, 1, 2)
    assert "2 vectors removed from the disk; 3 documents" in run("index", "compact", index)[1]
    assert "3 vectors" in run("index", "export", index, tmp_path / "out.parquet")[1]
    assert "--overwrite" in refused("index", "export", index, tmp_path / "out.parquet")
    assert "3 documents and 3 vectors are as they were written" in run("verify", index)[1]
    assert "dimension     192" in run("info", index)[1]


def test_additions_take_the_columns_of_the_build(run: Run, refused: Refused, saved: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"key,words\n{name},some {name}\n")
    columns = ("--text-column", "words", "--id-column", "key")
    assert run("index", "build", saved / "model", tmp_path / "a.csv", tmp_path / "index", *columns)[0] == 0
    assert "1 added" in run("index", "add", tmp_path / "index", tmp_path / "b.csv")[1]
    (tmp_path / "c.csv").write_text("id,text\n1,x\n")
    assert "no column 'words'" in refused("index", "add", tmp_path / "index", tmp_path / "c.csv")


def test_model_and_index_move_together(
    run: Run, saved: Path, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = run("search", saved / "index", "ship")[1]
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    shutil.move(copied, tmp_path / "elsewhere" / "two")
    monkeypatch.chdir(tmp_path / "elsewhere" / "deep")
    assert run("search", "../two/index", "ship") == (0, wanted, "")
    monkeypatch.chdir(tmp_path / "elsewhere" / "two")
    assert run("search", "index", "ship")[1] == wanted
    shutil.move("model", "renamed")
    assert run("search", "index", "ship", "--model", "renamed")[1] == wanted


@pytest.mark.parametrize("absolute", [True, False])
def test_model_that_is_gone(
    refused: Refused, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    """The remembered folder is not taken for a Hub id, whatever its name: --model is asked for."""
    shutil.copytree(saved / "index", tmp_path / "index")
    monkeypatch.chdir(tmp_path)
    message = refused("search", tmp_path / "index" if absolute else "index", "ship")
    assert "--model" in message and "model'" in message
    assert "huggingface" not in message and "Repo id" not in message


def test_index_without_its_model_named(
    refused: Refused, run: Run, model: SentenceTransformer, saved: Path, tmp_path: Path
) -> None:
    Index.build(model, TEXTS, tmp_path / "index").close()
    assert "--model" in refused("search", tmp_path / "index", "ship")
    assert run("search", tmp_path / "index", "ship", "--model", saved / "model")[0] == 0


def test_other_model_is_refused(run: Run, refused: Refused, saved: Path, tmp_path: Path) -> None:
    assert run("build", "mini", tmp_path / "other", "--method", "classical", "--no-golden")[0] == 0
    message = refused("search", saved / "index", "ship", "--model", tmp_path / "other")
    assert "differ" in message and "probe texts" in message


def test_query_of_a_template_with_an_instruction(run: Run, saved: Path, tmp_path: Path) -> None:
    """A model whose queries need an instruction can be searched with, too."""
    how = ("--method", "echo", "--template", "echo-instruct", "--no-golden")
    assert run("build", "mini", tmp_path / "model", *how)[0] == 0
    assert run("index", "build", tmp_path / "model", saved / "texts.txt", tmp_path / "index")[0] == 0
    status, out, err = run("search", tmp_path / "index", "ship", "--prompt", "Find the sentence", "--json")
    assert (status, err) == (0, "") and len(json.loads(out)["results"]) == 3


def test_records_that_cannot_be_used(run: Run, refused: Refused, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\nnot json\n{"text": "b", "id": "0"}\n{"text": "c"}\n')
    given = ["index", "build", saved / "model"]
    status, out, _ = run(*given, tmp_path / "a.jsonl", tmp_path / "index")
    assert status == 0 and "2 vectors" in out and "set aside: 1 wrong type, 1 id used twice" in out
    rejects = [json.loads(line) for line in run("info", tmp_path / "index", "--rejects", "--json")[1].splitlines()]
    assert [each["place"] for each in rejects] == ["a.jsonl, line 2", "record 2"]
    (tmp_path / "b.jsonl").write_text('{"text": "a", "id": "1"}\n{"text": "b", "id": "1"}\n')
    assert "used twice: '1'" in refused(*given, tmp_path / "b.jsonl", tmp_path / "other", "--strict")


def test_bad_options_of_search(refused: Refused, saved: Path, tmp_path: Path) -> None:
    for number in ("-1", "nan", "1.5"):
        assert "--top" in refused("search", saved / "index", "ship", "--top", number)
    assert "no query" in refused("search", saved / "index", stdin="\n")
    assert "empty" in refused("search", saved / "index", " ")
    for path in (tmp_path / "nowhere", saved / "model", saved / "texts.txt"):
        message = refused("search", path, "ship")
        assert str(path) in message and "index" in message and "Errno" not in message
    assert "'like'" in refused("search", saved / "index", "ship", "--where", '{"lang": {"like": "z"}}')


def test_damaged_index(refused: Refused, saved: Path, tmp_path: Path) -> None:
    for name in ("vectors-1.faiss", "index.sqlite"):
        index = shutil.copytree(saved / "index", tmp_path / name)
        (index / name).write_bytes(b"garbage" * 100)
        assert name in refused("search", index, "ship", "--model", saved / "model")
