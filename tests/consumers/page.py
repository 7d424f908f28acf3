"""docs/how-to/tools.md, by section."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tools.md"
MODEL = "The model"


def sections() -> dict[str, list[str]]:
    """The Python blocks of each section that has any."""
    titled = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert "```python" not in titled[0]
    found = {
        title: re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for title, text in _two(titled)
    }
    return {title: blocks for title, blocks in found.items() if blocks}


def without_trust(block: str) -> str:
    """The same block for who has imported st_reba: no code of the repository is trusted."""
    changed, count = re.subn(r'(trust_remote_code"?(?:=|: ))True', r"\1False", block)
    assert count, block
    return changed


def _two(titled: list[str]) -> list[tuple[str, str]]:
    return list(zip(titled[1::2], titled[2::2], strict=True))
