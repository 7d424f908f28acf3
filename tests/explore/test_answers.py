"""Answers of the tabs: computed from what was entered; errors take an answer's place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.explore import compute, draw
from st_reba.explore.answers import Answers

WORDS = draw.WORDS["en"]
SHIP_TEXTS = [f"{number} ships sail. " * 20 for number in range(compute.MAX_RESULTS)]


@cache
def echo_model() -> SentenceTransformer:
    return st_reba.build("mini", "echo")


def answers(index: st_reba.Index | None = None) -> Answers:
    return Answers({"echo": echo_model()}, index, WORDS)


@pytest.fixture(scope="module")
def cat_index(tmp_path_factory: pytest.TempPathFactory) -> st_reba.Index:
    """One text about a cat, and more than are shown about ships."""
    folder = tmp_path_factory.mktemp("answers") / "index"
    texts = ["The cat sleeps.", *SHIP_TEXTS]
    return st_reba.Index.build(
        echo_model(), texts, folder, passages="12:2", show_progress_bar=False
    )


def test_compare_draws_the_similarities_of_the_lines() -> None:
    texts = ("a cat", "ships sail")
    tables = {"echo": compute.similarities(echo_model(), texts)}
    expected_html = draw.draw_comparison(tables, texts, WORDS)
    assert answers().compare(["echo"], "a cat\n\nships sail") == expected_html


@pytest.mark.parametrize(
    ("weighting", "chosen_tokens"),
    [("last", [3]), ("mean", []), ("word", [0, 1])],
)
def test_look_draws_the_weights_and_a_layer(
    weighting: Literal["last", "mean", "word"], chosen_tokens: Sequence[int]
) -> None:
    inside = compute.look(echo_model(), "天气 cat", 3)
    assert len(inside.rows) == 4
    weights = inside.weights(chosen_tokens)
    last_layer = 5
    expected_html = draw.draw_inside(inside, weights, chosen_tokens, last_layer, WORDS)
    # Another model has more layers.
    assert answers().look("echo", " 天气 cat ", 3.0, weighting, "天气", 9.0) == expected_html


def test_search_ranks_the_results_of_an_index(cat_index: st_reba.Index) -> None:
    index_results = cat_index.search("a cat", k=compute.MAX_HITS)
    hits = [(result.score, str(result.passage)) for result in index_results]
    assert len(hits) > compute.MAX_RESULTS
    found_texts = [text for _, text in hits]
    results = {
        WORDS["index_column"]: hits[: compute.MAX_RESULTS],
        "echo": compute.ranked(echo_model(), "a cat", found_texts),
    }
    limits = WORDS["index_about"].format(most=compute.MAX_HITS, read=compute.MAX_READ)
    expected_html = draw.draw_results(results, "a cat", f"{WORDS['found']} {limits}")
    assert answers(cat_index).search(["echo"], "index", "hybrid", "a cat", "") == expected_html


def test_search_ranks_pasted_texts_also_where_there_is_an_index(
    cat_index: st_reba.Index,
) -> None:
    results = {"echo": compute.ranked(echo_model(), "a cat", ["The cat sleeps."])}
    expected_html = draw.draw_results(results, "a cat", WORDS["found"])
    for page_answers in (answers(), answers(cat_index)):
        answer_html = page_answers.search(["echo"], "pasted", "hybrid", "a cat", "The cat sleeps.")
        assert answer_html == expected_html


def test_search_by_words_shows_what_the_index_finds_by_words(
    cat_index: st_reba.Index,
) -> None:
    answer_html = answers(cat_index).search(["echo"], "index", "words", "cat", "")
    assert "</mark> sleeps." in answer_html
    assert "ships sail" not in answer_html


def test_search_without_results_lists_nothing(cat_index: st_reba.Index) -> None:
    assert "<li>" not in answers(cat_index).search(["echo"], "index", "words", "zebra", "")


def test_refused_input_is_answered_in_the_pages_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compare = answers().or_problem(answers().compare)
    look = answers().or_problem(answers().look)
    too_many = WORDS["too_many"].format(count=2, most=1)
    assert too_many in look("echo", "a\nb", 1, "last", "", 0)
    no_model = draw.draw_problem(WORDS["problem"], WORDS["no_model"])
    assert compare([], "a\nb") == no_model
    search = answers().or_problem(answers().search)
    assert search([], "pasted", "hybrid", "a cat", "The cat sleeps.") == no_model
    assert "300" in compare(["echo"], f"a\n{'b' * 301}")
    assert not caplog.records


def test_an_error_is_answered_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compare = answers().or_problem(answers().compare)
    expected_html = draw.draw_problem(WORDS["problem"], "KeyError: 'other'")
    assert compare(["other"], "a\nb") == expected_html
    assert caplog.records
