"""Filters of vectors: against a singular value decomposition, the bound on the gain, the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from oracle import unit_rows
from safetensors.numpy import save

from st_reba import Filter
from st_reba.linear_filter import MAX_GAIN

Vectors = NDArray[np.float64]


def draw_vectors(count: int, width: int, seed: int = 0) -> Vectors:
    """Correlated numbers, far from 0, that vary in all directions."""
    random = np.random.default_rng(seed)
    rotation = np.linalg.qr(random.normal(size=(width, width)))[0]
    return random.normal(size=(count, width)) * np.linspace(3, 0.2, width) @ rotation + 5


@pytest.mark.parametrize(
    ("kind", "options", "description"),
    [
        ("center", {}, "center:texts=5000"),
        ("abtt", {"r": 1}, "abtt:r=1,texts=5000"),
        ("abtt", {}, "abtt:r=3,texts=5000"),
        ("whiten", {"dimensions": 4}, "whiten:dimensions=4,texts=5000"),
        ("whiten", {}, "whiten:texts=5000"),
    ],
)
def test_filter_equals_a_singular_value_decomposition(
    kind: Any, options: dict[str, Any], description: str
) -> None:
    sample = draw_vectors(5000, 6)  # more rows than are copied at a time
    new_vectors = draw_vectors(5, 6, seed=1)
    mean = sample.mean(axis=0)
    _, singular_values, directions = np.linalg.svd(sample - mean, full_matrices=False)
    removed = directions[: options.get("r", 3)]
    dimension_count = options.get("dimensions", 6)
    largest_columns = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(6), largest_columns])
    axes = (directions * signs[:, None])[:dimension_count]
    centered = new_vectors - mean
    deviations = singular_values[:dimension_count] / np.sqrt(len(sample))
    expected = {
        "center": centered,
        "abtt": centered - centered @ removed.T @ removed,
        "whiten": centered @ axes.T / deviations,
    }[kind]
    fitted_filter = Filter.fit(sample, kind, **options)
    assert fitted_filter.description == description
    np.testing.assert_allclose(fitted_filter.apply(new_vectors), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        fitted_filter.apply(new_vectors[0]), expected[0], rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("power", [0.25, 0.1])
def test_partial_whitening_divides_by_a_power_of_the_variance(
    power: float,
) -> None:
    """Each variance is moved halfway to the mean variance."""
    sample = draw_vectors(300, 6)
    covariance = np.cov(sample.T, bias=True)
    variances, directions = np.linalg.eigh(covariance)
    shrunk_variances = 0.5 * variances + 0.5 * variances.mean()
    fitted_filter = Filter.fit(sample, "whiten", power=power)
    assert fitted_filter.description == f"whiten:power={power},texts=300"
    expected_gram = directions @ np.diag(shrunk_variances ** (-2 * power)) @ directions.T
    gram = fitted_filter.weight.T @ fitted_filter.weight
    np.testing.assert_allclose(gram, expected_gram, rtol=1e-9, atol=1e-12)


def test_partial_whitening_takes_fewer_texts_than_dimensions() -> None:
    """A direction without variance is scaled as one of half the mean variance."""
    sample = draw_vectors(100, 400)
    weight = Filter.fit(sample, "whiten", power=0.25).weight
    gains = np.linalg.norm(weight, axis=1)
    mean_variance = sample.var(axis=0).mean()
    assert weight.shape == (400, 400)
    assert gains[100:] == pytest.approx((0.5 * mean_variance) ** -0.25)
    with pytest.raises(ValueError, match="whiten: 100 different texts are too few"):
        Filter.fit(sample, "whiten")


def test_gain_of_whitening_is_bounded() -> None:
    sample = draw_vectors(900, 6) * 1e-3 + np.array([5, 0, 0, 0, 0, 0])
    length = float(np.sqrt((sample**2).sum(axis=1).mean()))
    for scale in (1.0, 1e-6, 1e6):
        weight = Filter.fit(sample * scale, "whiten").weight
        gain = np.linalg.norm(weight, ord=2)
        assert gain * length * scale == pytest.approx(MAX_GAIN)


def test_gain_of_partial_whitening_is_bounded() -> None:
    """Also for nearly equal vectors, whose mean variance is tiny."""
    sample = unit_rows(draw_vectors(900, 6) * 1e-4 + np.array([5, 0, 0, 0, 0, 0]))
    weight = Filter.fit(sample, "whiten", power=0.25).weight
    assert np.linalg.norm(weight, ord=2) == pytest.approx(MAX_GAIN**0.5)


def test_filter_for_search_is_what_the_vectors_allow() -> None:
    queries = draw_vectors(30, 6, seed=1)
    descriptions: dict[int, str] = {}
    for count in (20, 99, 100, 400):
        fitted_filter = Filter.fit_for_search(draw_vectors(count, 6), queries)
        assert fitted_filter is not None
        descriptions[count] = fitted_filter.description
    assert descriptions == {
        20: "center:texts=20,queries=30",
        99: "center:texts=99,queries=30",
        100: "whiten:power=0.25,texts=100,queries=30",
        400: "whiten:power=0.25,texts=400,queries=30",
    }
    assert Filter.fit_for_search(draw_vectors(19, 6), queries) is None


def test_few_queries_have_the_mean_of_the_documents() -> None:
    fitted_filter = Filter.fit_for_search(draw_vectors(20, 6), draw_vectors(19, 6, seed=1))
    assert fitted_filter is not None
    assert fitted_filter.query_mean is None


def flat_vectors() -> Vectors:
    """Three of six directions hardly vary."""
    rotation = np.linalg.qr(draw_vectors(6, 6))[0]
    return draw_vectors(200, 6) @ np.diag([1, 1, 1, 1e-6, 1e-6, 1e-6]) @ rotation


# Arguments of Filter.fit, and a part of the message that refuses them.
REFUSED_VECTORS: dict[str, tuple[Vectors, dict[str, Any], str]] = {
    "whitening flat directions": (
        flat_vectors(),
        {"kind": "whiten"},
        "whiten: the vectors hardly vary in some of the 6 directions",
    ),
    "removing flat directions": (
        flat_vectors(),
        {"kind": "abtt", "r": 4},
        "abtt: the vectors hardly vary in some of the 4 directions",
    ),
    "equal vectors": (np.ones((200, 6)), {"kind": "abtt"}, "abtt: the vectors hardly vary"),
    "equal vectors, partly whitened": (
        np.ones((200, 6)),
        {"kind": "whiten", "power": 0.25},
        "whiten: the vectors hardly vary",
    ),
    "119 vectors of 30 dimensions": (
        draw_vectors(119, 30),
        {"kind": "whiten"},
        "119 different texts are too few for 30 dimensions",
    ),
    "NaN": (np.full((200, 6), np.nan), {"kind": "center"}, "vectors hold NaN"),
    "queries of other dimensions": (
        draw_vectors(200, 6),
        {"query_vectors": draw_vectors(200, 5)},
        "query_vectors have 5 dimensions",
    ),
    "19 queries": (
        draw_vectors(200, 6),
        {"query_vectors": draw_vectors(19, 6)},
        "query_vectors: the mean of 19",
    ),
}


@pytest.mark.parametrize("case", REFUSED_VECTORS)
def test_vectors_without_a_filter_are_refused(case: str) -> None:
    vectors, options, part_of_message = REFUSED_VECTORS[case]
    with pytest.raises(ValueError, match=part_of_message):
        Filter.fit(vectors, **options)


def test_one_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="vectors"):
        Filter.fit(draw_vectors(1, 6)[0], "center")


def test_the_fewest_vectors_are_accepted() -> None:
    Filter.fit(flat_vectors(), "abtt", r=3)
    Filter.fit(draw_vectors(120, 30), "whiten")


def test_saved_filter_keeps_the_mean_of_queries() -> None:
    fitted_filter = Filter.fit(draw_vectors(200, 6), query_vectors=draw_vectors(30, 6, seed=1))
    loaded_filter = Filter.from_bytes(fitted_filter.to_bytes())
    vectors = draw_vectors(5, 6, seed=2)
    for task in ("query", "document", None):
        assert np.array_equal(
            loaded_filter.apply(vectors, task),
            fitted_filter.apply(vectors, task),
        )
    assert loaded_filter.description == fitted_filter.description


def test_file_of_a_filter_is_named_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must end in .safetensors"):
        Filter.fit(draw_vectors(200, 6)).save(tmp_path / "filter.npz")


def stored_filter(metadata: dict[str, Any] | None = None, **changed_arrays: Vectors) -> bytes:
    """The bytes of a filter of two dimensions, with other metadata or arrays."""
    arrays = {"mean": np.zeros(2), "weight": np.eye(2), **changed_arrays}
    described = {
        "kind": "whiten",
        "description": "",
        "probe": None,
        **(metadata or {}),
    }
    return save(arrays, {"st_reba.filter": json.dumps(described)})


DAMAGED_FILES: dict[str, bytes] = {
    "cut": stored_filter()[:-10],
    "empty": b"",
    "no metadata": save({"mean": np.zeros(2), "weight": np.eye(2)}),
    "an unknown kind": stored_filter({"kind": "zca"}),
    "a damaged probe": stored_filter({"probe": {"vectors": "!"}}),
    "a mean of other dimensions": stored_filter(mean=np.zeros(3)),
    "a query mean of other dimensions": stored_filter(query_mean=np.zeros(3)),
    "no weight": stored_filter().replace(b"weight", b"height"),
    "NaN": stored_filter(weight=np.full((2, 2), np.nan)),
    "NaN in the query mean": stored_filter(query_mean=np.array([0.0, np.nan])),
}


@pytest.mark.parametrize("case", DAMAGED_FILES)
def test_damaged_file_is_refused(tmp_path: Path, case: str) -> None:
    file = tmp_path / "filter.safetensors"
    file.write_bytes(DAMAGED_FILES[case])
    with pytest.raises(ValueError, match="is not a filter, or damaged"):
        Filter.load(file)
    file.write_bytes(stored_filter())
    Filter.load(file)
