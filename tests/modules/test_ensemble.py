"""Ensembles of templates against the float64 oracle: methods × batches, and as ordinary pipelines."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import reference
import reference_nosink
import torch
from oracle import TEXTS, assert_close, double, loaded
from pipelines import encoded, pipeline, transformer
from reference_stages import ensemble
from torch import Tensor

import st_reba
from st_reba import Ensemble, NoSink
from st_reba.batches import copied_positions
from st_reba.encode import encode_texts
from st_reba.modules.ensemble import _WEIGHTS, ENSEMBLES
from st_reba.modules.layout import TEMPLATES

Base = Callable[..., str]
ONE = ["{text}", "Topic: {text}.", "“{text}” is: "]
TWO = ["{text} {text}", "Say {text}: {text}!"]
# Method, pooling, templates, weights.
METHODS: dict[str, tuple[str, str, list[str], list[float] | None]] = {
    "mean": ("classical", "mean", ONE, None),
    "last": ("classical", "last", ONE, [1, -0.5, 0.25]),
    "prompteol": ("prompteol", "last", ONE, [2, 0, -1]),
    "echo": ("echo", "mean", TWO, None),
    "reba": ("reba", "last", TWO, [0.5, -1]),
    "reba-mean": ("reba", "mean", TWO, None),
    "nosink": ("nosink", "mean", ONE, None),
}


def stages_of(templates: Any, weights: Any = None, equal_norms: bool = True, nosink: bool = False) -> list[Any]:
    return [Ensemble(templates, weights, equal_norms), *([NoSink("mask0-bidir", k=1)] if nosink else [])]


def build(base: str, name: str, *, equal_norms: bool = True, **options: Any) -> Any:
    method, pooling, templates, weights = METHODS[name]
    return pipeline(
        base, method, stages_of(templates, weights, equal_norms, name == "nosink"), pooling=pooling, **options
    )


def pieces(template: str) -> list[str | None]:
    literals = template.split("{text}")
    return [each for literal in literals for each in (literal, None)][:-1]


@lru_cache(maxsize=512)
def vector(base: str, text: str, template: str, method: str) -> Tensor:
    """One prompt's vector, by the oracle."""
    model = double(base)
    placed = reference.layout(loaded(base)[1], text, pieces(template))
    if method == "nosink":
        wanted = reference_nosink.plan(model.config.num_hidden_layers, kind="nosink-bidirectional", k=1)
        return reference.classical(reference_nosink.hooked(model, placed.ids, wanted)[0], placed, "mean")
    hidden, maps = reference.hidden_and_attention(model, placed.ids)
    if method == "prompteol":
        return reference.very_last(hidden)
    if method.startswith("reba"):
        return reference.reba(hidden, reference.symmetrized_max(maps), placed, "mean" if "mean" in method else "last")
    return reference.echo(hidden, placed, "last" if method == "last" else "mean")


def wanted(base: str, text: str, name: str, equal_norms: bool) -> Tensor:
    _, _, templates, weights = METHODS[name]
    weights = weights or [1 / len(templates)] * len(templates)
    return ensemble([vector(base, text, each, name) for each in templates], weights, equal_norms)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_exact(base: Base, architecture: str, name: str) -> None:
    path = base(architecture, "bos_eos")
    for equal_norms in (True, False):
        model = build(path, name, equal_norms=equal_norms)
        expected = [wanted(path, text, name, equal_norms) for text in TEXTS]
        for size in (1, 2, len(TEXTS)):
            for found, each in zip(model.encode(list(TEXTS), batch_size=size), expected, strict=True):
                assert_close(found, each)


def test_one_weight_is_one_prompt(base: Base) -> None:
    path = base("llama")
    model = pipeline(path, "prompteol", stages_of(ONE, [0, 3, 0]), normalize=True)
    np.testing.assert_allclose(
        encoded(model), encoded(pipeline(path, "prompteol", template=ONE[1], normalize=True)), atol=1e-6
    )


def test_named() -> None:
    for name, templates in ENSEMBLES.items():
        assert name not in TEMPLATES and len(set(templates)) == len(templates) >= 2
        assert Ensemble(name).summed == _WEIGHTS.get(name, (1 / len(templates),) * len(templates))
    model = pipeline("mini", "prompteol", [Ensemble("contrastive")])
    assert torch.equal(
        encoded(model), encoded(pipeline("mini", "prompteol", stages_of(list(ENSEMBLES["contrastive"]), [1, -0.25])))
    )
    assert model[0].rows == 2 and model.get_embedding_dimension() == 192


