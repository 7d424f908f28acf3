"""Help: quick, complete, and its examples are commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from commanding import Run

import st_reba
from st_reba import cli

ROOT = Path(st_reba.__file__).parents[1]
TOP: Any = typer.main.get_command(cli.app)
HEAVY = ("gradio", "torch", "transformers", "sentence_transformers", "faiss", "pandas", "mteb")
# Mistakes that are told before any of these is imported, and a word of the message.
MISTAKES = [
    (["serch", "x"], "'search'"),
    (["add", "my_index", "x"], "'index add'"),
    (["build", "mini", "out", "--pool", "mean"], "--pooling"),
    (["build", "mini", "out", "--method", "rebar"], "'reba'"),
    (["build", "mini", "out", "--pooling", "men"], "'mean'"),
    (["build", "mini", "out", "--method", "echo", "--chunk", "3"], "chunk"),
    (["build", "mini", "out", "--repeats", "two"], "from 1 to 64"),
    (["build", "mini", "out", "--method", "nosink", "--setting", "mask0-bidri", "--k", "2"], "'mask0-bidir'"),
    (["build", "mini", "out", "--stage", "prepent:layers=2"], "'prepend'"),
    (["build", "mini", "out", "--dtype", "float8"], "bfloat16"),
    (["build", "mini", "out", "--device", "gpu"], "cuda"),
    (["build", "mini", "my_model"], "--overwrite"),
    (["build", "mini", "texts.txt"], "a file"),
    (["build", "my_index", "out"], "an index, not a base model"),
    (["build", "my_model", "out"], "a saved model already"),
    (["build", "zoo:mini-rebba", "out"], "mini-reba"),
    (["build", "mini-reba", "out"], "zoo:mini-reba"),
    (["encode", "my_modle", "texts.txt", "--json"], "'my_model'"),
    (["encode", "mini", "texts.txt", "--json"], "st-reba build mini"),
    (["encode", "my_index", "texts.txt", "--json"], "an index, not a saved model"),
    (["encode", "my_model", "text.txt", "--json"], "no such file"),
    (["encode", "my_model", "a.csv", "--text-column", "body", "--json"], "'words'"),
    (["encode", "my_model", "texts.txt", "--json", "--batch-size", "0"], "--batch-size"),
    (["encode", "my_model", "texts.txt", "--out", "nowhere/v.npy"], "nowhere"),
    (["index", "build", "my_model", "texts.txt", "my_index"], "--overwrite"),
    (["index", "build", "my_model", "texts.txt", "out", "--factory", "FLAT"], "'Flat'"),
    (["index", "build", "my_model", "texts.txt", "out", "--recall-aim", "2"], "--recall-aim"),
    (["index", "add", "my_model", "texts.txt"], "a saved model, not an index"),
    (["index", "delete", "my_indx", "1"], "'my_index'"),
    (["search", "my_index", "x", "--top", "0"], "--top"),
    (["search", "my_index", "x", "--where", "lang"], "NAME=VALUE"),
    (["serve", "my_index"], "an index, not a saved model"),
    (["serve", "my_model", "--index", "my_model"], "a saved model, not an index"),
    (["serve", "my_model", "--queue", "0"], "--queue"),
    (["serve", "my_model", "--port", "99999"], "--port"),
    (["encode-corpus", "my_model", "texts.txt", "out", "--passages", "8:9"], "--passages"),
    (["encode-corpus", "my_model", "texts.txt", "my_model"], "not an encoded corpus"),
    (["onnx", "my_model", "my_model"], "not an exported model"),
    (["postfilter", "my_model", "texts.txt", "out", "--kind", "withen"], "'whiten'"),
    (["verify", "my_modle"], "'my_model'"),
    (["zoo", "mini-rebba"], "mini-reba"),
    (["zoo", "--method", "rebar"], "'reba'"),
    (["evaluate", "pairs.tsv"], "--model"),
    (["evaluate", "pair.tsv", "--model", "mini"], "no such file"),
    (["evaluate", "STTS=pairs.tsv", "--model", "mini"], "'STS'"),
    (["evaluate", "pairs.tsv", "--model", "mini", "--methods", "rebaa"], "'reba'"),
    (["compare", "pairs.tsv", "--columns", "text1=asked"], "there is no column 'asked'"),
    (["compose", "mini", "pairs.tsv", "out", "--kind", "STTS"], "'STS'"),
    (["compose", "mini", "pairs.tsv", "my_model"], "not the folder of a search"),
    (["compose", "mini", "pairs.tsv", "out", "--minutes", "-1"], "--minutes"),
    (["tune", "mini", "text.txt", "out"], "'texts.txt'"),
    (["tune", "mini", "texts.txt", "my_index"], "not the folder of a search"),
    (["tune", "mini", "texts.txt", "out", "--like", "topic"], "'topics'"),
    (["tune", "mini", "texts.txt", "out", "--minutes", "0"], "--minutes"),
    (["report", "nowhere"], "nowhere"),
    (["explore", "minni"], "'mini'"),
    (["explore", "mini", "--language", "de"], "'en'"),
    (["explore", "--index", "nowhere"], "no such folder"),
    (["explore", "--port", "99999"], "--port"),
    (["explore", "mini echoo"], "'echo'"),
    (["explore", "mini", "mini"], "given twice"),
    (["space", "out"], "MODEL"),
    (["space", "out", "my_model"], "on this machine"),
]


def commands(group: Any = TOP, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


COMMANDS = dict(commands())
EXAMPLES = [
    (name, line)
    for name, command in COMMANDS.items()
    for line in command.examples
    if "st-reba" in line.split(" | ")[-1]
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with something of every kind that commands take."""
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a cat\n", encoding="utf-8")
    Path("a.csv").write_text("words\nx\n", encoding="utf-8")
    Path("pairs.tsv").write_text("text1\ttext2\tscore\n" + "a\tb\t1\n" * 20, encoding="utf-8")
    for kind, mark in (("my_model", "modules.json"), ("my_base", "config.json")):
        Path(kind).mkdir()
        Path(kind, mark).write_text('[{"type": "st_reba.RepeatTransformer"}]', encoding="utf-8")
    Path("my_index").mkdir()
    st_reba.Index.build(_Model(), ["a"], "my_index").close()
    return tmp_path


