"""Word vectors against the oracle's e_i; entity F1 against seqeval and by hand; runs that go on."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from numpy.typing import NDArray
from oracle import assert_close, loaded, oracle
from sentence_transformers import SentenceTransformer
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from sklearn.linear_model import LogisticRegression

import st_reba
from st_reba import encode_words
from st_reba.evaluation import TagTask, read_task
from st_reba.evaluation import linear as module
from st_reba.evaluation.counting import entity_counts, entity_scores
from st_reba.evaluation.linear import check_memory, evaluate_ner
from st_reba.evaluation.methods import Base, Limit, read_methods
from st_reba.evaluation.resampling import interval
from st_reba.evaluation.results import Results
from st_reba.evaluation.vectors import word_vectors

BASE = Base("mini", device="cpu")
SENTENCES: list[tuple[str, ...]] = [
    ("The", "riverbank", "collapsed", "yesterday", "."),
    ("He", "went"),
    ("unbelievable",),
    ("他", "在", "银行", "取钱"),
    ("He", "went"),
]


def spans(words: Sequence[str]) -> list[tuple[int, int]]:
    found, start = [], 0
    for word in words:
        found.append((start, start + len(word)))
        start += len(word) + 1
    return found


def tokens(base: str, words: Sequence[str]) -> list[list[int]]:
    """The tokens of each word, found on the oracle's side."""
    encoded = loaded(base)[1](" ".join(words), add_special_tokens=False, return_offsets_mapping=True)
    return [
        [n for n, (a, b) in enumerate(encoded["offset_mapping"]) if {*range(a, b)} & {*range(start, end)}]
        for start, end in spans(words)
    ]


