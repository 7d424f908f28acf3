"""Templates: texts with a slot for each copy, and fields for other words."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from .extensions import extensions
from .layout import SIMILARITY, SLOTS, TASKS, Template, copies_of


def parse_template(template: str) -> Template:
    """Split a template at its fields; literal braces are doubled, as in ``str.format``."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"template={template!r} is malformed ({error}). Double a literal brace: {{{{.") from error
    if any(name is not None and (not name.isidentifier() or spec or how) for _, name, spec, how in parsed):
        raise ValueError(f"template={template!r} has a field that is no plain name, as {{text}} or {{instruction}}.")
    pieces = tuple((literal, name) for literal, name, _, _ in parsed)
    if len(slots := {name for _, name in pieces if name in SLOTS}) != 1:
        problem = "has no {text} slot" if not slots else "mixes {text} and {reversed}: give each a template of its own"
        raise ValueError(f"template={template!r} {problem}.")
    return pieces


def parse_templates(template: Any) -> list[dict[str, Template]]:
    """The template of each task, for every row that a text makes; ``template``: see RepeatTransformer."""
    if isinstance(template, Sequence) and not isinstance(template, str):
        rows = [row for listed_template in template for row in parse_templates(listed_template)]
    else:
        rows = [_parse_by_task(template)]
    if any(SIMILARITY in row for row in rows):
        for row in rows:
            row.setdefault(SIMILARITY, row["document"])
    if len({copies_of(parsed) for row in rows for parsed in row.values()}) != 1:
        raise ValueError(f"template={template!r}: every template needs the same number of {{text}} slots.")
    return rows


def _parse_by_task(template: Any) -> dict[str, Template]:
    """The template of each task, of one text or one mapping of texts."""
    by_task = dict.fromkeys(TASKS, template) if isinstance(template, str) else template
    if not isinstance(by_task, Mapping) or set(by_task) - {SIMILARITY} != set(TASKS):
        raise ValueError(
            f"template={template!r}: give a text, or a mapping with the keys {', '.join(TASKS)}, "
            f"and {SIMILARITY} for what encode takes, if that differs."
        )
    return {task: parse_template(text) for task, text in by_task.items()}


extensions.parse_templates = parse_templates
