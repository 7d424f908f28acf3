"""Vectors of words and tokens against the oracle, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from marks import Base, slow_but
from oracle import Pieces, WordInText, assert_close, oracle_of_word, word_in_text
from pipelines import build
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba import encode_words
from st_reba.words import encode_tokens, tokens_of_span, words_of

MIXED_TEXT = "他在银行取了钱，then went home."
REPEATING_TEXT = "意思意思就行了，你这是什么意思？"
LONG_TEXT = "The river runs past the old mill, under the bridge, and on to the sea."
ITEMS = [
    word_in_text(MIXED_TEXT, "银行"),
    word_in_text("The bank of the river is steep.", "river"),
    word_in_text("天", "天"),
    word_in_text(REPEATING_TEXT, "意思"),
    word_in_text(REPEATING_TEXT, "意思", 2),
    word_in_text("a bank on the bank", "bank", 1),
    word_in_text("e\u0301 and \ud800 bank", "bank"),
    word_in_text("一二", "一二"),
]
RIVER_BANK = ("The river bank", (4, 9))


def expected_words(
    base_path: str,
    method: str,
    pieces: Pieces,
    items: Sequence[WordInText] = ITEMS,
    max_seq_length: int | None = None,
    **options: bool,
) -> list[torch.Tensor]:
    """The oracle's vectors of words; ``authors`` is ReBA as its authors' code computes it."""
    word_vectors: list[torch.Tensor] = []
    for word_item in items:
        layout, hidden_states, attention, tokens = oracle_of_word(
            base_path, word_item, pieces, max_seq_length
        )
        if method == "reba":
            word_vector = reference.reba_word(hidden_states, attention, layout, tokens, **options)
        elif method == "authors":
            word_vector = reference.published_word(
                hidden_states, attention, layout, tokens, **options
            )
        else:
            word_vector = reference.echo_word(hidden_states, layout, tokens)
        word_vectors.append(word_vector)
    return word_vectors


def check_words(
    model: SentenceTransformer,
    expected_vectors: Sequence[torch.Tensor],
    items: Sequence[WordInText] = ITEMS,
    **options: Any,
) -> None:
    """Compare vectors of words, encoded alone, in small batches and in one."""
    for batch_tokens in (1, 60, 4096):
        word_vectors = encode_words(model, items, batch_tokens=batch_tokens, **options)
        assert word_vectors.shape == (len(items), model.get_embedding_dimension())
        assert word_vectors.dtype == np.float32
        for word_vector, expected_vector in zip(word_vectors, expected_vectors, strict=True):
            assert_close(word_vector, expected_vector)


def spans_of_tokens(model: SentenceTransformer, text: str) -> list[tuple[int, int]]:
    token_spans: list[tuple[int, int]] = model[0].tokenize_content([text], offsets=True)[
        "offset_mapping"
    ][0]
    return token_spans


BASES = [
    ("mini", 2),
    ("stories260K", 2),
    ("bloom", 2),
    ("gpt_oss", 2),
    ("gemma2", 2),
    ("gpt2", 1),
    ("llama", 3),
]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("name", "copies"), slow_but(BASES, "gemma2", "gpt2", "llama", rows=True))
def test_words_of_every_method_are_those_of_the_oracle(
    base: Base, name: str, copies: int, normalize: bool
) -> None:
    """The sentence's pooling does not matter to words."""
    base_path, pieces = base(name), (None,) * copies
    options: dict[str, Any] = {"repeats": copies, "pooling": "mean" if normalize else "last"}
    reba = expected_words(base_path, "reba", pieces, normalize_weights=normalize)
    check_words(build(base_path, "reba", **options), reba, normalize=normalize)
    authors_model = build(base_path, "reba", implementation="authors", **options)
    check_words(authors_model, expected_words(base_path, "authors", pieces), normalize=normalize)
    check_words(
        build(base_path, "echo", **options),
        expected_words(base_path, "echo", pieces),
        normalize=normalize,
    )


QUERY = "Query: "
ECHO_PIECES = ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None)
PROMPTED_ECHO_PIECES = (
    QUERY + "Rewrite the following paragraph: ",
    None,
    ". The rewritten paragraph: ",
    None,
)
PROMPTEOL_PIECES = ('This sentence: "', None, '" means in one word:"')


