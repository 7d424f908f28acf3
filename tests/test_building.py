"""Building: what every option does to the vectors, and that what is wrong is refused by name."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import st_reba

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi"]
FIND = "{instruction}: {text} Again: {text}"
BOTH = {"query": "Query: {text} Query again: {text}", "document": "Document: {text} Document again: {text}"}


def first(model: SentenceTransformer) -> Any:
    return cast(Any, model[0])


def same(one: Any, other: Any) -> bool:
    return bool(np.allclose(np.asarray(one), np.asarray(other), atol=1e-5))


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini")


@pytest.fixture(scope="module")
def found() -> SentenceTransformer:
    """A model whose template has a field, filled by build."""
    return st_reba.build("mini", template=FIND, instruction="find")


# What is refused, and what is given

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"method": "Reba"}, ["method", "'Reba'", "Did you mean 'reba'", "prompteol"]),
    ({"method": 3}, ["method=3", "prompteol"]),
    ({"poling": "mean"}, ["poling", "'mean'", "Did you mean 'pooling'"]),
    ({"pooling": "max"}, ["reba: pooling='max'", "'last' or 'mean'"]),
    ({"method": "echo", "pooling": "cls"}, ["echo: pooling='cls'", "'last' or 'mean'"]),
    ({"method": "prompteol", "pooling": "mean"}, ["prompteol: pooling='mean'", "'last'"]),
    ({"variant": "draft"}, ["variant='draft'", "'paper' or 'published'"]),
    ({"dtype": "float8"}, ["dtype='float8'", "float32", "bfloat16", "float16", "auto"]),
    ({"dtype": torch.int8}, ["dtype", "torch.int8"]),
    ({"span": "first", "method": "echo"}, ["span='first'", "'last_copy'", "'repeats'", "'end'", "'all'"]),
    ({"span": "all"}, ["reba: span", "'all'"]),
    ({"variant": "published", "method": "echo"}, ["echo: variant"]),
    ({"include_special": "yes"}, ["include_special='yes'", "True or False"]),
    ({"template": "nope"}, ["template='nope'", "echo", "echo-classical", "echo-instruct", "prompteol", "{text}"]),
    ({"template": 3}, ["template=3", "a text", "a mapping"]),
    ({"template": {"query": "{text}"}}, ["template=", "query", "document"]),
    ({"repeats": True}, ["repeats=True", "whole number"]),
    ({"repeats": 3, "template": "echo"}, ["repeats=3", "2", "template"]),
    # What is given is never ignored, though it is what would have been taken otherwise.
    ({"repeats": 2, "template": "Say: {text}"}, ["repeats=2", "1 {text} slots"]),
    ({"repeats": 2, "method": "classical"}, ["classical: repeats"]),
    ({"method": "classical", "template": "{text} {text}"}, ["template", "classical", "method='echo'"]),
    ({"instruction": "find"}, ["instruction='find'", "{instruction}"]),
    ({"max_seq_length": 2}, ["max_seq_length=2", "room"]),
    ({"max_seq_length": 20, "template": "echo"}, ["max_seq_length=20", "template", "room"]),
    ({"max_seq_length": 1025}, ["max_seq_length=1025", "1024"]),
    ({"prompts": {"query": 3}}, ["prompts", "query", "3"]),
    ({"prompts": "query"}, ["prompts"]),
    ({"device": "nonsense"}, ["device='nonsense'", "cpu"]),
    ({"stages": st_reba.Prepend(2)}, ["stages=", "a list"]),
    ({"stages": [st_reba.Prepend(6)]}, ["prepend", "6 layers run", "1 to 5"]),
    ({"stages": [st_reba.ReadLayers(7)]}, ["read", "no 7"]),
    ({"stages": [st_reba.NoSink("mask0-bidir", k=7)]}, ["nosink: k=7", "6 layers"]),
    ({"stages": [st_reba.Ensemble("metaeol")], "template": "echo"}, ["template='echo'", "exclude"]),
    ({"method": st_reba.Echo(), "pooling": "mean"}, ["pooling='mean'", "Echo(pooling=…)"]),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build("mini", **options)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "echo:pooling=mean,repeats=3"),
        ({"pooling": "last"}, "echo:repeats=3"),
        ({"method": "reba"}, "reba:pooling=mean,repeats=3"),
        ({"method": "echo:repeats=2"}, "echo:repeats=2"),
        ({"stages": [st_reba.ReadLayers(3)]}, "echo:pooling=mean,repeats=3+read:layers=3"),
    ],
    ids=str,
)
def test_what_is_given_overrides_a_recipe(given: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("base: mini\nmethod: echo\npooling: mean\nrepeats: 3\n", encoding="utf-8")
    assert str(st_reba.spec_of(st_reba.build(recipe, check=False, **given))) == wanted


# Settings of the model


def test_max_seq_length_cuts() -> None:
    model = st_reba.build("mini", max_seq_length=21)
    assert model.max_seq_length == 21 and first(model).budget() == 10
    word = "cat "
    assert same(model.encode(word * 50), model.encode(word * 500))
    assert first(model).preprocess([word * 50])["input_ids"].shape == (1, 21)


def test_first_cut_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Building warns of no text of its own, and does not use up the warning of the user's first long text."""
    with caplog.at_level(logging.WARNING):
        model = st_reba.build("mini", max_seq_length=11)
    assert [record.message for record in caplog.records if "cut" in record.message] == []
    with caplog.at_level(logging.WARNING):
        model.encode(["cat " * 50] * 3)
    assert len([record for record in caplog.records if "cut to 5" in record.message]) == 1


