"""What the command line makes of messages that are written for Python."""

from __future__ import annotations

import pytest

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
