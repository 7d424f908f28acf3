"""Every tokenizer's convention: what stands where in the model's input, and how much of a text fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import POSITIONS, TOKENIZERS, save
from oracle import TEXTS
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

import st_reba
from st_reba import RepeatTransformer
from st_reba.modules import tokens

Base = Callable[..., str]
SIDES = ["left", "right"]
# What each puts before and after a text; byt5 is no fast tokenizer.
CONVENTIONS: dict[str, tuple[list[str], list[str]]] = {
    "plain": ([], []),
    "bos": (["<s>"], []),
    "bos_eos": (["<s>"], ["</s>"]),
    "cls_sep": (["[CLS]"], ["[SEP]"]),
    "no_pad_no_eos": ([], []),
    "chat": (["<s>"], []),
    "mini": (["<s>"], []),
    "stories260K": (["<s>"], []),
    "byt5": ([], ["</s>"]),
}
MADE = [*TOKENIZERS, "byt5"]


@pytest.fixture(scope="module")
def path(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A base with that tokenizer."""
    byt5 = tmp_path_factory.mktemp("byt5")

    def get(name: str) -> str:
        if name == "byt5":
            return str(byt5 if any(byt5.iterdir()) else save("llama", byt5, ByT5Tokenizer()))
        return base(name) if name in ("mini", "stories260K") else base("llama", name)

    return get


def place(pieces: Sequence[tuple[int, list[int]]]) -> tuple[list[int], list[int]]:
    """Token ids and copy ids of (copy id, token ids) in order."""
    ids = [token for _, piece in pieces for token in piece]
    return ids, [copy for copy, piece in pieces for _ in piece]


def check_rows(features: dict[str, torch.Tensor], rows: Sequence[tuple[list[int], list[int]]], side: str) -> None:
    """Each row holds its ids and copy ids at one end, and nothing that counts elsewhere."""
    length = max(len(ids) for ids, _ in rows)
    assert set(features) == {"input_ids", "attention_mask", "copy_ids"}
    for row, (ids, copy_ids) in enumerate(rows):
        padding = [0] * (length - len(ids))
        mask = [1] * len(ids)
        assert features["attention_mask"][row].tolist() == (padding + mask if side == "left" else mask + padding)
        assert features["copy_ids"][row].tolist() == (padding + copy_ids if side == "left" else copy_ids + padding)
        real = features["attention_mask"][row] == 1
        assert features["input_ids"][row][real].tolist() == ids
    assert all(value.dtype == torch.int64 and value.shape == (len(rows), length) for value in features.values())


def test_all_are_covered() -> None:
    assert set(TOKENIZERS) <= set(CONVENTIONS)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CONVENTIONS)
def test_layout(path: Callable[[str], str], name: str, side: str) -> None:
    """Special tokens once, around the whole; the same ids in every copy; padding on its side."""
    before, after = CONVENTIONS[name]
    for k in (1, 2, 3):
        transformer = st_reba.build(path(name), "echo", repeats=k, padding_side=side)[0]
        tokenizer = transformer.text_tokenizer
        first, last = tokenizer.convert_tokens_to_ids(before), tokenizer.convert_tokens_to_ids(after)
        rows = []
        for text in TEXTS:
            content = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer(text)["input_ids"] == [*first, *content, *last], "the premise: its own convention"
            rows.append(place([(0, first), *((copy, content) for copy in range(1, k + 1)), (0, last)]))
        features = transformer.preprocess(list(TEXTS))
        check_rows(features, rows, side)
        ids = features["input_ids"][features["attention_mask"] == 1].tolist()
        for token in {*first, *last}:
            assert ids.count(token) == len(TEXTS) * [*first, *last].count(token)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CONVENTIONS)
