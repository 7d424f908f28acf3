"""The fingerprint: another dtype of a model passes, another model or method of the same size does not."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from tiny import DIM, tiny_model

import st_reba
from st_reba.fingerprint import PROBES, ModelFingerprint, check, difference, fingerprint

BASE: dict[str, Any] = {"base": "mini", "method": "reba", "pooling": "mean", "device": "cpu"}


def mark(**options: Any) -> ModelFingerprint:
    return fingerprint(st_reba.build(**{**BASE, **options}))


@pytest.fixture(scope="module")
def stored() -> ModelFingerprint:
    return mark()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_dtype_fits(stored: ModelFingerprint, dtype: str) -> None:
    half = mark(dtype=dtype)
    assert half.dtype == dtype and half.probe != stored.probe
    check(stored, half)
    check(half, stored)


@pytest.mark.parametrize(
    "options",
    [
        {"repeats": 3},
        {"pooling": "last"},
        {"method": "echo"},
        {"normalize_weights": True},
        {"normalize_weights": True, "dtype": "bfloat16"},
        {"template": "Say it again: {text}"},
        {"prompts": {"document": "passage: "}},
    ],
    ids=str,
)
def test_another_method_of_the_same_weights_is_refused(stored: ModelFingerprint, options: dict[str, Any]) -> None:
    now = mark(**options)
    assert now.dimension == stored.dimension
    with pytest.raises(ValueError, match="differ in the vectors of 8 probe texts"):
        check(stored, now)


def test_another_model_is_refused() -> None:
    first, other = fingerprint(tiny_model()), fingerprint(tiny_model(seed=1))
    check(first, tiny_model())
    with pytest.raises(ValueError, match="^the corpus was built with .* Load the model that the corpus was built with"):
        check(first, other, "the corpus")
    short = fingerprint(tiny_model(truncate_dim=DIM // 2))
    assert difference(first, short) == f"dimension: {DIM} there, {DIM // 2} here"


def test_another_configuration_of_the_same_vectors_warns(
    stored: ModelFingerprint, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "st_reba"):
        check(stored, replace(stored, name="elsewhere", revision="abc"))
        assert not caplog.records
        check(stored, replace(stored, configuration="other"))
    assert "another configuration" in caplog.text


def test_json(stored: ModelFingerprint) -> None:
    text = json.dumps(stored.to_json())
    assert ModelFingerprint.from_json(json.loads(text)) == stored
    assert "mini" in str(stored) and "dimension 192" in str(stored) and len(stored.probe) == len(PROBES)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: None,
        lambda value: {**value, "probe": value["probe"][:-8]},
        lambda value: {**value, "probe": "§"},
        lambda value: {**value, "dimension": 191},
        lambda value: {**value, "dimension": "a"},
        lambda value: {**value, "more": 1},
        lambda value: {key: item for key, item in value.items() if key != "probe"},
    ],
)
def test_damaged_json_is_refused(stored: ModelFingerprint, change: Any) -> None:
    with pytest.raises(ValueError, match="the fingerprint of the model is damaged"):
        ModelFingerprint.from_json(change(stored.to_json()))


def test_a_damaged_probe_fits_nothing(stored: ModelFingerprint) -> None:
    broken = replace(stored, probe=((float("nan"),) * 192, *stored.probe[1:]))
    assert difference(broken, stored) and difference(stored, broken)
    model = tiny_model()
    model.encode_document = lambda texts, **options: [[0.0] * DIM] * len(texts)  # type: ignore[assignment,method-assign]
    with pytest.raises(ValueError, match="NaN, infinite or zero vectors"):
        fingerprint(model)
