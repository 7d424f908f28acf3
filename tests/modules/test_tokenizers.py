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
from pipelines import encoded, pipeline, transformer
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

import st_reba
from st_reba import RepeatTransformer, encode_words

Base = Callable[..., str]
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


def check_rows(features: dict[str, Any], rows: Sequence[tuple[list[int], list[int]]]) -> None:
    """Each row begins with its ids and copy ids, and nothing that counts stands behind."""
    length = max(len(ids) for ids, _ in rows)
    assert set(features) == {"input_ids", "attention_mask", "copy_ids", "places"}
    for row, (ids, copy_ids) in enumerate(rows):
        padding = [0] * (length - len(ids))
        assert features["attention_mask"][row].tolist() == [1] * len(ids) + padding
        assert features["copy_ids"][row].tolist() == copy_ids + padding
        assert features["input_ids"][row][: len(ids)].tolist() == ids
        assert features["places"][row] == (copy_ids.index(1), copy_ids.count(1), len(ids))
    for name in ("input_ids", "attention_mask", "copy_ids"):
        assert features[name].dtype == torch.int64 and features[name].shape == (len(rows), length)


def test_all_are_covered() -> None:
    assert set(TOKENIZERS) <= set(CONVENTIONS)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_layout(path: Callable[[str], str], name: str) -> None:
    """Special tokens once, around the whole; the same ids in every copy; padding behind."""
    before, after = CONVENTIONS[name]
    for k in (1, 2, 3):
        first = transformer(path(name), "echo", repeats=k)
        tokenizer = first.text_tokenizer
        begin, end = tokenizer.convert_tokens_to_ids(before), tokenizer.convert_tokens_to_ids(after)
        rows = []
        for text in TEXTS:
            content = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer(text)["input_ids"] == [*begin, *content, *end], "the premise: its own convention"
            rows.append(place([(0, begin), *((copy, content) for copy in range(1, k + 1)), (0, end)]))
        check_rows(first.preprocess(list(TEXTS)), rows)


CASES: list[tuple[dict[str, Any], str, list[str | None]]] = [
    ({"template": "{text} {text}"}, "", [None, " ", None]),
    ({}, "Query: ", ["Query: ", None, None]),
    (
        {"template": "Document: {text}\nDocument again: {text} 。"},
        "",
        ["Document: ", None, "\nDocument again: ", None, " 。"],
    ),
    ({"template": "Document: {text}"}, "Now: ", ["Now: Document: ", None]),
]


@pytest.mark.parametrize("name", CONVENTIONS)
def test_template_and_prompt(path: Callable[[str], str], name: str) -> None:
    """Literals are tokenized each on its own, a prompt with the literal that it touches; none is content."""
    before, after = CONVENTIONS[name]
    for options, prompt, literals in CASES:
        first = transformer(path(name), "echo", **options)
        tokenizer = first.text_tokenizer
        rows = []
        for text in TEXTS:
            pieces: list[tuple[int, list[int]]] = [(0, tokenizer.convert_tokens_to_ids(before))]
            copy = 0
            for literal in literals:
                copy += literal is None
                ids = tokenizer(text if literal is None else literal, add_special_tokens=False)["input_ids"]
                pieces.append((copy if literal is None else 0, ids))
            rows.append(place([*pieces, (0, tokenizer.convert_tokens_to_ids(after))]))
        check_rows(first.preprocess(list(TEXTS), prompt=prompt), rows)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_special_tokens_in_literals(path: Callable[[str], str], name: str) -> None:
    """A template or a prompt may write special tokens; a text cannot."""
    tokenizer = transformer(path(name), "classical").text_tokenizer
    # byt5 has a hundred more of the same kind.
    for token, number in list(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))[:3]:
        first = transformer(path(name), "echo", template=f"a{token}b{{text}}{token}{{text}}")
        literals = [piece for piece in first.frames()[0].pieces[1:-1] if piece is not None]
        assert [piece.count(number) for piece in literals] == [1, 1]
        assert first.frames(prompt=token)[0].pieces[1][0] == number  # type: ignore[index]
        for text in (token, f"a{token}b{token}", token * 3):
            content = first.content([text])["input_ids"][0]
            assert number not in content
            assert tokenizer.decode(content).strip() == text
            features = first.preprocess([text])
            assert number not in features["input_ids"][features["copy_ids"] > 0].tolist()


