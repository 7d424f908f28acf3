"""evaluate_words: accuracy by vectors made one at a time, what is left out, and runs that go on."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import st_reba
from st_reba.cli.evaluate.words import add_words
from st_reba.evaluation.methods import Base, Limit, Method, read_methods
from st_reba.evaluation.results import Result, Results
from st_reba.evaluation.words import Question, WordTask, evaluate_words, read_words
from st_reba.words import encode_word_layers

MINI = Base("mini")
DATA = Path(__file__).parents[3] / "shared" / "data" / "words"
QUESTIONS = [
    ("意思", "你这是什么意思", "意思意思就行了", "这句话的意思我懂", "他的意思很清楚", "B"),
    ("打", "他打了我一下", "有人打门", "她打了个电话", "不要打人", "C"),
    ("bank", "The bank of the river is steep.", "The bank lends money.", "A bank pays.", "My bank shut.", "A"),
    ("花", "院子里开了很多花", "他花了很多钱", "我买了一朵花", "花很香", "B"),
    ("天", "今天的天很蓝", "一天又一天", "天上有云", "天黑了", "B"),
    ("light", "The light is on.", "A light bag.", "Turn off the light, please.", "The light of the sun.", "B"),
    ("行", "这样不行", "银行关门了", "他去了那家银行", "行里没有人", "A"),
    ("run", "They run fast.", "We run in the park.", "He can run a shop.", "Dogs run.", "C"),
    ("头", "他的头很大", "头疼得厉害", "那头牛很老", "她点了点头", "C"),
]


def task(*questions: tuple[str, ...], name: str = "few") -> WordTask:
    found = []
    for number, (word, *texts, letter) in enumerate(questions or QUESTIONS):
        items = tuple((text, (text.index(word), text.index(word) + len(word))) for text in texts)
        found.append(Question(f"{number} {word}", word, items, "ABCD".index(letter)))
    return WordTask(name, tuple(found))


def run(out: Path, methods: str, **options: Any) -> list[Result]:
    given = {"tasks": task(), "show_progress_bar": False, **options}
    return evaluate_words(MINI, read_methods(methods), given.pop("tasks"), Results(out), **given)


def slow(model: Any, questions: tuple[Question, ...], layers: Any = "last") -> list[dict[str, float]]:
    """Accuracy by each layer's vectors, made one at a time, and the definition in loops."""
    alone = [[encode_word_layers(model, [item], layers)[:, 0].tolist() for item in q.sentences] for q in questions]
    return [
        accuracy([[each[layer] for each in four] for four in alone], questions) for layer in range(len(alone[0][0]))
    ]


def accuracy(vectors: list[list[list[float]]], questions: tuple[Question, ...]) -> dict[str, float]:
    right = {"euclidean": 0, "cosine": 0}
    for four, question in zip(vectors, questions, strict=True):
        for name in right:
            sums = [sum(DISTANCES[name](one, other) for other in four if other is not one) for one in four]
            right[name] += sums.index(max(sums)) == question.answer
    return {f"accuracy {name}": number / len(questions) for name, number in right.items()}


DISTANCES: dict[str, Callable[[list[float], list[float]], float]] = {
    "euclidean": math.dist,
    "cosine": lambda a, b: 1 - sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b),
}
METHODS = (
    "classical,classical:pooling=mean,echo-3,reba,reba-3:normalize_weights=true,reba:variant=published,reba:chunk=8"
)


@pytest.mark.slow
def test_scores(tmp_path: Path) -> None:
    """Each method's accuracy is that of its vectors, whatever the batches."""
    few = task()
    models = [method.build(MINI) for method in read_methods(METHODS)]
    wanted = [slow(model, few.questions)[0] for model in models]
    for place, size in enumerate(({}, {"batch_size": 3})):
        found = run(tmp_path / str(place), METHODS, **size)
        assert [result.method for result in found] == [method.name for method in read_methods(METHODS)]
        for result, method, scores in zip(found, read_methods(METHODS), wanted, strict=True):
            assert result.scores == scores
            assert (result.kind, result.task, result.base, result.items) == ("word sense", "few", "mini", 9)
            assert (result.main, result.paper) == ("accuracy cosine", "accuracy euclidean")
            assert (result.settings, result.left_out) == ({}, {})
            assert result.arguments == method.arguments
            assert result.texts == 36 and result.tokens is not None and result.seconds > 0
            for name, (low, high) in result.intervals.items():
                assert 0 <= low <= result.scores[name] <= high <= 1 and low < high
            assert set(result.intervals) == set(result.scores)
    # The premise: it is no constant that is compared.
    assert len({tuple(result.scores.values()) for result in found}) > 2
    tokens = {result.method: result.tokens for result in found}
    content = sum(
        len(each)
        for each in models[0][0].content([text for q in few.questions for text, _ in q.sentences])["input_ids"]
    )
    assert tokens["classical last"] == content + 36 and tokens["echo-3 last"] == 3 * content + 36


