"""encode_words against the oracle, and what it refuses."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from architectures import TOKENIZERS, save
from marks import slow_but
from oracle import assert_close, loaded, oracle
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

import st_reba
from st_reba import encode_words
from st_reba.words import Item

Base = Callable[..., str]
SIDES = ["left", "right"]
NAMES = ["mini", "stories260K", "llama", "gpt2", "bloom", "gpt_oss", "gemma2"]
SLPWC = Path(__file__).parents[2] / "shared" / "data" / "words" / "SLPWC_v1.csv"


def item(text: str, word: str, occurrence: int = 0) -> Item:
    """That occurrence of the word in the text."""
    start = [match.start() for match in re.finditer(re.escape(word), text)][occurrence]
    return text, (start, start + len(word))


ITEMS = [
    item("他在银行取了钱，then went home.", "银行"),
    item("The bank of the river is steep.", "river"),
    item("The bank of the river is steep.", "steep"),
    item("意思意思就行了，你这是什么意思？", "意思"),
    item("意思意思就行了，你这是什么意思？", "意思", 1),
    item("意思意思就行了，你这是什么意思？", "意思", 2),
    item("The word 意思 has many meanings.", "意思"),
    item("天", "天"),
    item("hi", "hi"),
    item("a bank on the bank", "bank", 1),
    item("e\u0301 and \ud800 bank", "bank"),
    item("一二", "一二"),
]


def token_indices(base: str, one: Item) -> list[int]:
    """The content tokens that share a character with the span, found on the oracle's side."""
    text, (start, end) = one
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    tokenizer = loaded(base)[1]
    encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    found = [
        index
        for index, (first, last) in enumerate(encoded["offset_mapping"])
        if {*range(first, last)} & {*range(start, end)}
    ]
    assert found == [*range(found[0], found[-1] + 1)]
    assert text[start:end] in tokenizer.decode([encoded["input_ids"][index] for index in found])
    return found


def oracle_of(
    base: str, one: Item, pieces: tuple[str | None, ...], limit: int | None = None
) -> tuple[reference.Layout, torch.Tensor, torch.Tensor, list[int]]:
    text = re.sub("[\ud800-\udfff]", "\ufffd", one[0])
    return *oracle(base, text, pieces, limit), token_indices(base, one)


def check(model: SentenceTransformer, items: list[Item], wanted: list[torch.Tensor], **options: Any) -> None:
    """Alone, in small batches and in one; in the other order too."""
    for batch_size in (1, 3, 100):
        vectors = encode_words(model, items, batch_size=batch_size, **options)
        assert vectors.shape == (len(items), model.get_embedding_dimension())
        assert vectors.dtype == np.float32
        for got, one in zip(vectors, wanted, strict=True):
            assert_close(got, one)
    turned = encode_words(model, items[::-1], batch_size=3, **options)
    np.testing.assert_allclose(turned[::-1], vectors, atol=1e-5 * np.abs(vectors).max())


@pytest.mark.parametrize("k", slow_but([1, 2, 3], 2))
@pytest.mark.parametrize("name", slow_but(NAMES, "llama", "gpt2"))
def test_reba(base: Base, name: str, k: int) -> None:
    """The mean of e_i over the word, whatever the sentence's pooling; with ``normalize`` each sum's weights are 1."""
    path = base(name)
    placed = [oracle_of(path, one, (None,) * k) for one in ITEMS]
    for normalize in (False, True):
        wanted = [
            reference.reba_word(hidden, fused, where, found, normalize_weights=normalize)
            for where, hidden, fused, found in placed
        ]
        for side, pooling in zip(SIDES, ("last", "mean"), strict=True):
            model = st_reba.build(path, repeats=k, pooling=pooling, padding_side=side)
            check(model, ITEMS, wanted, normalize=normalize)


@pytest.mark.parametrize("k", slow_but([1, 2, 3], 2))
@pytest.mark.parametrize(
    ("name", "tokenizer"), slow_but([("gpt2", "cls_sep"), ("llama", "bos_eos"), ("bloom", "plain")], "gpt2", rows=True)
)
def test_published(base: Base, name: str, tokenizer: str, k: int) -> None:
    """The rows of the word's tokens in copy 1, summed, over all columns, divided to 1: ``normalize`` or not."""
    path = base(name, tokenizer)
    wanted = []
    for one in ITEMS:
        where, hidden, fused, found = oracle_of(path, one, (None,) * k)
        wanted.append(reference.published_word(hidden, fused, where, found))
    for side, pooling in zip(SIDES, ("last", "mean"), strict=True):
        model = st_reba.build(path, repeats=k, pooling=pooling, variant="published", padding_side=side)
        for normalize in (False, True):
            check(model, ITEMS, wanted, normalize=normalize)


