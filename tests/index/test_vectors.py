"""Search in FAISS files against brute force, and the rule by size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from st_reba.index import vectors as ann
from st_reba.index.vectors import VectorFile, best, scaled

COUNT, DIM = 400, 8
RANDOM = np.random.default_rng(0)
VECTORS = scaled(RANDOM.standard_normal((COUNT, DIM)), "cosine")
KEYS = np.cumsum(RANDOM.integers(1, 4, COUNT))
QUERIES = scaled(RANDOM.standard_normal((9, DIM)), "cosine")
EXACT = {"Flat": None, "IVF4,Flat": "nprobe=4", "HNSW16": "efSearch=400", "OPQ4_8,IVF2,Flat": "nprobe=2"}


def opened(path: Path, factory: str, parameters: str | None, *, mmap: bool = True) -> VectorFile:
    segments = [(KEYS[:150], lambda: VECTORS[:150]), (KEYS[150:], lambda: VECTORS[150:])]
    index, _ = ann.trained(factory, DIM, parameters, segments)
    ann.save(path, ann.add(index, segments))
    return VectorFile(path, DIM, parameters, mmap=mmap)


@pytest.mark.parametrize("factory", EXACT)
@pytest.mark.parametrize("share", [None, 0.5, 0.02])
def test_search(tmp_path: Path, factory: str, share: float | None) -> None:
    file = opened(tmp_path / "a.faiss", factory, EXACT[factory])
    allowed = np.zeros(KEYS[-1] + 1, bool)
    chosen = np.ones(COUNT, bool) if share is None else np.random.default_rng(1).random(COUNT) < share
    allowed[KEYS[chosen]] = True
    for queries in (QUERIES[:1], QUERIES):
        scores, keys = file.search(queries, 10, None if share is None else allowed)
        wanted = queries @ VECTORS.T
        wanted[:, ~chosen] = -np.inf
        order = np.argsort(-wanted, axis=1)[:, : min(10, int(chosen.sum()))]
        assert keys.tolist() == KEYS[order].tolist()
        assert np.abs(scores - np.take_along_axis(wanted, order, axis=1)).max() < 1e-5
        assert file.search(queries, 3, np.zeros_like(allowed))[1].shape == (len(queries), 0)


@pytest.mark.parametrize("factory", [*EXACT, "IVF4,SQ8", "PQ4x4", "IVF2,PQ4x4,RFlat"])
def test_all_that_is_allowed_is_found_and_given_back(tmp_path: Path, factory: str) -> None:
    file = opened(tmp_path / "a.faiss", factory, None)
    allowed = np.zeros(KEYS[-1] + 1, bool)
    allowed[KEYS[::3]] = True
    for mask, wanted in ((None, KEYS), (allowed, KEYS[::3])):
        _, keys = file.search(QUERIES, COUNT, mask)
        assert [sorted(row) for row in keys.tolist()] == [wanted.tolist()] * len(QUERIES)
    distance = np.abs(file.vectors(KEYS[5:90:2]) - VECTORS[5:90:2])
    assert distance.max() == 0 if factory in ("Flat", "IVF4,Flat", "HNSW16") else distance.mean() < 0.2


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "IVF4,SQ8", "HNSW16", "PQ4x4"])
def test_keys_are_taken_out(tmp_path: Path, factory: str) -> None:
    index = opened(tmp_path / "a.faiss", factory, None, mmap=False).without(KEYS[::2], KEYS[1::2])
    ann.save(tmp_path / "b.faiss", index)
    _, keys = VectorFile(tmp_path / "b.faiss", DIM).search(QUERIES[:1], COUNT)
    assert sorted(keys[0].tolist()) == KEYS[1::2].tolist()
    with pytest.raises(ValueError):
        VectorFile(tmp_path / "b.faiss", DIM + 1)


def test_the_rule_by_size() -> None:
    assert ann.choose_factory(ann.FLAT_UP_TO) == "Flat"
    assert ann.choose_factory(ann.FLAT_UP_TO + 1) == "IVF1789,Flat"
    segments = [(np.arange(640), lambda: np.random.default_rng(0).standard_normal((640, DIM)).astype(np.float32))]
    for lists, probed in ((320, 10), (16, 8)):
        assert ann.trained(f"IVF{lists},Flat", DIM, None, segments)[1] == f"nprobe={probed}"


def test_best_and_scaled() -> None:
    scores, keys = np.array([[1, 2, 2, 3, 2]], np.float32), np.array([[5, 4, 1, -1, 2]])
    assert [one.tolist() for one in best(scores, keys, 3)] == [[[2, 2, 2]], [[1, 2, 4]]]
    assert best(scores, keys, 9)[1].tolist() == [[1, 2, 4, 5, -1]]
    rows = np.array([[3e30, 4e30], [3e-30, 4e-30], [0, 0], [np.nan, 1]], np.float32)
    found = scaled(rows, "cosine")
    assert found[:2] == pytest.approx(np.array([[0.6, 0.8], [0.6, 0.8]]), abs=1e-6)
    assert not found[2].any() and np.isnan(found[3]).any() and scaled(rows[:2], "dot").tolist() == rows[:2].tolist()
