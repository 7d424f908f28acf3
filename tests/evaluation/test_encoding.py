"""What is told of a model that encodes: its name, and where it takes an instruction."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.evaluation.encoding import has_instruction_field, name_of


@pytest.fixture
def other_model() -> SentenceTransformer:
    """A model that st_reba did not build, without a name."""
    return SentenceTransformer(modules=[torch.nn.Identity()])


def test_a_model_without_a_name_is_named_by_its_class(other_model: SentenceTransformer) -> None:
    assert name_of(other_model) == "SentenceTransformer"


def test_other_models_have_no_field_for_an_instruction(other_model: SentenceTransformer) -> None:
    assert not has_instruction_field(other_model, None)


def test_texts_without_a_role_take_the_instruction_of_queries() -> None:
    template = {"query": "{instruction} Q: {text} is", "document": "D: {text} is"}
    model = st_reba.build("mini", "prompteol", template=template)
    roles = [None, "query", "document"]
    assert [has_instruction_field(model, role) for role in roles] == [True, True, False]