@pytest.mark.parametrize("k", slow_but([1, 2, 3], 2))
@pytest.mark.parametrize("name", slow_but(NAMES, "llama", "gpt2"))
def test_echo(base: Base, name: str, k: int) -> None:
    """v at the word's positions in the last copy: there are no weights to normalize."""
    path = base(name)
    wanted = []
    for one in ITEMS:
        where, hidden, _, found = oracle_of(path, one, (None,) * k)
        wanted.append(reference.echo_word(hidden, where, found))
    for side, pooling in zip(SIDES, ("last", "mean"), strict=True):
        model = st_reba.build(path, "echo", repeats=k, pooling=pooling, padding_side=side)
        check(model, ITEMS, wanted, normalize=side == "left")


TEMPLATED: dict[str, tuple[str, dict[str, Any], tuple[str | None, ...]]] = {
    "classical last": ("classical", {}, (None,)),
    "classical mean": ("classical", {"pooling": "mean"}, (None,)),
    "classical cls": ("classical", {"pooling": "cls"}, (None,)),
    "prompteol": ("prompteol", {}, ('This sentence: "', None, '" means in one word:"')),
    "echo": (
        "echo",
        {"template": "echo"},
        ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None),
    ),
    "reba": (
        "reba",
        {"template": "echo"},
        ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None),
    ),
    "separator": ("reba", {"separator": " ", "repeats": 3}, (None, " ", None, " ", None)),
}


@pytest.mark.parametrize("prompt", slow_but([None, "Query: "], "Query: "))
@pytest.mark.parametrize("case", slow_but(TEMPLATED, "echo", "reba"))
def test_templates_and_prompts(base: Base, case: str, prompt: str | None) -> None:
    """Template words and prompts move the word, and are no part of it."""
    path = base("qwen3", "bos_eos")
    method, options, pieces = TEMPLATED[case]
    if prompt:
        pieces = (prompt, *pieces) if pieces[0] is None else (prompt + str(pieces[0]), *pieces[1:])
    wanted = []
    for one in ITEMS:
        where, hidden, fused, found = oracle_of(path, one, pieces)
        if method == "reba":
            wanted.append(reference.reba_word(hidden, fused, where, found))
        else:
            wanted.append(reference.echo_word(hidden, where, found))
    for side in SIDES:
        check(st_reba.build(path, method, padding_side=side, **options), ITEMS, wanted, prompt=prompt)


@pytest.mark.parametrize("options", [{"include_special": True}, {"normalize_weights": True}])
def test_options(base: Base, options: dict[str, bool]) -> None:
    """What the model was built with holds for words too."""
    path = base("qwen3", "cls_sep")
    wanted = []
    for one in ITEMS:
        where, hidden, fused, found = oracle_of(path, one, (None, None))
        wanted.append(reference.reba_word(hidden, fused, where, found, **options))
    for side in SIDES:
        check(st_reba.build(path, padding_side=side, **options), ITEMS, wanted)


def test_cut(base: Base) -> None:
    """A word before the cut is found in the text as cut."""
    path = base("llama", "bos_eos")
    one = item("The river runs past the old mill, under the bridge, and on to the sea.", "river")
    for method in ("reba", "echo"):
        model = st_reba.build(path, method, max_seq_length=22)
        where, hidden, fused, found = oracle_of(path, one, (None, None), 22)
        assert where.n == 10 < len(model[0].content([one[0]])["input_ids"][0])
        if method == "reba":
            wanted = reference.reba_word(hidden, fused, where, found)
        else:
            wanted = reference.echo_word(hidden, where, found)
        check(model, [one], [wanted])


def test_the_span_chooses(base: Base) -> None:
    """Two occurrences differ; the same one twice does not; a word of several parts is the mean of them."""
    model = st_reba.build(base("mini"))
    first, second = item("你这意思是什么意思", "意思"), item("你这意思是什么意思", "意思", 1)
    vectors = encode_words(model, [first, second, first])
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert np.abs(vectors[0] - vectors[1]).max() > 0.01 * np.abs(vectors[0]).max()
    text = "他在银行"
    tokens = model.encode(text, output_value="token_embeddings").numpy()
    whole = encode_words(model, [(text, (0, len(text)))])[0]
    np.testing.assert_allclose(whole, tokens.mean(axis=0), rtol=0, atol=1e-5 * np.abs(whole).max())
    # A part of a token is that token.
    ids = model[0].content([text], offsets=True)["offset_mapping"][0]
    start, end = next(span for span in ids if span[1] - span[0] > 1)
    part = encode_words(model, [(text, (start, start + 1)), (text, (start, end))])
    np.testing.assert_array_equal(part[0], part[1])


