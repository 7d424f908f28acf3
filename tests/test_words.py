"""Vectors of words and tokens against the oracle, and what is refused."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from marks import Base, slow_but
from oracle import Placed, assert_close, item, oracle_of
from pipelines import build
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba import encode_words
from st_reba.words import _tokens, encode_tokens, words_of

ITEMS = [
    item("他在银行取了钱，then went home.", "银行"),
    item("The bank of the river is steep.", "river"),
    item("意思意思就行了，你这是什么意思？", "意思"),
    item("意思意思就行了，你这是什么意思？", "意思", 2),
    item("天", "天"),
    item("a bank on the bank", "bank", 1),
    item("e\u0301 and \ud800 bank", "bank"),
    item("一二", "一二"),
]


def check(model: SentenceTransformer, items: list[Placed], wanted: list[torch.Tensor], **options: Any) -> None:
    """Alone, in small batches and in one; in the other order too."""
    for batch_tokens in (1, 60, 4096):
        vectors = encode_words(model, items, batch_tokens=batch_tokens, **options)
        assert vectors.shape == (len(items), model.get_embedding_dimension()) and vectors.dtype == np.float32
        for got, one in zip(vectors, wanted, strict=True):
            assert_close(got, one)
    turned = encode_words(model, items[::-1], batch_tokens=60, **options)
    np.testing.assert_allclose(turned[::-1], vectors, atol=1e-5 * np.abs(vectors).max())


BASES = [*((name, 2) for name in ("mini", "stories260K", "bloom", "gpt_oss", "gemma2")), ("gpt2", 1), ("llama", 3)]


@pytest.mark.parametrize(("name", "k"), slow_but(BASES, "gemma2", "gpt2", "llama", rows=True))
def test_every_method(base: Base, name: str, k: int) -> None:
    """ReBA: the mean of e_i over the word, whatever the sentence's pooling, or with ``normalize`` each sum's weights 1.

    Published: the rows of the word's tokens in copy 1, summed, over all columns, divided to 1. Echo: v at the word's
    positions in the last copy. None of both is normalized.
    """
    path = base(name)
    placed = [oracle_of(path, one, (None,) * k) for one in ITEMS]
    published = [reference.published_word(hidden, fused, where, found) for where, hidden, fused, found in placed]
    echo = [reference.echo_word(hidden, where, found) for where, hidden, _, found in placed]
    for normalize, pooling in ((False, "last"), (True, "mean")):
        wanted = [
            reference.reba_word(hidden, fused, where, found, normalize_weights=normalize)
            for where, hidden, fused, found in placed
        ]
        options: dict[str, Any] = {"repeats": k, "pooling": pooling}
        check(build(path, "reba", **options), ITEMS, wanted, normalize=normalize)
        check(build(path, "reba", implementation="authors", **options), ITEMS, published, normalize=normalize)
        check(build(path, "echo", **options), ITEMS, echo, normalize=normalize)


ECHO = ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None)
LAYOUTS: dict[str, tuple[str, dict[str, Any], tuple[str | None, ...]]] = {
    "classical": ("classical", {"pooling": "mean"}, (None,)),
    "prompteol": ("prompteol", {}, ('This sentence: "', None, '" means in one word:"')),
    "echo": ("echo", {"template": "echo"}, ECHO),
    "reba": ("reba", {"template": "echo"}, ECHO),
    "separated": ("reba", {"template": "{text} {text} {text}"}, (None, " ", None, " ", None)),
    "special": ("reba", {"include_special": True}, (None, None)),
    "normalized": ("reba", {"normalize_weights": True}, (None, None)),
}


@pytest.mark.parametrize(("case", "prompt"), zip(LAYOUTS, cycle(["Query: ", None]), strict=False))
def test_what_stands_around(base: Base, case: str, prompt: str | None) -> None:
    """Template words and prompts move the word, and are no part of it; what the model was built with holds for it."""
    path = base("qwen3", "cls_sep")
    method, options, pieces = LAYOUTS[case]
    if prompt:
        pieces = (prompt, *pieces) if pieces[0] is None else (prompt + str(pieces[0]), *pieces[1:])
    given = {name: value for name, value in options.items() if isinstance(value, bool)}
    wanted = []
    for one in ITEMS:
        where, hidden, fused, found = oracle_of(path, one, pieces)
        if method == "reba":
            wanted.append(reference.reba_word(hidden, fused, where, found, **given))
        else:
            wanted.append(reference.echo_word(hidden, where, found))
    model = st_reba.build(path, method, prompts={"query": "Query: "}, **options)
    check(model, ITEMS, wanted, prompt=prompt)
    if prompt:
        # As for encode: the default prompt holds where none is given, and an empty one drops it.
        model.default_prompt_name = "query"
        np.testing.assert_array_equal(encode_words(model, ITEMS), encode_words(model, ITEMS, prompt=prompt))
        assert np.abs(encode_words(model, ITEMS, prompt="") - encode_words(model, ITEMS)).max() > 1e-3


@pytest.mark.parametrize("method", ["reba", "echo"])
def test_the_cut(base: Base, method: str) -> None:
    """A word before the cut is found in the text as cut; one past it, wholly or in part, is refused by its place."""
    path = base("llama", "bos_eos")
    text = "The river runs past the old mill, under the bridge, and on to the sea."
    model = st_reba.build(path, method, max_seq_length=22)
    where, hidden, fused, found = oracle_of(path, item(text, "river"), (None, None), 22)
    assert where.n == 10
    reba, echo = reference.reba_word(hidden, fused, where, found), reference.echo_word(hidden, where, found)
    check(model, [item(text, "river")], [reba if method == "reba" else echo])
    end = model[0].content([text], offsets=True)["offset_mapping"][0][9][1]
    for span in ((text.index("sea"), len(text) - 1), (end, end + 1), (4, end + 1)):
        with pytest.raises(ValueError, match="^Item 2"):
            encode_words(model, [GOOD, GOOD, (text, span), GOOD])
    assert encode_words(model, [GOOD, (text, (4, end))]).all()
    model.max_seq_length = 200
    assert encode_words(model, [(text, (4, end + 1))]).all()


def test_the_span_chooses(base: Base) -> None:
    """Two occurrences differ; the same one twice does not; a word of several parts is the mean of them."""
    model = st_reba.build(base("mini"), "reba")
    first, second = item("你这意思是什么意思", "意思"), item("你这意思是什么意思", "意思", 1)
    vectors = encode_words(model, [first, second, first])
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert np.abs(vectors[0] - vectors[1]).max() > 0.01 * np.abs(vectors[0]).max()
    text = "他在银行"
    tokens = encode_tokens(model, [text])[0]
    whole = encode_words(model, [(text, (0, len(text)))])[0]
    np.testing.assert_allclose(whole, tokens.mean(axis=0), rtol=0, atol=1e-5 * np.abs(whole).max())
    # A part of a token is that token, and offsets may come out of an array.
    ids = model[0].content([text], offsets=True)["offset_mapping"][0]
    start, end = next(span for span in ids if span[1] - span[0] > 1)
    part = encode_words(model, [(text, (start, start + 1)), (text, (np.int64(start), np.uint8(end)))])
    np.testing.assert_array_equal(part[0], part[1])
    # A word that stands in its text once needs no offsets.
    np.testing.assert_array_equal(encode_words(model, [(text, "银行")]), encode_words(model, [item(text, "银行")]))
    assert encode_words(model, []).shape == (0, 192)


@pytest.mark.parametrize(
    "options", [{}, {"implementation": "authors"}, {"chunk": 4}, {"method": "echo"}, {"normalize_weights": True}]
)
def test_a_text_runs_once_for_all_of_its_words(base: Base, options: dict[str, Any]) -> None:
    model = st_reba.build(base("llama", "bos_eos"), **{"method": "reba", **options})
    texts = ["他在银行取了钱，then went home.", "天", "a bank on the bank"]
    items = [each for text in texts for each in words_of(text)]
    mixed = items[::2] + items[1::2]
    wanted = np.concatenate([encode_words(model, [one]) for one in mixed])
    rows: list[int] = []
    model[0].register_forward_pre_hook(lambda _, arguments: rows.append(len(arguments[0]["input_ids"])))
    vectors = encode_words(model, mixed)
    # Pieces run besides.
    assert sum(rows) == len(texts) < len(mixed) or "chunk" in options
    np.testing.assert_allclose(vectors, wanted, atol=1e-5 * np.abs(wanted).max())


GOOD = ("The river bank", (4, 9))


@pytest.mark.parametrize(
    "bad",
    [
        *(("The river bank", span) for span in ((4, 4), (-1, 3), (10, 15), (4, 9, 11), None, (4.0, 9.0))),
        ("The river bank", "shop"), ("The river bank", ""), ("aaa", "aa"), "The river bank", None,
        (b"The river bank", (4, 9)),
    ],
)  # fmt: skip
def test_bad_items(base: Base, bad: Any) -> None:
    """The error says which item, before anything runs."""
    model = st_reba.build(base("llama"), "reba", check=False)
    model[0].register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
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
        with pytest.raises(ValueError, match=reason):
            encode_words(model, [GOOD])
        with pytest.raises(ValueError, match=reason):
            encode_tokens(model, ["The river bank"])


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "mean"}, {"implementation": "authors"}, {"chunk": 4}, {"layer": [1, 2], "join": "concat"},
        {"method": "echo", "template": "echo", "pooling": "mean"},
        {"method": "nosink", "setting": "mask0-bidir", "k": 1},
    ],
    ids=str,
)  # fmt: skip
def test_every_token(base: Base, options: dict[str, Any]) -> None:
    """A token's vector is that of the word which it is; a text without a token has one."""
    model = build(base("llama", "bos_eos"), **{"method": "reba", **options})
    texts = ["天", "", "他在银行取了钱，then went home.", "hi", "a bank on the bank"]
    found = encode_tokens(model, texts, batch_tokens=60)
    assert len(found[1]) == 1 and np.isfinite(found[1]).all()
    for text, vectors in zip(texts, found, strict=True):
        spans = model[0].content([text], offsets=True)["offset_mapping"][0]
        alone = [(token, span) for token, span in enumerate(spans) if spans.count(span) == 1 and span[1] > span[0]]
        assert len(vectors) == max(1, len(spans)) and vectors.dtype == np.float32
        if alone:
            words = encode_words(model, [(text, span) for _, span in alone])
            np.testing.assert_allclose(vectors[[token for token, _ in alone]], words, atol=1e-5 * np.abs(words).max())
    short = build(base("llama", "bos_eos"), **{"method": "reba", **options, "max_seq_length": 40})
    kept = short[0].budget()
    assert [len(each) for each in encode_tokens(short, ["a bank " * 40, "hi"], prompt=None)][0] == kept


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
        spans = [span for of, span in words_of(text, word) if of == text]
        assert spans == sorted(spans)
        return [text[start:end] for start, end in spans]

    english = ["It's", "a", "well-known", "bank", "isn't", "it", "3", "5"]
    assert found("It's a well-known bank, -isn't it? 3.5%") == english
    assert found("他在ATM取了100元。") == ["他", "在", "ATM", "取", "了", "100", "元"]
    assert found("cafe\u0301 हिन्दी 한국어 カナ・\ud800") == ["cafe\u0301", "हिन्दी", "한국어", "カ", "ナ"]
    assert found("") == found(" ,。\n") == found("abc", "b") == found("cafe\u0301", "cafe") == []
    assert words_of("party art, art.", "art") == [("party art, art.", (6, 9)), ("party art, art.", (11, 14))]
    assert found("意思意思，ATM机", "意思") == ["意思", "意思"] and found("意思意思，ATM机", "ATM") == ["ATM"]
    assert found("the river bank of the river", "the river") == ["the river", "the river"]
    with pytest.raises(ValueError, match="word"):
        words_of("abc", "")
