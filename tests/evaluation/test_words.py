"""Word-sense questions: what is read, drawn and refused, how answers are found, and accuracy by single vectors."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import st_reba
from st_reba.evaluation.methods import Base, Limit, read_methods
from st_reba.evaluation.words import Questions, draw, odd_one_out, read_questions, word_span
from st_reba.words import encode_word_layers

DATA = Path(__file__).parents[3] / "shared" / "data" / "words"
Write = Callable[[str, "str | bytes"], Path]

HEADER = "问题,选项1,选项2,选项3,选项4,答案\n"
ENGLISH = "word,sentence1,sentence2,sentence3,sentence4,answer\n"
BANK = ["The bank pays.", "A bank lends.", "The bank is steep.", "My bank shut."]


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


# --- tables


def test_a_published_table(write: Write) -> None:
    """A nameless index may lead; the word stands between quotation marks of any kind; the letter may be small."""
    quotes = ["“意思”", "「意思」", "『意思』", "‘意思’", "'意思'", '""意思""']
    lines = [row(f"以下哪句话中{quoted}的用法不同。", "ABCDab"[n]) for n, quoted in enumerate(quotes)]
    plain, left_out = read_questions(write("SLPWC_v1.csv", HEADER + "".join(lines)))
    assert left_out == {} and [word for word, _, _ in plain.items] == ["意思"] * 6
    assert [answer for _, _, answer in plain.items] == [0, 1, 2, 3, 0, 1]
    assert plain.words[:4] == [(f"第{n}个意思", (3, 5)) for n in range(1, 5)]
    assert plain.names[:2] == ("line 2 (意思)", "line 3 (意思)")
    indexed = "\ufeff," + HEADER + "".join(f"{n}," + line for n, line in enumerate(lines))
    again, _ = read_questions(write("other.csv", indexed.replace("\n", "\r\n")))
    assert again == plain and again.fingerprint == plain.fingerprint


def test_an_english_table(write: Write) -> None:
    lines = ENGLISH + ",".join(["bank", *BANK, "C"]) + "\n"
    questions, _ = read_questions(write("banks.csv", lines))
    assert [(word, answer) for word, _, answer in questions.items] == [("bank", 2)]
    assert [text[start:end] for text, (start, end) in questions.words] == ["bank"] * 4
    assert read_questions(write("banks.tsv", lines.replace(",", "\t")))[0] == questions
    # In another order, with more beside.
    turned = "note,answer,sentence4,sentence3,sentence2,sentence1,word\n" + ",".join(["x", "C", *BANK[::-1], "bank"])
    assert read_questions(write("turned.csv", turned))[0] == questions


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
    questions, left_out = read_questions(write("mixed.csv", HEADER + "".join(lines)))
    assert [answer for _, _, answer in questions.items] == [1, 3]
    assert left_out == {
        "no word between quotation marks": ["line 3", "line 9"],
        "a sentence is missing": ["line 4 (意思)"],
        "the answer is none of A, B, C, D": ["line 5 (意思)", "line 6 (意思)", "line 7 (意思)"],
        "the word is not in a sentence": ["line 8 (意思)"],
    }
    english = ENGLISH + ",".join(["", *BANK, "C"]) + "\n" + ",".join(["bank", *BANK, "C"])
    assert read_questions(write("e.csv", english))[1] == {"no word": ["line 2"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "word,sentence1,answer\nbank,x,A\n", r"a\.csv: no columns 问题, .*, or word, .*there are \['word'"),
        ("a.csv", "1,2,3\n", "no columns"),
        ("a.csv", HEADER, r"no question can be used \(there are no rows below the header\)"),
        ("a.csv", "", r"no question can be used \(there are no rows"),
        ("a.json", " \n", "not JSON"),
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
        ("a.json", "[]", r"a\.json: it does not hold \{word"),
        ("a.json", '{"bank": ["a"]}', "at 'bank' it does not hold"),
        ("a.json", '{"": {}}', "at '' it does not hold"),
        ("a.json", '{"bank": {"money": "a bank"}}', "at 'bank' it does not hold"),
        ("a.json", '{"bank": {"money": ["a bank", 3]}}', "at 'bank' it does not hold"),
        ("a.json", '{"bank": {"money": []}, "bank": {}}', "'bank' stands twice"),
        ("a.json", '{"bank": {"money": [], "money": []}}', "'money' stands twice"),
        ("a.json", "{}", "no question can be used"),
        ("a.json", '{"bank": {}}', r"no question can be used \(1: fewer than 2 senses"),
        ("a.json", "[" * 100_000, "not JSON"),
    ],
)
def test_what_is_refused(write: Write, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_questions(write(name, content))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_questions(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (("bank", ["the bank"] * 3 + ["the river"], 0), "the word 'bank' does not stand in 'the river'"),
        (("bank", ["the bank"] * 3, 0), "3 sentences, answer 0; four are needed, and 0 to 3"),
        (("bank", ["the bank"] * 4, 4), "4 sentences, answer 4; four are needed, and 0 to 3"),
        (("bank", ["the bank"] * 4, "A"), "4 sentences, answer 'A'"),
    ],
)
def test_questions_in_memory_that_are_none(question: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Questions.of([question])


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


def drawn(write: Write, words: Any, seed: int = 0) -> tuple[Questions, dict[str, list[str]]]:
    return read_questions(write("senses.json", json.dumps(words, ensure_ascii=False)), seed=seed)


def told(questions: Questions) -> list[tuple[str, tuple[str, ...], int]]:
    """Each question's word, sentences and answer."""
    return [
        (word, tuple(questions.texts[place] for place, _, _ in places), answer)
        for word, places, answer in questions.items
    ]


