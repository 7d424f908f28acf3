"""Distances of vectors, and how large they may be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import tiny_model

import st_reba
from st_reba.comparison import (
    GOLDEN_TEXTS,
    PROBE_TEXTS,
    dtype_name,
    machine_tolerance,
    model_tolerance,
    relative_distance,
    text_distances,
)

VECTORS = np.array([[1.0, 0.0], [0.0, 1.0]])


def test_a_distance_is_relative_to_the_spread_of_the_stored_vectors() -> None:
    assert relative_distance(VECTORS, VECTORS) == 0
    assert relative_distance(VECTORS, VECTORS * 1.1) == pytest.approx(0.1 * np.sqrt(2))


def test_vectors_that_are_all_alike_are_compared_by_their_lengths() -> None:
    zeros = np.zeros((2, 2))
    assert relative_distance(zeros, zeros) == 0
    assert relative_distance(zeros + 100, zeros + 100.1) == pytest.approx(0.1)


def test_rounding_of_vectors_that_are_all_alike_is_allowed() -> None:
    """With pooling="cls" in a causal model, every text has the vector of the first token."""
    model = tiny_model()
    vectors = np.random.default_rng(0).normal(size=(1, 64)).repeat(20, axis=0)
    rounded_vectors = vectors.astype(np.float32)
    assert 0 < relative_distance(vectors, rounded_vectors) < machine_tolerance(model, "float32")


def test_a_compiled_model_has_the_tolerance_of_its_own() -> None:
    model = st_reba.build("mini", "echo", device="cpu")
    tolerance = machine_tolerance(model)
    model[0].model = torch.compile(model[0].model, backend="eager")  # type: ignore[union-attr, unused-ignore]
    assert machine_tolerance(model) == tolerance


def test_a_model_of_word_vectors_has_the_tolerance_of_one_layer() -> None:
    assert machine_tolerance(tiny_model()) == float(f"{64 * 2**-23:.2g}")


@pytest.mark.parametrize(
    ("stored_dtype", "dtype", "tolerance"),
    [
        ("float32", "float32", 0.005),
        (None, None, 0.005),
        ("float32", "bfloat16", 0.025),
        ("bfloat16", "float32", 0.025),
        ("bfloat16", "bfloat16", 0.025),
    ],
)
def test_vectors_of_one_model_differ_more_where_a_type_is_coarse(
    stored_dtype: str | None, dtype: str | None, tolerance: float
) -> None:
    assert model_tolerance(stored_dtype, dtype) == tolerance


def test_vectors_that_cannot_be_compared_are_infinitely_far() -> None:
    broken = np.array([[1.0, np.nan], [0.0, 1.0]])
    assert relative_distance(VECTORS, VECTORS[:1]) == np.inf
    assert relative_distance(VECTORS, broken) == np.inf
    assert relative_distance(broken, VECTORS) == np.inf


def test_the_distance_of_a_text_is_relative_to_its_stored_vector() -> None:
    distances = text_distances(VECTORS * 2, np.array([[2.0, 0.0], [1.0, 2.0]]))
    assert distances.tolist() == [0.0, 0.5]


def test_stored_probes_rely_on_these_texts() -> None:
    """Folders hold their vectors without the texts."""
    assert len(PROBE_TEXTS) == 8 and PROBE_TEXTS[2:4] == ("猫", "Dogs bark.")
    assert len(set(GOLDEN_TEXTS)) == 20 and GOLDEN_TEXTS[0] == ""


def test_the_number_type_is_that_of_the_weights() -> None:
    model = tiny_model()
    assert dtype_name(model) == "float32"
    assert dtype_name(model.half()) == "float16"