def test_template_and_separator(path: Callable[[str], str], name: str, side: str) -> None:
    """Literals are tokenized each on its own, a prompt with the literal that it touches; none is content."""
    before, after = CONVENTIONS[name]
    cases: list[tuple[dict[str, Any], str, list[str | None]]] = [
        ({"separator": " "}, "", [None, " ", None]),
        ({"separator": " 又 ", "repeats": 3}, "", [None, " 又 ", None, " 又 ", None]),
        ({}, "Query: ", ["Query: ", None, None]),
        (
            {"template": "Document: {text}\nDocument again: {text} 。"},
            "",
            ["Document: ", None, "\nDocument again: ", None, " 。"],
        ),
        ({"template": "Document: {text}"}, "Now: ", ["Now: Document: ", None]),
    ]
    for options, prompt, literals in cases:
        transformer = st_reba.build(path(name), "echo", padding_side=side, **options)[0]
        tokenizer = transformer.text_tokenizer
        rows = []
        for text in TEXTS:
            pieces: list[tuple[int, list[int]]] = [(0, tokenizer.convert_tokens_to_ids(before))]
            copy = 0
            for literal in literals:
                copy += literal is None
                ids = tokenizer(text if literal is None else literal, add_special_tokens=False)["input_ids"]
                pieces.append((copy if literal is None else 0, ids))
            rows.append(place([*pieces, (0, tokenizer.convert_tokens_to_ids(after))]))
        check_rows(transformer.preprocess(list(TEXTS), prompt=prompt), rows, side)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_special_tokens_in_literals(path: Callable[[str], str], name: str) -> None:
    """A template, a separator or a prompt may write special tokens; a text cannot."""
    tokenizer = st_reba.build(path(name), "classical")[0].text_tokenizer
    # byt5 has a hundred more of the same kind.
    for token, number in list(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))[:5]:
        template = st_reba.build(path(name), "echo", template=f"a{token}b{{text}}{token}{{text}}")[0]
        literals = [piece for piece in template.frame().pieces[1:-1] if piece is not None]
        assert [piece.count(number) for piece in literals] == [1, 1]
        separated = st_reba.build(path(name), "echo", separator=token)[0]
        assert separated.frame().pieces[1:-1] == (None, (number,), None)
        assert template.frame(prompt=token).pieces[1][0] == number
        for text in (token, f"a{token}b{token}", token * 3):
            content = template.content([text])["input_ids"][0]
            assert number not in content
            assert tokenizer.decode(content).strip() == text
            features = separated.preprocess([text])
            assert number not in features["input_ids"][features["copy_ids"] > 0].tolist()


def test_added_tokens_stay_whole(tmp_path: Path) -> None:
    """Added tokens that are not special are words of the vocabulary: texts hold them."""
    tokenizer = TOKENIZERS["bos"]()
    tokenizer.add_tokens(["bank"])
    transformer = st_reba.build(save("gpt2", tmp_path, tokenizer))[0]
    number = transformer.text_tokenizer.convert_tokens_to_ids("bank")
    assert transformer.content(["a bank<s>"])["input_ids"][0].count(number) == 1


@pytest.mark.parametrize("method", ["reba", "echo"])
def test_chat_template_is_not_applied(tmp_path: Path, base: Base, method: str) -> None:
    """The chat tokenizer's vectors are those of the same tokenizer without its chat template."""
    silent = TOKENIZERS["chat"]()
    assert silent.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s><|user|>\nhi\n"
    silent.chat_template = None
    model = st_reba.build(base("llama", "chat"), method)
    assert model[0].text_tokenizer.chat_template is not None
    other = st_reba.build(save("llama", tmp_path, silent), method)
    assert other[0].text_tokenizer.chat_template is None
    for prompt in (None, "Query: "):
        np.testing.assert_array_equal(
            model.encode(list(TEXTS), prompt=prompt), other.encode(list(TEXTS), prompt=prompt)
        )


