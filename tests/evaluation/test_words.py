"""Word senses and entities: their questions, and the vectors of their words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.evaluation import Task, compare, read_task
from st_reba.evaluation.encoding import shared_vectors
from st_reba.evaluation.instructions import Instructions
from st_reba.evaluation.kinds.word_sense import (
    CHINESE_COLUMNS,
    QUESTION_COLUMNS,
    find_quoted_word,
)
from st_reba.evaluation.readouts import load_base
from st_reba.methods import Method

SENTENCES = ["他在银行取钱", "银行关门了", "河边有银行", "我的银行"]
DATA = Path(__file__).parents[3] / "shared" / "data" / "words"


def question_task(answers: str) -> Task:
    """The same question with several answers."""
    rows = [["银行", *SENTENCES, answer] for answer in answers]
    return read_task(pd.DataFrame(rows, columns=list(QUESTION_COLUMNS)))


def test_published_questions_quote_the_word(tmp_path: Path) -> None:
    row = ["以下哪句话中“银行”的意思不同", *SENTENCES, "C"]
    pd.DataFrame([row], columns=list(CHINESE_COLUMNS)).to_csv(
        tmp_path / "q.csv",
        index=False,
    )
    task = read_task(tmp_path / "q.csv")
    assert task.kind == "WordSense"
    assert task.texts == tuple(SENTENCES)
    assert task.items == (((0, 1, 2, 3), 2),)
    words = [text[start:end] for text, (start, end) in zip(task.texts, task.spans, strict=True)]
    assert words == ["银行"] * 4


@pytest.mark.parametrize("quotes", ["“”", "「」", "『』", "‘’", '""', "''"])
def test_a_word_is_quoted_in_any_marks(quotes: str) -> None:
    opening, closing = quotes[0], quotes[1]
    assert find_quoted_word(f"哪句话中{opening} 银行{closing}的意思不同") == "银行"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (["没有引号", *SENTENCES, "A"], "no word"),
        (["“银行”", *SENTENCES[:3], "别的", "A"], "the word is not in a sentence"),
        (["“银行”", *SENTENCES[:3], " ", "A"], "a sentence is missing"),
        (["“银行”", *SENTENCES, "E"], "the answer is none of A, B, C, D"),
        (["“银行”", *SENTENCES, "AB"], "the answer is none of A, B, C, D"),
    ],
    ids=["no quotes", "no word", "no sentence", "no answer", "two answers"],
)
def test_questions_that_cannot_be_used_are_counted(row: list[str], reason: str) -> None:
    usable_row = ["“银行”", *SENTENCES, "a"]
    task = read_task(pd.DataFrame([row, usable_row], columns=list(CHINESE_COLUMNS)))
    assert len(task.items) == 1
    assert task.dropped == {reason: 1}


def test_tables_without_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="text are not word, sentence1, .*, answer: name them"):
        read_task(pd.DataFrame({"text": SENTENCES}), "WordSense")


def test_columns_of_questions_can_be_named() -> None:
    columns = ["term", *QUESTION_COLUMNS[1:]]
    table = pd.DataFrame([["银行", *SENTENCES, "C"]], columns=columns)
    assert read_task(table, columns={"word": "term"}) == question_task("C")


def test_a_limit_draws_questions() -> None:
    rows = [["银行", *SENTENCES, answer] for answer in "ABCD"]
    table = pd.DataFrame(rows, columns=list(QUESTION_COLUMNS))
    assert len(read_task(table, limit=1).items) == 1
    assert read_task(table, limit=1) == read_task(table, limit=1, seed=0)


METHODS = ["classical", "echo", "reba", "reba:pooling=mean", "nosink:setting=inter-bidir,k=2"]


@pytest.fixture(scope="module")
def base_model() -> SentenceTransformer:
    return load_base("mini")


@pytest.mark.parametrize("name", METHODS)
def test_words_have_the_vectors_of_encode_words(base_model: SentenceTransformer, name: str) -> None:
    task = question_task("A")
    method = Method.parse(name)
    vectors = shared_vectors(
        base_model,
        task,
        [method],
        Instructions(),
        4096,
        False,
    )[method]
    expected_vectors = st_reba.encode_words(
        st_reba.build("mini", method),
        task.task_kind.list_words(task),
    )
    assert np.abs(vectors - expected_vectors).max() < 1e-4 * np.abs(expected_vectors).max()


def test_guessing_the_odd_sentence_scores_a_quarter(base_model: SentenceTransformer) -> None:
    results = compare(base_model, question_task("ABCD"), METHODS, draws=0).results
    assert [result.scores["accuracy cosine"] for result in results] == [0.25] * len(METHODS)


def test_too_few_questions_for_intervals_are_told(
    base_model: SentenceTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    (result,) = compare(base_model, question_task("ABCD"), ["classical"]).results
    assert result.interval is None
    assert "table: no intervals" in caplog.text
    assert "fewer than 10 independent items" in caplog.text


def test_entities_are_encoded_word_by_word() -> None:
    words = ("New", "York", "New")
    item = (0, words, ("B-LOC", "I-LOC", "O"))
    task = Task(
        "t",
        "NER",
        ("New York New",),
        (item,) * 10,
        (item,),
    )
    spans = [
        (0, 3),
        (4, 8),
        (9, 12),
    ]
    assert task.task_kind.list_words(task) == [("New York New", span) for span in spans]


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the published questions are not here")
def test_published_files_are_read_whole() -> None:
    assert len(read_task(DATA / "SLPWC_v1.csv").items) == 300
    task = read_task(DATA / "WSD_v1.csv")
    assert (len(task.items), task.dropped) == (858, {"the word is not in a sentence": 4})