def test_the_draw(write: Write) -> None:
    words = senses()
    tasks = [drawn(write, words, seed) for seed in range(30)]
    answers: Counter[int] = Counter()
    chosen = set()
    for questions, left_out in tasks:
        assert (len(questions), left_out) == (60, {})
        for word, texts, answer in told(questions):
            assert len(set(texts)) == 4
            of = [next(sense for sense, each in words[word].items() if text in each) for text in texts]
            odd = of.pop(answer)
            assert len(set(of)) == 1 and odd not in of
            answers[answer] += 1
            chosen.add((word, of[0], odd, *texts))
    assert len({questions.fingerprint for questions, _ in tasks}) == 30
    # Nothing is preferred: 1,800 draws, of which each place is right in a quarter.
    assert all(380 < answers[place] < 520 for place in range(4)), answers
    assert len(chosen) > 1200
    # Neither the file's order nor the other words decide.
    turned = {word: dict(reversed(words[word].items())) for word in reversed(words)}
    turned = {word: {sense: each[::-1] for sense, each in of.items()} for word, of in turned.items()}
    assert set(told(drawn(write, turned)[0])) == set(told(tasks[0][0]))
    (alone,) = told(drawn(write, {"字7号": words["字7号"]})[0])
    assert alone == next(each for each in told(tasks[0][0]) if each[0] == "字7号")


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
    questions, left_out = drawn(write, words)
    assert [word for word, _, _ in questions.items] == ["好", "七"]
    assert set(told(questions)[1][1]) == {"七1", "七2", "七3", "七5"}
    assert left_out == {
        "fewer than 2 senses with a sentence that holds the word": ["一", "二", "三", "六"],
        "no sense with 3 sentences that hold the word": ["四", "五"],
    }


# --- scores


QUESTIONS = [
    ("意思", ("你这是什么意思", "意思意思就行了", "这句话的意思我懂", "他的意思很清楚"), 1),
    ("打", ("他打了我一下", "有人打门", "她打了个电话", "不要打人"), 2),
    ("bank", ("The bank of the river is steep.", "The bank lends money.", "A bank pays.", "My bank shut."), 0),
    ("花", ("院子里开了很多花", "他花了很多钱", "我买了一朵花", "花很香"), 1),
    ("天", ("今天的天很蓝", "一天又一天", "天上有云", "天黑了"), 1),
    ("light", ("The light is on.", "A light bag.", "Turn off the light, please.", "The light of the sun."), 1),
    ("行", ("这样不行", "银行关门了", "他去了那家银行", "行里没有人"), 0),
    ("run", ("They run fast.", "We run in the park.", "He can run a shop.", "Dogs run."), 2),
    ("头", ("他的头很大", "头疼得厉害", "那头牛很老", "她点了点头"), 2),
]
METHODS = "classical,echo-3,reba-3:normalize_weights=true,reba:variant=published,reba:chunk=8"


def single(model: Any, questions: Sequence[Any], layers: Any = "last") -> list[dict[str, float]]:
    """Accuracy by each layer's vectors, made one at a time, and the definition in loops."""
    found = []
    for word, texts, _ in questions:
        found.append([encode_word_layers(model, [(text, word_span(word, text))], layers)[:, 0] for text in texts])  # type: ignore[list-item]
    scores = []
    for layer in range(len(found[0][0])):
        right = {
            distance: [
                slow([each[layer].tolist() for each in four], distance) == answer
                for four, answer in zip(found, (answer for *_, answer in questions), strict=True)
            ]
            for distance in ("cosine", "euclidean")
        }
        scores.append({f"accuracy {name}": sum(each) / len(each) for name, each in right.items()})
    return scores