@pytest.mark.parametrize("side", SIDES)
def test_no_pad_token_is_needed(base: Base, side: str) -> None:
    """Padding is told from text by the mask alone, also where the pad token is one that texts hold."""
    model = st_reba.build(base("gpt2", "no_pad_no_eos"), padding_side=side)
    assert model[0].text_tokenizer.pad_token is None
    wanted = model.encode(list(TEXTS), batch_size=1)
    np.testing.assert_allclose(model.encode(list(TEXTS)), wanted, atol=2e-6)
    texts = ["!", "!!!! !!", *TEXTS]
    for pad in ("!", "<unk>"):
        padded = st_reba.build(base("gpt2", "no_pad_no_eos"), padding_side=side)
        padded[0].text_tokenizer.pad_token = pad
        assert padded[0].text_tokenizer.pad_token_id is not None
        np.testing.assert_allclose(padded.encode(texts), model.encode(texts, batch_size=1), atol=2e-6)


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_padding_without_position_ids(base: Base, name: str) -> None:
    """A backbone that cannot be told positions is padded on the right, to equal effect."""
    left, right = (st_reba.build(base(name), "echo", padding_side=side) for side in SIDES)
    features = left[0].preprocess(list(TEXTS))
    if "position_ids" not in left[0]._forward_parameters:
        assert bool(features["attention_mask"][:, 0].all())
    np.testing.assert_allclose(left.encode(list(TEXTS)), right.encode(list(TEXTS)), atol=2e-6)
    np.testing.assert_allclose(left.encode(list(TEXTS)), left.encode(list(TEXTS), batch_size=1), atol=2e-6)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_budget(path: Callable[[str], str], name: str) -> None:
    """Each copy holds floor((M - s) / k) tokens, half as many where compute is matched; all M are never exceeded."""
    before, after = CONVENTIONS[name]
    text = "The river runs past the old mill, 今天天气很好。" * 20
    layouts: list[tuple[dict[str, Any], list[str]]] = [
        ({"repeats": 1}, []),
        ({"repeats": 2}, []),
        ({"repeats": 3, "separator": " "}, [" ", " "]),
        ({"template": "A: {text} B: {text}"}, ["A: ", " B: "]),
    ]
    for options, literals in layouts:
        transformer = st_reba.build(path(name), "echo", **options)[0]
        matched = st_reba.build(path(name), "echo", compute_matched=True, **options)[0]
        tokenizer, k = transformer.text_tokenizer, transformer.repeats
        content = tokenizer(text, add_special_tokens=False)["input_ids"]
        for prompt in ("", "Query: "):
            pieces = [prompt + literals[0], *literals[1:]] if "template" in options else [prompt, *literals]
            s = len(before) + len(after)
            s += sum(len(tokenizer(piece, add_special_tokens=False)["input_ids"]) for piece in pieces if piece)
            for limit in (s + k, s + 2 * k - 1, s + 2 * k, 61, 64):
                transformer.max_seq_length = matched.max_seq_length = limit
                budget = (limit - s) // k
                assert transformer.budget(prompt) == budget
                assert matched.budget(prompt) == max(1, budget // 2)
                for each, room in ((transformer, budget), (matched, max(1, budget // 2))):
                    features = each.preprocess([text], prompt=prompt)
                    assert features["input_ids"].shape[1] == s + k * room <= limit
                    for copy in range(1, k + 1):
                        assert features["input_ids"][features["copy_ids"] == copy].tolist() == content[:room]
            transformer.max_seq_length = s + k - 1
            for call in (transformer.budget, lambda prompt, each=transformer: each.preprocess(["hi"], prompt=prompt)):
                with pytest.raises(ValueError, match=f"max_seq_length={s + k - 1} leaves no room.* {s} positions"):
                    call(prompt=prompt)


def test_no_room_is_said_at_once(base: Base) -> None:
    for options in ({"max_seq_length": 3}, {"max_seq_length": 12, "template": "echo"}):
        with pytest.raises(ValueError, match="leaves no room for the text"):
            st_reba.build(base("llama", "bos_eos"), **options)
    assert st_reba.build(base("llama", "bos_eos"), max_seq_length=4)[0].budget() == 1


@pytest.mark.parametrize("limit", [None, 100, 10_000])
def test_limit_of_the_tokenizer(tmp_path: Path, limit: int | None) -> None:
    """The limit is the smaller of the tokenizer's and the model's; without either a text is never cut."""
    tokenizer = TOKENIZERS["bos_eos"]()
    tokenizer.model_max_length = int(1e30) if limit is None else limit
    text = "天气很好" * 200
    for name, positions in (("llama", POSITIONS), ("bloom", None)):
        transformer = st_reba.build(save(name, tmp_path / name, tokenizer), "echo")[0]
        limits = [each for each in (limit, positions) if each is not None]
        content = transformer.content([text])["input_ids"][0]
        length = transformer.preprocess([text])["input_ids"].shape[1]
        if limits:
            assert transformer.budget() == (min(limits) - 2) // 2
            assert length == 2 + 2 * min(len(content), (min(limits) - 2) // 2)
        else:
            assert transformer.budget() is None
            assert length == 2 + 2 * len(content) > POSITIONS


def test_processing_kwargs(base: Base) -> None:
    model = st_reba.build(base("llama"))
    with pytest.raises(ValueError, match="processing_kwargs=.*model.max_seq_length"):
        model.encode("hi", processing_kwargs={"text": {"max_length": 8}})


class _Scrambling:
    """Writes a text backwards where it adds special tokens."""

    def __call__(self, text: str, add_special_tokens: bool = True, **options: Any) -> dict[str, list[int]]:
        ids = [2, 3, ord(text[0])]
        return {"input_ids": [1, *ids[::-1]] if add_special_tokens else ids}


def test_special_tokens_that_are_not_around_the_text() -> None:
    with pytest.raises(ValueError, match="_Scrambling tokenizes a word otherwise with special tokens than without"):
        tokens.special_ids(_Scrambling())  # type: ignore[arg-type]


def test_slow_tokenizer(path: Callable[[str], str]) -> None:
    """It embeds texts; its words cannot be found, as it knows no offsets."""
    model = st_reba.build(path("byt5"))
    assert not model[0].text_tokenizer.is_fast
    texts = ["", "</s>", "a\ud800b", *TEXTS]
    np.testing.assert_allclose(model.encode(texts), model.encode(texts, batch_size=1), atol=2e-6)
    with pytest.raises(ValueError, match="ByT5Tokenizer knows no character offsets.*Use a fast tokenizer"):
        st_reba.encode_words(model, [("hi", (0, 2))])


def test_settings_of_the_tokenizer_are_kept(base: Base) -> None:
    """Using a model leaves its tokenizer as a caller set it."""
    model = st_reba.build(base("llama", "bos_eos"))
    tokenizer = model[0].text_tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    before = tokenizer("<s> a </s>")["input_ids"]
    model.encode(["<s> a </s>", "a" * 1000], prompt="<s>")
    assert tokenizer("<s> a </s>")["input_ids"] == before
    # A caller's own settings change nothing about ours.
    wanted = model.encode(list(TEXTS))
    tokenizer.pad_token = "</s>"
    tokenizer(["a", "b c d"], truncation=True, max_length=2, padding="max_length")
    np.testing.assert_array_equal(model.encode(list(TEXTS)), wanted)


def test_directly_built_module(base: Base) -> None:
    """RepeatTransformer alone gives the same input as build's."""
    module = RepeatTransformer(base("llama", "cls_sep"), repeats=3, separator=" ")
    built = st_reba.build(base("llama", "cls_sep"), "echo", repeats=3, separator=" ")[0]
    for key, value in module.preprocess(list(TEXTS)).items():
        assert torch.equal(value, built.preprocess(list(TEXTS))[key])
