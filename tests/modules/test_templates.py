"""Templates: one wording for every use, one for queries and one for documents, or a third for all else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from marks import Base
from pipelines import build

from st_reba.modules.templates import parse_templates

WORDINGS = {
    "query": 'Query: "{text}" Word: "',
    "document": 'Passage: "{text}" Word: "',
    "similarity": 'The text: "{text}" In one word: "',
}
TEXTS = ["The river runs past the mill.", "银行"]


def encode_with(base_path: str, template: Any) -> np.ndarray:
    return build(base_path, "prompteol", template=template).encode(TEXTS)


def test_encode_uses_the_third_wording(base: Base) -> None:
    base_path = base("llama")
    model = build(base_path, "prompteol", template=WORDINGS)
    assert np.array_equal(model.encode(TEXTS), encode_with(base_path, WORDINGS["similarity"]))
    assert np.array_equal(model.encode_query(TEXTS), encode_with(base_path, WORDINGS["query"]))
    assert np.array_equal(
        model.encode_document(TEXTS), encode_with(base_path, WORDINGS["document"])
    )


def test_encode_is_encode_document_without_a_third_wording(base: Base) -> None:
    two_wordings = {
        "query": WORDINGS["query"],
        "document": WORDINGS["document"],
    }
    model = build(base("llama"), "prompteol", template=two_wordings)
    assert np.array_equal(model.encode(TEXTS), model.encode_document(TEXTS))
    assert not np.array_equal(model.encode(TEXTS), model.encode_query(TEXTS))


def test_templates_of_a_list_without_a_third_wording_use_that_of_documents() -> None:
    other_template = "A word for {text} is"
    first_row, second_row = parse_templates([WORDINGS, other_template])
    assert set(first_row) == set(second_row) == set(WORDINGS)
    assert second_row["similarity"] == second_row["document"]


def test_fields_of_the_third_wording_are_arguments_of_encode(
    base: Base,
) -> None:
    wordings = {**WORDINGS, "similarity": "As to {subject}: {text}"}
    base_path = base("llama")
    model = build(base_path, "prompteol", template=wordings)
    expected = encode_with(base_path, "As to birds: {text}")
    assert np.array_equal(model.encode(TEXTS, subject="birds"), expected)
    with pytest.raises(ValueError, match="{subject} needs one text"):
        model.encode(TEXTS)


@pytest.mark.parametrize("task", ["clustering", "similarity"])
def test_task_without_a_wording_is_refused(base: Base, task: str) -> None:
    first: Any = build(base("llama"), "prompteol")[0]
    with pytest.raises(
        ValueError,
        match=f"task='{task}' is not known. Choose from query, document",
    ):
        first.row_layouts(task=task)


@pytest.mark.parametrize("missing", ["query", "document"])
def test_mapping_without_a_query_or_a_document_is_refused(missing: str) -> None:
    wordings = {task: text for task, text in WORDINGS.items() if task != missing}
    with pytest.raises(ValueError, match="a mapping with the keys query, document"):
        parse_templates(wordings)


def test_wording_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="and similarity for what encode takes"):
        parse_templates({**WORDINGS, "passage": "{text}"})


@pytest.mark.parametrize("template", [["{text}"] * 65, "{text}" * 65], ids=["templates", "slots"])
def test_more_than_64_templates_or_slots_are_refused(base: Base, template: str | list[str]) -> None:
    with pytest.raises(ValueError, match="at most 64 of each"):
        build(base("llama"), "echo", pooling="mean", template=template)


def test_a_template_holds_the_text_in_one_word_order() -> None:
    with pytest.raises(ValueError, match="mixes {text} and {reversed}"):
        parse_templates('"{text}" "{reversed}" Word: "')


def test_a_template_holds_the_text() -> None:
    with pytest.raises(ValueError, match="template='In one word:' has no {text} slot"):
        parse_templates({"query": "{text}", "document": "In one word:"})
