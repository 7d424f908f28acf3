"""What `build` makes where no method is named: one model for similarity and for search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from marks import Base
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.hub.card import card_values, write_card
from st_reba.hub.card_method import written_templates
from st_reba.methods import DEFAULT_METHOD
from st_reba.prompts import (
    TEMPLATES,
    TOPIC_LINE_ZH,
    TOPIC_QUESTION_ZH,
    WORD_LINE,
    WORD_QUESTION,
)

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。"]


def build_default(**options: str) -> SentenceTransformer:
    return st_reba.build("mini", device="cpu", check=False, **options)


@pytest.mark.parametrize(
    ("search_template", "similarity_template"),
    [("prompteol-search", "prompteol-word-4"), ("prompteol-search-zh", "prompteol-topic-4-zh")],
)
def test_encode_asks_as_the_template_for_similarity(
    search_template: str, similarity_template: str
) -> None:
    model = build_default(method="prompteol", template=search_template)
    expected = build_default(method="prompteol", template=similarity_template).encode(TEXTS)
    assert np.array_equal(model.encode(TEXTS), expected)
    for vectors in (model.encode_query(TEXTS), model.encode_document(TEXTS)):
        assert np.abs(vectors - expected).max() > 1e-3


def test_default_tells_queries_from_documents() -> None:
    model = build_default()
    assert str(st_reba.method_of(model)) == "prompteol:template=prompteol-search,read=attention"
    assert np.abs(model.encode_query(TEXTS) - model.encode_document(TEXTS)).max() > 1e-3


def test_default_reads_states_where_attention_is_hidden(
    base: Base, caplog: pytest.LogCaptureFixture
) -> None:
    model = st_reba.build(base("bloom"), device="cpu")
    assert str(st_reba.method_of(model)) == "prompteol:template=prompteol-search"
    assert "Its states are read instead: read='states'" in caplog.text
    with pytest.raises(ValueError, match="attention blocks"):
        st_reba.build(base("bloom"), DEFAULT_METHOD, device="cpu")


def test_card_shows_the_three_wordings(tmp_path: Path) -> None:
    model = build_default()
    model.save_pretrained(str(tmp_path))
    write_card(tmp_path, card_values(model, tmp_path))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert written_templates(model[0]) == {
        task: [wording] for task, wording in TEMPLATES["prompteol-search"].items()
    }
    assert '- A query is laid out, in JSON\'s notation, as `"Query: \\"{text}\\" Its topic' in card
    assert '- A document is laid out, in JSON\'s notation, as `"Passage: \\"{text}\\" Its' in card
    assert "- A text given to `encode` is laid out, in JSON's notation, as" in card


@pytest.mark.parametrize(
    ("name", "asked_question", "asked_line"),
    [
        ("prompteol-word-{count}", WORD_QUESTION, WORD_LINE),
        ("prompteol-topic-{count}-zh", TOPIC_QUESTION_ZH, TOPIC_LINE_ZH),
    ],
)
@pytest.mark.parametrize("count", [1, 4, 8])
def test_a_template_has_as_many_examples_as_its_name_says(
    count: int, name: str, asked_question: str, asked_line: str
) -> None:
    question, *lines = TEMPLATES[name.format(count=count)].split("\n")
    assert question + "\n" == asked_question
    assert len(lines) == count + 1
    assert lines[-1] == asked_line
