"""encode, words and encode-corpus: what they write, print and refuse, and how they go on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import TEXTS, Refused, Run
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.corpus import Corpus, part
from st_reba.corpus.records import Document
from st_reba.persistence import load

ROOT = Path(st_reba.__file__).parents[1]
MANY = [f"Text {'very ' * (number * 7 % 9)}number {number}, 第{number}句。" for number in range(20)]


def test_encode_to_a_file(run: Run, saved: Path, model: SentenceTransformer, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    for arguments, wanted in (
        ([], model.encode(TEXTS)),
        (["--task", "query"], model.encode_query(TEXTS)),
        (["--prompt", "Query: ", "--dtype", "float32", "--device", "cpu"], model.encode_query(TEXTS)),
    ):
        # FILE may stand behind options too.
        status, printed, err = run("encode", saved / "model", "--out", out, *arguments, saved / "texts.txt")
        assert (status, err) == (0, "") and "3 vectors of 192" in printed and str(out) in printed
        assert np.allclose(np.load(out), wanted, atol=1e-5)
    assert run("encode", saved / "model", saved / "texts.txt", "--out", out, "-q") == (0, "", "")


@pytest.mark.parametrize("file", [["-"], [], ["FILE"]])
def test_encode_to_json(run: Run, saved: Path, model: SentenceTransformer, file: list[str]) -> None:
    given = [saved / "texts.txt" if each == "FILE" else each for each in file]
    status, out, err = run("encode", saved / "model", *given, "--json", stdin="\n".join(TEXTS) + "\r\n\n")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (status, err) == (0, "") and [line["text"] for line in lines] == TEXTS
    assert np.allclose([line["vector"] for line in lines], model.encode(TEXTS), atol=1e-5)


def test_encode_a_column(run: Run, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,id\none,1\ntwo,2\n")
    status, out, _ = run("encode", saved / "model", tmp_path / "a.csv", "--text-column", "body", "--json")
    assert status == 0 and [json.loads(line)["text"] for line in out.splitlines()] == ["one", "two"]


@pytest.mark.slow
def test_a_reader_that_stops_and_a_terminal_without_chinese(saved: Path) -> None:
    """A pipe that is closed early, as by `head`, is no error; nor is LANG=C."""
    command = [sys.executable, "-m", "st_reba.cli"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    encode = [*command, "encode", str(saved / "model"), "-", "--json"]
    with subprocess.Popen(encode, cwd=ROOT, env=environment, **pipes) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"a text\n" * 60)
        process.stdin.close()
        assert json.loads(process.stdout.readline())["text"] == "a text"
        process.stdout.close()
        assert process.wait(60) == 0
        assert b"Traceback" not in process.stderr.read()
    plain = {**environment, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    for arguments in (["demo", "-h"], ["zoo", "没有"], ["search", str(saved / "index"), "ship", "--json"]):
        done = subprocess.run([*command, *arguments], cwd=ROOT, env=plain, capture_output=True)
        assert b"Traceback" not in done.stderr and done.returncode == (2 if arguments[0] == "zoo" else 0)
    assert json.loads(done.stdout)["results"][0]["text"] in TEXTS


@pytest.mark.parametrize("command", [["encode"], ["index", "build"]])
def test_sizes_of_batches(
    run: Run, refused: Refused, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """What is given reaches the model; both at once are refused."""
    arguments = [*command, saved / "model", saved / "texts.txt", *(["--out"] if command == ["encode"] else [])]
    sizes: list[int] = []
    real = SentenceTransformer.encode

    def encode(self: SentenceTransformer, *texts: Any, **options: Any) -> Any:
        sizes.append(options["batch_size"])
        return real(self, *texts, **options)

    monkeypatch.setattr(SentenceTransformer, "encode", encode)
    for number, (given, wanted) in enumerate([(["--batch-tokens", "1"], [1, 1, 1]), (["--batch-size", "7"], [7])]):
        sizes.clear()
        assert run(*arguments, tmp_path / f"{number}.npy", *given)[0] == 0
        # The probes of an index are not asked for any size.
        assert [size for size in sizes if size != 32] == [
            min(size, len(TEXTS)) if command != ["encode"] else size for size in wanted
        ]
    message = refused(*arguments, tmp_path / "both.npy", "--batch-tokens", "512", "--batch-size", "8")
    assert "--batch-size 8" in message and "--batch-tokens 512" in message


def test_bad_options_of_encode(refused: Refused, saved: Path, tmp_path: Path) -> None:
    arguments = ["encode", saved / "model", saved / "texts.txt"]
    for given in ([], ["--json", "--out", tmp_path / "v.npy"]):
        assert "either --out FILE or --json" in refused(*arguments, *given)
    assert "does not exist" in refused(*arguments, "--out", tmp_path / "nowhere" / "v.npy")
    assert "is a folder" in refused(*arguments, "--out", tmp_path)
    assert "'guess'" in refused(*arguments, "--json", "--task", "guess")
    for size in ("-1", "nan", "1.5"):
        assert "--batch-size" in refused(*arguments, "--json", "--batch-size", size)
    for given in (["--json"], ["--out", tmp_path / "v.npy"]):
        assert "empty" in refused(*arguments[:2], "-", *given, stdin="\n \n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["encode", "index", "search"])
def test_bad_models(refused: Refused, saved: Path, tmp_path: Path, command: str) -> None:
    def message(model: object) -> str:
        if command == "search":
            return refused("search", saved / "index", "ship", "--model", model)
        words = ["encode", model, saved / "texts.txt", "--json"]
        return refused(*(words if command == "encode" else ["index", "build", *words[1:3], tmp_path / "index"]))

    assert "base model" in message("mini") and "st-reba build" in message("mini")
    for path in (tmp_path, saved / "texts.txt", "no-such-model", "./nowhere", "no/where/at/all", "no/such"):
        assert str(path) in message(path)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.txt", None, ["missing.txt", "no such file"]),
        ("empty.txt", "", ["empty|no documents"]),
        ("a.json", "{}", ["a.json", "'.json'", ".jsonl"]),
        ("folder", None, ["folder", ".txt"]),
        ("bad.csv", "words\nx\n", ["bad.csv", "line 1", "no column", "'words'", "--text-column"]),
        ("wide.csv", "text\na,b\n", ["wide.csv", "line 2"]),
        ("bad.jsonl", '{"text": "x"}\nnot json\n', ["bad.jsonl", "line 2", "JSON"]),
        ("nan.jsonl", '{"text": NaN}\n', ["nan.jsonl", "line 1", "number"]),
        ("key.jsonl", '{"words": "x"}\n', ["key.jsonl", "line 1", "'words'"]),
        ("latin.txt", b"caf\xe9\n", ["latin.txt", "line 1", "UTF-8"]),
    ],
)
def test_bad_files(
    refused: Refused, saved: Path, tmp_path: Path, name: str, content: str | bytes | None, words: list[str]
) -> None:
    (tmp_path / "folder").mkdir()
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = sorted(tmp_path.iterdir())
    for given in (
        ["encode", saved / "model", tmp_path / name, "--out", tmp_path / "v.npy"],
        ["index", "build", saved / "model", tmp_path / name, tmp_path / "index", "--strict"],
    ):
        message = refused(*given)
        assert [word for word in words if not any(each in message for each in word.split("|"))] == [], message
        assert sorted(tmp_path.iterdir()) == before


def test_errors_in_full_and_an_interruption(run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = run("encode", "mini", saved / "texts.txt", "--json", "--verbose")
    assert (status, out) == (2, "") and "Traceback" in err and "base model" in err.splitlines()[-1]

    def interrupt(*arguments: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(SentenceTransformer, "encode", interrupt)
    status, _, err = run("encode", saved / "model", saved / "texts.txt", "--json")
    assert (status, err.strip()) == (130, "st-reba: interrupted; nothing was written")


# encode-corpus


@pytest.fixture(scope="session")
def corpus(saved: Path) -> Path:
    lines = [json.dumps({"key": f"d{n}", "words": text, "lang": "en"}) for n, text in enumerate(MANY)]
    lines[7] = '{"key": "d7", "words": ""}'
    (saved / "many.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return saved


def arguments(corpus: Path, out: Path, *more: object) -> list[object]:
    columns = ("--text-column", "words", "--id-column", "key", "--part-size", 8, "--batch-size", 4)
    return ["encode-corpus", corpus / "model", corpus / "many.jsonl", out, *columns, *more]


def test_encode_corpus(run: Run, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    status, printed, _ = run(*arguments(corpus, out))
    assert status == 0
    assert f"{out}: 19 documents, 19 vectors of 192 dimensions (float32) in 3 parts" in printed
    assert f"set aside: 1 no text; each with its reason in {out / 'rejects.jsonl'}" in printed
    assert "encoded now: 19 texts in " in printed and "texts/s" in printed and "tokens/s" in printed
    found = Corpus(out)
    texts = [text for number, text in enumerate(MANY) if number != 7]
    vectors = np.concatenate([np.array(found.vectors(number)) for number in range(3)])
    np.testing.assert_allclose(vectors, load(corpus / "model").encode_document(texts), atol=1e-5)
    assert found.part(0).rows[0].document() == Document(MANY[0], "d0", {"lang": "en"})
    source = found.header()["model_source"]
    assert source.startswith(".") and (out / source).resolve() == (corpus / "model").resolve()
    status, printed, _ = run(*arguments(corpus, out))
    assert status == 0 and "nothing to do" in printed and "encoded now" not in printed


def test_encode_corpus_to_json(run: Run, corpus: Path, tmp_path: Path) -> None:
    status, printed, _ = run(*arguments(corpus, tmp_path / "c", "--json", "--store-dtype", "float16"))
    about = json.loads(printed)
    expected = {"documents": 19, "rejected": 1, "records": 20, "unusable": 0, "parts": 3, "encoded": 19}
    assert status == 0 and expected.items() <= about.items()
    assert (about["dimension"], about["dtype"], about["path"]) == (192, "float16", str(tmp_path / "c"))
    assert about["kinds"] == {"no text": 1} and Path(about["rejects"]).is_file()
    assert about["texts_per_second"] > 0 and about["tokens_per_second"] > about["texts_per_second"]


def test_ctrl_c_says_how_far_it_got(run: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = part.encode_batch
    done: list[int] = []

    def interrupted(model: Any, texts: list[str], **options: Any) -> Any:
        done.append(len(texts))
        if len(done) == 4:
            raise KeyboardInterrupt
        return real(model, texts, **options)

    monkeypatch.setattr(part, "encode_batch", interrupted)
    status, printed, err = run(*arguments(corpus, tmp_path / "c"))
    assert (status, printed) == (130, "")
    assert err.endswith(
        "st-reba: interrupted; 7 of 19 texts are encoded and kept; run the same command again to continue\n"
    )
    status, printed, _ = run(*arguments(corpus, tmp_path / "c"))
    assert status == 0 and "encoded now: 12 texts" in printed


def test_encode_corpus_from_standard_input(run: Run, corpus: Path, tmp_path: Path) -> None:
    for words in ("encoded now: 2 texts", "nothing to do"):
        given = ["encode-corpus", corpus / "model", "-", tmp_path / "c"]
        status, printed, _ = run(*given, stdin="A cat.\n\nA ship.\r\n")
        assert status == 0 and words in printed
    assert Corpus(tmp_path / "c").texts(0) == ["A cat.", "A ship."]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--strict"], "many.jsonl, line 8: no text"),
        (["--workers", "1", "--devices", "cuda:0,cuda:1"], "--workers 1 are fewer than --devices"),
        (["--workers", "none"], "--workers"),
        (["--engine", "cloud"], "'cloud'"),
        (["--encoding", "utf-99"], "utf-99"),
        (["--split", "train"], "--split 'train'"),
        (["--id-column", "name"], "no column 'name'; there: 'key', 'words', 'lang'; name one with --id-column"),
    ],
    ids=str,
)
def test_bad_options_of_encode_corpus(
    refused: Refused, corpus: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    assert re.search(re.escape(message), refused(*arguments(corpus, tmp_path / "c", *more)))
    assert not (tmp_path / "c").exists()


def test_other_settings_are_refused(run: Run, refused: Refused, corpus: Path, tmp_path: Path) -> None:
    assert run(*arguments(corpus, tmp_path / "c"))[0] == 0
    other = ("--store-dtype", "float16")
    message = refused(*arguments(corpus, tmp_path / "c", *other))
    assert "--store-dtype 'float16', but it was begun with 'float32'" in message and "or --overwrite" in message
    assert run(*arguments(corpus, tmp_path / "c", *other, "--overwrite"))[0] == 0
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "corpus.json"):
        (tmp_path / "texts" / name).write_text("mine")
        assert "not an encoded corpus" in refused(*arguments(corpus, tmp_path / "texts", "--overwrite"))
        (tmp_path / "texts" / name).unlink()


# words: what its vectors are is tested in test_words.py


def test_words_of_nothing(refused: Refused, saved: Path) -> None:
    given = ["words", saved / "model", saved / "texts.txt", "--json"]
    assert "--word '没有' is in none of the texts" in refused(*given, "--word", "没有")
    assert "must end in .npy or .jsonl" in refused(*given[:3], "--out", saved / "words.txt")
