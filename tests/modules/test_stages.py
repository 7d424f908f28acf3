"""What a pass in stages asks of a model, and when its stages are worth their cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from marks import Base
from pipelines import build, encoded

from st_reba.modules import shared_prefix
from st_reba.modules.layout import Span
from st_reba.modules.questions import QuestionBatch


def test_a_model_that_keeps_no_states_for_the_next_stage_is_refused(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is told to share a prefix all the same."""
    monkeypatch.setitem(shared_prefix.STAGE_COST, "cpu", 1)
    model: Any = build(base("llama"), "prompteol", template="Text: {text} Word:")
    monkeypatch.setattr(model[0], "run_pass", lambda *arguments: torch.zeros(1, 1, 32))
    with pytest.raises(ValueError, match="LlamaModel hides the cache of its layers"):
        encoded(model)


def batch_of_texts(*text_lengths: int) -> QuestionBatch:
    """Two questions of each text, after a prefix of five tokens."""
    spans: list[Span] = []
    for text_length in text_lengths:
        spans += [Span(5, text_length, 20)] * 2
    features = {"spans": spans, "input_ids": torch.zeros(len(spans), 20, dtype=torch.long)}
    return QuestionBatch(None, features, [])


def test_a_prefix_is_worth_a_stage_that_costs_what_it_saves() -> None:
    """Of three rows it saves two prefixes."""
    batch = batch_of_texts(4, 4)
    batch.stage_cost = 2 * 5
    assert batch.saves_prefix([0, 1, 2])
    batch.stage_cost += 1
    assert not batch.saves_prefix([0, 1, 2])


@pytest.mark.parametrize(
    ("text_lengths", "worthwhile_cost"),
    [((4, 4), 4 + 4), ((4, 6), (4 + 6) // 2)],
    ids=["one length", "two lengths"],
)
def test_texts_are_worth_a_stage_of_questions_for_each_of_their_lengths(
    text_lengths: tuple[int, int], worthwhile_cost: int
) -> None:
    batch = batch_of_texts(*text_lengths)
    batch.stage_cost = worthwhile_cost
    assert batch.saves_texts([[0, 1], [2, 3]])
    batch.stage_cost += 1
    assert not batch.saves_texts([[0, 1], [2, 3]])