@pytest.mark.parametrize(
    ("method", "options", "pieces", "prompt"),
    [
        ("classical", {"pooling": "mean"}, (QUERY, None), QUERY),
        ("prompteol", {}, PROMPTEOL_PIECES, None),
        ("echo", {"template": "echo"}, PROMPTED_ECHO_PIECES, QUERY),
        ("reba", {"template": "echo"}, ECHO_PIECES, None),
        ("reba", {"template": "{text} {text} {text}"}, (QUERY, None, " ", None, " ", None), QUERY),
        ("reba", {"include_special": True}, (None, None), None),
        ("reba", {"normalize_weights": True}, (QUERY, None, None), QUERY),
    ],
)
def test_template_and_prompt_move_a_word_and_are_no_part_of_it(
    base: Base,
    method: str,
    options: dict[str, Any],
    pieces: Pieces,
    prompt: str | None,
) -> None:
    base_path = base("qwen3", "cls_sep")
    weighting = {name: value for name, value in options.items() if isinstance(value, bool)}
    model = st_reba.build(base_path, method, prompts={"query": QUERY}, **options)
    check_words(model, expected_words(base_path, method, pieces, **weighting), prompt=prompt)


def test_the_default_prompt_is_used_unless_another_is_named(base: Base) -> None:
    model = st_reba.build(base("qwen3", "cls_sep"), "reba", prompts={"query": QUERY})
    model.default_prompt_name = "query"
    word_vectors = encode_words(model, ITEMS)
    np.testing.assert_array_equal(word_vectors, encode_words(model, ITEMS, prompt=QUERY))
    assert np.abs(encode_words(model, ITEMS, prompt="") - word_vectors).max() > 1e-3


def test_a_word_before_the_cut_has_the_vector_of_the_cut_text(base: Base) -> None:
    base_path = base("llama", "bos_eos")
    model = st_reba.build(base_path, "reba", max_seq_length=22)
    river = [word_in_text(LONG_TEXT, "river")]
    check_words(model, expected_words(base_path, "reba", (None, None), river, 22), river)


def test_a_word_past_the_cut_is_refused_by_its_number(base: Base) -> None:
    model = st_reba.build(base("llama", "bos_eos"), "reba", max_seq_length=22)
    end_of_cut = spans_of_tokens(model, LONG_TEXT)[9][1]
    wholly_behind = (LONG_TEXT.index("sea"), len(LONG_TEXT) - 1)
    for token_span in (wholly_behind, (end_of_cut, end_of_cut + 1), (4, end_of_cut + 1)):
        with pytest.raises(ValueError, match="^Item 2"):
            encode_words(model, [RIVER_BANK, RIVER_BANK, (LONG_TEXT, token_span), RIVER_BANK])
    assert encode_words(model, [RIVER_BANK, (LONG_TEXT, (4, end_of_cut))]).all()
    model.max_seq_length = 200
    assert encode_words(model, [(LONG_TEXT, (4, end_of_cut + 1))]).all()


def test_a_part_of_a_token_is_that_token() -> None:
    model, text = st_reba.build("mini", "reba"), "他在银行"
    token_spans = spans_of_tokens(model, text)
    start, end = next(token_span for token_span in token_spans if token_span[1] - token_span[0] > 1)
    numpy_span = (np.int64(start), np.uint8(end))
    np.testing.assert_array_equal(
        *encode_words(model, [(text, (start, start + 1)), (text, numpy_span)])
    )


def test_a_word_that_its_text_has_once_needs_no_span() -> None:
    model, text = st_reba.build("mini", "reba"), "他在银行"
    np.testing.assert_array_equal(
        *encode_words(model, [(text, "银行"), word_in_text(text, "银行")])
    )


def test_no_items_have_no_vectors() -> None:
    assert encode_words(st_reba.build("mini", "reba"), []).shape == (0, 192)


@pytest.mark.parametrize(
    "wrong_item",
    [
        ("The river bank", (4, 4)),
        ("The river bank", (-1, 3)),
        ("The river bank", (10, 15)),
        ("The river bank", (4, 9, 11)),
        ("The river bank", None),
        ("The river bank", (4.0, 9.0)),
        ("The river bank", "shop"),
        ("The river bank", ""),
        ("aaa", "aa"),
        "The river bank",
        None,
        (b"The river bank", (4, 9)),
    ],
    ids=str,
)
def test_a_wrong_item_is_named_before_anything_runs(wrong_item: Any) -> None:
    model = st_reba.build("mini", "reba")
    model[0].register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
    with pytest.raises(ValueError, match="^Item 2"):
        encode_words(model, [RIVER_BANK, RIVER_BANK, wrong_item])