def test_added_tokens_stay_whole(tmp_path: Path) -> None:
    """Added tokens that are not special are words of the vocabulary: texts hold them."""
    tokenizer = TOKENIZERS["bos"]()
    tokenizer.add_tokens(["bank"])
    first = transformer(str(save("gpt2", tmp_path, tokenizer)))
    number = first.text_tokenizer.convert_tokens_to_ids("bank")
    assert first.content(["a bank<s>"])["input_ids"][0].count(number) == 1


def test_chat_template_is_not_applied(tmp_path: Path, base: Base) -> None:
    """The chat tokenizer's vectors are those of the same tokenizer without its chat template."""
    silent = TOKENIZERS["chat"]()
    assert silent.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s><|user|>\nhi\n"
    silent.chat_template = None
    model, other = pipeline(base("llama", "chat")), pipeline(str(save("llama", tmp_path, silent)))
    assert model.tokenizer.chat_template is not None and other.tokenizer.chat_template is None
    for prompt in (None, "Query: "):
        assert torch.equal(encoded(model, prompt=prompt), encoded(other, prompt=prompt))


def test_no_pad_token_is_needed(base: Base) -> None:
    """Padding is told from text by the mask alone, also where the pad token is one that texts hold."""
    path, texts = base("gpt2", "no_pad_no_eos"), ["!", "!!!! !!", *TEXTS]
    model = pipeline(path)
    assert model.tokenizer.pad_token is None
    wanted = encoded(model, texts, alone=True)
    for pad in (None, "!", "<unk>"):
        model.tokenizer.pad_token = pad
        np.testing.assert_allclose(encoded(model, texts), wanted, atol=2e-5)


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_alone_and_in_a_batch_without_positions(base: Base, name: str) -> None:
    """Backbones that cannot be told positions, and make biases of the mask."""
    model = pipeline(base(name), "echo")
    np.testing.assert_allclose(encoded(model), encoded(model, alone=True), atol=2e-5)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_budget(path: Callable[[str], str], name: str) -> None:
    """Each copy holds floor((M - s) / k) tokens, half as many where compute is matched; all M are never exceeded."""
    before, after = CONVENTIONS[name]
    text = "The river runs past the old mill, 今天天气很好。" * 20
    layouts: list[tuple[dict[str, Any], list[str]]] = [
        ({"repeats": 1}, [""]),
        ({"template": "{text} {text} {text}"}, ["", " ", " "]),
        ({"template": "A: {text} B: {text}"}, ["A: ", " B: "]),
    ]
    for options, literals in layouts:
        first, matched = (transformer(path(name), "echo", compute_matched=each, **options) for each in (False, True))
        tokenizer, k = first.text_tokenizer, first.repeats
        content = tokenizer(text, add_special_tokens=False)["input_ids"]
        for prompt in ("", "Query: "):
            pieces = [prompt + literals[0], *literals[1:]]
            s = len(before) + len(after)
            s += sum(len(tokenizer(piece, add_special_tokens=False)["input_ids"]) for piece in pieces if piece)
            for limit in (s + k, s + 2 * k - 1, s + 2 * k, 61, 64):
                first.max_seq_length = matched.max_seq_length = limit
                budget = (limit - s) // k
                assert (first.budget(prompt), matched.budget(prompt)) == (budget, max(1, budget // 2))
                for each, room in ((first, budget), (matched, max(1, budget // 2))):
                    features = each.preprocess([text], prompt=prompt)
                    assert features["input_ids"].shape[1] == s + k * room <= limit
                    for copy in range(1, k + 1):
                        assert features["input_ids"][features["copy_ids"] == copy].tolist() == content[:room]
            first.max_seq_length = s + k - 1
            calls: list[Callable[..., Any]] = [
                first.budget,
                lambda prompt, each=first: each.preprocess(["hi"], prompt=prompt),
            ]
            for call in calls:
                with pytest.raises(ValueError, match=f"max_seq_length={s + k - 1} leaves no room.* {s} positions"):
                    call(prompt=prompt)
    first.max_seq_length = 10**9
    with pytest.raises(ValueError, match="max_seq_length=1000000000 is more than the backbone's .* positions"):
        first.preprocess(["hi"])


def test_no_room_is_said_at_once(base: Base) -> None:
    path = base("llama", "bos_eos")
    for options in ({"max_seq_length": 3}, {"max_seq_length": 12, "template": "echo"}):
        with pytest.raises(ValueError, match="leaves no room for the text"):
            st_reba.build(path, device="cpu", **options)
    model: Any = st_reba.build(path, max_seq_length=4, device="cpu")
    assert model[0].budget() == 1


@pytest.mark.parametrize("limit", [None, 100, 10_000])
def test_limit_of_the_tokenizer(tmp_path: Path, limit: int | None) -> None:
    """The limit is the smaller of the tokenizer's and the model's; without either a text is never cut."""
    tokenizer = TOKENIZERS["bos_eos"]()
    tokenizer.model_max_length = int(1e30) if limit is None else limit
    text = "天气很好" * 200
    for name, positions in (("llama", POSITIONS), ("bloom", None)):
        first = RepeatTransformer(str(save(name, tmp_path / name, tokenizer)))
        limits = [each for each in (limit, positions) if each is not None]
        content = first.content([text])["input_ids"][0]
        length = first.preprocess([text])["input_ids"].shape[1]
        if limits:
            assert first.budget() == (min(limits) - 2) // 2
            assert length == 2 + 2 * min(len(content), (min(limits) - 2) // 2)
        else:
            assert first.budget() is None
            assert length == 2 + 2 * len(content) > POSITIONS


def test_slow_tokenizer(path: Callable[[str], str]) -> None:
    """It embeds texts; its words cannot be found, as it knows no offsets."""
    model = pipeline(path("byt5"))
    assert not model.tokenizer.is_fast
    texts = ["", "</s>", "a\ud800b", *TEXTS]
    np.testing.assert_allclose(encoded(model, texts), encoded(model, texts, alone=True), atol=2e-5)
    with pytest.raises(ValueError, match="ByT5Tokenizer knows no character offsets.*Use a fast tokenizer"):
        encode_words(model, [("hi", (0, 2))])


def test_settings_of_the_tokenizer_are_kept(base: Base) -> None:
    """Using a model leaves its tokenizer as a caller set it, and a caller's settings change nothing about ours."""
    model = pipeline(base("llama", "bos_eos"))
    tokenizer: Any = model.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    before = tokenizer("<s> a </s>")["input_ids"]
    model.encode(["<s> a </s>", "a" * 1000], prompt="<s>")
    assert tokenizer("<s> a </s>")["input_ids"] == before
    wanted = encoded(model)
    tokenizer.pad_token = "</s>"
    tokenizer(["a", "b c d"], truncation=True, max_length=2, padding="max_length")
    assert torch.equal(encoded(model), wanted)


def test_special_tokens_that_change_later(base: Base) -> None:
    """What a tokenizer puts around a text is found out once, and again where its own setting changes."""
    first = transformer(base("llama", "bos_eos"))
    other = TOKENIZERS["cls_sep"]()
    before = first.preprocess(["hi"])["input_ids"]
    first.text_tokenizer.backend_tokenizer.post_processor = TOKENIZERS["bos"]().backend_tokenizer.post_processor
    assert first.preprocess(["hi"])["input_ids"].shape[1] == before.shape[1] - 1
    first.processor = other
    first.rebind(first.stages)
    ids = first.preprocess(["hi"])["input_ids"][0].tolist()
    assert other.convert_ids_to_tokens([ids[0], ids[-1]]) == ["[CLS]", "[SEP]"]
