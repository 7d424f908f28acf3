"""Vectors as an index takes them: by blocks, scaled, and the best of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from indexes import DIM, clustered

from st_reba.index.vectors import Segment, Vectors, best, exact, scaled


def test_vectors_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.index.vectors._BLOCK_BYTES", 4 * DIM * 70)
    values = clustered(500)
    bounds = [0, 3, 3, 200, 500]
    segments = [
        Segment(np.arange(start, stop) * 2, lambda rows, start=start: values[start + rows])  # type: ignore[misc]
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    vectors = Vectors(segments, DIM)
    blocks = list(vectors.blocks())
    assert max(map(len, blocks)) == 70 and np.array_equal(np.concatenate(blocks), values)
    chosen = np.sort(np.random.default_rng(1).choice(500, 300, replace=False))
    assert np.array_equal(vectors.take(chosen), values[chosen]) and vectors.count == 500
    assert np.array_equal(vectors.keys, np.arange(500) * 2) and vectors.take(np.arange(0)).shape == (0, DIM)


@pytest.mark.parametrize("count", [10, 100])
def test_equals_stand_by_key_however_many_there_are(count: int) -> None:
    random = np.random.default_rng(0)
    scores = random.integers(3, size=(5, count)).astype(np.float32)
    keys = np.stack([random.permutation(count) for _ in scores])
    keys[0, : count // 2] = -1
    found = best(scores, keys, 4)
    for row in range(5):
        there = [(-score, key) for score, key in zip(scores[row], keys[row], strict=True) if key >= 0]
        assert [(-score, key) for score, key in zip(*(each[row] for each in found), strict=True)] == sorted(there)[:4]


def test_vectors_of_length_one() -> None:
    """Large and small ones too; what has no direction stays as it is."""
    given = np.random.default_rng(0).normal(size=(4, DIM)) * np.array([[1e-30], [1], [1e30], [1e10]])
    for row, one in zip(given, scaled(given, "cosine"), strict=True):
        length = math.sqrt(sum(float(np.float32(x)) ** 2 for x in row))
        assert one.tolist() == pytest.approx([float(np.float32(x)) / length for x in row], abs=1e-7)
    odd = np.array([[0.0, 0.0], [np.inf, 1.0], [1e300, 1.0]])
    assert scaled(odd, "cosine").tolist() == [[0, 0], [np.inf, 1], [np.inf, 1]]
    assert np.array_equal(scaled(given, "dot"), given.astype(np.float32))


def test_exact_products_do_not_depend_on_what_else_is_asked() -> None:
    vectors, queries = clustered(200), clustered(9, seed=1)
    keys = np.random.default_rng(0).integers(-1, 200, size=(9, 40))
    found = exact(queries, keys, lambda wanted: vectors[wanted])
    for query, own, row in zip(queries, keys, found, strict=True):
        wanted = [
            sum(float(a) * float(b) for a, b in zip(query, vectors[key], strict=True)) if key >= 0 else -math.inf
            for key in own
        ]
        assert row.tolist() == pytest.approx(wanted, rel=1e-6)
        for place in (0, 7):
            alone = exact(query[None], own[None, place : place + 1], lambda wanted: vectors[wanted])
            assert alone[0, 0] == row[place]