def test_an_empty_word_of_an_item_is_called_empty() -> None:
    with pytest.raises(ValueError, match="the word is empty. Give"):
        encode_words(st_reba.build("mini", "reba"), [("abc", "")])


def test_a_span_without_a_token_is_refused() -> None:
    """A tokenizer may drop what a span holds, as a mark that a normalizer joins to its letter."""
    model, text = st_reba.build("mini", "reba"), "cafe\u0301"
    with pytest.raises(ValueError, match=r"^Item 1: .* no token"):
        encode_words(model, [RIVER_BANK, (text, (4, 5))])
    np.testing.assert_array_equal(*encode_words(model, [(text, (0, 5)), (text, (0, 4))]))


def test_tokens_without_characters_belong_to_no_word() -> None:
    assert tokens_of_span(0, "a  b", (0, 4), [(0, 1), (2, 2), (2, 4)], 3) == [0, 2]


def test_tokens_of_one_text_are_refused() -> None:
    with pytest.raises(ValueError, match="one text"):
        encode_tokens(st_reba.build("mini", "reba"), "cafe")


@pytest.mark.bars
def test_a_progress_bar_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = st_reba.build("mini", "reba").train()
    capsys.readouterr()
    encode_tokens(model, ["a bank"])
    assert not capsys.readouterr().err
    assert not model.training
    encode_tokens(model, ["a bank", "bank"], show_progress_bar=True)
    assert "2/2" in capsys.readouterr().err


def build_plain(base: Base, folder: Path) -> SentenceTransformer:
    transformer = Transformer(base("llama"))
    pooling = Pooling(transformer.get_embedding_dimension())
    return SentenceTransformer(modules=[transformer, pooling])


def build_with_own_input(base: Base, folder: Path) -> SentenceTransformer:
    build_plain(base, folder).save_pretrained(str(folder))
    return st_reba.build(str(folder), "nosink", setting="baseline")


def build_ensemble(base: Base, folder: Path) -> SentenceTransformer:
    return st_reba.build("mini", "prompteol", template="contrastive")


def build_reversed(base: Base, folder: Path) -> SentenceTransformer:
    return st_reba.build("mini", "prompteol", template="{reversed}:")


def build_partly_reversed(base: Base, folder: Path) -> SentenceTransformer:
    template = {"query": "{text}?", "document": "{reversed}:"}
    return st_reba.build("mini", "prompteol", template=template)


@pytest.mark.parametrize(
    ("build_model", "reason"),
    [
        (build_plain, "starts with"),
        (build_with_own_input, "own input"),
        (build_ensemble, "2 rows"),
        (build_reversed, "reversed"),
        (build_partly_reversed, "reversed"),
    ],
)
def test_models_without_vectors_of_words_are_refused_with_advice(
    base: Base,
    build_model: Callable[[Base, Path], SentenceTransformer],
    reason: str,
    tmp_path: Path,
) -> None:
    model = build_model(base, tmp_path)
    with pytest.raises(ValueError, match=reason):
        encode_words(model, [RIVER_BANK])
    with pytest.raises(ValueError, match=reason):
        encode_tokens(model, ["The river bank"])


def test_words_need_a_tokenizer_that_says_where_tokens_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = st_reba.build("mini", "classical")
    monkeypatch.setattr(type(model.tokenizer), "is_fast", False)
    with pytest.raises(ValueError, match="Vectors of words need a fast tokenizer"):
        encode_words(model, [RIVER_BANK])


TOKEN_METHODS: list[dict[str, Any]] = [
    {"method": "reba", "pooling": "mean", "normalize_weights": True},
    {"method": "reba", "implementation": "authors"},
    {"method": "reba", "chunk": 4},
    {"method": "reba", "layer": [1, 2], "join": "concat"},
    {"method": "echo", "template": "echo", "pooling": "mean"},
    {"method": "nosink", "setting": "mask0-bidir", "k": 1},
]
TOKEN_TEXTS = ["天", "", MIXED_TEXT, "hi", "a bank on the bank"]


