"""Search in FAISS files against brute force, and the rule by size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from st_reba.index import factories, vectors
from st_reba.index.scoring import Segment, prepare_vectors, top_k
from st_reba.index.state import IndexState
from st_reba.index.vectors import VectorFile

COUNT, DIM = 400, 8
RANDOM = np.random.default_rng(0)
VECTORS = prepare_vectors(RANDOM.standard_normal((COUNT, DIM)), "cosine")
KEYS = np.cumsum(RANDOM.integers(1, 4, COUNT))
QUERIES = prepare_vectors(RANDOM.standard_normal((9, DIM)), "cosine")
FACTORIES = ["Flat", "IVF4,Flat", "IVF4,SQ8", "IVF4_HNSW4,PQ4x4"]


def opened(
    folder: Path, factory: str, parameters: str | None = None, *, mmap: bool = True
) -> VectorFile:
    segments = [
        Segment(KEYS[:150], lambda: VECTORS[:150]),
        Segment(KEYS[150:], lambda: VECTORS[150:]),
    ]
    index = factories.train_index(factory, DIM, None, segments).index
    factories.add_vectors(index, segments)
    return saved(folder / "a.faiss", index, parameters=parameters, mmap=mmap)


def saved(path: Path, index: Any, *, mmap: bool = True, **change: Any) -> VectorFile:
    size, digest = vectors.write_index(path, index)
    file = {
        "vector_file": path.name,
        "vector_file_size": size,
        "vector_file_sha256": digest,
        "indexed_count": index.ntotal,
    }
    state = IndexState({}, "cosine", DIM, {}, None, None, **file)
    return VectorFile(path.parent, replace(state, **change), mmap=mmap)


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
@pytest.mark.parametrize("share", [None, 0.5, 0.02])
def test_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, share: float | None
) -> None:
    monkeypatch.setattr(vectors, "_BLOCK_SIZE", 30)
    file = opened(tmp_path, factory, "nprobe=4" if factory != "Flat" else None)
    allowed = np.zeros(KEYS[-1] + 1, bool)
    chosen = (
        np.ones(COUNT, bool) if share is None else np.random.default_rng(1).random(COUNT) < share
    )
    allowed[KEYS[chosen]] = True
    for queries in (QUERIES[:1], QUERIES):
        scores, keys = file.search(queries, 10, None if share is None else allowed)
        wanted = queries @ VECTORS.T
        wanted[:, ~chosen] = -np.inf
        order = np.argsort(-wanted, axis=1)[:, : min(10, int(chosen.sum()))]
        assert keys.tolist() == KEYS[order].tolist()
        assert np.abs(scores - np.take_along_axis(wanted, order, axis=1)).max() < 1e-5
        assert file.search(queries, 3, np.zeros_like(allowed))[1].shape == (len(queries), 0)


@pytest.mark.parametrize("factory", FACTORIES)
def test_all_that_is_allowed_is_found_and_given_back(tmp_path: Path, factory: str) -> None:
    file = opened(tmp_path, factory, None if factory == "Flat" else "nprobe=1")
    allowed = np.zeros(KEYS[-1] + 1, bool)
    allowed[KEYS[::3]] = True
    for mask, wanted in ((None, KEYS), (allowed, KEYS[::3])):
        _, keys = file.search(QUERIES, COUNT, mask)
        assert [sorted(row) for row in keys.tolist()] == [wanted.tolist()] * len(QUERIES)
        assert (
            file.search(QUERIES, COUNT // 4, mask)[1] >= 0
        ).all()  # some of whose lists hold as many
    rows = np.delete(np.arange(5, 90), [3, 7])
    distance = np.abs(file.vectors(KEYS[rows]) - VECTORS[rows])
    assert distance.max() == 0 if factory.endswith("Flat") else distance.mean() < 0.2


@pytest.mark.parametrize("factory", FACTORIES)
def test_keys_are_taken_out(tmp_path: Path, factory: str) -> None:
    before = opened(tmp_path, factory).vectors(KEYS[1::2])
    left = saved(tmp_path / "b.faiss", opened(tmp_path, factory, mmap=False).without(KEYS[::2]))
    assert sorted(left.search(QUERIES[:1], COUNT)[1][0].tolist()) == KEYS[1::2].tolist()
    assert np.array_equal(left.vectors(KEYS[1::2]), before)
    for change, why in (
        ({"dimension": DIM + 1}, "another"),
        ({"vector_file_size": 1}, "were written"),
    ):
        with pytest.raises(ValueError, match=why):
            saved(tmp_path / "c.faiss", left.index, **change)


def test_the_rule_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [Segment(KEYS, lambda: VECTORS)]
    for most, wanted in ((COUNT, ("Flat", None)), (COUNT - 1, ("IVF80,Flat", "nprobe=8"))):
        monkeypatch.setattr(factories, "MAX_FLAT_VECTORS", most)
        trained = factories.train_index("auto", DIM, None, segments)
        assert (trained.factory, trained.parameters) == wanted
    assert factories.train_index("IVF321,Flat", DIM, None, segments).parameters == "nprobe=11"
    # Of many vectors, some of each segment train it.
    seen: list[int] = []
    monkeypatch.setattr(
        factories.faiss.IndexIVFFlat, "train", lambda index, sample: seen.append(len(sample))
    )
    for fewest in (COUNT, 1):
        monkeypatch.setattr(factories, "_MIN_SAMPLES", fewest)
        factories.train_index("IVF2,Flat", DIM, None, segments)
    assert seen == [COUNT, 134]


def test_best_and_scaled() -> None:
    scores, keys = np.array([[1, 2, 2, 3, 2]], np.float32), np.array([[5, 4, 1, -1, 2]])
    assert [one.tolist() for one in top_k(scores, keys, 3)] == [[[2, 2, 2]], [[1, 2, 4]]]
    assert top_k(scores, keys, 9)[1].tolist() == [[1, 2, 4, 5, -1]]
    rows = np.array([[3e30, 4e30], [3e-30, 4e-30], [0, 0], [np.nan, 1]], np.float32)
    found = prepare_vectors(rows, "cosine")
    assert found[:2] == pytest.approx(np.array([[0.6, 0.8], [0.6, 0.8]]), abs=1e-6)
    assert (
        not found[2].any()
        and np.isnan(found[3]).any()
        and prepare_vectors(rows[:2], "dot").tolist() == rows[:2].tolist()
    )
