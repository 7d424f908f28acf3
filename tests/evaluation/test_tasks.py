"""Scores against scipy, scikit-learn, seqeval and loops by hand; word vectors against transformers itself."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from oracle import loaded
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression

import st_reba
from st_reba.evaluation import ClassTask, PairTask, Scores, TagTask
from st_reba.evaluation.vectors import UnusableVectors, sentence_vectors, word_vectors
from st_reba.optional import required


class Model:
    """Vectors that only the text decides; remembers what it was asked to encode."""

    def __init__(self, special: dict[str, Sequence[float]] | None = None) -> None:
        self.special = special or {}
        self.calls: list[list[str]] = []
        self.prompts: list[str | None] = []

    def vector(self, text: str) -> NDArray[np.float32]:
        if text in self.special:
            return np.asarray(self.special[text], dtype=np.float32)
        digest = hashlib.sha256(text.encode()).digest()[:8]
        return (np.frombuffer(digest, dtype=np.uint8).astype(np.float32) - 127) / 50

    def encode(self, texts: list[str], *, prompt: str | None = None, **options: Any) -> NDArray[np.float32]:
        assert options["batch_size"] > 0
        self.calls.append(texts)
        self.prompts.append(prompt)
        return np.stack([self.vector(text) for text in texts])


def fake(special: dict[str, Sequence[float]] | None = None) -> Any:
    return Model(special)


def ranks(values: Sequence[float]) -> list[float]:
    """Average ranks, by counting."""
    return [sum(other < value for other in values) + (sum(o == value for o in values) + 1) / 2 for value in values]


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    a, b = [x - sum(a) / len(a) for x in a], [x - sum(b) / len(b) for x in b]
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return float(product / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5)


PAIRS = [(f"left {n % 17}", f"right {n % 5}", float(n % 4)) for n in range(40)]


def test_pairs_by_hand() -> None:
    task = PairTask("pairs", tuple(PAIRS[:25]), tuple(PAIRS[25:]))
    model = fake()
    scores = task.score(model)
    for part, got in ((PAIRS[:25], scores.validation), (PAIRS[25:], scores.heldout)):
        cosines = []
        for first, second, _ in part:
            a, b = model.vector(first).astype(float), model.vector(second).astype(float)
            cosines.append(float(a @ b / (a @ a) ** 0.5 / (b @ b) ** 0.5))
        wanted = [score for _, _, score in part]
        assert got == pytest.approx(correlation(ranks(cosines), ranks(wanted)), abs=1e-12)
        assert got == pytest.approx(float(spearmanr(cosines, wanted).statistic), abs=1e-12)
    assert scores.validation != scores.heldout
    # Each distinct text once, in one call.
    assert [sorted(texts) for texts in model.calls] == [sorted({text for pair in PAIRS for text in pair[:2]})]


def test_pairs_of_equal_texts_tie() -> None:
    texts = [f"text {n}" for n in range(2000)]
    pairs = tuple((text, text, float(n)) for n, text in enumerate(texts))
    # No cosine is a rounding error below another.
    assert PairTask("p", pairs, pairs).score(fake()) == Scores(0.0, 0.0)


def test_vectors_that_are_all_alike_rank_nothing() -> None:
    alike = {text: [1.0, 2.0] for pair in PAIRS for text in pair[:2]}
    assert PairTask("p", tuple(PAIRS[:20]), tuple(PAIRS[20:])).score(fake(alike)) == Scores(0.0, 0.0)


@pytest.mark.parametrize("bad", [[0.0] * 8, [float("nan")] * 8, [float("inf")] * 8])
def test_unusable_vectors_are_named(bad: list[float]) -> None:
    task = PairTask("p", tuple(PAIRS[:20]), tuple(PAIRS[20:]))
    with pytest.raises(UnusableVectors, match="1 of 22 vectors are zero or not finite; the first is that of 'right 3'"):
        task.score(fake({"right 3": bad}))


def test_classes_by_scikit_learn() -> None:
    labels = ["a", "b", "c"]
    examples = [(f"text {n % 50}", labels[(n % 50) % 3]) for n in range(90)]
    # Half of them can be learnt.
    special = {f"text {n}": [float(n % 3 == c) for c in range(3)] + [n / 50, -n / 50] for n in range(0, 50, 2)}
    special.update({f"text {n}": [0.1, 0.2, 0.3, n / 50, 1.0] for n in range(1, 50, 2)})
    parts = examples[:40], examples[40:65], examples[65:]
    model = fake(special)
    scores = ClassTask("c", *map(tuple, parts)).score(model, prompt="Classify: ")
    x = [np.asarray([special[text] for text, _ in part], dtype=np.float32) for part in parts]
    classifier = LogisticRegression(max_iter=100).fit(x[0], [label for _, label in parts[0]])
    for vectors, part, got in zip(x[1:], parts[1:], (scores.validation, scores.heldout), strict=True):
        right = [p == label for p, (_, label) in zip(classifier.predict(vectors), part, strict=True)]
        assert got == sum(right) / len(right)
        assert 0.4 < got < 1
    assert model.prompts == ["Classify: "] and len(model.calls[0]) == 50


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Spans of IOB2 tags, found by hand."""
    found: list[tuple[str, int, int]] = []
    for n, tag in enumerate(tags):
        if tag == "O":
            continue
        kind = tag[2:]
        if tag[0] == "I" and found and found[-1][0] == kind and found[-1][2] == n and tags[n - 1] != "O":
            found[-1] = (kind, found[-1][1], n + 1)
        else:
            found.append((kind, n, n + 1))
    return set(found)


