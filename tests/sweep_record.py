"""What the sweep found with the newest and the oldest supported transformers; scripts/architectures.py writes it."""

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
    return dict(json.loads(RECORDS.read_text(encoding="utf-8")))


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
    facts["shares"] = sum(entry["shares"] == "yes" for entry in types.values())
    facts["embedded"] = sum(entry["echo"] == "exact" for entry in types.values())
    for method in METHODS:
        facts[f"{method}_new"] = sum(entry[method] == "exact" for entry in types.values())
        facts[f"{method}_old"] = sum(entry[method] == "exact" for entry in older.values())
    rows = [_row(name, entry) for name, entry in sorted(types.items())]
    differing = [
        _row(name, older[name]) for name in sorted(older) if name in types and _differs(older[name], types[name])
    ]
    text = Template(RECORDS.with_suffix(".md.in").read_text(encoding="utf-8"))
    return text.substitute(facts, rows="\n".join(rows), rows_old="\n".join(differing))


def _differs(older: Record, newer: Record) -> bool:
    """Whether a release recorded something else; what it did not record says nothing."""
    return any(older[key] != newer[key] for key in older)


def _row(name: str, entry: Record) -> str:
    cells = [entry[each].replace("exact", "yes").replace("refused:", "no:") for each in METHODS]
    if entry["how"] == "none":
        cells = ["–", "–", entry["reba"].replace("no model:", "–:")]
    cells.append("–" if entry["how"] == "none" else entry.get("shares", "–"))
    cells.insert(0, entry["how"] if entry["how"] in ("interface", "hooks") else "–")
    return f"| `{name}` | {entry['class']} | " + " | ".join(cells) + " |"
