"""What the command line makes of messages and progress that are written for Python and for a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from tqdm import tqdm

from st_reba.cli import options
from st_reba.cli.app import escaped, spoken

FLAGS = {
    "overwrite": "--overwrite",
    "workers": "--workers",
    "devices": "--devices",
    "text_column": "--text-column",
    "split": "--split",
    "k": "--k",
    "k0": "--k0",
}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("x: there already; give another path, or overwrite=True (--overwrite)", "--overwrite"),
        ("workers=1 are fewer than devices=['a']. Give more (--workers, --devices).", "--workers 1 are fewer than"),
        ("name one with text_column (--text-column)", "name one with --text-column"),
        ("split='a': drop it (--split)", "--split 'a': drop it"),
        ("give k=… and k0=… (--k, --k0).", "give --k … and --k0 …."),
        ("echo: k (='3)') is not known", "echo: --k '3)' is not known"),
        # No option of the command, and the short form of a method.
        ("pooling='cls' in 'nosink:setting=x,k=4'", "pooling='cls' in 'nosink:setting=x,k=4'"),
        ("give 'gb18030' (--encoding)", "give 'gb18030' (--encoding)"),
    ],
)
def test_messages_speak_the_command_line_s_language(message: str, told: str) -> None:
    found = spoken(message, FLAGS)
    assert told in found and "True" not in found and "(--overwrite)" not in found and "----" not in found


def test_brackets() -> None:
    from rich.text import Text

    for text in ("[texts, dimension]", "[/b] and [link=x]", "[1, 2] stays"):
        assert Text.from_markup(escaped(text)).plain == text


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
