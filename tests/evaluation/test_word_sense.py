"""Word-sense questions: what is read, drawn and refused, and how answers are found and scored."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import bootstrap

from st_reba.evaluation.words import WordTask, read_words
from st_reba.evaluation.words.draw import draw
from st_reba.evaluation.words.questions import word_span
from st_reba.evaluation.words.scoring import bootstrap_intervals, odd_one_out

DATA = Path(__file__).parents[3] / "shared" / "data" / "words"
Write = Callable[[str, "str | bytes"], Path]

HEADER = "问题,选项1,选项2,选项3,选项4,答案\n"
ENGLISH = "word,sentence1,sentence2,sentence3,sentence4,answer\n"
BANK = ["The bank pays.", "A bank lends.", "The bank is steep.", "My bank shut."]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def row(question: str = "“意思”不同", answer: str = "B", **changed: str) -> str:
    options = {f"s{n}": f"第{n}个意思" for n in range(1, 5)} | changed
    return f'"{question}",' + ",".join(f'"{text}"' for text in options.values()) + f",{answer}\n"


# --- the answer


def slow(vectors: Any, distance: str) -> int:
    """The definition, in loops: the first whose sum no other passes."""

    def apart(one: list[float], other: list[float]) -> float:
        if distance == "euclidean":
            return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True)))
        dot = math.fsum(a * b for a, b in zip(one, other, strict=True))
        scale = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
        return 1 - dot / scale

    sums = [math.fsum(apart(one, other) for other in vectors) for one in vectors]
    return max(range(len(sums)), key=lambda place: sums[place])


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_odd_one(dtype: type, count: int) -> None:
    generator = np.random.default_rng(count)
    groups = (generator.normal(size=(200, count, 7)) * generator.lognormal(size=(200, count, 1))).astype(dtype)
    found = odd_one_out(groups)
    for distance in ("euclidean", "cosine"):
        by_scipy = [int(cdist(group, group, distance).sum(axis=1).argmax()) for group in groups.astype(np.float64)]
        assert found[distance].tolist() == [slow(group.tolist(), distance) for group in groups] == by_scipy
    # The premise: they are two measures.
    assert (found["euclidean"] != found["cosine"]).sum() > 10


def test_of_several_the_first() -> None:
    """Ties, exact or by rounding; zeros; lengths that only one distance sees."""
    a, b, zero = [1.0, 2.0, 3.0], [3.0, -1.0, 0.5], [0.0, 0.0, 0.0]
    third = [each / 3 for each in a]
    groups = np.array(
        [[a, a, a, a], [b, b, a, a], [zero] * 4, [a, a, zero, a], [a, third, a, [each * 0.7 for each in a]]]
    )
    found = odd_one_out(groups)
    assert found["cosine"].tolist() == [0, 0, 0, 2, 0]
    assert found["euclidean"].tolist() == [0, 0, 0, 2, 1]
    # Two directions, in lengths that round: all are equally far by cosine.
    generator = np.random.default_rng(0)
    pairs = generator.normal(size=(100, 2, 5)).repeat(2, axis=1) * generator.lognormal(size=(100, 4, 1))
    assert not odd_one_out(pairs)["cosine"].any()
    # A difference that is no rounding decides.
    near = np.array([[[1.0, 0.0], [1.0, 1e-3], [1.0, 0.0], [1.0, -1.001e-3]]])
    assert odd_one_out(near) == {"euclidean": [3], "cosine": [3]}


def test_intervals() -> None:
    """As scipy's, within what 10,000 resamples leave to chance; the same every time; of each column by itself."""
    generator = np.random.default_rng(5)
    right = generator.random((300, 3)) < [0.25, 0.5, 0.97]
    bounds = bootstrap_intervals(right)
    assert bounds == bootstrap_intervals(right)
    assert bootstrap_intervals(right[:, [2]]) == [bounds[2]]
    assert bounds != bootstrap_intervals(right, seed=1)
    for column, (low, high) in zip(right.T, bounds, strict=True):
        wanted = bootstrap(
            (column.astype(float),), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(9)
        ).confidence_interval
        assert (low, high) == pytest.approx((wanted.low, wanted.high), abs=0.006)
        assert low < column.mean() < high
    assert bootstrap_intervals(np.ones((7, 1), dtype=bool)) == [(1.0, 1.0)]
    assert bootstrap_intervals(np.zeros((1, 1), dtype=bool)) == [(0.0, 0.0)]
    # Drawn in pieces where they are many.
    many = bootstrap_intervals(np.arange(2_000_000)[:, None] % 4 == 0, resamples=5)[0]
    assert many == pytest.approx((0.25, 0.25), abs=2e-3)


