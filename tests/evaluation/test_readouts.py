"""Readouts of one pass, against models that are built for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from marks import slow_but
from pipelines import counted_positions

from st_reba import Method
from st_reba.encode import computed_positions, encode_texts
from st_reba.evaluation.encoding import progress_bar
from st_reba.evaluation.readouts import build_on, depth_of, encode_methods, group_by_pass, load_base, readout_of
from st_reba.evaluation.shared_pass import Readout, run_pass

TEXTS = ["Hello", "你好，世界", "a man plays the guitar on a quiet street", "x", "", "a man plays the guitar"]
SHARED = [
    "echo:pooling=mean", "echo", "reba", "reba:pooling=mean", "reba:pooling=mean,layer=1", "reba:layer=-2",
    "echo:pooling=mean,layer=1", "classical", "classical:pooling=mean,layer=1", "prompteol", "prompteol:layer=1",
    "nosink:setting=mask0-bidir,k=1", "nosink:setting=mask0-bidir,k=2", "nosink:setting=mask0-bidir,k=1,layer=2",
    "echo:pooling=mean,setting=mask0-bidir,k=1", "reba:pooling=mean,setting=inplace-bidir,k=1",
    "reba:normalize=false", "prompteol:read=attention", "prompteol:read=attention,layer=1",
    "echo:read=attention,pooling=mean,layer=[1,2]", "prompteol:template=reverseol",
    "prompteol:template=reverseol,read=attention",
    'prompteol:template=["{text} is","{text} means"],weights=[1,-0.5],equal_norms=false,layer=1',
]  # fmt: skip
ALONE = [
    "nosink:setting=inter-bidir,k=1", "classical:pooling=cls", "classical:pooling=mean,layer=[0,1]",
    "classical:pooling=mean,layer=0", "reba:implementation=authors", "reba:include_special=true",
    "echo:pooled=repeats,pooling=mean", "echo:pooling=mean,layer=1,final_norm=false",
]  # fmt: skip


def _methods(names: list[str]) -> list[Method]:
    return [Method.parse(name) for name in names]


@pytest.mark.parametrize("name", slow_but(["llama", "gpt2", "gemma2"], "llama", "gemma2"))
def test_every_readout_is_what_its_model_gives(base: Callable[..., str], name: str) -> None:
    methods, model = _methods(SHARED + (ALONE if name == "llama" else [])), load_base(base(name))
    depth: Any = model[0].depth
    assert [each for each in methods if readout_of(each, depth) is None] == methods[len(SHARED) :]
    found = encode_methods(model, methods, TEXTS)
    assert list(found) == methods
    for method in methods:
        expected = build_on(model, method).encode(TEXTS)
        limit = 2e-6 * np.linalg.norm(expected, axis=1).max()
        np.testing.assert_allclose(found[method], expected, atol=limit, rtol=0, err_msg=str(method))


PROMPT = 'A text that stands for all others: "{text}" In one word: "'
PREFIXED = {
    "states": Method("prompteol", template=PROMPT),
    "outputs": Method("prompteol", template=PROMPT, read="attention"),
    "mean": Method("classical", template=PROMPT, pooling="mean"),
    "echo": Method("echo", template="Rewrite this text: {text} Rewritten: {text}", pooling="mean"),
    "questions": Method("prompteol", template=(PROMPT, PROMPT.replace("one word", "a word or two"))),
    "by task": Method("prompteol", template={"query": "Query: {text} is", "document": PROMPT}),
}


@pytest.mark.parametrize("name", list(PREFIXED))
def test_a_pass_computes_what_the_built_model_computes(base: Callable[..., str], name: str) -> None:
    """What texts begin with runs once a batch here too, so seconds and vectors are those of the model."""
    opened_base = load_base(base("llama"))
    method = PREFIXED[name]
    model = build_on(opened_base, method)
    texts = [f"{text} {number}" for number, text in enumerate(TEXTS * 8)]
    with counted_positions(model) as built:
        expected = encode_texts(model, texts)
    readout = readout_of(method, depth_of(model))
    assert readout is not None
    plain_model = build_on(opened_base, replace(method, read="states"))
    with counted_positions(plain_model) as passes:
        rows = run_pass(plain_model, [readout], texts)[readout]
    assert passes == built and len(built) > 1
    # Padding is what is not counted; a batch that shares nothing would see twice as many.
    assert sum(passes) < 1.5 * sum(computed_positions(model[0], texts, {}))
    np.testing.assert_allclose(rows / np.linalg.norm(rows, axis=1, keepdims=True), expected, atol=3e-6)


def test_layers_of_a_readout() -> None:
    found = {
        "prompteol:read=attention": Readout(8, "end", 5), "classical:layer=-8": Readout(1, "last"),
        "classical:layer=10": None, "classical:layer=-10": None, "echo:read=attention,layer=[1,11]": None,
    }  # fmt: skip
    assert {name: readout_of(Method.parse(name), 8) for name in found} == found
    base, method = (
        load_base("mini"),
        Method("classical", pooling="mean", read="attention", layer=(2, 4), normalize=False),
    )
    alone = run_pass(base, [Readout(4, "mean", 2)], TEXTS)
    np.testing.assert_allclose(alone[Readout(4, "mean", 2)], build_on(base, method).encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (SHARED[:7], 1),
        (["classical", "nosink:setting=baseline", "classical:max_seq_length=32"], 2),
        (["echo", "echo:repeats=3", "echo:repeats=4", "echo:compute_matched=true", "echo:template=echo"], 5),
        (["nosink:setting=mask0-bidir,k=3", "nosink:setting=mask0-bidir,k=2"], 2),
        (["nosink:setting=mask0-bidir,k=3", "nosink:setting=mask0-bidir,k=3,m=2"], 2),
        (["nosink:setting=mask0-bidir,k=4", "nosink:setting=mask0-bidir,k=2,layer=4", "classical:layer=2"], 1),
        (["nosink:setting=inplace-bidir,k=3", "nosink:setting=mask0-bidir,k=3", "classical:layer=3"], 2),
        (["prompteol", "classical:template=prompteol,layer=3", "classical"], 2),
        (ALONE[:3], 3),
        (["prompteol:template=reverseol", "prompteol:template=reverseol,read=attention", "prompteol"], 2),
        (["prompteol:template=contrastive", "prompteol:template=contrastive,weights=[1,0]"], 2),
    ],
)
def test_methods_share_a_pass_if_and_only_if_input_and_masks_agree(names: list[str], groups: int) -> None:
    methods = _methods(names)
    found = group_by_pass(methods, 6)
    assert len(found) == groups
    assert sorted(map(str, (each for group in found.values() for each in group))) == sorted(map(str, methods))


def test_a_vector_depends_on_neither_batch_nor_repetition() -> None:
    base, methods = load_base("mini"), _methods(["reba:pooling=mean", "reba", "echo"])
    whole = encode_methods(base, methods, TEXTS)
    for method in methods:
        pieces = encode_methods(base, [method], [*TEXTS[::-1], *TEXTS], batch_tokens=32)[method]
        np.testing.assert_allclose(pieces, np.concatenate([whole[method][::-1], whole[method]]), atol=1e-6)


def test_parts_are_words(base: Callable[..., str]) -> None:
    model = load_base(base("deep"))
    names = ["echo:pooling=mean", "echo:pooling=last", "reba:pooling=mean", "reba:pooling=last"]
    methods = _methods([f"{name},normalize=false" for name in names])
    text = TEXTS[2]
    transformer: Any = model[0]
    count = len(transformer.content([text])["input_ids"][0])

    def found(parts: list[tuple[int, int]]) -> dict[Method, Any]:
        return {each: encode_methods(model, [each], [text] * len(parts), token_ranges=parts)[each] for each in methods}

    singles = found([(token, token + 1) for token in range(count)])
    whole, pair = found([(0, count)]), found([(1, 3)])
    plain = encode_methods(model, methods, [text])
    # Of one token, mean and last are the same.
    for mean, last in (methods[:2], methods[2:]):
        np.testing.assert_allclose(singles[mean], singles[last], atol=1e-4)
    for method in methods:
        np.testing.assert_allclose(whole[method][0], plain[method][0], atol=1e-4)
        if method.pooling == "mean":
            np.testing.assert_allclose(whole[method][0], singles[method].mean(axis=0), atol=2e-5)
            np.testing.assert_allclose(pair[method][0], singles[method][1:3].mean(axis=0), atol=2e-5)
        else:
            np.testing.assert_allclose(pair[method][0], singles[method][2], atol=2e-5)
    # The premise: tokens differ.
    assert np.abs(singles[methods[0]][1] - singles[methods[0]][2]).max() > 0.01


def test_an_opened_base_stays_as_it_is_and_shares_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    base = load_base("mini", max_seq_length=32)
    before = base.encode(TEXTS)
    model = build_on(base, Method("reba", layer=3))
    assert next(model.parameters()).data_ptr() == next(base.parameters()).data_ptr()
    # The length is the base's, unless the method says another.
    assert (model[0].tokenizer.model_max_length, model[0].recipe["max_seq_length"]) == (32, 32)
    assert build_on(base, Method("reba", max_seq_length=16))[0].tokenizer.model_max_length == 16
    checked = Mock()
    monkeypatch.setattr("st_reba.assembly.check_masks", checked)
    encode_methods(base, _methods(["reba", "nosink:setting=mask0-bidir,k=2"]), TEXTS)
    assert checked.called
    assert base[0].depth == 6
    np.testing.assert_array_equal(base.encode(TEXTS), before)


@pytest.mark.bars
def test_progress_counts_positions() -> None:
    base, seen = load_base("mini"), list[int]()
    encode_methods(base, [Method("echo")], TEXTS, batch_tokens=16, progress=seen.append)
    assert len(seen) > 1
    encode_methods(base, [Method("echo", pooled="repeats")], TEXTS, progress=seen.append)
    assert [progress_bar(1, show).disable for show in (True, False)] == [False, True]
    transformer = build_on(base, Method("echo"))[0]
    assert sum(seen) == 2 * sum(computed_positions(transformer, TEXTS, {}))


@pytest.mark.parametrize(
    "call",
    [
        lambda base: run_pass(base, [Readout(7, "mean")], ["a"]), lambda base: run_pass(base, [Readout(0, "mean")], ["a"]),
        lambda base: run_pass(base, [Readout(2, "median")], ["a"]),
        lambda base: encode_methods(base, [Method("echo")], ["a"], token_ranges=[(0, 5)]),
        lambda base: encode_methods(base, [Method("echo")], ["a"], token_ranges=[(1, 1)]),
        lambda base: encode_methods(base, [Method("classical", pooling="cls")], ["a"], token_ranges=[(0, 1)]),
        lambda base: encode_methods(base, [Method("prompteol", template="reverseol")], ["a"], token_ranges=[(0, 1)]),
    ],
)  # fmt: skip
def test_refusals(call: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError):
        call(load_base("mini"))
