"""Vectors of words and tokens against the oracle, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from marks import Base, slow_but
from oracle import WordInText as Placed
from oracle import assert_close, oracle_of
from oracle import word_in_text as item
from pipelines import build
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba import encode_words
from st_reba.words import _tokens, encode_tokens, words_of

ITEMS = [
    item("他在银行取了钱，then went home.", "银行"), item("The bank of the river is steep.", "river"), item("天", "天"),
    item("意思意思就行了，你这是什么意思？", "意思"), item("意思意思就行了，你这是什么意思？", "意思", 2),
    item("a bank on the bank", "bank", 1), item("e\u0301 and \ud800 bank", "bank"), item("一二", "一二"),
]  # fmt: skip
GOOD = ("The river bank", (4, 9))
Pieces = tuple[str | None, ...]


def by_oracle(path: str, method: str, pieces: Pieces, items: Any = ITEMS, limit: Any = None, **options: bool) -> Any:
    """Vectors of words, one for each item."""
    placed = [oracle_of(path, one, pieces, limit) for one in items]
    if method in ("reba", "authors"):
        state = reference.reba_word if method == "reba" else reference.published_word
        return [state(hidden, fused, where, tokens, **options) for where, hidden, fused, tokens in placed]
    return [reference.echo_word(hidden, where, tokens) for where, hidden, _, tokens in placed]


def check(model: SentenceTransformer, wanted: Any, items: list[Placed] = ITEMS, **options: Any) -> None:
    """Alone, in small batches and in one."""
    for batch_tokens in (1, 60, 4096):
        vectors = encode_words(model, items, batch_tokens=batch_tokens, **options)
        assert vectors.shape == (len(items), model.get_embedding_dimension()) and vectors.dtype == np.float32
        for got, one in zip(vectors, wanted, strict=True):
            assert_close(got, one)


BASES = [*((name, 2) for name in ("mini", "stories260K", "bloom", "gpt_oss", "gemma2")), ("gpt2", 1), ("llama", 3)]


@pytest.mark.parametrize(("name", "k"), slow_but(BASES, "gemma2", "gpt2", "llama", rows=True))
def test_every_method(base: Base, name: str, k: int) -> None:
    """ReBA: the mean of e_i over the word, whatever the sentence's pooling, or with ``normalize`` each sum's weights 1.

    Published: the rows of the word's tokens in copy 1, summed, divided to 1. Echo: v at its positions in the last copy.
    """
    path, pieces = base(name), (None,) * k
    for normalize, pooling in ((False, "last"), (True, "mean")):
        options: dict[str, Any] = {"repeats": k, "pooling": pooling}
        reba = by_oracle(path, "reba", pieces, normalize_weights=normalize)
        check(build(path, "reba", **options), reba, normalize=normalize)
        authors = build(path, "reba", implementation="authors", **options)
        check(authors, by_oracle(path, "authors", pieces), normalize=normalize)
        check(build(path, "echo", **options), by_oracle(path, "echo", pieces), normalize=normalize)


ECHO = ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None)


@pytest.mark.parametrize(
    ("method", "options", "pieces", "prompt"),
    [
        ("classical", {"pooling": "mean"}, ("Query: ", None), "Query: "),
        ("prompteol", {}, ('This sentence: "', None, '" means in one word:"'), None),
        ("echo", {"template": "echo"}, ("Query: " + ECHO[0], *ECHO[1:]), "Query: "),
        ("reba", {"template": "echo"}, ECHO, None),
        ("reba", {"template": "{text} {text} {text}"}, ("Query: ", None, " ", None, " ", None), "Query: "),
        ("reba", {"include_special": True}, (None, None), None),
        ("reba", {"normalize_weights": True}, ("Query: ", None, None), "Query: "),
    ],
)
def test_what_stands_around(base: Base, method: str, options: dict[str, Any], pieces: Pieces, prompt: Any) -> None:
    """Template words and prompts move the word, and are no part of it; what the model was built with holds for it."""
    path = base("qwen3", "cls_sep")
    given = {name: value for name, value in options.items() if isinstance(value, bool)}
    model = st_reba.build(path, method, prompts={"query": "Query: "}, **options)
    check(model, by_oracle(path, method, pieces, **given), prompt=prompt)
    if prompt:
        # As for encode: the default prompt holds where none is given, and an empty one drops it.
        model.default_prompt_name = "query"
        np.testing.assert_array_equal(encode_words(model, ITEMS), encode_words(model, ITEMS, prompt=prompt))
        assert np.abs(encode_words(model, ITEMS, prompt="") - encode_words(model, ITEMS)).max() > 1e-3


def test_the_cut(base: Base) -> None:
    """A word before the cut is found in the text as cut; one past it, wholly or in part, is refused by its place."""
    path, text = base("llama", "bos_eos"), "The river runs past the old mill, under the bridge, and on to the sea."
    model, river = st_reba.build(path, "reba", max_seq_length=22), [item(text, "river")]
    check(model, by_oracle(path, "reba", (None, None), river, 22), river)
    end = model[0].content([text], offsets=True)["offset_mapping"][0][9][1]
    for span in ((text.index("sea"), len(text) - 1), (end, end + 1), (4, end + 1)):
        with pytest.raises(ValueError, match="^Item 2"):
            encode_words(model, [GOOD, GOOD, (text, span), GOOD])
    assert encode_words(model, [GOOD, (text, (4, end))]).all()
    model.max_seq_length = 200
    assert encode_words(model, [(text, (4, end + 1))]).all()


def test_items() -> None:
    """A part of a token is that token; offsets may come out of an array; a word that its text has once needs none."""
    model, text = st_reba.build("mini", "reba"), "他在银行"
    spans = model[0].content([text], offsets=True)["offset_mapping"][0]
    start, end = next(span for span in spans if span[1] - span[0] > 1)
    token = (text, (np.int64(start), np.uint8(end)))
    np.testing.assert_array_equal(*encode_words(model, [(text, (start, start + 1)), token]))
    np.testing.assert_array_equal(*encode_words(model, [(text, "银行"), item(text, "银行")]))
    assert encode_words(model, []).shape == (0, 192)
    # An error says which item, before anything runs.
    model[0].register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
    words = ((4, 4), (-1, 3), (10, 15), (4, 9, 11), None, (4.0, 9.0), "shop", "")
    others = (("aaa", "aa"), GOOD[0], None, (b"The river bank", (4, 9)))
    for bad in (*((GOOD[0], word) for word in words), *others):
        with pytest.raises(ValueError, match="^Item 2"):
            encode_words(model, [GOOD, GOOD, bad])


@pytest.mark.bars
def test_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    """A tokenizer may drop what a span holds, as a mark that a normalizer joins to its letter."""
    model, text = st_reba.build("mini", "reba"), "cafe\u0301"
    with pytest.raises(ValueError, match="one text"):
        encode_tokens(model, text)
    with pytest.raises(ValueError, match="^Item 1: .* no token"):
        encode_words(model, [GOOD, (text, (4, 5))])
    assert _tokens(0, "a  b", (0, 4), [(0, 1), (2, 2), (2, 4)], 3) == [0, 2]
    model.train()
    capsys.readouterr()
    np.testing.assert_array_equal(*encode_words(model, [(text, (0, 5)), (text, (0, 4))]))
    encode_tokens(model, [text])
    assert not model.training and not capsys.readouterr().err
    encode_tokens(model, [text, "bank"], show_progress_bar=True)
    assert "2/2" in capsys.readouterr().err


def test_other_models(base: Base, tmp_path: Path) -> None:
    """A pipeline without copies, and one that makes several sequences of a text, are refused with advice."""
    transformer = Transformer(base("llama"))
    plain = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension())])
    plain.save_pretrained(str(tmp_path))
    own = st_reba.build(str(tmp_path), "nosink", setting="baseline")
    two, turned = (st_reba.build("mini", "prompteol", template=each) for each in ("contrastive", "{reversed}:"))
    for model, reason in ((plain, "starts with"), (own, "own input"), (two, "2 rows"), (turned, "reversed")):
        for encode, given in ((encode_words, [GOOD]), (encode_tokens, [GOOD[0]])):
            with pytest.raises(ValueError, match=reason):
                encode(model, given)


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "mean", "normalize_weights": True}, {"implementation": "authors"}, {"chunk": 4},
        {"layer": [1, 2], "join": "concat"}, {"method": "echo", "template": "echo", "pooling": "mean"},
        {"method": "nosink", "setting": "mask0-bidir", "k": 1},
    ],
    ids=str,
)  # fmt: skip
def test_every_token(base: Base, options: dict[str, Any]) -> None:
    """A token's vector is that of the word which it is, and a text runs once for all of its words, however mixed."""
    model = build(base("llama", "bos_eos"), **{"method": "reba", **options})
    texts = ["天", "", "他在银行取了钱，then went home.", "hi", "a bank on the bank"]
    found = encode_tokens(model, texts, batch_tokens=60)
    # A text without a token has one vector.
    assert len(found[1]) == 1 and np.isfinite(found[1]).all()
    placed = []
    for text, vectors in zip(texts, found, strict=True):
        spans = model[0].content([text], offsets=True)["offset_mapping"][0]
        assert len(vectors) == max(1, len(spans)) and vectors.dtype == np.float32
        alone = [token for token, span in enumerate(spans) if spans.count(span) == 1 and span[1] > span[0]]
        placed += [((text, spans[token]), vectors[token]) for token in alone]
    items, wanted = zip(*placed[::2], *placed[1::2], strict=True)
    rows: list[int] = []
    model[0].register_forward_pre_hook(lambda _, arguments: rows.append(len(arguments[0]["input_ids"])))
    np.testing.assert_allclose(encode_words(model, items), wanted, atol=1e-5 * np.abs(wanted).max())
    # Pieces run besides.
    assert sum(rows) == len({text for text, _ in items}) < len(items) or "chunk" in options
    short = build(base("llama", "bos_eos"), **{"method": "reba", **options, "max_seq_length": 40})
    assert len(encode_tokens(short, ["a bank " * 40, "hi"], prompt=None)[0]) == short[0].budget()