def _Model() -> Any:
    from tiny import tiny_model

    return tiny_model()


def test_help_and_mistakes_are_light(files: Path) -> None:
    """Neither help nor what can be refused waits for a library that takes seconds."""
    given = [*([*name.split(), "-h"] for name in COMMANDS), ["-h"], ["--version"], *(words for words, _ in MISTAKES)]
    code = f"""
import json, sys
from st_reba import cli
for given in json.loads(sys.argv[1]):
    cli.main(given)
    found = set(sys.modules) & {set(HEAVY)}
    assert not found, (given, found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(given)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(MISTAKES)
    for (words, told), line in zip(MISTAKES, lines, strict=True):
        assert line.startswith("st-reba") and told in line, (words, line)
    assert not Path("out").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_help(run: Run, name: str) -> None:
    status, out, err = run(*name.split(), "-h")
    assert (status, err) == (0, "")
    assert f"st-reba {name}" in out.split("Examples:")[1]
    assert max(len(line) for line in out.split("Examples:")[0].splitlines()) <= 80
    # Two at least, of which none is long.
    lines = [line for command, line in EXAMPLES if command == name]
    assert len(lines) >= 2 and max(map(len, lines)) <= 98


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_examples_are_commands(name: str, line: str) -> None:
    given = shlex.split(line.partition(" | ")[2] or line)[1:]
    assert given[: len(name.split())] == name.split()
    COMMANDS[name].make_context(name, given[len(name.split()) :])


def test_help_of_all(run: Run) -> None:
    status, out, _ = run("-h")
    assert run("--help")[1] == out and run("demo", "--help")[1] == run("demo", "-h")[1]
    assert status == 0 and [name for name in TOP.commands if not re.search(rf"│ {name} ", out)] == []
    assert "Make a model" in out and "Exit codes: 0 done; 1 the answer is no" in out and "st-reba demo" in out
    assert run("--version")[1].split() == ["st-reba", st_reba.__version__]
    for group in ([], ["index"]):
        status, out, err = run(*group)
        assert status == 2 and "Usage: st-reba" in out + err


def test_brackets_are_no_markup(run: Run) -> None:
    assert "[texts, dimension] float32" in re.sub(r"[│\s]+", " ", run("encode", "-h")[1])
    assert "no [b] there" in run("info", "no [b] there")[2]


def test_completion(run: Run) -> None:
    for words, wanted in (
        ("st-reba build zoo:mini-ec", "zoo:mini-echo"),
        ("st-reba build mini out --setting mask0-bi", "mask0-bidir"),
        ("st-reba zoo mini-ec", "mini-echo"),
        ("st-reba index ups", "upsert"),
    ):
        env = {"_ST_REBA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        assert wanted in run(env=env)[1]


@pytest.mark.slow
def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """All but those that need the Hub or an extra, in their order."""
    monkeypatch.chdir(tmp_path)
    documents = [
        {"id": f"doc-{n}", "text": f"Document {n} 第{n}号", "lang": "en", "year": 2000 + n} for n in range(200)
    ]
    lines = [json.dumps(each) for each in documents]
    Path("corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    Path("corpus.txt").write_text("\n".join(each["text"] for each in documents), encoding="utf-8")  # type: ignore[misc]
    for name in ("texts.txt", "sample.txt", "questions.txt"):
        Path(name).write_text("他在银行取钱\nA cat.\n", encoding="utf-8")
    Path("texts").mkdir()
    Path("texts", "a.txt").write_text("a\nb\n", encoding="utf-8")
    Path("more.jsonl").write_text('{"id": "more", "text": "more"}\n', encoding="utf-8")
    Path("more.csv").write_text("id,abstract\nm1,more and more\n", encoding="utf-8")
    Path("corrected.jsonl").write_text('{"id": "doc-1", "text": "corrected"}\n', encoding="utf-8")
    Path("corrected.csv").write_text("key,text\ndoc-2,corrected\n", encoding="utf-8")
    Path("old.txt").write_text("doc-3\ngone\n", encoding="utf-8")
    Path("pairs.tsv").write_text(
        "text1\ttext2\tscore\n" + "".join(f"t {n}\tt {n % 7}\t{n % 5}\n" for n in range(90)), encoding="utf-8"
    )
    clicks = [f'{{"query": "q{n // 4}", "title": "t{n}", "relevance": {n % 2}}}\n' for n in range(160)]
    Path("clicks.jsonl").write_text("".join(clicks), encoding="utf-8")
    elsewhere = (
        "C-MTEB",
        "organization/",
        "org/",
        "results-before",
        "compose",
        "tune ",
        "my_base",
        "--quantize",
        "lancedb",
        "corrected.csv",
    )
    first = ("demo", "build", "encode-corpus", "index build")
    order = [*first, *(name for name in COMMANDS if name not in first)]
    for name, line in sorted(EXAMPLES, key=lambda each: order.index(each[0])):
        # What is served is so until it is stopped.
        if name in ("explore", "serve", "space") or any(word in line for word in elsewhere):
            continue
        # A part of the toy sentences is enough.
        said, _, piped = line.replace(" toy ", " toy:S3,en ").partition(" | ")
        text = said.removeprefix("echo ") if piped else None
        done = cli.main(shlex.split(piped or said)[1:]) if text is None else _piped(piped, text, monkeypatch)
        assert done == 0, f"{line}\n{capfd.readouterr().err}"


def _piped(line: str, text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{text}\n"))
    return cli.main(shlex.split(line)[1:])
