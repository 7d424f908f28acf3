"""Search in FAISS files against brute force, and the rule by size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from st_reba.index import ann
from st_reba.index.vectors import VectorFile, best, scaled

COUNT, DIM = 400, 8
RANDOM = np.random.default_rng(0)
VECTORS = scaled(RANDOM.standard_normal((COUNT, DIM)), "cosine")
KEYS = np.cumsum(RANDOM.integers(1, 4, COUNT))
QUERIES = scaled(RANDOM.standard_normal((9, DIM)), "cosine")
EXACT = {"Flat": None, "IVF4,Flat": "nprobe=4", "HNSW16": "efSearch=400", "OPQ4_8,IVF2,Flat": "nprobe=2"}


def opened(path: Path, factory: str, parameters: str | None, *, mmap: bool = True) -> VectorFile:
    index = ann.make_index(factory, DIM)
    segments = [(KEYS[:150], lambda: VECTORS[:150]), (KEYS[150:], lambda: VECTORS[150:])]
    ann.train(index, segments, factory)
    ann.save(path, ann.add(index, segments))
    return VectorFile(path, DIM, parameters, mmap=mmap)


@pytest.mark.parametrize("factory", EXACT)
@pytest.mark.parametrize("share", [None, 0.5, 0.02])
@pytest.mark.parametrize("queries", [1, 9])
def test_search(tmp_path: Path, factory: str, share: float | None, queries: int) -> None:
    file = opened(tmp_path / "a.faiss", factory, EXACT[factory])
    allowed = np.zeros(KEYS[-1] + 1, bool)
    chosen = np.ones(COUNT, bool) if share is None else np.random.default_rng(1).random(COUNT) < share
    allowed[KEYS[chosen]] = True
    scores, keys = file.search(QUERIES[:queries], 10, None if share is None else allowed)
    wanted = QUERIES[:queries] @ VECTORS.T
    wanted[:, ~chosen] = -np.inf
    order = np.argsort(-wanted, axis=1)[:, : min(10, int(chosen.sum()))]
    assert keys.tolist() == KEYS[order].tolist()
    assert np.abs(scores - np.take_along_axis(wanted, order, axis=1)).max() < 1e-5
    assert file.search(QUERIES[:queries], 3, np.zeros_like(allowed))[1].shape == (queries, 0)


@pytest.mark.parametrize("factory", [*EXACT, "IVF4,SQ8", "PQ4x4", "IVF2,PQ4x4,RFlat"])
def test_all_that_is_allowed_is_found_and_given_back(tmp_path: Path, factory: str) -> None:
    file = opened(tmp_path / "a.faiss", factory, None)
    allowed = np.zeros(KEYS[-1] + 1, bool)
    allowed[KEYS[::3]] = True
    for mask, wanted in ((None, KEYS), (allowed, KEYS[::3])):
        _, keys = file.search(QUERIES, COUNT, mask)
        assert [sorted(row) for row in keys.tolist()] == [wanted.tolist()] * len(QUERIES)
    back = file.vectors(KEYS[5:90:2])
    if file.is_exact:
        assert np.array_equal(back, VECTORS[5:90:2])
    assert file.is_exact == (factory in ("Flat", "IVF4,Flat", "HNSW16", "IVF2,PQ4x4,RFlat"))
    assert np.abs(back - VECTORS[5:90:2]).mean() < 0.2


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "IVF4,SQ8", "HNSW16", "PQ4x4"])
def test_keys_are_taken_out(tmp_path: Path, factory: str) -> None:
    file = opened(tmp_path / "a.faiss", factory, None, mmap=False)
    index = file.without(KEYS[::2], KEYS[1::2])
    assert index.ntotal == COUNT // 2
    ann.save(tmp_path / "b.faiss", index)
    _, keys = VectorFile(tmp_path / "b.faiss", DIM).search(QUERIES[:1], COUNT)
    assert sorted(keys[0].tolist()) == KEYS[1::2].tolist()


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a.faiss", "Flat", None)
    with pytest.raises(ValueError):
        VectorFile(tmp_path / "a.faiss", DIM + 1)
    (tmp_path / "b.faiss").write_bytes(b"nonsense")
    with pytest.raises(ValueError):
        VectorFile(tmp_path / "b.faiss", DIM)


def test_the_rule_by_size() -> None:
    assert ann.choose_factory(ann.FLAT_UP_TO) == "Flat"
    assert ann.choose_factory(ann.FLAT_UP_TO + 1).startswith("IVF1789,")
    assert ann.default_parameters(ann.make_index("IVF320,Flat", DIM)) == "nprobe=10"
    assert ann.default_parameters(ann.make_index("IVF16,Flat", DIM)) == "nprobe=8"
    assert ann.default_parameters(ann.make_index("HNSW8", DIM)) == "efSearch=64"
    assert ann.default_parameters(ann.make_index("Flat", DIM)) is None


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 99))
def test_best(k: int, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 4, (3, count)).astype(np.float32)
    keys = np.array([random.permutation(count) for _ in range(3)])
    keys[random.random(keys.shape) < 0.2] = -1
    found, its = best(scores, keys, k)
    for row in range(3):
        pairs = sorted((-s if key >= 0 else np.inf, key) for s, key in zip(scores[row], keys[row], strict=True))[:k]
        assert its[row].tolist() == [key for _, key in pairs]
        assert found[row].tolist() == [-s for s, _ in pairs]


def test_scaled() -> None:
    rows = np.array([[3e30, 4e30], [3e-30, 4e-30], [0, 0], [np.nan, 1]], np.float32)
    found = scaled(rows, "cosine")
    assert found[:2] == pytest.approx(np.array([[0.6, 0.8], [0.6, 0.8]]), abs=1e-6)
    assert not found[2].any() and np.isnan(found[3]).any() and scaled(rows[:2], "dot").tolist() == rows[:2].tolist()
    large = np.random.default_rng(0).standard_normal((5000, 700)).astype(np.float32)
    assert np.abs(np.linalg.norm(scaled(large, "cosine"), axis=1) - 1).max() < 1e-6