def test_queries_and_documents(base: Base) -> None:
    """Each template takes the fields that it has, and a prompt where it has none."""
    path = base("llama")
    tasks = {"query": "For {instruction} find: {text}", "document": "Text: {text}"}
    model: Any = pipeline(path, "prompteol", stages_of([tasks, "In {language}: {text}!"]))

    def expected(*templates: str) -> Tensor:
        return ensemble([vector(path, TEXTS[2], each, "prompteol") for each in templates], [0.5, 0.5])

    query = expected("For a bank find: {text}", "a bankIn C: {text}!")
    assert_close(model.encode_query(TEXTS[2], prompt="a bank", language="C"), query)
    # A prompt that only queries have a place for means a query.
    assert_close(model.encode(TEXTS[2], prompt="a bank", language="C"), query)
    assert_close(model.encode_document(TEXTS[2], language="C"), expected("Text: {text}", "In C: {text}!"))
    with pytest.raises(ValueError, match="needs a value for {language}"):
        model.encode_document(TEXTS[2])
    with pytest.raises(ValueError, match=r"colour='red': .*no such field; it has \['instruction', 'language'\]"):
        model[0].frames(task="query", colour="red")


def test_rows_and_cut(base: Base) -> None:
    """A text's rows stand one after another, cut alike to the least of the budgets."""
    first = transformer(base("llama"), "prompteol", stages_of(ONE), max_seq_length=30)
    frames, budget = first.frames(), first.budget()
    assert budget == 30 - max(frame.overhead for frame in frames) and len({frame.overhead for frame in frames}) > 1
    features = first.place([[7] * 3, [9] * budget], *frames)
    found = [(ids == token).sum().item() for ids, token in zip(features["input_ids"], [7] * 3 + [9] * 3, strict=True)]
    assert found == (features["copy_ids"] == 1).sum(dim=1).tolist() == [3, 3, 3, *[budget] * 3]
    long = "The river runs past the old mill. " * 9
    rows = first.preprocess([long])
    assert rows["input_ids"].shape == (3, 30) and {int(copies.sum()) for copies in rows["copy_ids"]} == {budget}
    # What a text counts for is what its rows take.
    for text in (*TEXTS, "", long):
        assert copied_positions(first, [text]) == [first.preprocess([text])["input_ids"].numel()]


def test_token_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = pipeline("mini", "prompteol", [Ensemble("metaeol")])
    taken: list[int] = []
    forward = type(model[0]).forward

    def counted(self: Any, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        taken.append(features["input_ids"].numel())
        found: dict[str, Any] = forward(self, features, **kwargs)
        return found

    monkeypatch.setattr(type(model[0]), "forward", counted)
    texts = [text[: 1 + number] for number in range(2) for text in TEXTS]
    vectors = encode_texts(model, texts, batch_tokens=600)
    assert len(taken) > 1 and max(taken) <= 600
    np.testing.assert_allclose(vectors, encoded(model, texts), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"templates": []}, r"templates=\(\) is not allowed"),
        ({"templates": ["{text}"]}, r"are 1: give from 2 to 64"),
        ({"templates": ["{text}"] * 65}, "are 65: give from 2 to 64"),
        ({"templates": ["{text}", 3]}, "templates=.*3.* is not allowed"),
        ({"templates": ["{text}", "metaeol"]}, "'metaeol' is neither a template"),
        ({"templates": ["{text}", "{text} {text}"]}, r"have \[1, 2\] \{text\} slots"),
        ({"templates": 3}, "templates=3 is not allowed"),
        ({"templates": "metael"}, "Did you mean 'metaeol'"),
        ({"templates": ONE, "weights": [1, 2]}, r"weights=\(1, 2\) are 2,? for 3 templates"),
        ({"templates": ONE, "weights": [0, 0, 0]}, "are all 0"),
        ({"templates": ONE, "weights": [1, 2, float("nan")]}, "weights=.*nan"),
        ({"templates": ONE, "weights": [1, 2, True]}, "weights=.*True"),
        ({"templates": ONE, "weights": []}, r"weights=\(\) is not allowed"),
        ({"templates": ONE, "weights": "1,2,3"}, "weights='1,2,3' is not allowed"),
        ({"templates": ONE, "equal_norms": 1}, "equal_norms=1 is not allowed"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Ensemble(**options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_pipelines_that_do_not_fit(base: Base) -> None:
    path = base("llama")
    with pytest.raises(ValueError, match="stands in 3 templates.*no single sequence"):
        st_reba.encode_words(build(path, "prompteol"), [("hi", (0, 2))])
    with pytest.raises(ValueError, match="stands in 3 templates.*no single sequence"):
        build(path, "prompteol")[0].content(["hi"], offsets=True)
    with pytest.raises(ValueError, match="stands in 3 templates.*no single sequence"):
        pipeline(path, "reba", stages_of(ONE), chunk=8)
    with pytest.raises(ValueError, match="template='echo' and the templates of an ensemble exclude each other"):
        transformer(path, "echo", stages_of(TWO), template="echo")
    for method, fields in (("echo", {"repeats": 3}), ("classical", {})):
        with pytest.raises(
            ValueError, match=r"repeats=[13] does not fit the ensemble's templates, which have 2 .*slots"
        ):
            transformer(path, method, stages_of(TWO), **fields)
