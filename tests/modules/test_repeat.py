"""Whatever a text holds, it gets a vector that depends on nothing but the text; whatever is no text, an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import TOKENIZERS, save
from marks import slow_but
from oracle import folder
from pipelines import METHODS, assert_same, encoded, of_method, pipeline, transformer
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from st_reba import RepeatTransformer
from st_reba.modules import Layout
from st_reba.modules.layout import TEMPLATES

Base = Callable[..., str]
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
# Every method on one base; on the others what reads their attention, and what does not. Every tokenizer for ReBA.
CASES = [
    *(("llama", "bos_eos", method) for method in METHODS),
    *(("bloom", "bos_eos", method) for method in ("reba mean", "published last", "classical cls")),
    *(("gpt_oss", "plain", method) for method in ("reba last", "published mean", "echo mean")),
    *(("gpt2", tokenizer, "reba last") for tokenizer in TOKENIZERS),
    *(("gpt2", tokenizer, "echo mean") for tokenizer in ("plain", "cls_sep")),
    ("mini", "bos", "reba last"),
]


@pytest.mark.parametrize(
    ("name", "tokenizer", "method"),
    # Every method, and every tokenizer; the other bases are slow.
    slow_but(CASES, "llama", "gpt2", rows=True),
)
def test_odd_texts(base: Base, name: str, tokenizer: str, method: str) -> None:
    """Each is a finite unit vector, the same alone, in any batch, in any order."""
    model = of_method(base, name, tokenizer, method, max_seq_length=96)
    texts = [*ORDINARY, *ODD.values(), "".join(model[0].text_tokenizer.all_special_tokens)]
    assert len(ODD["long"]) >= 100_000
    alone = model.encode(texts, batch_size=1)
    assert np.isfinite(alone).all()
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1.0, atol=1e-5)
    assert_same(model.encode(texts, batch_size=len(texts)), alone)
    order = np.random.default_rng(0).permutation(len(texts))
    assert_same(model.encode([texts[index] for index in order], batch_size=7), alone[order])


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_text_is_never_parsed(base: Base, tokenizer: str) -> None:
    """Slots, fields, braces and special tokens inside a text are its content, letter for letter."""
    first = transformer(base("gpt2", tokenizer), "echo", template="echo")
    special = set(first.text_tokenizer.all_special_ids)
    for text in ("{text}", "{instruction} {{}}", "<s>a</s>", "[CLS]a[SEP]", "<|endoftext|>", str(TEMPLATES["echo"])):
        features = first.preprocess([text])
        ids, copy_ids = features["input_ids"][0], features["copy_ids"][0]
        for copy in (1, 2):
            content = ids[copy_ids == copy].tolist()
            assert first.text_tokenizer.decode(content) == text
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
        first = transformer(base("gpt2", tokenizer))
        features = first.preprocess([""])
        ids = features["input_ids"][0][features["copy_ids"][0] > 0]
        assert first.text_tokenizer.convert_ids_to_tokens(ids.tolist()) == [token, token]


def test_text_without_a_token(tmp_path: Path) -> None:
    """A tokenizer may drop whitespace; where nothing can stand for a text, an error says so."""
    backend = TOKENIZERS["no_pad_no_eos"]().backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", model_max_length=256)
    model: Any = pipeline(str(save("gpt2", tmp_path / "unknown", tokenizer)))
    assert model[0].content([" \n"])["input_ids"] == [[]]
    vectors = encoded(model, [" \n", "hi", ""])
    assert vectors.any(dim=1).all()
    assert_same(vectors[:1], vectors[2:])
    bare = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=256)
    assert not bare.all_special_ids
    model = pipeline(str(save("gpt2", tmp_path / "bare", bare)))
    for texts in ([" \n"], ["hi", ""]):
        with pytest.raises(ValueError, match="holds no token.*Drop such"):
            model.encode(texts)


@pytest.mark.parametrize("bad", [None, 3, 1.5, b"bytes", {"text": "a"}, ("one", "two"), ["one"], {"one"}], ids=repr)
def test_not_a_text(base: Base, bad: Any) -> None:
    model = of_method(base, "llama", "bos", "reba last")
    for inputs in ([bad], ["a longer text than that", bad], [bad, "hi", ""]):
        for batch_size in (1, 32):
            with pytest.raises((ValueError, TypeError)) as caught:
                model.encode(inputs, batch_size=batch_size)
            assert repr(bad) in str(caught.value)
            assert type(bad).__name__ in str(caught.value)


def test_no_texts(base: Base) -> None:
    """An empty list gives what any SentenceTransformer gives."""
    first = Transformer(base("llama"))
    plain = SentenceTransformer(modules=[first, Pooling(first.get_embedding_dimension())], device="cpu")
    for method in METHODS:
        model = of_method(base, "llama", "bos", method)
        for options in ({}, {"convert_to_numpy": False}, {"output_value": "token_embeddings"}):
            got, wanted = model.encode([], **options), plain.encode([], **options)
            assert type(got) is type(wanted) and len(got) == len(wanted) == 0
        assert model.encode([], convert_to_tensor=True).shape == plain.encode([], convert_to_tensor=True).shape


@pytest.mark.parametrize("method", ["reba last", "published last", "echo template"])
def test_cut(base: Base, method: str, caplog: pytest.LogCaptureFixture) -> None:
    """A text over the budget is the text cut there, in every copy; one warning a model."""
    model: Any = of_method(base, "llama", "bos_eos", method, max_seq_length=90, normalize=False)
    text = "The river runs past the old mill and under the bridge. " * 9
    budget, content = model[0].budget(), model[0].content([text], offsets=True)
    ids, cut = content["input_ids"][0], text[: content["offset_mapping"][0][budget - 1][1]]
    assert len(ids) > budget
    assert model[0].content([cut])["input_ids"][0] == ids[:budget], "the premise: the cut is a text of those tokens"
    with caplog.at_level(logging.WARNING):
        long = model.encode([text, "hi"])
        model.encode(text)
        model.encode([text + "天"] * 3, batch_size=1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"{len(ids)} tokens was cut to {budget}" in caplog.text and "max_seq_length=90" in caplog.text
    caplog.clear()
    features = model[0].preprocess([text, "hi"])
    assert features["input_ids"].shape[1] <= 90
    for copy in (1, 2):
        assert features["input_ids"][0][features["copy_ids"][0] == copy].tolist() == ids[:budget]
    assert_same(
        long, of_method(base, "llama", "bos_eos", method, max_seq_length=90, normalize=False).encode([cut, "hi"])
    )
    assert not caplog.records


# Not finite


@pytest.mark.parametrize("tokenizer", ["plain", "cls_sep"])
def test_padding_is_of_the_row(base: Base, tokenizer: str) -> None:
    """Padding repeats a token of its own row: a masked 0 times an embedding that is not finite would not be 0."""
    features = transformer(base("gpt2", tokenizer)).preprocess(list(ORDINARY))
    assert not features["attention_mask"].all()
    for ids, mask in zip(features["input_ids"], features["attention_mask"].bool(), strict=True):
        assert torch.isin(ids[~mask], ids[mask]).all()


@pytest.mark.parametrize("prompt", ["a\ud800b: ", "\ud83d\ude00"])
def test_surrogates_in_a_prompt(base: Base, prompt: str) -> None:
    """They are replaced, as in texts, and the prompt stays a prompt: in front of all, and no part of the content."""
    model = pipeline(base("llama"))
    replaced = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in prompt)
    assert torch.equal(encoded(model, ["hi", "天"], prompt=prompt), encoded(model, ["hi", "天"], prompt=replaced))


# Features


def test_spaces_of_a_tokenizer_that_pads_on_the_left(base: Base) -> None:
    model = pipeline(base("llama", "cls_sep"))
    wanted = encoded(model)
    model.tokenizer.padding_side = "left"
    assert torch.equal(encoded(model), wanted)


# By hand


def test_by_hand_and_by_a_layout(base: Base) -> None:
    """Keywords, a layout and a mapping of its fields mean the same."""
    path = base("llama", "cls_sep")
    given = {"template": "A {text} B {text}", "instruction": "x", "span": "repeats", "compute_matched": True}
    wanted = RepeatTransformer(path, **given)  # type: ignore[arg-type]
    for other in (RepeatTransformer(path, layout=given), RepeatTransformer(path, layout=Layout(**given))):  # type: ignore[arg-type]
        assert other.layout == wanted.layout == Layout(**given)  # type: ignore[arg-type]
        for name, value in wanted.preprocess(list(ORDINARY)).items():
            assert torch.equal(other.preprocess(list(ORDINARY))[name], value) if isinstance(value, Tensor) else True
    with pytest.raises(ValueError, match=r"layout=.* and \{'repeats': 2\} exclude each other"):
        RepeatTransformer(path, layout=given, repeats=2)
    assert RepeatTransformer(path).repeats == 2 and RepeatTransformer(path, template="{text}").repeats == 1


HOSTILE: Any = [0, -1, 65, 10**6, 10**400, True, 2.0, "2", float("nan"), [2], {"k": 2}]


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        *(("repeats", value, "repeats=") for value in HOSTILE),
        *(("span", value, "span=") for value in ("last", "LAST_COPY", None, 1, ["all"], "x" * 60_000)),
        *(
            ("template", value, "template")
            for value in (3, ["{text}"], {"query": "{text}"}, "{text" * 30_000, b"{text}")
        ),
        *(("instruction", value, "instruction") for value in (None, 3, "x" * 100_000)),
        *(("compute_matched", value, "compute_matched=") for value in (1, "yes", None)),
        *(("layout", value, "layout: ") for value in ("echo", 3, {"repeat": 2}, {"repeats": 0}, {"pooling": "mean"})),
        *(("stages", value, "stages") for value in ("read", {"read": {}}, [{"evil": {}}], [None], 3)),
        ("stages", [{"read": {"layer": 1}}], "Did you mean 'layers'"),
        *(("method", value, "method=") for value in ("echo", {"echo": 3}, 3)),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_hostile_values(name: str, value: Any, named: str) -> None:
    """Refused in one line that names the option, whatever they are."""
    with pytest.raises(ValueError) as caught:
        RepeatTransformer(folder("mini"), **{name: value})
    assert named in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_processing_kwargs(base: Base) -> None:
    with pytest.raises(ValueError, match="processing_kwargs=.*model.max_seq_length"):
        pipeline(base("llama")).encode("hi", processing_kwargs={"text": {"max_length": 8}})
