"""Word senses and words for taggers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import st_reba
from st_reba.evaluation.run import compare
from st_reba.evaluation.tasks import Task, read_task
from st_reba.evaluation.words import draw_question, tagged_word_vectors, word_sense_task, word_span

FOUR = ["他在银行取钱", "银行关门了", "河边有银行", "我的银行"]
CHINESE = ["问题", "选项1", "选项2", "选项3", "选项4", "答案"]
SENSES = {"money": ["a bank", "the bank", "my bank", "our bank"], "river": ["steep bank", "left bank"]}
DATA = Path(__file__).parents[3] / "shared" / "data" / "words"


def test_published_questions(tmp_path: Path) -> None:
    rows = [
        ["以下哪句话中“银行”的意思不同", *FOUR, "C"],
        ["没有引号", *FOUR, "A"],
        ["“银行”", *FOUR[:3], "别的", "A"],
        ["“银行”", *FOUR[:3], " ", "A"],
        ["“银行”", *FOUR, "E"],
    ]
    pd.DataFrame(rows, columns=CHINESE).to_csv(tmp_path / "q.csv", index=True)
    task = read_task(tmp_path / "q.csv")
    assert (task.kind, task.texts, task.items) == ("WordSense", tuple(FOUR), (((0, 1, 2, 3), 2),))
    assert [text[start:end] for text, (start, end) in zip(task.texts, task.spans, strict=True)] == ["银行"] * 4
    assert set(task.dropped.values()) == {1}
    assert len(task.dropped) == 4


def test_senses_are_drawn_by_the_word_and_the_seed(tmp_path: Path) -> None:
    words = {"bank": SENSES, "few": {"one": ["few", "a few"], "two": ["few of"]}}
    (tmp_path / "s.json").write_text(json.dumps(words), encoding="utf-8")
    task = read_task(tmp_path / "s.json", "WordSense")
    assert len(task.items) == 1
    places, odd = task.items[0]
    senses = ["river" if task.texts[place] in SENSES["river"] else "money" for place in places]
    assert [sense == "river" for sense in senses] == [place == odd for place in range(4)] or senses.count("river") == 3
    assert draw_question("bank", SENSES, 0) == draw_question("bank", SENSES, 0)
    assert len({str(draw_question("bank", SENSES, seed)) for seed in range(9)}) > 3
    twice = {"money": ["a", "b", "c", "d"], "river": ["d"]}
    assert isinstance(draw_question("bank", twice, 0), str)
    (tmp_path / "s.json").write_text("[]")
    with pytest.raises(ValueError):
        word_sense_task(tmp_path / "s.json")
    with pytest.raises(ValueError):
        word_sense_task(pd.DataFrame({"word": ["a"]}))


def test_a_latin_word_is_no_part_of_another() -> None:
    assert word_span("art", "party art") == (6, 9)
    assert word_span("art", "party") == (1, 4)
    assert word_span("art", "none") is None


def test_words_share_passes_and_have_the_vectors_of_encode_words() -> None:
    frame = pd.DataFrame([["银行", *FOUR, letter] for letter in "ABCD"], columns=["word", *CHINESE[1:]])
    frame.columns = ["word", "sentence1", "sentence2", "sentence3", "sentence4", "answer"]
    task = word_sense_task(frame)
    methods = ["classical", "echo", "reba", "reba:pooling=mean", "nosink:setting=inter-bidir,k=2"]
    found = compare("mini", task, methods, draws=0)
    assert all(each.scores["accuracy cosine"] == 0.25 for each in found.results)
    from st_reba.evaluation.encoding import shared_vectors
    from st_reba.evaluation.instructions import Instructions
    from st_reba.evaluation.readouts import opened
    from st_reba.methods import Method

    chosen = [Method.parse(each) for each in methods]
    vectors = shared_vectors(opened("mini"), task, chosen, Instructions(), 4096, False)
    items = list(zip(task.texts, task.spans, strict=True))
    for method in chosen:
        own = st_reba.encode_words(st_reba.build("mini", method), items)
        assert np.abs(vectors[method] - own).max() < 1e-4 * np.abs(own).max(), str(method)


def test_a_tagged_word_is_its_first_token() -> None:
    model = st_reba.build("mini", "classical", pooling="mean")
    words = ("Unbelievably", "he", "sleeps")
    task = Task("t", "NER", (" ".join(words),), ((0, words, ("O", "O", "O")),) * 10, ((0, words, ("O", "O", "O")),))
    vectors = tagged_word_vectors(model, task)
    tokens = st_reba.words.encode_tokens(model, [task.texts[0]])[0]
    assert vectors.shape == (3, 192)
    assert len(tokens) > 3
    assert np.abs(vectors[0] - tokens[0]).max() < 1e-5
    short = st_reba.build("mini", "classical", pooling="mean", max_seq_length=4)
    with pytest.raises(ValueError):
        tagged_word_vectors(short, task)


@pytest.mark.skipif(not DATA.is_dir(), reason="the published questions are not here")
def test_the_published_files_are_read_whole() -> None:
    assert len(read_task(DATA / "SLPWC_v1.csv").items) == 300
    task = read_task(DATA / "WSD_v1.csv")
    assert (len(task.items), task.dropped) == (858, {"the word is not in a sentence": 4})
    assert len(read_task(DATA / "wsd_senses.json", "WordSense", limit=50).items) == 50