@pytest.mark.parametrize("method", ["reba", "echo", "prompteol"])
def test_none(base: Base, method: str) -> None:
    assert encode_words(st_reba.build(base("llama"), method), []).shape == (0, 32)


GOOD = ("The river bank", (4, 9))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (("The river bank", (4, 4)), r"span \(4, 4\) is empty or outside its text of 14 characters, 'The river bank'"),
        (("The river bank", (9, 4)), r"span \(9, 4\) is empty or outside"),
        (("The river bank", (-5, -1)), r"span \(-5, -1\) is empty or outside"),
        (("The river bank", (-1, 3)), r"span \(-1, 3\) is empty or outside"),
        (("The river bank", (10, 15)), r"span \(10, 15\) is empty or outside"),
        (("", (0, 0)), "empty or outside its text of 0 characters"),
        (("", (0, 1)), "empty or outside its text of 0 characters"),
        ("The river bank", "must be"),
        ("ab", "must be"),
        (None, "must be"),
        (3, "must be"),
        (("The river bank",), "must be"),
        (("The river bank", 4, 9), "must be"),
        (("The river bank", (4, 9, 11)), "must be"),
        (("The river bank", (4,)), "must be"),
        (("The river bank", None), "must be"),
        (("The river bank", "49"), "must be"),
        (("The river bank", (4.0, 9.0)), "in characters"),
        (("The river bank", ("4", "9")), "in characters"),
        ((b"The river bank", (4, 9)), "in characters"),
        ((None, (4, 9)), "in characters"),
        ((("The", "river"), (0, 1)), "in characters"),
    ],
)
def test_bad_items(base: Base, bad: Any, message: str) -> None:
    """The error says which item, before anything runs."""
    model = st_reba.build(base("llama"))
    for index in (0, 2):
        items = [GOOD, GOOD, GOOD]
        items[index] = bad
        with pytest.raises(ValueError, match=rf"(?s)^Item {index}\b.*{message}"):
            encode_words(model, items, batch_size=1)


@pytest.mark.parametrize("method", ["reba", "echo"])
def test_past_the_cut(base: Base, method: str) -> None:
    """Wholly or in part; the item is named by its place in the caller's list, whatever the batch."""
    text = "The river runs past the old mill, under the bridge, and on to the sea."
    model = st_reba.build(base("llama", "bos_eos"), method, max_seq_length=22)
    end = model[0].content([text], offsets=True)["offset_mapping"][0][9][1]
    for batch_size in (1, 32):
        for span in ((text.index("sea"), len(text) - 1), (end, end + 1), (4, end + 1)):
            with pytest.raises(ValueError, match=r"^Item 2: the word .* past the cut: .* 10 of the text's"):
                encode_words(model, [GOOD, GOOD, (text, span), GOOD], batch_size=batch_size)
        assert encode_words(model, [GOOD, (text, (4, end))], batch_size=batch_size).all()
    model.max_seq_length = 200
    assert encode_words(model, [(text, (4, end + 1))]).all()


def test_no_token(base: Base, tmp_path: Path) -> None:
    """A tokenizer may drop what a span holds: whitespace, or a mark that a normalizer joins to its letter."""
    backend = TOKENIZERS["bos"]().backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", model_max_length=256
    )
    dropping = st_reba.build(save("llama", tmp_path, tokenizer))
    text = "The \t river"
    assert all(
        last <= 3 or first >= 6 for first, last in dropping[0].content([text], offsets=True)["offset_mapping"][0]
    )
    for model, bad in ((dropping, (text, (3, 6))), (st_reba.build("mini"), ("cafe\u0301", (4, 5)))):
        with pytest.raises(ValueError, match=r"^Item 1: the word .* falls on no token of the text"):
            encode_words(model, [GOOD, bad])
        assert np.isfinite(encode_words(model, [(bad[0], (0, len(bad[0])))])).all()
    # Beside a word, dropped whitespace changes nothing.
    vectors = encode_words(dropping, [(text, (6, 11)), (text, (3, 11))])
    np.testing.assert_array_equal(vectors[0], vectors[1])


@pytest.mark.parametrize("index", [np.int64, np.int32, np.uint8])
def test_numpy_integers(base: Base, index: type) -> None:
    """Offsets out of an array are offsets."""
    model = st_reba.build(base("llama"))
    text, (start, end) = GOOD
    np.testing.assert_array_equal(
        encode_words(model, [(text, (index(start), index(end)))]), encode_words(model, [GOOD])
    )


@pytest.mark.parametrize("size", [0, -1])
def test_bad_batches(base: Base, size: int) -> None:
    """No batches would be no vectors: zeros, told from nothing."""
    model = st_reba.build(base("llama"))
    for name in ("batch_size", "batch_tokens"):
        with pytest.raises(ValueError, match=f"{name}={size} must be"):
            encode_words(model, [GOOD], **{name: size})
    with pytest.raises(ValueError, match="batch_size=3 and batch_tokens=100 exclude each other"):
        encode_words(model, [GOOD], batch_size=3, batch_tokens=100)


