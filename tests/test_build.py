"""Building: what every option does to the vectors, and that what is wrong is refused by name."""

from __future__ import annotations

import copy
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

import st_reba
from st_reba.build import EMBEDDED

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi"]
FIND = "{instruction}: {text} Again: {text}"
BOTH = {"query": "Query: {text} Query again: {text}", "document": "Document: {text} Document again: {text}"}


def first(model: SentenceTransformer) -> Any:
    return cast(Any, model[0])


def same(one: Any, other: Any) -> bool:
    return bool(np.allclose(np.asarray(one), np.asarray(other), atol=1e-5))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not there is not asked of the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini")


@pytest.fixture(scope="module")
def found() -> SentenceTransformer:
    """A model whose template has a field, filled by build."""
    return st_reba.build("mini", template=FIND, instruction="find")


# What is refused

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"method": "Reba"}, ["method='Reba'", "reba", "echo", "classical", "prompteol"]),
    ({"method": None}, ["method=None", "prompteol"]),
    ({"pooling": "max"}, ["pooling='max'", "last", "mean"]),
    ({"pooling": "cls"}, ["pooling='cls'", "method='reba'", "last", "mean"]),
    ({"method": "echo", "pooling": "cls"}, ["pooling='cls'", "method='echo'"]),
    ({"method": "prompteol", "pooling": "mean"}, ["pooling='mean'", "prompteol", "last"]),
    ({"variant": "draft"}, ["variant='draft'", "paper", "published"]),
    ({"dtype": "float8"}, ["dtype='float8'", "float32", "bfloat16", "float16", "auto"]),
    ({"dtype": torch.int8}, ["dtype", "torch.int8"]),
    ({"padding_side": "middle"}, ["padding_side='middle'", "left", "right"]),
    ({"non_finite": "nan"}, ["non_finite='nan'", "error", "zeros"]),
    ({"span": "first", "method": "echo"}, ["span='first'", "last_copy", "repeats", "last_copy_and_end", "end", "all"]),
    ({"span": "all"}, ["span='all'", "reba"]),
    ({"variant": "published", "method": "echo"}, ["variant", "method='echo'", "reba"]),
    ({"include_special": True, "method": "echo"}, ["include_special", "method='echo'"]),
    ({"normalize_weights": True, "method": "classical"}, ["normalize_weights", "method='classical'"]),
    ({"include_special": "yes"}, ["include_special='yes'", "True", "False"]),
    ({"normalize_weights": 1}, ["normalize_weights=1", "True", "False"]),
    ({"compute_matched": 1}, ["compute_matched=1", "True", "False"]),
    ({"template": "nope"}, ["template='nope'", "echo", "echo-classical", "echo-instruct", "prompteol", "{text}"]),
    ({"template": "no slot {other}"}, ["template=", "{text}"]),
    ({"template": "{text"}, ["template='{text'", "Double a literal brace"]),
    ({"template": "{text} {two words}"}, ["{two words}", "plain names"]),
    ({"template": "{text!r}"}, ["template=", "plain names"]),
    ({"template": 3}, ["template=3", "query", "document"]),
    ({"template": {"query": "{text}"}}, ["template=", "query", "document"]),
    ({"template": {"query": "{text}{text}", "document": "{text}"}}, ["template=", "copies"]),
    ({"repeats": 0}, ["repeats=0", "1"]),
    ({"repeats": -1}, ["repeats=-1"]),
    ({"repeats": True}, ["repeats=True", "whole number"]),
    ({"repeats": 2.5}, ["repeats=2.5", "whole number"]),
    ({"repeats": 3, "template": "echo"}, ["repeats=3", "2", "template"]),
    ({"repeats": 3, "method": "classical"}, ["repeats=3", "classical", "echo"]),
    ({"separator": " ", "template": "echo"}, ["separator=' '", "template"]),
    ({"separator": 3}, ["separator=3", "string"]),
    ({"instruction": 3}, ["instruction=3", "string"]),
    ({"max_seq_length": 0}, ["max_seq_length=0", "1"]),
    ({"max_seq_length": True}, ["max_seq_length=True", "whole number"]),
    ({"max_seq_length": 1.5}, ["max_seq_length=1.5", "whole number"]),
    ({"max_seq_length": 2}, ["max_seq_length=2", "room"]),
    ({"max_seq_length": 20, "template": "echo"}, ["max_seq_length=20", "template", "room"]),
    ({"max_seq_length": 1025}, ["max_seq_length=1025", "1024"]),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build("mini", **options)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": ["reba"]}, ["method=['reba']", "echo"]),
        ({"method": "classical", "repeats": True}, ["repeats=True"]),
        ({"method": "classical", "repeats": 2.0}, ["repeats=2.0"]),
        ({"method": "classical", "template": "{text} {text}"}, ["template", "classical"]),
        ({"method": "classical", "separator": " "}, ["separator=' '", "classical"]),
        ({"template": {"query": "{text} {text}", "document": 3}}, ["template", "document"]),
        ({"instruction": "find"}, ["instruction='find'", "{instruction}"]),
        ({"prompts": {"query": 3}}, ["prompts", "query", "3"]),
        ({"prompts": "query"}, ["prompts"]),
        ({"device": "nonsense"}, ["device='nonsense'", "cpu"]),
        ({"normalize": "no"}, ["normalize='no'", "True", "False"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refused_with_its_name(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build("mini", **options)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize("base", ["no-such-model", "Mini", "", "./nowhere"])
def test_missing_base(base: str) -> None:
    with pytest.raises(OSError, match="mini") as error:
        st_reba.build(base)
    assert f"base={base!r}" in str(error.value)


def test_base_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match="is a file.*folder"):
        st_reba.build(file)
    with pytest.raises((OSError, ValueError)) as error:
        st_reba.build(tmp_path)
    assert f"base={str(tmp_path)!r}" in str(error.value) and "config.json" in str(error.value)


# Settings of the model


def test_normalize() -> None:
    plain, scaled = st_reba.build("mini", normalize=False), st_reba.build("mini", normalize=True)
    assert [isinstance(module, Normalize) for module in scaled] == [False, False, True]
    assert not any(isinstance(module, Normalize) for module in plain)
    raw = plain.encode(TEXTS)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.01
    assert same(scaled.encode(TEXTS), raw / lengths)


def test_dtype() -> None:
    stored = torch.bfloat16
    assert first(st_reba.build("mini", device="cpu")).model.dtype == torch.float32
    for dtype in ("bfloat16", torch.bfloat16, "auto"):
        half = st_reba.build("mini", dtype=dtype)
        assert first(half).model.dtype == stored
    one, other = half.encode(TEXTS), st_reba.build("mini").encode(TEXTS)
    assert one.dtype == other.dtype == np.float32
    cosines = (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosines.min() > 0.999


def test_base_is_recorded_without_its_path(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EMBEDDED["mini"], tmp_path / "somewhere" / "my base"))
    from_path = st_reba.build(folder)
    assert first(from_path).base_model == "my base"
    assert str(tmp_path) not in str(first(from_path).get_config_dict())
    mini = st_reba.build("mini")
    assert first(mini).base_model == "mini"
    assert np.array_equal(from_path.encode(TEXTS), mini.encode(TEXTS))


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


def test_padding_side() -> None:
    left, right = (st_reba.build("mini", padding_side=side) for side in ("left", "right"))
    masks = [first(model).preprocess(TEXTS)["attention_mask"][2] for model in (left, right)]
    assert masks[0][0] == 0 and masks[1][0] == 1 and masks[0].tolist() == masks[1].flip(0).tolist()
    assert same(left.encode(TEXTS), right.encode(TEXTS))


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
        first(found).frame(language="en")


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
    assert same(
        st_reba.build("mini", repeats=3, separator=" / ").encode(TEXTS),
        st_reba.build("mini", template="{text} / {text} / {text}").encode(TEXTS),
    )


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


def test_layout_is_read_only() -> None:
    model = first(st_reba.build("mini", "echo"))
    for name, value in (("repeats", 3), ("template", "echo"), ("separator", " ")):
        with pytest.raises(AttributeError):
            setattr(model, name, value)


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


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize(
    "options",
    [{}, {"pooling": "mean"}, {"variant": "published"}, {"method": "echo"}, {"method": "classical", "pooling": "cls"}],
    ids=str,
)
def test_copies_are_equal_and_apart(options: dict[str, Any], way: Any) -> None:
    model = st_reba.build("mini", **options)
    vectors = model.encode(TEXTS)
    tokens = cast(Any, model.encode(TEXTS, output_value="token_embeddings"))
    other = way(model)

    def check() -> None:
        assert np.array_equal(other.encode(TEXTS), vectors)
        got = other.encode(TEXTS, output_value="token_embeddings")
        assert all(torch.equal(one, two) for one, two in zip(got, tokens, strict=True))

    check()
    with torch.no_grad():
        for weight in first(model).parameters():
            weight.zero_()
    # Token vectors run the first module once more: it must be the copy's own.
    check()
    if "method" not in options:
        assert other[1]._source == (other[0],)