# --- tables


def test_a_published_table(write: Write) -> None:
    """A nameless index may lead; the word stands between quotation marks of any kind; the letter may be small."""
    quotes = ["“意思”", "「意思」", "『意思』", "‘意思’", "'意思'", '""意思""']
    lines = [row(f"以下哪句话中{quoted}的用法不同。", "ABCDab"[n]) for n, quoted in enumerate(quotes)]
    plain = read_words(write("SLPWC_v1.csv", HEADER + "".join(lines)))
    assert (plain.name, plain.left_out, plain.seed) == ("SLPWC", {}, None)
    assert [question.word for question in plain.questions] == ["意思"] * 6
    assert [question.answer for question in plain.questions] == [0, 1, 2, 3, 0, 1]
    assert plain.questions[0].sentences == tuple((f"第{n}个意思", (3, 5)) for n in range(1, 5))
    assert [question.name for question in plain.questions][:2] == ["line 2 (意思)", "line 3 (意思)"]
    indexed = "\ufeff," + HEADER + "".join(f"{n}," + line for n, line in enumerate(lines))
    again = read_words(write("other.csv", indexed.replace("\n", "\r\n")))
    assert (again.name, again.questions) == ("other", plain.questions)
    assert again.fingerprint == plain.fingerprint


def test_an_english_table(write: Write) -> None:
    lines = ENGLISH + ",".join(["bank", *BANK, "C"]) + "\n"
    one = read_words(write("banks.csv", lines)).questions[0]
    assert (one.word, one.answer) == ("bank", 2)
    assert [text[start:end] for text, (start, end) in one.sentences] == ["bank"] * 4
    tabs = read_words(write("banks.tsv", lines.replace(",", "\t")))
    assert tabs.questions == (one,)
    # In another order, with more beside.
    turned = "note,answer,sentence4,sentence3,sentence2,sentence1,word\n" + ",".join(["x", "C", *BANK[::-1], "bank"])
    assert read_words(write("turned.csv", turned)).questions == (one,)


@pytest.mark.parametrize(
    ("word", "sentence", "span"),
    [
        ("意思", "意思意思就行了", (0, 2)),
        ("意思", "这意思是什么意思", (1, 3)),
        ("意思", "没有", None),
        ("art", "The party of art, art", (13, 16)),
        ("art", "A party", (3, 6)),
        ("bank", "Two banks, a bank", (13, 17)),
        ("AI", "用AI写作", (1, 3)),
        ("AI", "AI2和AI", (4, 6)),
        ("c++", "In c++ we trust", (3, 6)),
        ("(a", "x(a(a", (1, 3)),
        ("Art", "art", None),
    ],
)
def test_the_first_occurrence(word: str, sentence: str, span: tuple[int, int] | None) -> None:
    assert word_span(word, sentence) == span