def test_the_tokenizers_padding_side_changes_nothing(model: SentenceTransformer) -> None:
    wanted, tokenizer = model.encode(TEXTS), first(model).tokenizer
    side, tokenizer.padding_side = tokenizer.padding_side, "left"
    try:
        assert np.array_equal(model.encode(TEXTS), wanted)
    finally:
        tokenizer.padding_side = side


# Prompts and templates


def test_prompts(model: SentenceTransformer) -> None:
    prompted = st_reba.build("mini", prompts={"query": "Query: ", "document": "Text: "})
    plain = model.encode(TEXTS)
    assert same(prompted.encode(TEXTS), plain)
    assert same(prompted.encode_query(TEXTS), model.encode(TEXTS, prompt="Query: "))
    assert same(prompted.encode_document(TEXTS), model.encode(TEXTS, prompt="Text: "))
    assert same(prompted.encode(TEXTS, prompt_name="query"), prompted.encode_query(TEXTS))
    assert not same(prompted.encode_query(TEXTS), plain)
    assert not same(prompted.encode_query(TEXTS), prompted.encode_document(TEXTS))
    literal = st_reba.build("mini", template="Query: {text}{text}")
    assert same(literal.encode(TEXTS), prompted.encode_query(TEXTS))
    assert same(model.encode_query(TEXTS), plain) and same(model.encode_document(TEXTS), plain)


def test_unknown_prompt(model: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="nope"):
        model.encode(TEXTS, prompt_name="nope")


def test_instruction_from_anywhere(found: SentenceTransformer) -> None:
    wanted = st_reba.build("mini", template="find: {text} Again: {text}").encode(TEXTS)
    assert same(found.encode(TEXTS), wanted)
    other = found.encode(TEXTS, instruction="sort")
    assert not same(other, wanted)
    assert same(found.encode(TEXTS, prompt="sort"), other)
    assert same(st_reba.build("mini", template=FIND, instruction="sort").encode(TEXTS), other)
    saved = st_reba.build("mini", template=FIND, instruction="find", prompts={"query": "sort"})
    assert same(saved.encode_query(TEXTS), other) and same(saved.encode_document(TEXTS), wanted)


def test_instruction_without_value() -> None:
    model = st_reba.build("mini", template="echo-instruct")
    with pytest.raises(ValueError, match=r"instruction.*encode\(…, instruction='…'\).*prompt.*build"):
        model.encode_query(TEXTS)
    with pytest.raises(ValueError, match="instruction"):
        model.encode_query(TEXTS, instruction="")
    given = model.encode_query(TEXTS, instruction="find")
    assert same(given, model.encode_query(TEXTS, prompt="find"))
    assert same(model.encode(TEXTS), model.encode_document(TEXTS))


@pytest.mark.parametrize("field", ["instruction", "language"])
def test_field_whose_value_comes_with_the_text(field: str) -> None:
    """A template whose fields build cannot fill is built all the same: encode takes their values."""
    model = st_reba.build("mini", template=f"{{{field}}}: {{text}} Again: {{text}}")
    wanted = st_reba.build("mini", template="find: {text} Again: {text}").encode(TEXTS)
    assert same(model.encode(TEXTS, **{field: "find"}), wanted)
    with pytest.raises(ValueError, match=field):
        model.encode(TEXTS)


def test_unknown_field(found: SentenceTransformer, model: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="language.*instruction"):
        found.encode(TEXTS, instruction="find", language="en")
    with pytest.raises(ValueError, match="instruction"):
        model.encode(TEXTS, instruction="find")
    with pytest.raises(ValueError, match=r"language='en'.*\['instruction'\]"):
        first(found).frames(language="en")


def test_field_that_is_no_string(found: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="instruction=3"):
        found.encode(TEXTS, instruction=3)


def test_template_for_each_task() -> None:
    model = st_reba.build("mini", "echo", template=BOTH, pooling="mean")
    query, document = (st_reba.build("mini", "echo", template=BOTH[task], pooling="mean") for task in BOTH)
    assert same(model.encode_query(TEXTS), query.encode(TEXTS))
    assert same(model.encode_document(TEXTS), document.encode(TEXTS))
    assert same(model.encode(TEXTS), document.encode(TEXTS))
    assert not same(model.encode_query(TEXTS), model.encode_document(TEXTS))


