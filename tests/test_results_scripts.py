"""What scripts/results compute without a model: the plot of README, shared sentences, scores of a search."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import st_reba
from st_reba.encode import encode_texts
from st_reba.evaluation.beir import read_beir
from st_reba.sentences import QUERY_SAMPLE, sample_sentences

ROOT = Path(__file__).parents[1]


@pytest.fixture
def import_script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a script of scripts/results by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "results"))
    return importlib.import_module


def test_the_plot_shows_the_table(import_script: Callable[[str], ModuleType]) -> None:
    plot = import_script("plot")
    table_rows = plot.read_tables(plot.PAGE.read_text(encoding="utf-8"))
    for theme_name, colours in plot.THEMES.items():
        figure_path = plot.FIGURES / f"quality-{theme_name}.svg"
        assert figure_path.read_text(encoding="utf-8") == plot.draw_figure(table_rows, colours)


def test_shared_sentences_are_counted_by_pair(import_script: Callable[[str], ModuleType]) -> None:
    overlap = import_script("overlap")
    choosing_sentences = ["A band plays onstage.", "It rains."]
    reported_items = [
        ("A band plays on stage.", "Music."),
        ("It rains.", "It rains."),
        ("It snows.", "Snow."),
    ]
    exact_count = overlap.count_shared(choosing_sentences, reported_items)
    loose_count = overlap.count_shared(
        choosing_sentences, reported_items, overlap.letters_and_digits
    )
    assert (exact_count, loose_count) == (1, 2)


@pytest.mark.parametrize(
    ("listed", "grades", "expected"),
    [
        (["b", "a"], {"a": 1.0}, 1 / math.log2(3)),
        ([], {"a": 1.0}, 0.0),
        (["a"], {"a": 1.0, "b": 1.0}, 1 / (1 + 1 / math.log2(3))),
        ([f"other {number}" for number in range(10)] + ["a"], {"a": 1.0}, 0.0),
    ],
    ids=["second", "nothing found", "half found", "eleventh"],
)
def test_what_a_search_does_not_find_earns_nothing(
    import_script: Callable[[str], ModuleType],
    listed: list[str],
    grades: dict[str, float],
    expected: float,
) -> None:
    retrieval = import_script("retrieval")
    assert retrieval.ndcg_at_10(listed, grades) == pytest.approx(expected)


@pytest.mark.slow
def test_prompts_are_judged_by_what_an_index_compares(
    import_script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    model = st_reba.build("mini", "echo", pooling="mean")
    texts = [f"{number} ships sail to the {number % 7}. island, and rest." for number in range(120)]
    queries = ["the third island", "ships"]
    index = st_reba.Index.build(model, texts, tmp_path / "index", tokens=False)
    sentences = sample_sentences(texts, QUERY_SAMPLE)
    cosines = import_script("examples").whitened_cosines(
        encode_texts(model, texts, task="document"),
        encode_texts(model, sentences, task="query"),
        encode_texts(model, queries, task="query"),
    )
    for query, query_cosines in zip(queries, cosines, strict=True):
        scores = {result.text: result.score for result in index.search(query, 120, mode="vectors")}
        expected_cosines = [scores[text] for text in texts]
        assert query_cosines == pytest.approx(expected_cosines, abs=2e-5)


def test_pairs_become_a_collection_whose_queries_are_no_documents(
    import_script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    judgements = [
        ("cats", "Cats sleep.", 2),
        ("cats", "A cat.", 1),
        ("cats", "Ships.", 0),
        ("A cat.", "cats", 1),
        ("Rain.", "Rain.", 1),
        ("sea", "The sea.", 0),
    ]
    import_script("short_collections").write_collection(tmp_path, judgements)
    collection = read_beir(tmp_path)
    # "A cat." and "cats" are queries, and "Rain." finds nothing but itself.
    assert collection.grades == {"cats": {"Cats sleep.": 2.0}}
    assert set(collection.documents) == {"Cats sleep.", "Ships.", "Rain.", "The sea."}
