"""Options that several commands share: progress, lists, tables, texts."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import get_args

import pytest
from tqdm import tqdm

from st_reba.cli import evaluate, index, options, vectors
from st_reba.corpus import encode, folder, records
from st_reba.encode import Task
from st_reba.evaluation import methods
from st_reba.evaluation import run as runs
from st_reba.index.export import FORMATS


def test_progress_in_a_log_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(options._Lines, "SECONDS", 0.0)
    assert options.Output(False, True, False).bar is False
    assert options.Output(False, False, False).bar is True
    for _ in tqdm(range(3), desc="Encoding", mininterval=0, disable=False):
        pass
    print("told", file=sys.stderr)
    lines = log.getvalue().splitlines()
    assert lines[-1] == "told" and len(lines) > 3
    assert all(line.startswith("Encoding: ") and "|" not in line and "\r" not in line for line in lines[:-1])
    # Short work is not told.
    monkeypatch.setattr(options._Lines, "SECONDS", 60.0)
    log.truncate(0)
    list(tqdm(range(3), disable=False))
    assert "3/3" not in log.getvalue()


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert options.Output(False, False, False).bar is None and sys.stderr is terminal


def test_what_is_written_out_is_what_the_package_has() -> None:
    """The command line names these without importing the libraries that have them."""
    from inspect import signature

    from st_reba.batches import DEFAULT_BATCH_TOKENS

    assert options.BATCH_TOKENS == DEFAULT_BATCH_TOKENS
    assert (options.ENGINES, vectors.STORE_DTYPES, options.MAX_CHARS) == (
        encode.ENGINES,
        folder.DTYPES,
        records.MAX_CHARS,
    )
    assert index.EXPORTS == FORMATS
    assert evaluate.MTEB_SEED == runs.MTEB_SEED == signature(runs.evaluate).parameters["seed"].default
    assert signature(methods.methods_for).parameters["default"].default == evaluate.METHODS
    assert set(evaluate.METHODS.split(",")) < set(evaluate.COMPARED.split(","))
    assert get_args(Task) == ("query", "document")


def test_lists_with_commas() -> None:
    assert options.pairs("a=1, b = x=y ,c=", "--columns") == {"a": "1", "b": "x=y", "c": ""}
    assert options.numbers("16,-32, 64", "--dims") == [16, -32, 64]
    assert options.pairs(None, "--columns") is None and options.numbers(None, "--dims") is None
    for wrong in ("a", "=1", "a=1,,b=2"):
        with pytest.raises(ValueError, match=f"--columns '{wrong}': write NAME=VALUE"):
            options.pairs(wrong, "--columns")
    for wrong in ("", "a", "1.5", "1;2"):
        with pytest.raises(ValueError, match=f"--dims '{wrong}': give whole numbers"):
            options.numbers(wrong, "--dims")


def test_tables_have_columns_of_their_widths() -> None:
    assert options.table([["name", "n"], ["a", "10"], ["longer", ""]]) == "name    n\na       10\nlonger"


def test_json_alone_stands_on_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What goes on is told beside it; quiet leaves what was asked for."""
    for json, quiet, out, err in (
        (False, False, "line\ndone\nanswer\n", ""),
        (True, False, '{"n": 1}\n{"n": 2}\n', "line\n"),
        (False, True, "answer\n", ""),
    ):
        output = options.Output(json, quiet, False)
        output.say("line")
        output.report("done", {"n": 1})
        output.answer("answer", {"n": 2})
        assert capsys.readouterr() == (out, err)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert options.dumped({"text": "猫"}) == '{"text": "\\u732b"}'


def test_texts_of_a_file_or_of_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("body\none\ntwo\n", encoding="utf-8")
    assert list(options.texts_of(str(tmp_path / "a.csv"), "body")) == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\r\n \ntwo"))
    assert list(options.texts_of("-", None)) == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    with pytest.raises(ValueError, match="FILE '-' is empty"):
        options.texts_of("-", None)
    with pytest.raises(FileNotFoundError, match="Did you mean .*a.csv'"):
        options.texts_of(str(tmp_path / "a.cvs"), None)


def test_devices_of_an_engine() -> None:
    assert options.Engine("local", 2, "cuda:0,cuda:1,").settings["devices"] == ["cuda:0", "cuda:1"]
    assert options.Engine("local", None, None).settings == {"engine": "local", "workers": None, "devices": None}
