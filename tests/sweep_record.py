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


# Model type → its record.
Records = dict[str, Record]


def read() -> dict[str, Records]:
    """Release of transformers → model type → record; the oldest release first."""
    return dict(json.loads(RECORDS.read_text(encoding="utf-8")))


def as_json(releases: dict[str, Records]) -> str:
    """One line a type, so that a change shows as one."""
    blocks: list[str] = []
    for release in sorted(releases, key=Version):
        lines: list[str] = []
        for name, type_record in sorted(releases[release].items()):
            lines.append(f'  "{name}": {json.dumps(type_record)}')
        blocks.append(f'"{release}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n " + ",\n ".join(blocks) + "\n}\n"


def page(releases: dict[str, Records]) -> str:
    """The text of docs/explanation/architectures.md."""
    oldest = min(releases, key=Version)
    newest = max(releases, key=Version)
    types = releases[newest]
    old_types = releases[oldest]
    facts: dict[str, object] = {
        "newest": newest,
        "oldest": oldest,
        "types": len(types),
        "types_old": len(old_types),
        "command": COMMAND,
        "interface": _count(types, "how", "interface"),
        "hooks": _count(types, "how", "hooks"),
        "shares": _count(types, "shares", "yes"),
        "embedded": _count(types, "echo", "exact"),
    }
    for method in METHODS:
        facts[f"{method}_new"] = _count(types, method, "exact")
        facts[f"{method}_old"] = _count(old_types, method, "exact")
    rows = [_table_row(name, type_record) for name, type_record in sorted(types.items())]
    old_rows: list[str] = []
    for name, type_record in sorted(old_types.items()):
        if name in types and _differs(type_record, types[name]):
            old_rows.append(_table_row(name, type_record))
    template = Template(RECORDS.with_suffix(".md.in").read_text(encoding="utf-8"))
    return template.substitute(facts, rows="\n".join(rows), rows_old="\n".join(old_rows))


def _count(types: Records, key: str, value: str) -> int:
    return sum(type_record[key] == value for type_record in types.values())


def _differs(old_record: Record, new_record: Record) -> bool:
    """Whether a release recorded something else; what it did not record says nothing."""
    return any(old_record[key] != new_record[key] for key in old_record)


def _table_row(name: str, type_record: Record) -> str:
    if type_record["how"] == "none":
        reason = type_record["reba"].replace("no model:", "–:")
        cells = ["–", "–", "–", reason, "–"]
    else:
        attention = type_record["how"] if type_record["how"] in ("interface", "hooks") else "–"
        answers: list[str] = []
        for method in METHODS:
            answers.append(type_record[method].replace("exact", "yes").replace("refused:", "no:"))
        cells = [attention, *answers, type_record.get("shares", "–")]
    return f"| `{name}` | {type_record['class']} | " + " | ".join(cells) + " |"