def scores_of(questions: Questions, vectors: Any) -> dict[str, float]:
    evidence = questions.evidence(vectors)
    return {name: metric(evidence) for name, metric in questions.metrics.items()}


@pytest.mark.parametrize("method", read_methods(METHODS), ids=lambda method: method.name)
def test_scores_are_those_of_single_vectors(method: Any) -> None:
    """Whatever the batches; each text runs once."""
    model = method.build(Base("mini"))
    questions = Questions.of(QUESTIONS)
    done: list[tuple[int, int]] = []
    vectors = questions.vectors(model, batch_size=3, progress=lambda *each: done.append(each))
    assert scores_of(questions, vectors) == pytest.approx(single(model, QUESTIONS)[0], abs=1e-12)
    assert vectors.shape[0] == 36 and sum(words for words, _ in done) == 36
    assert questions.unseen(vectors) == []


def test_every_layer_out_of_one_run() -> None:
    model = read_methods("reba")[0].build(Base("mini"))
    questions = Questions.of(QUESTIONS)
    layers = questions.layers(model, "all")
    wanted = single(model, QUESTIONS, "all")
    assert [scores_of(questions, each) for each in layers] == [pytest.approx(each, abs=1e-12) for each in wanted]
    # The premise: it is no constant that is compared.
    assert len({tuple(each.values()) for each in wanted}) > 3
    assert np.array_equal(questions.vectors(model), layers[-1])


def test_a_word_that_is_not_seen_is_wrong_and_named() -> None:
    """Whichever sentence would be taken for the odd one, one of four answers calls it right."""
    late = ("The river runs past the old mill, and on to the sea.", "the sea is wide", "a sea", "my sea")
    both = Questions.of([("sea", late, answer) for answer in range(4)] + QUESTIONS)
    model = Limit(40).build(read_methods("echo-3")[0], Base("mini"))
    vectors = both.vectors(model)
    assert both.unseen(vectors) == ["sea"] * 4
    rest = single(model, QUESTIONS)[0]
    assert scores_of(both, vectors) == {name: pytest.approx(score * 9 / 13) for name, score in rest.items()}
    # Some of the rows, in any order.
    rows = np.array([12, 1, 5])
    assert np.array_equal(both.evidence(vectors, rows), both.evidence(vectors)[rows])
    with pytest.raises(ValueError, match="the method sees none of the words. Raise --max-tokens"):
        Questions.of([("sea", late[:1] * 4, 0)]).vectors(Limit(20).build(read_methods("echo")[0], Base("mini")))


def test_texts_that_several_questions_share() -> None:
    questions = Questions.of([QUESTIONS[0], QUESTIONS[0], ("这", ("这是", "这个", "这里", "你这是什么意思"), 3)])
    assert len(questions.texts) == 7 and len(questions.words) == 12
    assert [word for word, *_ in questions.items] == ["意思", "意思", "这"] == list(questions.names)
    model = st_reba.build("mini", "classical", device="cpu")
    vectors = questions.vectors(model)
    assert np.array_equal(vectors[:4], vectors[4:8]) and not np.array_equal(vectors[0], vectors[11])


# --- the published files


def published(name: str) -> Path:
    if not (DATA / name).is_file():
        pytest.skip(f"{name} is not on this machine: it is not read here")
    return DATA / name


@pytest.mark.parametrize(("file", "used", "left"), [("SLPWC_v1.csv", 300, 0), ("WSD_v1.csv", 858, 4)])
def test_published_tables(file: str, used: int, left: int) -> None:
    questions, left_out = read_questions(published(file))
    assert (len(questions), sum(map(len, left_out.values()))) == (used, left)
    asked = [word for word, _, _ in questions.items for _ in range(4)]
    assert [text[start:end] for text, (start, end) in questions.words] == asked


def test_published_senses() -> None:
    questions, left_out = read_questions(published("wsd_senses.json"), seed=4)
    assert (len(questions), sum(map(len, left_out.values()))) == (862, 168)
    assert min(Counter(answer for *_, answer in questions.items).values()) > 170


@pytest.mark.slow
def test_published_scores() -> None:
    """Known figures of the embedded model: right answers of 300, by cosine."""
    questions, _ = read_questions(published("SLPWC_v1.csv"))
    models = [method.build(Base("mini")) for method in read_methods("classical,reba")]
    right = [scores_of(questions, questions.vectors(model))["accuracy cosine"] * 300 for model in models]
    # Rounding may turn one or two near ties on another machine.
    assert right == pytest.approx([159, 176], abs=2.01)
