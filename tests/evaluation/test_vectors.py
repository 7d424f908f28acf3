"""Vectors of the words of sentences against the oracle's e_i, transformers itself, and encode_words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import reference
import torch
from oracle import assert_close, loaded, oracle
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import encode_words
from st_reba.evaluation.data import make_task
from st_reba.evaluation.encoding import Prompts
from st_reba.evaluation.vectors import word_vectors

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


@pytest.mark.parametrize(
    ("name", "subtoken"), [("gpt2", "first"), ("gpt2", "last"), ("llama", "first"), ("mini", "last")]
)
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
    word_vectors(model, SENTENCES, batch_size=2, progress=lambda sentences, _: done.append(sentences))
    assert sum(rows) == 4 == sum(done)  # Four of the five are distinct.


def test_a_default_prompt_is_read_too() -> None:
    model = st_reba.build("mini", "classical", device="cpu")
    bare = word_vectors(model, SENTENCES[:1])
    prompted = word_vectors(model, SENTENCES[:1], prompt="Find names: ")
    assert np.abs(bare - prompted).max() > 1e-3
    model.prompts, model.default_prompt_name = {"names": "Find names: "}, "names"
    assert (word_vectors(model, SENTENCES[:1]) == prompted).all()


@pytest.fixture(scope="module")
def mini() -> SentenceTransformer:
    return st_reba.build("mini", "nosink", stages=[st_reba.LayerPlan()], device="cpu")


@pytest.mark.parametrize("subtoken", ["first", "last"])
def test_word_vectors_by_transformers(mini: SentenceTransformer, subtoken: Any) -> None:
    model, tokenizer = loaded("mini")
    sentences = [*SENTENCES, ("unbelievable", "extraterritoriality"), ("Paul", "went", "to", "Oslo")]
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


def test_a_sentence_that_is_cut_is_not_seen(mini: SentenceTransformer) -> None:
    """All of its words are NaN; those of the others are what they are without it."""
    for options in ({}, {"chunk": 4}, {"method": "echo"}):
        model = st_reba.build("mini", device="cpu", **{"max_seq_length": 40, **options})  # type: ignore[arg-type]
        long = ("word",) * 30
        got = word_vectors(model, [SENTENCES[1], long, SENTENCES[2], long])
        assert got.shape[0] == 2 + 30 + 1 + 30
        assert np.isnan(got[2:32]).all() and np.isnan(got[33:]).all()
        alone = word_vectors(model, [SENTENCES[1], SENTENCES[2]])
        assert np.abs(got[[0, 1, 32]] - alone).max() <= 1e-5 * np.abs(alone).max()
    # Classical reads it whole.
    assert np.isfinite(word_vectors(mini, [("word",) * 40])).all()


def test_a_model_in_training_is_read_without_dropout(base: Callable[..., str]) -> None:
    model = st_reba.build(base("gpt2"), device="cpu")
    wanted = word_vectors(model, SENTENCES)
    np.testing.assert_array_equal(word_vectors(model.train(), SENTENCES), wanted)


def test_word_vectors_refuse(mini: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="need a pipeline that starts with RepeatTransformer, not Linear"):
        word_vectors([torch.nn.Linear(1, 1)], [("a",)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the word '\u0301' falls on no token in the sentence"):
        word_vectors(mini, [("cafe", "\u0301")], separator="")
    broken = st_reba.build("mini", "classical", device="cpu")
    with torch.no_grad():
        next(module for name, module in broken[0].named_modules() if name.endswith(".norm")).weight.fill_(torch.nan)
    # Not NaN, which would pass for words that are not seen.
    with pytest.raises(ValueError, match="The backbone gave NaN or infinity"):
        word_vectors(broken, [("He", "went")])


def test_tagged_sentences_read_their_words(mini: SentenceTransformer) -> None:
    rows = [(["他", "在", "银行"], ["O", "O", "B-ORG"]), (["他", "走"], ["O", "O"])] * 5
    items = make_task("NER", rows, separator="", subtoken="last").items
    done: list[Any] = []
    got = items.vectors(mini, prompts=Prompts("找："), batch_size=2, progress=lambda *each: done.append(each))
    words = [words for words, _ in rows]
    wanted = word_vectors(mini, words, separator="", subtoken="last", prompt="找：")
    assert np.array_equal(got, wanted) and got.shape == (25, 192)
    assert sum(texts for texts, _ in done) == 2 and items.unseen(got) == []
    assert np.abs(got - items.vectors(mini)).max() > 1e-3