def test_every_layer(tmp_path: Path) -> None:
    few = task()
    found = run(tmp_path, "echo,reba", layers="all")
    assert [(result.method, result.settings.get("layer")) for result in found] == [
        (name, layer) for name in ("echo-2 last", "reba-2 last") for layer in (0, 1, 2, 3, 4, 5, None)
    ]
    for method in read_methods("echo,reba"):
        model = method.build(MINI)
        wanted = slow(model, few.questions, "all")
        assert [result.scores for result in found if result.method == method.name] == wanted
    assert len({tuple(result.scores.values()) for result in found}) > 3
    # Any of them again, by any name, is the same result; the last one is the default.
    again = run(tmp_path, "reba", layers=[-1, 3])
    assert again == [found[13], found[10]]
    assert run(tmp_path, "echo") == [found[6]]
    assert len(Results(tmp_path).all()) == 14
    with pytest.raises(ValueError, match="7 is no layer of this model, which has 0"):
        run(tmp_path, "reba", layers=[7])


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is not made again: not even a model is built for it."""
    both = [task(), task(*QUESTIONS[:4], name="fewer")]
    built: list[str] = []
    build = Method.build

    def counted(self: Method, *args: Any, **options: Any) -> Any:
        built.append(self.name)
        if len(built) == 2:
            raise KeyboardInterrupt
        return build(self, *args, **options)

    monkeypatch.setattr(Method, "build", counted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "classical,echo", tasks=both, layers=[0, 6])
    kept = Results(tmp_path).all()
    assert [result.method for result in kept] == ["classical last"] * 4
    found = run(tmp_path, "classical,echo", tasks=both, layers=[0, 6])
    assert built == ["classical last", "echo-2 last", "echo-2 last"]
    assert [(result.task, result.method) for result in found] == [
        (name, method) for method in ("classical last", "echo-2 last") for name in ("few", "few", "fewer", "fewer")
    ]
    assert sorted(found[:4], key=str) == sorted(kept, key=str)

    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("built")

    monkeypatch.setattr(Method, "build", never)
    for layers in ([0, 6], [-1], "last"):
        some = run(tmp_path, "classical,echo", tasks=both, layers=layers)
        assert set(map(str, some)) <= set(map(str, found))
    # What was not asked for yet is not there: other layers, questions, limits, methods.
    for options in ({"layers": "all"}, {"tasks": task(*QUESTIONS[:5])}, {"limit": Limit(90)}):
        with pytest.raises(AssertionError, match="built"):
            run(tmp_path, "classical", **options)


def test_twice_is_the_same(tmp_path: Path) -> None:
    one, other = (run(tmp_path / name, "reba-3", layers=[2, -1]) for name in "ab")
    for first, second in zip(one, other, strict=True):
        assert (first.scores, first.intervals, first.identity) == (second.scores, second.intervals, second.identity)


def test_the_seed_of_a_draw(tmp_path: Path) -> None:
    """It stands in the settings where something was drawn by another than the default."""
    path = tmp_path / "senses.json"
    words = {f"w{n}": {s: [f"{s} {each} is w{n}" for each in range(4)] for s in ("one", "two")} for n in range(6)}
    path.write_text(json.dumps(words), encoding="utf-8")
    found = [run(tmp_path / "out", "classical", tasks=read_words(path, seed=seed))[0] for seed in (0, 3)]
    assert [result.settings for result in found] == [{}, {"seed": 3}]
    assert found[0].identity != found[1].identity and len(Results(tmp_path / "out").all()) == 2


# Whichever sentence would be taken for the odd one, one of these calls it right.
LATE = [
    ("sea", "The river runs past the old mill, and on to the sea.", "the sea is wide", "a sea", "my sea", letter)
    for letter in "ABCD"
]


def test_words_past_the_cut(tmp_path: Path) -> None:
    """All methods answer the same questions: what a method does not see, it gets wrong, and that is named."""
    few = task(*LATE, *QUESTIONS)
    free = run(tmp_path, "classical,echo-3", tasks=few)
    cut = run(tmp_path, "classical,echo-3", tasks=few, limit=Limit(40))
    assert [result.items for result in (*free, *cut)] == [13] * 4
    assert free[0].left_out == free[1].left_out == cut[0].left_out == {}
    named = {"the word is past the cut in a sentence (scored as wrong)": ["0 sea", "1 sea", "2 sea", "3 sea"]}
    assert cut[1].left_out == named
    assert cut[0].settings == cut[1].settings == {"max_tokens": 40, "budget": "total"}
    assert cut[0].scores == free[0].scores
    model = Limit(40).build(read_methods("echo-3")[0], MINI)
    rest = slow(model, few.questions[4:])[0]
    assert cut[1].scores == {name: pytest.approx(score * 9 / 13) for name, score in rest.items()}
    assert (free[1].texts, cut[1].texts) == (40, 39)
    with pytest.raises(ValueError, match=r"few: echo-2 last sees the word of no question within 5 tokens\. Raise"):
        run(tmp_path, "echo", tasks=task(*LATE), limit=Limit(5))


def test_words_on_no_token(tmp_path: Path) -> None:
    """Left out for every method, as all share a tokenizer."""
    mark = "cafe\u0301"
    item = (mark, (4, 5))
    few = task()
    odd = Question("9 mark", "\u0301", (item, *few.questions[0].sentences[:3]), 0)
    both = WordTask("few", (odd, *few.questions), {"no word": ["line 3"]})
    for result, plain in zip(run(tmp_path, "echo,reba", tasks=both), run(tmp_path, "echo,reba"), strict=True):
        assert result.left_out == {"no word": ["line 3"], "the word is on no token in a sentence": ["9 mark"]}
        assert result.items == 9 and result.scores == plain.scores
    with pytest.raises(ValueError, match="sees the word of no question"):
        run(tmp_path, "echo", tasks=WordTask("few", (odd,)))


def test_a_saved_embedder(tmp_path: Path) -> None:
    st_reba.build("mini", "echo").save_pretrained(str(tmp_path / "model"))
    base = Base(str(tmp_path / "model"))
    results = Results(tmp_path / "out")
    found = evaluate_words(base, [Method()], task(), results, layers=[3, -1], show_progress_bar=False)
    wanted = run(tmp_path / "other", "echo", layers=[3, -1])
    assert [result.scores for result in found] == [result.scores for result in wanted]
    assert [(result.method, result.base) for result in found] == [("as saved", "model")] * 2


def test_depth_that_no_configuration_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built model tells it then; the results are the same ones."""
    known = run(tmp_path, "echo", layers=[2, 6])
    monkeypatch.setattr("st_reba.evaluation.words.evaluate._depth", lambda base: None)
    assert run(tmp_path, "echo", layers=[2, 6]) == known