def test_not_finite() -> None:
    """As for sentences: in the published variant zeros for the text's words alone."""
    model = st_reba.build("mini", "reba", implementation="authors", check=False)
    wanted = encode_words(model, [GOOD])[0]
    ((token,),) = model[0].content(["猫"])["input_ids"]
    with torch.no_grad():
        model[0].model.embed_tokens.weight[token] = float("nan")
    bad, good = encode_words(model, [("猫", "猫"), GOOD])
    assert not bad.any()
    np.testing.assert_allclose(good, wanted, atol=1e-5 * np.abs(wanted).max())


def test_the_words_of_a_text() -> None:
    """White space and punctuation part words, marks do not; Han and kana stand alone; a word is no part of another."""

    def found(text: str, word: str | None = None) -> list[str]:
        return [text[start:end] for of, (start, end) in words_of(text, word) if of == text]

    assert found("It's a well-known bank, -isn't 3.5%") == ["It's", "a", "well-known", "bank", "isn't", "3", "5"]
    assert found("他在ATM取了100元。") == ["他", "在", "ATM", "取", "了", "100", "元"]
    assert found("cafe\u0301 हिन्दी 한국어 カナ・\ud800") == ["cafe\u0301", "हिन्दी", "한국어", "カ", "ナ"]
    assert found("") == found(" ,。\n") == found("abc", "b") == found("cafe\u0301", "cafe") == []
    assert found("意思意思，ATM机", "意思") == ["意思", "意思"] and found("意思意思，ATM机", "ATM") == ["ATM"]
    assert found("the river bank of the river", "the river") == ["the river", "the river"]
    with pytest.raises(ValueError, match="word"):
        words_of("abc", "")


def test_texts_of_words_that_are_cut_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    model = st_reba.build("mini", "reba", max_seq_length=64)
    encode_words(model, [("bank " + "long " * 90, "bank"), ("A bank.", "bank")])
    assert "1 of 2 texts is longer than the model reads" in caplog.text