SENTENCES = [
    (tuple(words.split()), tuple(tags.split()))
    for words, tags in (
        ("Anna lives in New York .", "B-PER O O B-LOC I-LOC O"),
        ("The river Rhine is long .", "O O B-LOC O O O"),
        ("In Paris Anna met Paul Smith .", "O B-LOC B-PER O B-PER I-PER O"),
        ("Rome is old .", "B-LOC O O O"),
        ("Nobody spoke .", "O O O"),
        ("Paul went to Oslo with Maria Berg .", "B-PER O O B-LOC O B-PER I-PER O"),
    )
] * 5


@pytest.fixture(scope="module")
def mini() -> SentenceTransformer:
    return st_reba.build("mini", "nosink", stages=[st_reba.LayerPlan()], device="cpu")


def test_tags_by_hand(mini: SentenceTransformer) -> None:
    # The last part differs, so that not everything is found.
    turned = [(words[::-1], tuple(tags)) for words, tags in SENTENCES[:12]]
    parts = SENTENCES[:10], SENTENCES[10:22], turned
    scores = TagTask("t", *map(tuple, parts)).score(mini, batch_size=7)
    x = [word_vectors(mini, [words for words, _ in part]) for part in parts]
    classifier = LogisticRegression(max_iter=100).fit(x[0], [tag for _, tags in parts[0] for tag in tags])
    for vectors, part, got in zip(x[1:], parts[1:], (scores.validation, scores.heldout), strict=True):
        predicted = iter(classifier.predict(vectors))
        pairs = [(entities(tags), entities([str(next(predicted)) for _ in tags])) for _, tags in part]
        common = sum(len(a & b) for a, b in pairs)
        assert got == pytest.approx(2 * common / sum(len(a) + len(b) for a, b in pairs))
    assert scores.validation == 1.0 and 0 < scores.heldout < 1


@pytest.mark.parametrize("subtoken", ["first", "last"])
def test_word_vectors_by_transformers(mini: SentenceTransformer, subtoken: Any) -> None:
    model, tokenizer = loaded("mini")
    sentences = [words for words, _ in SENTENCES[:6]] + [("unbelievable", "extraterritoriality"), ("他", "在银行")]
    got = word_vectors(mini, sentences, subtoken=subtoken, batch_size=3)
    assert got.shape == (sum(map(len, sentences)), 192)
    row = 0
    split = 0
    for words in sentences:
        encoded = tokenizer(" ".join(words), return_offsets_mapping=True)
        with torch.no_grad():
            hidden = model(torch.tensor([encoded["input_ids"]])).last_hidden_state[0]
        # Which word each character is of; blanks are of none.
        owner = [n for n, word in enumerate(words) for _ in word + " "]
        text = " ".join(words)
        for n in range(len(words)):
            tokens = [
                token
                for token, (first, last) in enumerate(encoded["offset_mapping"])
                if any(owner[c] == n and text[c] != " " for c in range(first, last))
            ]
            split += len(tokens) > 1
            wanted = hidden[tokens[0] if subtoken == "first" else tokens[-1]].numpy()
            assert np.abs(got[row] - wanted).max() <= 1e-5 * np.abs(wanted).max()
            row += 1
    assert split >= 5


def test_word_vectors_of_chinese_characters(mini: SentenceTransformer) -> None:
    apart = word_vectors(mini, [("他", "在", "银", "行")], separator="")
    together = word_vectors(mini, [("他在银行",)], separator="", subtoken="last")
    assert np.abs(apart[-1] - together[0]).max() < 1e-5
    assert word_vectors(mini, [("他", "在"), ("他", "在")]).shape == (4, 192)