def test_template_sets_the_copies() -> None:
    assert first(st_reba.build("mini", template="{text} {text} {text}")).repeats == 3
    assert first(st_reba.build("mini", template="{text} {text} {text}", repeats=3)).repeats == 3
    assert first(st_reba.build("mini", "prompteol")).repeats == 1


# Encoding


def test_truncate_dim(model: SentenceTransformer) -> None:
    assert same(model.encode(TEXTS, truncate_dim=64), model.encode(TEXTS)[:, :64])
    assert model.encode(TEXTS, truncate_dim=64).shape == (3, 64)


@pytest.mark.parametrize("options", [{}, {"pooling": "mean"}, {"variant": "published"}], ids=str)
def test_token_embeddings(options: dict[str, Any]) -> None:
    model = st_reba.build("mini", **options)
    counts = [len(ids) for ids in first(model).content(TEXTS)["input_ids"]]
    batched = cast(Any, model.encode(TEXTS, output_value="token_embeddings"))
    assert [tuple(tokens.shape) for tokens in batched] == [(count, 192) for count in counts]
    for text, tokens in zip(TEXTS, batched, strict=True):
        alone = cast(Any, model.encode(text, output_value="token_embeddings"))
        assert torch.allclose(alone, tokens, atol=1e-4 * float(tokens.abs().max()))
    everything = cast(Any, model.encode(TEXTS[0], output_value=None))
    assert same(everything["sentence_embedding"], model.encode(TEXTS[0]))
    assert torch.equal(
        everything["token_embeddings"][: counts[0]], cast(Any, model.encode(TEXTS[0], output_value="token_embeddings"))
    )


def test_mean_is_the_mean_of_the_tokens() -> None:
    model = st_reba.build("mini", pooling="mean", normalize=False)
    tokens = cast(Any, model.encode(TEXTS, output_value="token_embeddings"))
    means = torch.stack([each.mean(dim=0) for each in tokens]).numpy()
    assert np.allclose(model.encode(TEXTS), means, atol=1e-4 * float(np.abs(means).max()))


def test_field_of_the_other_task() -> None:
    """A field that only queries take makes plain encode a query, and is refused for a document."""
    model = st_reba.build("mini", "echo", template="echo-instruct", pooling="mean")
    wanted = model.encode_query(TEXTS, instruction="Find it.")
    assert same(model.encode(TEXTS, instruction="Find it."), wanted)
    assert same(model.encode(TEXTS, prompt="Find it."), wanted)
    with pytest.raises(ValueError, match="instruction='Find it.'.*no such field"):
        model.encode_document(TEXTS, instruction="Find it.")


def test_more_positions_than_the_model_has() -> None:
    model = st_reba.build("mini")
    model.max_seq_length = 4000
    with pytest.raises(ValueError, match="max_seq_length=4000.*1024"):
        model.encode("hi")


def test_changed_setting_of_the_pooling() -> None:
    model = st_reba.build("mini")
    model[1].pooling = "mean"
    with pytest.raises(ValueError, match="setting was changed"):
        model.encode("hi")


def test_wrong_dimension() -> None:
    transformer = first(st_reba.build("mini"))
    with pytest.raises(ValueError, match="embedding_dimension=7.*192"):
        SentenceTransformer(modules=[transformer, st_reba.ReBAPooling(7)], device="cpu").encode("hi")


def test_inputs(model: SentenceTransformer) -> None:
    assert model.encode([]).shape == (0,)
    assert model.encode("").shape == (192,) and np.isfinite(model.encode("")).all()
    wrong: Any
    for wrong, message in ((3, "int"), (["a", None], "no string but NoneType"), ([["a", "b"]], "list")):
        with pytest.raises(ValueError, match=message):
            model.encode(wrong)


@pytest.mark.slow
def test_two_processes(model: SentenceTransformer) -> None:
    texts = [f"{text} {number}" for text in TEXTS for number in range(4)]
    assert same(model.encode(texts, device=["cpu", "cpu"], chunk_size=6), model.encode(texts))


@pytest.mark.parametrize(
    "options",
    [{}, {"pooling": "mean"}, {"variant": "published"}, {"method": "echo"}, {"method": "classical", "pooling": "cls"}],
    ids=str,
)
def test_copies_are_equal_and_apart(options: dict[str, Any]) -> None:
    model = st_reba.build("mini", check=False, **options)
    vectors = model.encode(TEXTS)
    tokens = cast(Any, model.encode(TEXTS, output_value="token_embeddings"))
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with torch.no_grad():
        for weight in first(model).parameters():
            weight.zero_()
    for other in copies:
        assert np.array_equal(other.encode(TEXTS), vectors)
        # Token vectors run the first module once more: it must be the copy's own.
        got = other.encode(TEXTS, output_value="token_embeddings")
        assert all(torch.equal(one, two) for one, two in zip(got, tokens, strict=True))
        if "method" not in options:
            assert other[1].source is other[0]
