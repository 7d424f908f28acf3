"""Word senses and words for taggers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import st_reba
from st_reba.evaluation import Task, read_task
from st_reba.evaluation.encoding import shared_vectors
from st_reba.evaluation.instructions import Instructions
from st_reba.evaluation.kinds.word_sense import QUESTION_COLUMNS
from st_reba.evaluation.readouts import load_base
from st_reba.evaluation.run import compare
from st_reba.methods import Method

FOUR = ["他在银行取钱", "银行关门了", "河边有银行", "我的银行"]
CHINESE = ["问题", "选项1", "选项2", "选项3", "选项4", "答案"]
DATA = Path(__file__).parents[3] / "shared" / "data" / "words"


def test_published_questions(tmp_path: Path) -> None:
    rows = [
        ["以下哪句话中“银行”的意思不同", *FOUR, "C"],
        ["没有引号", *FOUR, "A"],
        ["“银行”", *FOUR[:3], "别的", "A"],
        ["“银行”", *FOUR[:3], " ", "A"],
        ["“银行”", *FOUR, "E"],
    ]
    pd.DataFrame(rows, columns=CHINESE).to_csv(tmp_path / "q.csv", index=False)
    task = read_task(tmp_path / "q.csv")
    assert (task.kind, task.texts, task.items) == ("WordSense", tuple(FOUR), (((0, 1, 2, 3), 2),))
    assert [text[start:end] for text, (start, end) in zip(task.texts, task.spans, strict=True)] == ["银行"] * 4
    assert set(task.dropped.values()) == {1}
    assert len(task.dropped) == 4
    with pytest.raises(ValueError, match="选项1"):
        read_task(pd.DataFrame({"text": FOUR}), "WordSense")


def test_words_share_passes_and_have_the_vectors_of_encode_words() -> None:
    table = pd.DataFrame([["银行", *FOUR, letter] for letter in "ABCD"], columns=list(QUESTION_COLUMNS))
    task = read_task(table)
    assert read_task(table, limit=1) == read_task(table, limit=1, seed=0)
    methods = ["classical", "echo", "reba", "reba:pooling=mean", "nosink:setting=inter-bidir,k=2"]
    found = compare("mini", task, methods, draws=0)
    assert all(each.scores["accuracy cosine"] == 0.25 for each in found.results)
    chosen = [Method.parse(each) for each in methods]
    vectors = shared_vectors(load_base("mini"), task, chosen, Instructions(), 4096, False)
    items = list(zip(task.texts, task.spans, strict=True))
    for method in chosen:
        own = st_reba.encode_words(st_reba.build("mini", method), items)
        assert np.abs(vectors[method] - own).max() < 1e-4 * np.abs(own).max(), str(method)


def test_entities_have_the_vectors_of_their_words() -> None:
    words = ("New", "York", "New")
    task = Task("t", "NER", (" ".join(words),), ((0, words, ("B-LOC", "I-LOC", "O")),) * 10, ((0, words, ("O",) * 3),))
    assert task.task_kind.list_words(task) == [("New York New", span) for span in ((0, 3), (4, 8), (9, 12))]


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the published questions are not here")
def test_the_published_files_are_read_whole() -> None:
    assert len(read_task(DATA / "SLPWC_v1.csv").items) == 300
    task = read_task(DATA / "WSD_v1.csv")
    assert (len(task.items), task.dropped) == (858, {"the word is not in a sentence": 4})