@pytest.mark.parametrize("options", TOKEN_METHODS, ids=str)
def test_a_token_has_the_vector_of_the_word_that_it_is(base: Base, options: dict[str, Any]) -> None:
    model = build(base("llama", "bos_eos"), **options)
    vectors_by_text = encode_tokens(model, TOKEN_TEXTS, batch_tokens=60)
    items: list[WordInText] = []
    expected_vectors: list[Any] = []
    for text, word_vectors in zip(TOKEN_TEXTS, vectors_by_text, strict=True):
        token_spans = spans_of_tokens(model, text)
        # A text without a token has one vector.
        assert len(word_vectors) == max(1, len(token_spans))
        assert word_vectors.dtype == np.float32 and np.isfinite(word_vectors).all()
        for token_span, word_vector in zip(token_spans, word_vectors, strict=False):
            if token_spans.count(token_span) == 1 and token_span[1] > token_span[0]:
                items.append((text, token_span))
                expected_vectors.append(word_vector)
    # Words of a text need not stand one after another.
    mixed_items = items[::2] + items[1::2]
    mixed_vectors = np.stack(expected_vectors[::2] + expected_vectors[1::2])
    tolerance = 1e-5 * np.abs(mixed_vectors).max()
    np.testing.assert_allclose(encode_words(model, mixed_items), mixed_vectors, atol=tolerance)


@pytest.mark.parametrize(
    "options", [method for method in TOKEN_METHODS if "chunk" not in method], ids=str
)
def test_a_text_runs_once_for_all_of_its_words(base: Base, options: dict[str, Any]) -> None:
    model = build(base("llama", "bos_eos"), **options)
    items = [
        word_in_text(MIXED_TEXT, "他"),
        word_in_text("hi", "hi"),
        word_in_text(MIXED_TEXT, "went"),
    ]
    row_counts: list[int] = []
    model[0].register_forward_pre_hook(
        lambda _, inputs: row_counts.append(len(inputs[0]["input_ids"]))
    )
    encode_words(model, items)
    assert sum(row_counts) == 2


@pytest.mark.parametrize("options", TOKEN_METHODS, ids=str)
def test_a_long_text_has_as_many_vectors_as_a_copy_holds_tokens(
    base: Base, options: dict[str, Any]
) -> None:
    model = build(base("llama", "bos_eos"), **options, max_seq_length=40)
    word_vectors = encode_tokens(model, ["a bank " * 40, "hi"], prompt=None)
    assert len(word_vectors[0]) == model[0].budget()


def test_numbers_that_are_not_finite_stay_in_their_text() -> None:
    """As for sentences: zeros in the authors' implementation."""
    model = st_reba.build("mini", "reba", implementation="authors", check=False)
    expected_vector = encode_words(model, [RIVER_BANK])[0]
    ((token,),) = model[0].tokenize_content(["猫"])["input_ids"]
    with torch.no_grad():
        model[0].model.embed_tokens.weight[token] = float("nan")
    broken_vector, word_vector = encode_words(model, [("猫", "猫"), RIVER_BANK])
    assert not broken_vector.any()
    np.testing.assert_allclose(
        word_vector, expected_vector, atol=1e-5 * np.abs(expected_vector).max()
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "It's a well-known bank, -isn't 3.5%",
            ["It's", "a", "well-known", "bank", "isn't", "3", "5"],
        ),
        ("他在ATM取了100元。", ["他", "在", "ATM", "取", "了", "100", "元"]),
        ("cafe\u0301 हिन्दी 한국어 カナ・\ud800", ["cafe\u0301", "हिन्दी", "한국어", "カ", "ナ"]),
        ("", []),
        (" ,。\n", []),
    ],
)
def test_a_text_is_split_into_words(text: str, words: list[str]) -> None:
    """White space and punctuation part words, marks do not; Han and kana stand alone."""
    assert [text[start:end] for _, (start, end) in words_of(text)] == words


@pytest.mark.parametrize(
    ("text", "word", "starts"),
    [
        ("abc", "b", []),
        ("cafe\u0301", "cafe", []),
        ("意思意思，ATM机", "意思", [0, 2]),
        ("意思意思，ATM机", "ATM", [5]),
        ("the river bank of the river", "the river", [0, 18]),
    ],
)
def test_a_word_is_found_wherever_it_is_no_part_of_another(
    text: str, word: str, starts: list[int]
) -> None:
    assert words_of(text, word) == [(text, (start, start + len(word))) for start in starts]


def test_an_empty_word_is_refused() -> None:
    with pytest.raises(ValueError, match="word"):
        words_of("abc", "")


def test_texts_of_words_that_are_cut_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    model = st_reba.build("mini", "reba", max_seq_length=64)
    encode_words(model, [("bank " + "long " * 90, "bank"), ("A bank.", "bank")])
    assert "1 of 2 texts is longer than the model reads" in caplog.text