def test_two_tasks_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Two files make a task 'few'"):
        run(tmp_path, "echo", tasks=[task(), task(*QUESTIONS[:2])])


def test_methods_without_word_vectors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"layers=\[2\]: chunk=8"):
        run(tmp_path, "reba:chunk=8", layers=[2])


# --- the command


def command(*arguments: str) -> None:
    top = argparse.ArgumentParser()
    add_words(top.add_subparsers(required=True))
    options = top.parse_args(["words", *arguments])
    options.command(options)


def questions_file(folder: Path) -> str:
    lines = ["word,sentence1,sentence2,sentence3,sentence4,answer", *(",".join(f'"{x}"' for x in q) for q in QUESTIONS)]
    (folder / "few.csv").write_text("\n".join(lines) + "\nbad,a bad,b,bad,bad,A\n", encoding="utf-8")
    return str(folder / "few.csv")


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = questions_file(tmp_path), str(tmp_path / "out")
    command(file, "--model", "mini", "--methods", "echo,reba-3", "--layers=-2,0", "--out", out, "--json")
    found = [Result.from_json(each) for each in json.loads(capsys.readouterr().out)]
    assert [(result.method, dict(result.settings)) for result in found] == [
        (name, {"layer": layer}) for name in ("echo-2 last", "reba-3 last") for layer in (5, 0)
    ]
    wanted = run(tmp_path / "other", "echo,reba-3", layers=[5, 0])
    assert [result.scores for result in found] == [result.scores for result in wanted]
    assert all(result.left_out == {"the word is not in a sentence": ["line 11 (bad)"]} for result in found)
    command(file, "--model", "mini", "--out", out, "--limit", "5", "--seed", "2")
    shown = capsys.readouterr().out
    assert re.search(r"few +classical last +accuracy cosine +\d\.\d{4} \[\d\.\d{4}, \d\.\d{4}\] +5\n", shown)
    assert "1 left out, the word is not in a sentence: line 11 (bad)" in shown
    kept = [result for result in Results(out).all() if result.settings.get("seed") == 2]
    assert [result.items for result in kept] == [5, 5, 5]
    assert {result.method for result in kept} == {"classical last", "echo-2 last", "reba-2 last"}


@pytest.mark.parametrize("layers", ["first", "", "1;2", "1.5"])
def test_layers_that_are_no_layers(layers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("few.csv", "--model", "mini", f"--layers={layers}")
    assert "give all, last, or numbers with commas" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("--help")
    shown = capsys.readouterr().out
    for word in ("问题", "word,sentence1", "--layers", "final norm", "st-reba evaluate words SLPWC_v1.csv"):
        assert word in shown


# --- the published files


@pytest.mark.slow
def test_published(tmp_path: Path) -> None:
    """Known figures of the embedded model: right answers of 300, by cosine."""
    if not (DATA / "SLPWC_v1.csv").is_file():
        pytest.skip("SLPWC_v1.csv is not on this machine: no known figure is met here")
    found = run(tmp_path, "classical,reba", tasks=read_words(DATA / "SLPWC_v1.csv"))
    assert [result.items for result in found] == [300, 300]
    # Rounding may turn one or two near ties on another machine.
    right = [result.scores["accuracy cosine"] * 300 for result in found]
    assert right == pytest.approx([159, 176], abs=2.01)