@pytest.mark.parametrize("method", slow_but(["reba", "echo"], "echo"))
def test_token_batches(base: Base, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By default and on request: each word as alone, texts of like length together, and no batch over the budget."""
    texts = [f"{'The ship sails on. ' * (number * 7 % 5)}The river bank {number}" for number in range(30)]
    items = [item(text, "river") for text in (*texts, texts[0])] + ITEMS
    model = st_reba.build(base("llama", "bos_eos"), method, prompts={"query": "Tell me, which of them: "})
    model.default_prompt_name = "query"
    wanted = np.concatenate([encode_words(model, [one], batch_size=1) for one in items])
    shapes: list[tuple[int, int, int]] = []
    model[0].register_forward_pre_hook(
        lambda _, arguments: shapes.append(
            (*arguments[0]["attention_mask"].shape, int(arguments[0]["attention_mask"].sum()))
        )
    )
    largest = []
    for options in ({}, {"batch_tokens": 1}, {"batch_tokens": 300}):
        shapes.clear()
        vectors = encode_words(model, items, **options)
        np.testing.assert_allclose(vectors, wanted, atol=1e-5 * np.abs(wanted).max())
        assert sum(rows for rows, _, _ in shapes) == len(items)
        assert [length for _, length, _ in shapes] == sorted((length for _, length, _ in shapes), reverse=True)
        padded = sum(rows * length for rows, length, _ in shapes)
        assert 1 - sum(real for _, _, real in shapes) / padded < 0.05
        largest.append(max((rows * length for rows, length, _ in shapes if rows > 1), default=0))
    assert largest[0] > 300 >= largest[2] > largest[1] == 0


def test_other_models(base: Base) -> None:
    """A pipeline that has no copies is refused with advice."""
    transformer = Transformer(base("llama"))
    plain = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension())])
    with pytest.raises(ValueError, match="starts with RepeatTransformer, not Transformer.*st_reba.build"):
        encode_words(plain, [GOOD])


def test_default_prompt(base: Base) -> None:
    """As for ``encode``: the model's default prompt holds where none is given, and an empty one drops it."""
    model = st_reba.build(base("llama"), prompts={"query": "Query: "}, normalize=False)
    bare, prompted = encode_words(model, [GOOD]), encode_words(model, [GOOD], prompt="Query: ")
    assert np.abs(bare - prompted).max() > 1e-3
    model.default_prompt_name = "query"
    np.testing.assert_array_equal(encode_words(model, [GOOD]), prompted)
    np.testing.assert_array_equal(encode_words(model, [GOOD], prompt=""), bare)


def test_not_finite(base: Base) -> None:
    """As for sentences: an error that names the text, or zeros for its words alone."""
    bad = item("Zebra Quiz", "Quiz")
    for method in ("reba", "echo"):
        for side in SIDES:
            model = st_reba.build(base("llama"), method, padding_side=side)
            wanted = encode_words(model, ITEMS)
            used = {0, 1, 2} | {token for one in ITEMS for token in model[0].content([one[0]])["input_ids"][0]}
            token = next(token for token in model[0].content([bad[0]])["input_ids"][0] if token not in used)
            with torch.no_grad():
                model[0].model.embed_tokens.weight[token] = float("nan")
            with pytest.raises(ValueError, match="gave NaN or infinity.*'Zebra Quiz'"):
                encode_words(model, [*ITEMS, bad])
            model[0].non_finite = "zeros"
            vectors = encode_words(model, [bad, *ITEMS])
            assert not vectors[0].any()
            np.testing.assert_allclose(vectors[1:], wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("method", slow_but(["reba", "echo"], "echo"))
def test_word_senses(base: Base, method: str) -> None:
    """SLPWC: a word stands in four sentences, and means something else in one of them."""
    if not SLPWC.is_file():
        pytest.skip("SLPWC_v1.csv is not on this machine: its words are not embedded here")
    with SLPWC.open(encoding="utf-8-sig", newline="") as file:
        questions = list(csv.DictReader(file))[:20]
    items = []
    for question in questions:
        found = re.search("“(.+?)”", question["问题"])
        assert found is not None
        items += [item(question[f"选项{option}"], found[1]) for option in range(1, 5)]
    assert len(items) == 80
    model = st_reba.build(base("mini"), method)
    vectors = encode_words(model, items)
    assert np.isfinite(vectors).all()
    assert (np.linalg.norm(vectors, axis=1) > 0).all()
    np.testing.assert_allclose(encode_words(model, items[:8], batch_size=1), vectors[:8], rtol=0, atol=1e-4)
