"""Whatever a text holds, it gets a vector that depends on nothing but the text; whatever is no text, an error."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import TOKENIZERS, save
from marks import slow_but
from numpy.typing import NDArray
from oracle import assert_close
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

import st_reba
from st_reba.modules.templates import TEMPLATES

Base = Callable[..., str]
SIDES = ["left", "right"]
ORDINARY = ("天", "今天天气很好，我们去公园散步吧。", "The bank of the river is steep.", "hi")
ODD = {
    "empty": "",
    "character": "a",
    "space": " ",
    "whitespace": " \t\r\n  \u3000\u00a0",
    "newline": "\n",
    "begin and end": "<s></s>",
    "classifier": "[CLS][SEP]",
    "padding": "[PAD]<pad>",
    "end of text": "<|endoftext|><unk>",
    "emoji": "👨\u200d👩\u200d👧\u200d👦🏳\ufe0f\u200d🌈😀",
    "scripts": "Hello مرحبا שלום 你好 नमस्ते 한국어",
    "right to left": "\u202eabc\u202c",
    "NUL": "\0",
    "NUL inside": "a\0b",
    "lone surrogate": "a\ud800b",
    "surrogate pair": "\ud83d\ude00",
    "combining": "e\u0301\u0301\u0301 \u0301",
    "byte order mark": "\ufeff",
    "zero width": "\u200b",
    "control": "\x01\x1b[0m\x7f",
    "slot": "{text}",
    "braces": "{text} {instruction} {} {{ }} {",
    "template words": "Rewrite the following paragraph: means in one word: Query again:",
    "template": str(TEMPLATES["echo"]),
    "prompteol": str(TEMPLATES["prompteol"]),
    "long": "The river runs past. 天" * 4546,
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "reba last": ("reba", {}),
    "reba mean": ("reba", {"pooling": "mean"}),
    "published last": ("reba", {"variant": "published", "non_finite": "error"}),
    "published mean": ("reba", {"variant": "published", "pooling": "mean", "non_finite": "error"}),
    "echo mean": ("echo", {"pooling": "mean"}),
    "echo template": ("echo", {"pooling": "mean", "template": "echo"}),
    "classical mean": ("classical", {"pooling": "mean"}),
    "classical last": ("classical", {}),
    "classical cls": ("classical", {"pooling": "cls"}),
    "prompteol": ("prompteol", {}),
}
BASES = [("mini", "bos"), ("llama", "bos_eos"), ("bloom", "bos_eos"), ("gpt_oss", "plain")]
# Every method on one base; on the others what reads their attention, and a pooling each of what reads hidden states
# alone, which are poolings of the same states everywhere. Every tokenizer for ReBA, and in turn for two others.
FEWER = {
    "mini": ("reba last", "published mean", "echo template"),
    "bloom": ("reba mean", "published last", "classical cls", "prompteol"),
    "gpt_oss": ("reba last", "published mean", "echo mean", "classical last"),
}
CASES = [
    *((name, tokenizer, method) for name, tokenizer in BASES for method in FEWER.get(name, METHODS)),
    *(("gpt2", tokenizer, "reba last") for tokenizer in TOKENIZERS),
    *(("gpt2", tokenizer, ("published mean", "echo mean")[number % 2]) for number, tokenizer in enumerate(TOKENIZERS)),
]


def build(base: Base, name: str, tokenizer: str, method: str, **options: Any) -> SentenceTransformer:
    """The model; mini, which has ten times the numbers, with fewer positions."""
    chosen, settings = METHODS[method]
    limit = {"max_seq_length": 96} if name == "mini" else {}
    return st_reba.build(base(name, tokenizer), chosen, **{**limit, **settings, **options})


def assert_same(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, torch.tensor(other).double())


@pytest.mark.parametrize(("name", "tokenizer", "method"), slow_but(CASES, "llama", rows=True))
def test_odd_texts(base: Base, name: str, tokenizer: str, method: str) -> None:
    """Each is a finite unit vector, the same alone, in any batch, in any order, padded on either side."""
    model = build(base, name, tokenizer, method)
    own = "".join(model[0].text_tokenizer.all_special_tokens)
    texts = [*ORDINARY, *ODD.values(), own]
    assert len(ODD["long"]) >= 100_000
    alone = model.encode(texts, batch_size=1)
    assert np.isfinite(alone).all()
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1.0, atol=1e-5)
    assert_same(model.encode(texts, batch_size=len(texts)), alone)
    order = np.random.default_rng(0).permutation(len(texts))
    model = build(base, name, tokenizer, method, padding_side="left")
    assert_same(model.encode([texts[index] for index in order], batch_size=7), alone[order])


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_text_is_never_parsed(base: Base, tokenizer: str) -> None:
    """Slots, fields, braces and special tokens inside a text are its content, letter for letter."""
    model = st_reba.build(base("gpt2", tokenizer), "echo", template="echo")
    special = set(model[0].text_tokenizer.all_special_ids)
    for text in ("{text}", "{instruction} {{}}", "<s>a</s>", "[CLS]a[SEP]", "<|endoftext|>", str(TEMPLATES["echo"])):
        features = model[0].preprocess([text])
        ids, copy_ids = features["input_ids"][0], features["copy_ids"][0]
        for copy in (1, 2):
            content = ids[copy_ids == copy].tolist()
            assert model[0].text_tokenizer.decode(content) == text
            assert not special & set(content)


def test_empty_text_stands_for_itself(base: Base) -> None:
    """A text without a token is one special token a copy, whichever the tokenizer has."""
    wanted = {
        "plain": "<|endoftext|>",
        "bos": "</s>",
        "bos_eos": "</s>",
        "cls_sep": "[SEP]",
        "no_pad_no_eos": "<unk>",
        "chat": "</s>",
    }
    for tokenizer, token in wanted.items():
        transformer = st_reba.build(base("gpt2", tokenizer))[0]
        features = transformer.preprocess([""])
        ids = features["input_ids"][0][features["copy_ids"][0] > 0]
        assert transformer.text_tokenizer.convert_ids_to_tokens(ids.tolist()) == [token, token]


def test_text_without_a_token(tmp_path: Path) -> None:
    """A tokenizer may drop whitespace; where nothing can stand for a text, an error says so."""
    backend = TOKENIZERS["no_pad_no_eos"]().backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", model_max_length=256)
    model = st_reba.build(save("gpt2", tmp_path / "unknown", tokenizer))
    assert model[0].content([" \n"])["input_ids"] == [[]]
    vectors = model.encode([" \n", "hi", ""])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert_same(vectors[[0]], vectors[[2]])

    bare = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=256)
    assert not bare.all_special_ids
    model = st_reba.build(save("gpt2", tmp_path / "bare", bare))
    for texts in ([" \n"], ["hi", ""]):
        with pytest.raises(ValueError, match="holds no token.*Drop such"):
            model.encode(texts)


@pytest.mark.parametrize("method", ["reba last", "echo mean"])
@pytest.mark.parametrize("bad", [None, 3, 1.5, b"bytes", {"text": "a"}, ("one", "two"), ["one"], {"one"}], ids=repr)
def test_not_a_text(base: Base, method: str, bad: Any) -> None:
    model = build(base, "llama", "bos", method)
    for inputs in ([bad], ["a longer text than that", bad], [bad, "hi", ""]):
        for batch_size in (1, 32):
            with pytest.raises((ValueError, TypeError)) as caught:
                model.encode(inputs, batch_size=batch_size)
            assert repr(bad) in str(caught.value)
            assert type(bad).__name__ in str(caught.value)


def test_no_texts(base: Base) -> None:
    """An empty list gives what any SentenceTransformer gives."""
    path = base("llama")
    transformer = Transformer(path)
    plain = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension())])
    for method in METHODS:
        model = build(base, "llama", "bos", method)
        for options in ({}, {"convert_to_numpy": False}, {"output_value": "token_embeddings"}):
            got, wanted = model.encode([], **options), plain.encode([], **options)
            assert type(got) is type(wanted)
            assert len(got) == len(wanted) == 0
        assert model.encode([], convert_to_tensor=True).shape == plain.encode([], convert_to_tensor=True).shape


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("method", ["reba last", "reba mean", "published last", "echo mean", "echo template"])
def test_cut(base: Base, method: str, side: str, caplog: pytest.LogCaptureFixture) -> None:
    """A text over the budget is the text cut there, in every copy; one warning a model."""
    model = build(base, "llama", "bos_eos", method, padding_side=side, max_seq_length=90, normalize=False)
    text = "The river runs past the old mill and under the bridge. " * 9
    budget = model[0].budget()
    content = model[0].content([text], offsets=True)
    ids = content["input_ids"][0]
    cut = text[: content["offset_mapping"][0][budget - 1][1]]
    assert len(ids) > budget
    assert model[0].content([cut])["input_ids"][0] == ids[:budget], "the premise: the cut is a text of those tokens"
    with caplog.at_level(logging.WARNING):
        long = model.encode([text, "hi"])
        model.encode(text)
        model.encode([text + "天"] * 3, batch_size=1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"{len(ids)} tokens was cut to {budget}" in caplog.text
    assert "max_seq_length=90" in caplog.text
    caplog.clear()
    features = model[0].preprocess([text, "hi"])
    assert features["input_ids"].shape[1] <= 90
    for copy in (1, 2):
        assert features["input_ids"][0][features["copy_ids"][0] == copy].tolist() == ids[:budget]
    other = build(base, "llama", "bos_eos", method, padding_side=side, max_seq_length=90, normalize=False)
    assert_same(long, other.encode([cut, "hi"]))
    assert not caplog.records


def _poison(model: SentenceTransformer, text: str, value: float) -> None:
    """Fill the embedding of a token that of all texts only this one has, and that never stands for anything else."""
    used = {0, *model[0].text_tokenizer.all_special_ids}
    used.update(model[0].preprocess(list(ORDINARY))["input_ids"].flatten().tolist())
    token = next(token for token in model[0].content([text])["input_ids"][0] if token not in used)
    with torch.no_grad():
        model[0].model.get_input_embeddings().weight[token] = value


POISONED = list(
    itertools.product(
        ("llama", "bloom", "gpt_oss", "gemma2"), ("reba last", "reba mean", "published mean", "echo mean", "prompteol")
    )
)


# Values in turn: each meets every base and every method.
@pytest.mark.parametrize(
    ("name", "method", "value"),
    slow_but(
        [(*each, (math.nan, math.inf)[(number + number // 5) % 2]) for number, each in enumerate(POISONED)],
        "llama",
        rows=True,
    ),
)
def test_not_finite(base: Base, name: str, method: str, value: float) -> None:
    """One text's NaN is that text's alone: its mates are exact, and it is named or gets zeros."""
    bad = "Zebra Quiz, 斑马 and so on: " * 5
    for side in SIDES:
        model = build(base, name, "bos", method, padding_side=side)
        wanted = model.encode(list(ORDINARY), batch_size=1)
        _poison(model, bad, value)
        for texts in ([*ORDINARY, bad], [bad]):
            with pytest.raises(ValueError, match="gave NaN or infinity.* 'Zebra Quiz, 斑马"):
                model.encode(texts)
        assert_same(model.encode(list(ORDINARY)), wanted)
        zeros = build(base, name, "bos", method, padding_side=side, non_finite="zeros")
        _poison(zeros, bad, value)
        got = zeros.encode([bad, *ORDINARY])
        assert not got[0].any()
        assert_same(got[1:], wanted)
        tokens = zeros.encode([bad, *ORDINARY], output_value="token_embeddings")
        assert all(bool(torch.isfinite(one).all()) for one in tokens)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_of_the_row(base: Base, side: str) -> None:
    """Padding repeats a token of its own row: a masked 0 times an embedding that is not finite would not be 0."""
    for tokenizer in ("plain", "cls_sep"):
        features = build(base, "gpt2", tokenizer, "reba last", padding_side=side)[0].preprocess(list(ORDINARY))
        assert not features["attention_mask"].all()
        for ids, mask in zip(features["input_ids"], features["attention_mask"].bool(), strict=True):
            assert torch.isin(ids[~mask], ids[mask]).all()


@pytest.mark.parametrize("method", ["reba last", "published last", "echo mean"])
def test_not_finite_weights(base: Base, method: str) -> None:
    """A broken parameter breaks every text."""
    for non_finite in ("error", "zeros"):
        model = build(base, "llama", "bos", method, non_finite=non_finite)
        with torch.no_grad():
            next(model[0].model.parameters())[:] = float("nan")
        if non_finite == "zeros":
            assert not model.encode(list(ORDINARY)).any()
        else:
            with pytest.raises(ValueError, match="'hi'.*dtype='float32'.*non_finite='zeros'"):
                model.encode("hi")


@pytest.mark.parametrize("method", ["reba last", "published last", "echo mean"])
def test_not_finite_from_the_start(tmp_path: Path, method: str) -> None:
    """A base that gives NaN is built where zeros are asked for, and is refused for what it is where they are not."""
    path = save("llama", tmp_path, "bos")
    broken = st_reba.build(path, "echo")[0].model
    with torch.no_grad():
        next(broken.parameters())[:] = float("nan")
    broken.save_pretrained(path)
    name, options = METHODS[method]
    with pytest.raises(ValueError, match="gave NaN or infinity"):
        st_reba.build(path, name, **{**options, "non_finite": "error"})
    model = st_reba.build(path, name, **{**options, "non_finite": "zeros"})
    assert not model.encode(list(ORDINARY)).any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_features_are_not_changed(base: Base, name: str, method: str) -> None:
    """Run twice, the same features give the same vectors, and are afterwards what they were."""
    model = build(base, name, "bos_eos", method)
    features = model.preprocess(["hi", *ORDINARY])
    before = {key: value.clone() for key, value in features.items()}
    with torch.inference_mode():
        first = model(features)
        tokens = first["token_embeddings"].clone()
        second = model(features)
        assert torch.equal(first["sentence_embedding"], second["sentence_embedding"])
        assert torch.equal(tokens, second["token_embeddings"])
    assert set(features) == set(before)
    assert all(torch.equal(features[key], before[key]) for key in before)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "bloom", "gpt_oss"])
def test_gradients(base: Base, name: str, method: str) -> None:
    """The pipeline runs outside of inference mode too, and hands gradients back."""
    model = build(base, name, "bos", method)
    features = model.preprocess(list(ORDINARY))
    output = model(features)["sentence_embedding"]
    assert_same(output.detach().numpy(), model.encode(list(ORDINARY)))
    output[:, 0].sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert any(bool(gradient.any()) for gradient in gradients)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


@pytest.mark.parametrize("prompt", ["a\ud800b: ", "\ud83d\ude00"])
def test_surrogates_in_a_prompt(base: Base, prompt: str) -> None:
    """They are replaced, as in texts, and the prompt stays a prompt: in front of all, and no part of the content."""
    model = build(base, "llama", "bos", "reba last", normalize=False)
    replaced = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in prompt)
    assert_same(model.encode(["hi", "天"], prompt=prompt), model.encode(["hi", "天"], prompt=replaced))


def test_not_a_prompt(base: Base) -> None:
    """What is no string is refused: sentence-transformers would answer a TypeError by prompts inside the content."""
    model = st_reba.build(base("llama"), "echo", template="Task: {instruction}. {text}", instruction="find")
    for options in ({"prompt": 3}, {"instruction": 3}, {"instruction": ["a"]}):
        with pytest.raises(ValueError, match="string") as caught:
            model.encode("hi", **options)
        assert str(next(iter(options.values()))) in str(caught.value)


def test_unknown_task(base: Base) -> None:
    """A misspelt task would silently get the document's template."""
    model = st_reba.build(base("llama"), "echo", template="echo-instruct", instruction="find")
    assert np.abs(model.encode("hi", task="query") - model.encode("hi", task="document")).max() > 1e-3
    with pytest.raises(ValueError, match="querry.*query.*document"):
        model.encode("hi", task="querry")
