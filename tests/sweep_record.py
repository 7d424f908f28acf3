"""What the sweep over all architectures found: ``data/architectures.json``, told by docs/explanation/architectures.md.

It is kept for the newest and for the oldest supported release of transformers; scripts/architectures.py writes both.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template

import transformers
from sweep import METHODS, Record

RECORDS = Path(__file__).parent / "data" / "architectures.json"
WORDS = RECORDS.with_suffix(".md.in")
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "architectures.md"
COMMAND = "python scripts/architectures.py"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def read() -> dict[str, dict[str, Record]]:
    """Release of transformers → model type → record; the oldest release first."""
    releases = json.loads(RECORDS.read_text(encoding="utf-8"))
    return {each: releases[each] for each in sorted(releases, key=_version)}


def release() -> str:
    """The recorded release that holds for the installed one: itself, or the last before it."""
    known = list(read())
    return [each for each in known if _version(each) <= _version(transformers.__version__)][-1]


def recorded() -> dict[str, Record]:
    """What holds for the installed release: model type → record."""
    return read()[release()]


def as_json(releases: dict[str, dict[str, Record]]) -> str:
    """One line a type, so that a change shows as one."""
    parts = []
    for number in sorted(releases, key=_version):
        lines = [f'  "{name}": {json.dumps(entry)}' for name, entry in sorted(releases[number].items())]
        parts.append(f'"{number}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def page(releases: dict[str, dict[str, Record]]) -> str:
    """The text of docs/explanation/architectures.md."""
    oldest, newest = min(releases, key=_version), max(releases, key=_version)
    types = releases[newest]
    ways = {how: sum(entry["how"] == how for entry in types.values()) for how in ("interface", "hooks")}
    counts = {
        f"{title}_{age}": sum(entry[method] == "exact" for entry in releases[number].values())
        for age, number in (("new", newest), ("old", oldest))
        for method, title in zip(METHODS, ("reba", "echo", "nosink"), strict=True)
    }
    rows = [_row(name, entry) for name, entry in sorted(types.items())]
    older = releases[oldest]
    differing = [_row(name, each) for name, each in sorted(older.items()) if name in types and each != types[name]]
    facts = {"newest": newest, "oldest": oldest, "types": len(types), "types_old": len(older), "command": COMMAND}
    text = Template(WORDS.read_text(encoding="utf-8"))
    return text.substitute(counts | ways | facts, rows="\n".join(rows), rows_old="\n".join(differing))


def _row(name: str, entry: Record) -> str:
    if entry["how"] == "none":
        cells = ["–"] * 3 + ["–: " + entry["reba"].removeprefix("no model: ")]
    else:
        cells = ["yes" if entry[each] == "exact" else entry[each].replace("refused:", "no:") for each in METHODS]
        cells.insert(0, "–" if entry["how"] == "refused" else entry["how"])
    return f"| `{name}` | {entry['class']} | " + " | ".join(cells) + " |"