def test_word_vectors_refuse(mini: SentenceTransformer) -> None:
    long = ("word",) * 40
    mini.max_seq_length, before = 20, mini.max_seq_length
    try:
        with pytest.raises(ValueError, match="max_seq_length=20 leaves 19, so some words would have no vector. Raise"):
            word_vectors(mini, [long])
    finally:
        mini.max_seq_length = before
    assert word_vectors(mini, [long]).shape == (40, 192)
    with pytest.raises(ValueError, match="needs? a pipeline that starts with RepeatTransformer"):
        word_vectors([torch.nn.Linear(1, 1)], [("a",)])  # type: ignore[arg-type]


def test_sentence_vectors_are_the_models(mini: SentenceTransformer) -> None:
    texts = ["雨", "It rains.", "雨", "It rains a lot today."]
    got = sentence_vectors(mini, texts, batch_size=2)
    assert np.abs(got - mini.encode(texts, show_progress_bar=False)).max() < 1e-6
    assert (got[0] == got[2]).all()


def test_too_small_or_without_a_choice() -> None:
    part, short = tuple(PAIRS[:10]), tuple(PAIRS[:9])
    with pytest.raises(ValueError, match="p: 9 pairs for held-out, but 10 are needed at the least. Use a larger file"):
        PairTask("p", part, short)
    with pytest.raises(ValueError, match="all pairs of held-out have the score 1.0"):
        PairTask("p", part, tuple((a, b, 1.0) for a, b, _ in part))
    texts = tuple((f"t{n}", "x" if n % 2 else "y") for n in range(10))
    with pytest.raises(ValueError, match="all texts of train have the class 'x'"):
        ClassTask("c", tuple((text, "x") for text, _ in texts), texts, texts)
    with pytest.raises(ValueError, match="9 texts for train"):
        ClassTask("c", texts[:9], texts, texts)
    tags = tuple(SENTENCES[:10])
    blank = tuple((words, ("O",) * len(words)) for words, _ in tags)
    with pytest.raises(ValueError, match="validation holds no entity"):
        TagTask("t", tags, blank, tags)
    with pytest.raises(ValueError, match="held-out has a sentence with not one tag a word"):
        TagTask("t", tags, tags, ((("a",), ("O", "O")), *tags))


def test_the_fingerprint_follows_data_parts_and_settings() -> None:
    tags = tuple(SENTENCES[:10])
    tasks: list[Any] = [
        PairTask("p", tuple(PAIRS[:20]), tuple(PAIRS[20:])),
        PairTask("p", tuple(PAIRS[20:]), tuple(PAIRS[:20])),
        PairTask("p", tuple(PAIRS[:20]), (*PAIRS[20:-1], (*PAIRS[-1][:2], 9.0))),
        TagTask("t", tags, tags, tags),
        TagTask("t", tags, tags, tags, subtoken="last"),
        TagTask("t", tags, tags, tags, separator=""),
    ]
    assert len({task.fingerprint for task in tasks}) == len(tasks)
    assert PairTask("other", tuple(PAIRS[:20]), tuple(PAIRS[20:]), "read", ("x",)).fingerprint == tasks[0].fingerprint
    assert PairTask("\ud800", tuple(PAIRS[:20]), (("\ud800", "b", 1.0), *PAIRS[20:])).fingerprint


def test_what_is_missing_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(ImportError, match=r"needs seqeval.*Run: pip install 'st-reba\[evaluation\]'"):
        required("seqeval.metrics", "evaluation")


def test_nothing_else_needs_evaluation_to_be_imported() -> None:
    package = Path(st_reba.__file__).parent
    for file in package.rglob("*.py"):
        here = ["st_reba", *file.relative_to(package).parts[:-1]]
        # At the top of a file; inside a function an import is made when it is needed.
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                origin = here[: len(here) + 1 - node.level] if node.level else []
                origin = [*origin, *([node.module] if node.module else [])]
                names = [".".join([*origin, alias.name]) for alias in node.names]
            for name in names:
                assert "evaluation" in here or not name.startswith("st_reba.evaluation"), file
                assert name.partition(".")[0] not in ("matplotlib", "seqeval", "sklearn"), file


def test_entities_by_hand_is_right() -> None:
    tags = ["B-A", "I-A", "O", "B-A", "B-A", "I-B"]
    assert entities(tags) == {("A", 0, 2), ("A", 3, 4), ("A", 4, 5), ("B", 5, 6)}