@pytest.mark.parametrize("subtoken", ["first", "last"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mini"])
def test_words_of_reba_are_the_oracles(base: Callable[..., str], name: str, subtoken: Any) -> None:
    # A special token behind the text too: include_special would not show without.
    path = base(name, "bos_eos")
    for copies, pooling, options in (
        (2, "last", {}),
        (3, "mean", {}),
        (2, "last", {"include_special": True, "normalize_weights": True}),
    ):
        model: Any = st_reba.build(path, repeats=copies, pooling=pooling, device="cpu", **options)
        before = list(model[0].watchers), model[1].pooling
        got = word_vectors(model, SENTENCES, subtoken=subtoken, batch_size=3)
        assert (model[0].watchers, model[1].pooling) == before
        assert got.shape == (sum(map(len, SENTENCES)), model[0].get_embedding_dimension())  # type: ignore[operator]
        row = several = 0
        for words in SENTENCES:
            placed, hidden, fused = oracle(path, " ".join(words), (None,) * copies)
            wanted = reference.reba_tokens(hidden, fused, placed, **options)
            for found in tokens(path, words):
                assert_close(got[row], wanted[found[0] if subtoken == "first" else found[-1]])
                several += len(found) > 1
                row += 1
        assert several >= 2
        again = word_vectors(model, SENTENCES[::-1], subtoken=subtoken, batch_size=None, batch_tokens=40)
        start = 0
        for words in SENTENCES[::-1]:
            there = sum(map(len, SENTENCES[: SENTENCES.index(words)]))
            np.testing.assert_allclose(
                again[start : start + len(words)], got[there : there + len(words)], atol=1e-5 * np.abs(got).max()
            )
            start += len(words)


METHODS: dict[str, dict[str, Any]] = {
    "classical": {"method": "classical"},
    "echo-3": {"method": "echo", "repeats": 3, "pooling": "mean"},
    "reba": {"pooling": "last"},
    "reba mean": {"pooling": "mean"},
    "published": {"variant": "published"},
    "chunked": {"chunk": 3, "pooling": "mean"},
    "chunked last": {"chunk": 3, "pooling": "last"},
    "nosink": {"method": "nosink", "setting": "mask0-bidir", "k": 2},
}


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_words_of_one_token_are_encode_words(options: dict[str, Any]) -> None:
    model = st_reba.build("mini", device="cpu", **options)
    sentences = [("他", "在", "银", "行", "取", "了", "钱"), ("我", "在", "家"), ("cat",)]
    every = [tokens("mini", words) for words in sentences]
    got = word_vectors(model, sentences, batch_size=2)
    items = [(" ".join(words), span) for words in sentences for span in spans(words)]
    wanted = encode_words(model, items)
    single = [row for row, found in enumerate(found for each in every for found in each) if len(found) == 1]
    assert len(single) >= 7
    assert np.abs(got[single] - wanted[single]).max() <= 1e-6 * max(1.0, float(np.abs(wanted).max()))
    # Vectors of different words differ: the places are not all one.
    assert len(np.unique(got.round(5), axis=0)) == len(got)


@pytest.mark.parametrize("options", [{}, {"pooling": "mean"}, {"method": "echo"}])
def test_one_run_a_sentence(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = st_reba.build("mini", device="cpu", **options)
    rows: list[int] = []
    transformer: Any = model[0]
    run = type(transformer)._run

    def counted(self: Any, state: Any, input_ids: torch.Tensor) -> Any:
        rows.append(len(input_ids))
        return run(self, state, input_ids)

    monkeypatch.setattr(type(transformer), "_run", counted)
    done: list[int] = []
    word_vectors(model, SENTENCES, batch_size=2, progress=done.append)
    assert sum(rows) == 4 == sum(done)  # Four of the five are distinct.


def test_a_default_prompt_is_read_too() -> None:
    model = st_reba.build("mini", "classical", device="cpu")
    bare = word_vectors(model, SENTENCES[:1])
    prompted = word_vectors(model, SENTENCES[:1], prompt="Find names: ")
    assert np.abs(bare - prompted).max() > 1e-3
    model.prompts, model.default_prompt_name = {"names": "Find names: "}, "names"
    assert (word_vectors(model, SENTENCES[:1]) == prompted).all()


def test_a_sentence_that_is_cut_is_named() -> None:
    for options in ({}, {"chunk": 4}, {"method": "echo"}):
        model = st_reba.build("mini", device="cpu", **{"max_seq_length": 12, **options})
        with pytest.raises(ValueError, match="max_seq_length=12 leaves .* Raise max_seq_length, or shorten"):
            word_vectors(model, [("word",) * 30])


TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-MISC"]


def tagged(seed: int) -> list[list[str]]:
    chance = random.Random(seed)
    return [chance.choices(TAGS, weights=[6, 2, 2, 2, 1, 1], k=chance.randrange(1, 12)) for _ in range(60)]


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_seqevals(seed: int) -> None:
    wanted = tagged(seed)
    chance = random.Random(seed + 100)
    found = [[tag if chance.random() < 0.7 else chance.choice(TAGS) for tag in tags] for tags in wanted]
    counts, types = entity_counts(wanted, found)
    scores = entity_scores(counts, types)
    assert scores["entity F1"] == pytest.approx(f1_score(wanted, found), abs=1e-12)
    assert scores["precision"] == pytest.approx(precision_score(wanted, found), abs=1e-12)
    assert scores["recall"] == pytest.approx(recall_score(wanted, found), abs=1e-12)
    report: Any = classification_report(wanted, found, output_dict=True)
    assert types == ["LOC", "MISC", "PER"]
    for name in types:
        assert scores[f"F1 {name}"] == pytest.approx(report[name]["f1-score"], abs=1e-12)
    assert 0 < scores["entity F1"] < 1 and len(counts) == 60


def test_scores_by_hand() -> None:
    wanted = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    found = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "O"]]
    scores = entity_scores(*entity_counts(wanted, found))
    # One of three found (PER too short, LOC, a LOC that is none), one of three wanted.
    assert scores == pytest.approx(
        {"entity F1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3, "F1 LOC": 2 / 3, "F1 ORG": 0.0, "F1 PER": 0.0}
    )
    nothing = entity_scores(*entity_counts([["B-PER"]], [["O"]]))
    assert nothing == {"entity F1": 0.0, "precision": 0.0, "recall": 0.0, "F1 PER": 0.0}


def test_the_interval_is_the_bootstraps() -> None:
    right = (np.arange(400) % 4 != 0).astype(float)
    counts = np.stack([right, np.ones(400)], axis=1)
    low, high = interval(counts, lambda sums: sums[:, 0] / sums[:, 1])
    # Of a share: ± 1.96 · sqrt(p (1 - p) / n).
    width = 1.96 * (0.75 * 0.25 / 400) ** 0.5
    assert (low, high) == pytest.approx((0.75 - width, 0.75 + width), abs=0.012)
    assert interval(counts, lambda sums: sums[:, 0] / sums[:, 1]) == (low, high)
    # Units that are drawn as a whole, ten alike each, tell less.
    grouped = counts[np.argsort(right)].reshape(40, 10, 2).sum(axis=1)
    wide = interval(grouped, lambda sums: sums[:, 0] / sums[:, 1])
    assert wide[1] - wide[0] > 2 * (high - low)


NAMES = [("Anna", "PER"), ("Rome", "LOC"), ("Paul", "PER"), ("Oslo", "LOC"), ("Siemens", "ORG"), ("Lima", "LOC")]


def sentences(seed: int, count: int) -> tuple[Any, ...]:
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(chance.randrange(1, 4)):
            name, kind = chance.choice(NAMES)
            words += [chance.choice(["saw", "near", "for", "May", "Rose"]), name]
            tags += ["O", f"B-{kind}"]
        made.append((tuple(words), tuple(tags)))
    return tuple(made)


TASK = TagTask("names", sentences(1, 12), sentences(2, 30), sentences(3, 40))


def refit(model: SentenceTransformer, task: TagTask) -> list[list[str]]:
    def vectors(part: Any) -> NDArray[np.float32]:
        return word_vectors(model, [words for words, _ in part])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = LogisticRegression(max_iter=100).fit(
            vectors(task.train), [t for _, tags in task.train for t in tags]
        )
    predicted = iter(classifier.predict(vectors(task.heldout)))
    return [[str(next(predicted)) for _ in tags] for _, tags in task.heldout]


@pytest.mark.slow
def test_a_run_is_the_tasks_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some at a time: the bounds of the pieces must not show.
    monkeypatch.setattr(module, "_TOGETHER", 7)
    built: list[str] = []
    build = Limit.build
    monkeypatch.setattr(
        Limit, "build", lambda self, method, *rest: built.append(method.name) or build(self, method, *rest)
    )
    methods = read_methods("classical,echo,reba,nosink:setting=mask0-bidir,k=2")

    def run(chosen: Any, **options: Any) -> list[Any]:
        built.clear()
        return evaluate_ner(BASE, chosen, TASK, Results(tmp_path / "out"), show_progress_bar=False, **options)

    first = run(methods[:2])
    found = run(methods)
    assert built == ["reba-2 last", "nosink mask0-bidir mean k=2"] and found[:2] == first
    assert run(methods) == found and built == []
    for one, method in zip(found, methods, strict=True):
        assert (one.kind, one.main, one.items, one.task) == ("NER", "entity F1", 40, "names")
        model = build(Limit(), method, BASE)
        wanted = f1_score([list(tags) for _, tags in TASK.heldout], refit(model, TASK))
        assert one.scores["entity F1"] == pytest.approx(wanted, abs=1e-12) and 0.2 < wanted <= 1
        both = TASK.score(model)
        assert (one.scores["validation F1"], one.scores["entity F1"]) == pytest.approx((both.validation, both.heldout))
        low, high = one.intervals["entity F1"]
        assert low <= one.scores["entity F1"] <= high
        assert {"precision", "recall", "F1 PER", "F1 LOC", "F1 ORG"} < set(one.scores)
        assert one.texts == len({words for part in TASK.parts.values() for words, _ in part}) and one.tokens
    assert len({one.scores["entity F1"] for one in found}) > 1
    assert found[1].tokens > 1.5 * found[0].tokens
    other = run(methods[:1], prompt="Names: ", settings={"limit": 40})[0]
    assert built and other.identity != found[0].identity and other.settings == {"prompt": "Names: ", "limit": 40}


def test_a_prompt_a_limit_and_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_memory(200_000, 4096)
    with pytest.raises(ValueError, match=r"1000000000 training words of 4096 dimensions take 15258.8 GiB.*\(--limit\)"):
        check_memory(10**9, 4096)
    with pytest.raises(ValueError, match="max_seq_length=6 leaves 0 of .* sentences to train on"):
        evaluate_ner(BASE, read_methods("echo"), TASK, Results(tmp_path / "out"), limit=Limit(6))
    assert Results(tmp_path / "out").all() == []


@pytest.mark.slow
def test_sentences_that_a_method_does_not_read_whole(tmp_path: Path) -> None:
    """They are not trained on, their entities are missed, and they are named; other methods are not touched."""
    long = (("Berlin", *["and", "so", "on"] * 12, "Rome"), ("B-LOC", *["O"] * 36, "B-LOC"))
    parts = {part: (*sentences, long) for part, sentences in TASK.parts.items()}
    task = TagTask("towns", **parts)
    classical, echo = evaluate_ner(
        BASE, read_methods("classical,echo"), task, Results(tmp_path / "out"), limit=Limit(50)
    )
    assert not classical.left_out and classical.items == echo.items == len(task.heldout)
    place = len(TASK.train) + 1, len(TASK.validation) + 1, len(TASK.heldout) + 1
    assert echo.left_out == {
        "longer than the method reads: not trained on": [f"{place[0]}: Berlin and so on and so on and so on and"],
        "longer than the method reads: nothing found in it (validation)": [
            f"{place[1]}: Berlin and so on and so on and so on and"
        ],
        "longer than the method reads: nothing found in it": [f"{place[2]}: Berlin and so on and so on and so on and"],
    }
    # What is trained and found is what it is without such a sentence, but for two entities that are missed.
    (short,) = evaluate_ner(BASE, read_methods("echo"), TASK, Results(tmp_path / "short"), limit=Limit(50))
    assert echo.scores["precision"] == short.scores["precision"]
    wanted = sum(tag.startswith("B-") for _, tags in TASK.heldout for tag in tags)
    assert echo.scores["recall"] == pytest.approx(short.scores["recall"] * wanted / (wanted + 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("a O\n\n" * 60, "holds no entity, only O"),
        ("a B-PER x\n\n" * 30 + "b\n\n", "has no column 2"),
        ("word\nword\n", "the kind of file is not recognized"),
        ("a B-PER\n\n" * 9, "are needed at the least"),
    ],
)
def test_wrong_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tags.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_task(path, "tags")
