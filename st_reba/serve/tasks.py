"""Tasks of a model's texts, and why some cannot be served."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer

from ..encode import Role, saved_prompt
from ..methods import how_to_fill, open_fields

# What messages call the texts of each task.
TEXT_KINDS: dict[Role | None, str] = {
    None: "Texts that are neither query nor document",
    "query": "Queries",
    "document": "Documents",
}


def describe_unserved_tasks(model: SentenceTransformer) -> dict[Role | None, str]:
    """The tasks that no request can ask for, as their template has a field without a value; and why."""
    reasons: dict[Role | None, str] = {}
    for task, text_kind in TEXT_KINDS.items():
        field_names = open_fields(model, task, saved_prompt(model, task))
        if not field_names:
            continue
        field_name = field_names[0]
        reasons[task] = (
            f"{text_kind} cannot be encoded: the template's {{{field_name}}} has no value, "
            f"and no request can give one. Build the model with {how_to_fill(field_name)}."
        )
    return reasons
