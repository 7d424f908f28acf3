"""Templates: texts with a slot for each copy, and fields for other words."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from .extensions import extensions
from .layout import SIMILARITY, SLOTS, TASKS, ParsedTemplate, copies_of


def parse_template(template: str) -> ParsedTemplate:
    """Split a template at its fields; literal braces are doubled, as in ``str.format``."""
    try:
        parsed_fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"template={template!r} is malformed ({error}). Double a literal brace: {{{{."
        ) from error
    parsed_template = tuple((literal, name) for literal, name, _, _ in parsed_fields)
    for _, name, format_spec, conversion in parsed_fields:
        if name is not None and (not name.isidentifier() or format_spec or conversion):
            problem = "has a field that is not a plain name, such as {text} or {instruction}"
            raise ValueError(f"template={template!r} {problem}.")
    slot_names = {name for _, name in parsed_template if name in SLOTS}
    if not slot_names:
        raise ValueError(f"template={template!r} has no {{text}} slot.")
    if len(slot_names) > 1:
        raise ValueError(
            f"template={template!r} mixes {{text}} and {{reversed}}: give each a template of its own."
        )
    return parsed_template


def parse_templates(template: Any) -> list[dict[str, ParsedTemplate]]:
    """The template of each task, for every row that a text makes; ``template``: see RepeatTransformer."""
    listed_templates = [template]
    if isinstance(template, Sequence) and not isinstance(template, str):
        listed_templates = list(template)
    rows = list(map(_parse_by_task, listed_templates))
    if any(SIMILARITY in row for row in rows):
        for row in rows:
            row.setdefault(SIMILARITY, row["document"])
    copy_counts = {copies_of(parsed_template) for row in rows for parsed_template in row.values()}
    if len(copy_counts) != 1:
        raise ValueError(
            f"template={template!r}: every template needs the same number of {{text}} slots."
        )
    return rows


def _parse_by_task(template: Any) -> dict[str, ParsedTemplate]:
    """The template of each task, of one text or one mapping of texts."""
    by_task = dict.fromkeys(TASKS, template) if isinstance(template, str) else template
    if not isinstance(by_task, Mapping) or set(by_task) - {SIMILARITY} != set(TASKS):
        raise ValueError(
            f"template={template!r}: give a text, or a mapping with the keys {', '.join(TASKS)}, "
            f"and {SIMILARITY} for what encode takes, if that differs."
        )
    return {task: parse_template(text) for task, text in by_task.items()}


extensions.parse_templates = parse_templates
