"""Answers of the tabs: computed from what was entered; errors take an answer's place."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import st_reba
from st_reba.explore import compute, draw
from st_reba.explore.answers import Answers

WORDS = draw.WORDS["en"]


@cache
def model() -> Any:
    return st_reba.build("mini", "echo")


def answers(index: st_reba.Index | None = None) -> Answers:
    return Answers({"echo": model()}, index, WORDS)


def test_compare() -> None:
    texts = ("a cat", "ships sail")
    wanted = draw.draw_comparison({"echo": compute.similarities(model(), texts)}, texts, WORDS)
    assert answers().compare(["echo"], "a cat\n\nships sail") == wanted


@pytest.mark.parametrize(("weighting", "chosen"), [("last", [3]), ("mean", []), ("word", [0, 1])])
def test_look(weighting: compute.Weighting, chosen: list[int]) -> None:
    inside = compute.look(model(), "天气 cat", 3)
    assert len(inside.rows) == 4
    wanted = draw.draw_inside(inside, inside.weights(weighting, chosen), chosen, 5, WORDS)
    # A layer that another model has is the last of this one.
    assert answers().look("echo", " 天气 cat ", 3.0, weighting, "天气", 9.0) == wanted


def test_search(tmp_path: Path) -> None:
    texts = ["The cat sleeps.", *(f"{number} ships sail. " * 20 for number in range(compute.MAX_RESULTS))]
    index = st_reba.Index.build(model(), texts, tmp_path / "index", passages="12:2", show_progress_bar=False)
    hits = [(hit.score, str(hit.passage)) for hit in index.search("a cat", k=compute.MAX_HITS)]
    found = {"echo": compute.ranked(model(), "a cat", [text for _, text in hits])}
    about = f"{WORDS['found']} {WORDS['index_about'].format(most=compute.MAX_HITS, read=compute.MAX_READ)}"
    wanted = draw.draw_results({WORDS["index_column"]: hits[: compute.MAX_RESULTS], **found}, "a cat", about)
    assert answers(index).search(["echo"], "index", "hybrid", "a cat", "") == wanted and len(hits) > compute.MAX_RESULTS
    own = {"echo": compute.ranked(model(), "a cat", ["The cat sleeps."])}
    pasted = answers().search(["echo"], "pasted", "hybrid", "a cat", "The cat sleeps.")
    assert pasted == draw.draw_results(own, "a cat", WORDS["found"])
    by_words = answers(index).search(["echo"], "index", "words", "cat", "")
    assert "</mark> sleeps." in by_words and "ships sail" not in by_words
    assert "<li>" not in answers(index).search(["echo"], "index", "words", "zebra", "")


def test_problems(caplog: pytest.LogCaptureFixture) -> None:
    answer, look = (answers().or_problem(run) for run in (answers().compare, answers().look))
    assert WORDS["too_many"].format(count=2, most=1) in look("echo", "a\nb", 1, "last", "", 0)
    assert answer([], "a\nb") == draw.draw_problem(WORDS["problem"], WORDS["no_model"])
    assert "300" in answer(["echo"], f"a\n{'b' * 301}") and not caplog.records
    assert answer(["other"], "a\nb") == draw.draw_problem(WORDS["problem"], "KeyError: 'other'") and caplog.records
