"""Accuracy and macro F1 against scikit-learn; the commands ner, domain and toy."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score

import st_reba
from st_reba.cli.evaluate import structures, tokens
from st_reba.evaluation import ClassTask, read_task
from st_reba.evaluation.counting import accuracy, class_counts, macro_f1
from st_reba.evaluation.linear import evaluate_domain
from st_reba.evaluation.methods import Base, Limit, read_methods
from st_reba.evaluation.results import Results

BASE = Base("mini", device="cpu")
TOPICS = {
    "food": ["soup", "bread", "dinner", "面条", "晚饭"],
    "money": ["bank", "loan", "price", "股票", "银行"],
    "sport": ["match", "team", "goal", "足球", "比赛"],
}


def examples(seed: int, count: int) -> tuple[tuple[str, str], ...]:
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        label = chance.choice(list(TOPICS))
        other = chance.choice(list(TOPICS.values()))
        words = [*chance.choices(TOPICS[label], k=2), chance.choice(other), chance.choice(["today", "again", "很好"])]
        made.append((" ".join(chance.sample(words, 4)), label))
    return tuple(made)


TASK = ClassTask("topics", examples(1, 40), examples(2, 30), examples(3, 60))


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_scikit_learns(seed: int) -> None:
    chance = random.Random(seed)
    wanted = chance.choices("abc", k=50)
    found = [label if chance.random() < 0.6 else chance.choice("abcd") for label in wanted]
    total = class_counts(wanted, found).sum(axis=0, keepdims=True)
    assert accuracy(total)[0] == pytest.approx(accuracy_score(wanted, found))
    assert macro_f1(total)[0] == pytest.approx(f1_score(wanted, found, average="macro", zero_division=0))
    # A class that a draw does not hold is no class of it.
    part = class_counts(["a", "b", "d"], ["a", "a", "d"])[:2].sum(axis=0, keepdims=True)
    assert macro_f1(part)[0] == pytest.approx((2 / 3 + 0) / 2)


@pytest.mark.slow
def test_a_run_is_a_refit_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = Limit.build
    monkeypatch.setattr(
        Limit, "build", lambda self, method, *rest: built.append(method.name) or build(self, method, *rest)
    )
    methods = read_methods("classical:pooling=mean,echo:pooling=mean,reba")

    def run(chosen: Any, **options: Any) -> list[Any]:
        built.clear()
        return evaluate_domain(BASE, chosen, TASK, Results(tmp_path / "out"), show_progress_bar=False, **options)

    first = run(methods[1:2])
    found = run(methods)
    assert built == ["classical mean", "reba-2 last"] and found[1] == first[0]
    assert run(methods) == found and built == []
    for one, method in zip(found, methods, strict=True):
        model = st_reba.build("mini", device="cpu", **method.arguments)
        x = [model.encode([text for text, _ in part]) for part in TASK.parts.values()]
        y = [[label for _, label in part] for part in TASK.parts.values()]
        classifier = LogisticRegression(max_iter=100).fit(x[0], y[0])
        predicted = classifier.predict(x[2])
        assert (one.kind, one.main, one.items) == ("Domain", "accuracy", 60)
        assert one.scores["accuracy"] == pytest.approx(accuracy_score(y[2], predicted), abs=1e-12)
        assert one.scores["macro F1"] == pytest.approx(f1_score(y[2], predicted, average="macro"), abs=1e-12)
        assert one.scores["validation accuracy"] == pytest.approx(classifier.score(x[1], y[1]), abs=1e-12)
        for name, (low, high) in one.intervals.items():
            assert low < one.scores[name] < high or one.scores[name] in (low, high)
        assert set(one.intervals) == {"accuracy", "macro F1"}
        assert one.texts == len({text for part in TASK.parts.values() for text, _ in part}) and one.tokens
    assert 0.4 < min(one.scores["accuracy"] for one in found) < 1
    prompted = run(methods[:1], prompt="Classify: ", batch_size=8)[0]
    assert built and prompted.identity != found[0].identity and prompted.settings == {"prompt": "Classify: "}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.csv", "text,label\n", "no rows below the header"),
        ("a.csv", "words,kind\na,b\n", r"no columns for text, label .* were found"),
        ("a.csv", "text,label\n" + "word,one\n" * 60, "all texts of train have the class 'one'"),
        ("a.jsonl", '{"text": "a"\n', "line 1: not JSON"),
        ("a.txt", "a b c\n", "is read from .jsonl"),
    ],
)
def test_wrong_files_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_task(tmp_path / name, "classes")


def call(*words: str) -> None:
    top = argparse.ArgumentParser()
    commands = top.add_subparsers(required=True)
    tokens.add_ner(commands)
    tokens.add_domain(commands)
    structures.add_toy(commands)
    options = top.parse_args(words)
    options.command(options)


def table(path: Path, seed: int, count: int) -> str:
    rows = [{"body": text, "label": label} for text, label in examples(seed, count)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_the_domain_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dev, train, test = (table(tmp_path / f"{n}.jsonl", n, 40 + n) for n in (1, 2, 3))
    shared = ("--model", "mini", "--methods", "echo", "--column", "text=body", "--out", str(tmp_path / "out"))
    call("domain", dev, "--train", train, "--test", test, "--name", "topics", "--json", *shared)
    found = json.loads(capsys.readouterr().out)
    assert [one["task"] for one in found] == ["topics"] and found[0]["items"] == 43
    task = read_task(dev, "classes", columns={"text": "body"}, train=train, test=test)
    wanted = evaluate_domain(BASE, read_methods("echo"), task, Results(tmp_path / "other"))  # type: ignore[arg-type]
    assert found[0]["scores"] == pytest.approx(dict(wanted[0].scores))
    call("domain", dev, "--train", train, "--test", test, "--limit", "35", "--seed", "2", *shared)
    printed = capsys.readouterr().out
    assert "\n1 " in printed and "echo-2 last (limit 35)" in printed and "accuracy" in printed
    with pytest.raises(ValueError, match="--column 'body': write ROLE=NAME"):
        call("domain", dev, "--column", "body", "--model", "mini")


def test_the_ner_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(0)
    files = []
    for name in ("train", "valid", "test"):
        lines = []
        for _ in range(15 if name == "train" else 12):
            town = chance.choice(["Rome", "Oslo", "Lima"])
            lines.append(f"{chance.choice(['In', 'Near', 'To'])} O\n{town} B-LOC\nthe O\ncat O\n\n")
        (tmp_path / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
        files.append(str(tmp_path / f"{name}.txt"))
    shared = ("--model", "mini", "--methods", "reba,echo-3", "--out", str(tmp_path / "out"), "--json")
    call("ner", files[0], "--validation", files[1], "--test", files[2], "--subtoken", "last", *shared)
    found = json.loads(capsys.readouterr().out)
    assert [(one["kind"], one["task"], one["method"], one["items"]) for one in found] == [
        ("NER", "train", "reba-2 last", 12),
        ("NER", "train", "echo-3 last", 12),
    ]
    assert all(one["scores"]["entity F1"] == one["scores"]["F1 LOC"] > 0.8 for one in found)
    assert np.isfinite([one["scores"]["validation F1"] for one in found]).all()


def test_the_toy_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    shared = ("toy", "--model", "mini", "--methods", "classical", "--structures", "S1,S2", "--limit", "8")
    call(*shared, "--language", "en", "--out", str(out), "--batch-size", "16")
    printed = capsys.readouterr().out
    assert "S1 en  classical last (limit 8)" in printed and "S2 en" in printed and "S3" not in printed
    assert (out / "figures" / "toy.png").read_bytes()[:4] == b"\x89PNG"
    call(*shared, "--language", "en", "--out", str(out), "--figure", str(tmp_path / "own.png"), "--json")
    assert [one["items"] for one in json.loads(capsys.readouterr().out)] == [8, 8]
    assert (tmp_path / "own.png").is_file() and len(Results(out).all()) == 2
    with pytest.raises(ValueError, match="--figure .*the folder does not exist"):
        call(*shared, "--figure", str(tmp_path / "none" / "own.png"))
    with pytest.raises(ValueError, match="languages=.*'de' is none of"):
        call(*shared, "--language", "de", "--out", str(out))
