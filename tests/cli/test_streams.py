"""Standard input and output: closed, full, in any encoding; and a stop from the keyboard."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import st_reba
from st_reba.cli import main
from st_reba.cli.app import to_json
from st_reba.cli.streams import ClosedOutput, WatchedOutput
from st_reba.corpus import encode_corpus
from st_reba.index import Index


class StandardInput:
    """A standard input of bytes."""

    closed = False

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BufferedReader(io.BytesIO(content))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_full_device_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_buffered: bool
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        full.reconfigure(write_through=not is_buffered)
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["zoo", "--json"]) == 1
    message = "st-reba: standard output: No space left on device; free space, or write elsewhere\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_closed_pipe_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_buffered: bool
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        pipe.reconfigure(write_through=not is_buffered)  # type: ignore[attr-defined]
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["zoo"]) == 141
    assert capsys.readouterr().err == ""


def test_closed_streams_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["encode", "model", "-"]) == 1
    assert main(["index", "-", "out", "--model", "model"]) == 1
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["--version"]) == 1
    input_error = "st-reba: standard input is closed; name a file, or give lines on standard input"
    *input_errors, output_error = capsys.readouterr().err.splitlines()
    assert input_errors == [input_error, input_error]
    assert output_error.startswith("st-reba: standard output: it is closed")


def test_output_that_cannot_be_written_ends_the_command() -> None:
    output = WatchedOutput(ClosedOutput())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="it is closed"):
        output.write("a line")


@pytest.mark.parametrize("encoding", ["cp1252", "gbk", "ascii", "utf-8", "latin-1"])
def test_json_is_valid_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    value = {"text": "é 银行 😀 \udc80", "vector": [0.5, float("nan"), float("-inf")]}
    output = io.TextIOWrapper(io.BytesIO(), encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", output)
    print(to_json(value), file=output, flush=True)
    line = output.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert json.loads(line) == {**value, "vector": [0.5, None, None]}
    assert ("银行" in line) == (encoding == "utf-8")


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that reach an index, which finds nothing; no model is loaded."""
    queries: list[str] = []

    def search(query: str, *_: object, **__: object) -> list[object]:
        queries.append(query)
        return []

    monkeypatch.setattr("st_reba.safety.load", Mock())
    monkeypatch.setattr(Index, "open", lambda *_, **__: Mock(search=search))
    return queries


@pytest.mark.parametrize("command", ["encode model -", "search index"])
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            "银行\n".encode("gbk"),
            "not utf-8: byte 0xd2; save it as UTF-8, or name its encoding",
        ),
        ("bank\n".encode("utf-16-le"), "not utf-8: a NUL, as UTF-16"),
    ],
)
def test_standard_input_of_another_encoding_is_refused(
    command: str,
    content: bytes,
    fault: str,
    queries: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", StandardInput(content))
    assert main(command.split()) == 1
    error = capsys.readouterr().err.splitlines()[-1]  # after the line of progress
    assert error.startswith(f"st-reba: standard input, line 1: {fault}")
    assert " --encoding '" in error
    assert queries == []


@pytest.mark.parametrize(
    ("content", "options"),
    [("银行\n".encode("gbk"), ["--encoding", "gbk"]), ("银行\n".encode("utf-16"), [])],
)
def test_standard_input_is_decoded_as_files_are(
    content: bytes,
    options: list[str],
    queries: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", StandardInput(content))
    assert main(["search", "index", *options]) == 0
    assert queries == ["银行"]


def test_an_unknown_encoding_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["encode", "model", "-", "--encoding", "nonsense"]) == 2
    assert capsys.readouterr().err.startswith(
        "st-reba: --encoding 'nonsense' is not known; name one of text, such as"
    )


def test_a_stopped_index_describes_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Index, "build", stop)
    command_line = ["index", "texts.txt", str(tmp_path / "index"), "--model", "model"]
    assert main(command_line) == 130
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error == "st-reba: Stopped. Nothing was encoded yet; run the same command to start again."
    )
    building_folder = tmp_path / "index" / ".building"
    encode_corpus(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], building_folder)
    assert main(command_line) == 130
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error == "st-reba: Stopped. 2 of 2 documents are encoded; run the same command to resume."
    )


def test_a_killed_index_describes_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    former_handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Index, "build", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    assert main(["index", "texts.txt", str(tmp_path / "index"), "--model", "model"]) == 143
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error == "st-reba: Stopped. Nothing was encoded yet; run the same command to start again."
    )
    assert signal.getsignal(signal.SIGTERM) == former_handler


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_error_that_cannot_be_printed_keeps_its_status(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", None if is_closed else full)
        assert main(["nothing"]) == 2
    assert capsys.readouterr() == ("", "")


def test_no_file_takes_the_place_of_a_closed_stream() -> None:
    standard_input = os.dup(0)
    os.close(0)
    try:
        assert main(["--version"]) == 0
        assert os.path.samestat(os.fstat(0), os.stat(os.devnull))
    finally:
        os.dup2(standard_input, 0)
        os.close(standard_input)


@pytest.mark.parametrize(
    "command",
    ["index a.txt", "export index", "encode", "encode model --word", "info", "build mini"],
)
def test_blank_names_are_wrong_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for blank_name in ("", " "):
        assert main([*command.split(), blank_name]) == 2
        assert "it is blank; give a value, or leave it out." in capsys.readouterr().err


@pytest.mark.parametrize("command", ["index a.txt", "export index", "encode", "info", "build mini"])
def test_names_that_are_not_utf8_are_wrong_usage(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "a\udcff"]) == 2
    assert "is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["index - out --model m", "encode m -"])
def test_empty_standard_input_is_named(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", StandardInput(b""))
    assert main(command.split()) == 1
    assert capsys.readouterr().err == "st-reba: standard input: no documents: it is empty\n"


def test_lines_of_standard_input_have_no_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "-", "out", "--model", "m", "--text-column", "title"]) == 2
    assert "--text-column" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["search", "index", ""],
        ["search", "index", "\udcff"],
        ["build", "mini", "out", "--template", "\udcff"],
        ["build", "mini", "out", "--template", "", "--template", "\udcff"],
    ],
)
def test_words_that_are_no_text_are_wrong_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("st-reba: Invalid value for ")


@pytest.mark.parametrize("value", ["nan", "0", "1e30"])
def test_a_wrong_number_is_named(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "index", "dog", "--top", value]) == 2
    assert f"'--top' / '-k': '{value}': " in capsys.readouterr().err


def test_a_long_value_does_not_hide_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "mini", "a.tsv", "echo", "--column", "a" * 5000]) == 2
    error = capsys.readouterr().err
    assert "write NAME=VALUE" in error and len(error) < 1000
