"""Every block of docs/how-to/tools.md is run by a test here."""

from __future__ import annotations

import re
from pathlib import Path

from page import MODEL, PAGE, sections


def test_every_section_is_run() -> None:
    tests = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    run = [match for text in tests for match in re.findall(r'^SECTION = "(.+)"$', text, re.MULTILINE)]
    assert len(set(run)) == len(run) == 7
    assert set(sections()) == {MODEL, *run}


def test_no_block_is_missed() -> None:
    """Another word after the backticks would hide one."""
    text = PAGE.read_text(encoding="utf-8")
    opened = re.findall(r"^\s*(?:```|~~~)(.*)$", text, re.MULTILINE)[::2]
    assert set(opened) == {"python", "sh"}
    assert opened.count("python") == sum(len(blocks) for blocks in sections().values())
