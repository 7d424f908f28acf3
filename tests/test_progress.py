"""How far work is, where no terminal shows a bar."""

from __future__ import annotations

import queue
import sys
from pathlib import Path

import pytest

import st_reba
from st_reba import hub, progress
from st_reba.cli import main

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _lines_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.001)


def test_lines_tell_how_far_the_innermost_step_is() -> None:
    lines: queue.Queue[str] = queue.Queue()
    with progress.printing_lines(lines.put), progress.step("Indexing"):
        assert lines.get(timeout=PATIENCE) == "Indexing: 0 s"
        with progress.progress_bar("Encoding", "texts", 1200, initial=3) as bar:
            bar.update(1000)
            while (
                line := lines.get(timeout=PATIENCE)
            ) != "Encoding: 1,003 of 1,200 texts after 0 s":
                assert line.startswith(("Indexing: ", "Encoding: 3 of"))
        with progress.progress_bar("Reading", "texts"):
            while not (line := lines.get(timeout=PATIENCE)).startswith("Reading"):
                pass
            assert line == "Reading: 0 texts after 0 s"
        while lines.get(timeout=PATIENCE) != "Indexing: 0 s":
            pass


def test_without_lines_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.step("Indexing"), progress.progress_bar("Encoding", "texts", 2) as bar:
        bar.update(2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.bars
def test_a_terminal_gets_bars_and_no_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with (
        progress.printing_lines(pytest.fail),
        progress.progress_bar("Encoding", "texts", 2) as bar,
    ):
        bar.update(2)
    assert "Encoding: 100%" in capsys.readouterr().err


def test_commands_print_lines_into_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_folder, index_folder = str(tmp_path / "model"), str(tmp_path / "index")
    hub.save(st_reba.build("mini"), model_folder)
    texts_file = tmp_path / "texts.txt"
    texts_file.write_text("".join(f"Ship {number} sails.\n" for number in range(60)))
    triples_file = tmp_path / "triples.tsv"
    triples_file.write_text("anchor\tpositive\tnegative\n" + "A cat.\tCats.\tRain.\n" * 10)
    for command_line, step in (
        (["index", str(texts_file), index_folder, "--model", model_folder], "Encoding: "),
        (["encode", model_folder, str(texts_file)], "Encoding: "),
        (["verify", model_folder, "--json"], f"Verifying {model_folder}: "),
        (["evaluate", model_folder, str(triples_file)], "Encoding: "),
    ):
        assert main(command_line) == 0
        lines = capsys.readouterr().err.splitlines()
        assert any(line.startswith(step) for line in lines), command_line