def test_what_cannot_be_used_is_named(write: Write) -> None:
    """By reason, each with its line; the others are used."""
    lines = [
        row(),
        row("意思不同"),
        row(s3=" "),
        row(answer="E"),
        row(answer=""),
        row(answer="AB"),
        row(s2="什么"),
        row("“”意思"),
        row(answer=" d "),
    ]
    task = read_words(write("mixed.csv", HEADER + "".join(lines)))
    assert [question.answer for question in task.questions] == [1, 3]
    assert task.left_out == {
        "no word between quotation marks": ["line 3", "line 9"],
        "a sentence is missing": ["line 4 (意思)"],
        "the answer is none of A, B, C, D": ["line 5 (意思)", "line 6 (意思)", "line 7 (意思)"],
        "the word is not in a sentence": ["line 8 (意思)"],
    }
    english = ENGLISH + ",".join(["", *BANK, "C"]) + "\n" + ",".join(["bank", *BANK, "C"])
    assert read_words(write("e.csv", english)).left_out == {"no word": ["line 2"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "word,sentence1,answer\nbank,x,A\n", r"a\.csv: no columns 问题, .*, or word, .*there are \['word'"),
        ("a.csv", "1,2,3\n", "no columns"),
        ("a.csv", HEADER, r"no question can be used \(there are no rows below the header\)"),
        ("a.csv", "", "the file is empty"),
        ("a.json", " \n", "the file is empty"),
        ("a.csv", (HEADER + row()).encode("gb18030"), r"line 1: not UTF-8 .*iconv -f gb18030"),
        ("a.csv", HEADER + row() + "“意思”,一,二\n", r"line 3: 3 fields, but the header has 6"),
        ("a.csv", HEADER + 'x"y,"a"b,c\n', "line 2"),
        ("a.csv", "word,word\n", "twice"),
        (
            "a.csv",
            HEADER + row(answer="X") + row("x"),
            r"no question can be used \(1: the answer is none.*; 1: no word",
        ),
        ("a.txt", HEADER + row(), r"a\.txt: word senses are read from \.csv"),
        ("a.json", "{", r"a\.json: not JSON \(.*\{word: \{sense"),
        ("a.json", "[]", "must hold .* not a list"),
        ("a.json", '{"bank": ["a"]}', "'bank' has list for its senses"),
        ("a.json", '{"": {}}', "'' has dict"),
        ("a.json", '{"bank": {"money": "a bank"}}', "the sense 'money' of 'bank' is no list of sentences"),
        ("a.json", '{"bank": {"money": ["a bank", 3]}}', "the sense 'money' of 'bank' is no list of sentences"),
        ("a.json", '{"bank": {"money": []}, "bank": {}}', "'bank' stands twice"),
        ("a.json", '{"bank": {"money": [], "money": []}}', "'money' stands twice"),
        ("a.json", "{}", "no question can be used"),
        ("a.json", '{"bank": {}}', r"no question can be used \(1: fewer than 2 senses"),
        ("a.json", "[" * 100_000, "not JSON"),
    ],
)
def test_what_is_refused(write: Write, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_words(write(name, content))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_words(tmp_path / "none.csv")


@pytest.mark.parametrize("limit", [0, -1, True])
def test_a_bad_limit(write: Write, limit: Any) -> None:
    with pytest.raises(ValueError, match=f"limit={limit} must be"):
        read_words(write("a.csv", HEADER + row()), limit=limit)


def test_limit(write: Write) -> None:
    path = write("a.csv", HEADER + "".join(row(answer="ABCD"[n % 4], s1=f"{n}个意思") for n in range(40)))
    everything = read_words(path)
    assert read_words(path, limit=40) == read_words(path, limit=99, seed=3) == everything
    few = read_words(path, limit=10)
    places = [everything.questions.index(question) for question in few.questions]
    assert len(set(places)) == 10 and places == sorted(places) and few.seed == 0
    assert read_words(path, limit=10) == few
    other = read_words(path, limit=10, seed=1)
    assert other.questions != few.questions and other.seed == 1
    assert len({everything.fingerprint, few.fingerprint, other.fingerprint}) == 3


# --- senses


def senses(count: int = 60) -> dict[str, dict[str, list[str]]]:
    """Words of 2 to 4 senses with 1 to 6 sentences each, the first of which has three at least."""
    chance = random.Random(0)
    found = {}
    for n in range(count):
        sizes = [chance.randint(3, 6), *(chance.randint(1, 6) for _ in range(chance.randint(1, 3)))]
        found[f"字{n}号"] = {
            f"义{place}": [f"义{place}句{each}：字{n}号" for each in range(size)] for place, size in enumerate(sizes)
        }
    return found


def drawn(write: Write, words: Any, seed: int = 0) -> WordTask:
    return read_words(write("senses.json", json.dumps(words, ensure_ascii=False)), seed=seed)


def test_the_draw(write: Write) -> None:
    words = senses()
    tasks = [drawn(write, words, seed) for seed in range(30)]
    answers: Counter[int] = Counter()
    chosen = set()
    for seed, task in enumerate(tasks):
        assert (task.seed, len(task.questions), task.left_out) == (seed, 60, {})
        for question in task.questions:
            texts = [text for text, _ in question.sentences]
            assert len(set(texts)) == 4
            of = [next(sense for sense, each in words[question.word].items() if text in each) for text in texts]
            odd = of.pop(question.answer)
            assert len(set(of)) == 1 and odd not in of
            answers[question.answer] += 1
            chosen.add((question.word, of[0], odd, *texts))
    assert len({task.fingerprint for task in tasks}) == 30
    # Nothing is preferred: 1,800 draws, of which each place is right in a quarter.
    assert all(380 < answers[place] < 520 for place in range(4)), answers
    assert len(chosen) > 1200
    # Neither the file's order nor the other words decide.
    turned = {word: dict(reversed(words[word].items())) for word in reversed(words)}
    turned = {word: {sense: each[::-1] for sense, each in of.items()} for word, of in turned.items()}
    assert set(drawn(write, turned).questions) == set(tasks[0].questions)
    alone = drawn(write, {"字7号": words["字7号"]})
    assert alone.questions[0] == next(each for each in tasks[0].questions if each.word == "字7号")


def test_every_sense_and_sentence_is_drawn() -> None:
    """Senses are alike likely, whatever their size."""
    word = {"大": [f"大{n}" for n in range(12)], "中": ["中0", "中1", "中2"], "小": ["小0", "小1"]}
    common: Counter[str] = Counter()
    odd: Counter[str] = Counter()
    for seed in range(600):
        found = draw("字", word, seed)
        assert not isinstance(found, str)
        texts, answer = found
        odd[texts.pop(answer)] += 1
        common.update(texts)
    assert set(common) == {*word["大"], *word["中"]}
    assert set(odd) == {each for sentences in word.values() for each in sentences}
    assert 240 < sum(common[each] for each in word["大"]) / 3 < 360
    assert 240 < sum(odd[each] for each in word["小"]) < 360


def test_a_draw_of_today_is_one_of_tomorrow() -> None:
    """Pinned: a change would make every published figure another task."""
    word = {"money": [f"m{n}" for n in range(6)], "river": [f"r{n}" for n in range(4)]}
    assert draw("bank", word, 0) == PINNED[0]
    assert draw("bank", word, 1) == PINNED[1]


PINNED = [(["m3", "r3", "m1", "m2"], 1), (["m5", "m0", "r3", "m2"], 2)]


def test_words_that_cannot_be_drawn(write: Write) -> None:
    words = {
        "好": {"a": ["好1", "好2", "好3"], "b": ["好4"]},
        "一": {"a": ["一1", "一2", "一3"]},
        "二": {"a": ["二1", "二2", "二3"], "b": []},
        "三": {"a": ["三1", "三2", "三3"], "b": ["没有"]},
        "四": {"a": ["四1", "四2"], "b": ["四3", "四4"]},
        "五": {"a": ["五1", "五2", "没有", "五2"], "b": ["五3"]},
        # What stands under two senses has no right answer.
        "六": {"a": ["六1", "六2", "六3"], "b": ["六1"]},
        "七": {"a": ["七1", "七2", "七3", "七4"], "b": ["七4", "七5"]},
    }
    task = drawn(write, words)
    assert [question.word for question in task.questions] == ["好", "七"]
    assert {text for text, _ in task.questions[1].sentences} == {"七1", "七2", "七3", "七5"}
    assert task.left_out == {
        "fewer than 2 senses with a sentence that holds the word": ["一", "二", "三", "六"],
        "no sense with 3 sentences that hold the word": ["四", "五"],
    }


# --- the published files


def published(name: str) -> Path:
    if not (DATA / name).is_file():
        pytest.skip(f"{name} is not on this machine: it is not read here")
    return DATA / name


@pytest.mark.parametrize(
    ("file", "name", "used", "left"), [("SLPWC_v1.csv", "SLPWC", 300, 0), ("WSD_v1.csv", "WSD", 858, 4)]
)
def test_published_tables(file: str, name: str, used: int, left: int) -> None:
    task = read_words(published(file))
    assert (task.name, len(task.questions)) == (name, used)
    assert sum(map(len, task.left_out.values())) == left
    for question in task.questions:
        assert all(text[start:end] == question.word for text, (start, end) in question.sentences)


def test_published_senses() -> None:
    task = read_words(published("wsd_senses.json"), seed=4)
    assert (len(task.questions), sum(map(len, task.left_out.values()))) == (862, 168)
    assert min(Counter(question.answer for question in task.questions).values()) > 170
