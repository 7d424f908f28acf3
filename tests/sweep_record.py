"""What the sweep over all architectures found: ``data/architectures.json``, told by docs/explanation/architectures.md.

It is kept for the newest and for the oldest supported release of transformers; scripts/architectures.py writes both.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

from packaging.version import Version
from sweep import METHODS, Record

RECORDS = Path(__file__).parent / "data" / "architectures.json"
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "architectures.md"
COMMAND = "python scripts/architectures.py"


def read() -> dict[str, dict[str, Record]]:
    """Release of transformers → model type → record; the oldest release first."""
    releases: dict[str, dict[str, Record]] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return releases


def as_json(releases: dict[str, dict[str, Record]]) -> str:
    """One line a type, so that a change shows as one."""
    parts = []
    for number in sorted(releases, key=Version):
        lines = [f'  "{name}": {json.dumps(entry)}' for name, entry in sorted(releases[number].items())]
        parts.append(f'"{number}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def page(releases: dict[str, dict[str, Record]]) -> str:
    """The text of docs/explanation/architectures.md."""
    oldest, newest = min(releases, key=Version), max(releases, key=Version)
    types, older = releases[newest], releases[oldest]
    facts = {"newest": newest, "oldest": oldest, "types": len(types), "types_old": len(older), "command": COMMAND}
    facts |= {how: sum(entry["how"] == how for entry in types.values()) for how in ("interface", "hooks")}
    for method in METHODS:
        facts[f"{method}_new"] = sum(entry[method] == "exact" for entry in types.values())
        facts[f"{method}_old"] = sum(entry[method] == "exact" for entry in older.values())
    rows = [_row(name, entry) for name, entry in sorted(types.items())]
    differing = [_row(name, each) for name, each in sorted(older.items()) if name in types and each != types[name]]
    text = Template(RECORDS.with_suffix(".md.in").read_text(encoding="utf-8"))
    return text.substitute(facts, rows="\n".join(rows), rows_old="\n".join(differing))


def _row(name: str, entry: Record) -> str:
    if entry["how"] == "none":
        cells = ["–", "–", "–", "–: " + entry["reba"].removeprefix("no model: ")]
    else:
        cells = ["yes" if entry[each] == "exact" else entry[each].replace("refused:", "no:") for each in METHODS]
        cells.insert(0, "–" if entry["how"] == "refused" else entry["how"])
    return f"| `{name}` | {entry['class']} | " + " | ".join(cells) + " |"
