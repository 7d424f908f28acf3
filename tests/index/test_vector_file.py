"""Search in FAISS files against brute force, and the rule by size."""

from __future__ import annotations

import errno
from dataclasses import replace
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from st_reba.index import factories
from st_reba.index import vector_file as vector_file_module
from st_reba.index.scoring import Segment, prepare_vectors, search_exactly, top_k
from st_reba.index.state import IndexState
from st_reba.index.vector_file import VectorFile

COUNT = 400
DIMENSION = 8
RANDOM = np.random.default_rng(0)
VECTORS = prepare_vectors(RANDOM.standard_normal((COUNT, DIMENSION)), "cosine")
KEYS = np.cumsum(RANDOM.integers(1, 4, COUNT))
QUERIES = prepare_vectors(RANDOM.standard_normal((9, DIMENSION)), "cosine")
SEGMENTS = [
    Segment(KEYS[:150], lambda: VECTORS[:150]),
    Segment(KEYS[150:], lambda: VECTORS[150:]),
]
FACTORIES = ["Flat", "IVF4,Flat", "IVF4,SQ8", "IVF4_HNSW4,PQ4x4"]


def write_and_open(folder: Path, factory: str, **options: Any) -> VectorFile:
    """A file of all vectors."""
    index = factories.train_index(factory, DIMENSION, None, SEGMENTS).index
    factories.add_vectors(index, SEGMENTS)
    return save_and_open(folder / "a.faiss", index, **options)


def save_and_open(path: Path, index: Any, *, mmap: bool = True, **state_changes: Any) -> VectorFile:
    """A file of an index; ``state_changes`` are of the state that it is opened with."""
    size, digest = vector_file_module.write_index(path, index)
    state = IndexState(
        model={},
        metric="cosine",
        dimension=DIMENSION,
        columns={},
        passages=None,
        max_seq_length=None,
        vector_file=path.name,
        vector_file_size=size,
        vector_file_sha256=digest,
        indexed_count=index.ntotal,
        first_pending_key=int(KEYS[-1]) + 1,
    )
    return VectorFile(path.parent, replace(state, **state_changes), mmap=mmap)


def mask_of(found_keys: Any) -> Any:
    is_allowed = np.zeros(KEYS[-1] + 1, bool)
    is_allowed[found_keys] = True
    return is_allowed


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.02])
@pytest.mark.parametrize("query_count", [1, 9])
def test_a_search_agrees_with_brute_force(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factory: str,
    share: float,
    query_count: int,
) -> None:
    monkeypatch.setattr(vector_file_module, "_BLOCK_SIZE", 30)
    parameters = None
    if factory != "Flat":
        # Of four lists: where fewer vectors are allowed, more lists are probed than it says.
        parameters = f"nprobe={ceil(4 * share)}"
    vector_file = write_and_open(tmp_path, factory, parameters=parameters)
    is_chosen = np.random.default_rng(1).random(COUNT) < share
    is_allowed = None
    if share < 1:
        is_allowed = mask_of(KEYS[is_chosen])
    query_vectors = QUERIES[:query_count]
    scores, found_keys = vector_file.search(query_vectors, 10, is_allowed)
    expected_scores = query_vectors @ VECTORS.T
    expected_scores[:, ~is_chosen] = -np.inf
    k = min(10, int(is_chosen.sum()))
    order = np.argsort(-expected_scores, axis=1)[:, :k]
    assert found_keys.tolist() == KEYS[order].tolist()
    best_scores = np.take_along_axis(expected_scores, order, axis=1)
    assert np.abs(scores - best_scores).max() < 1e-5


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
def test_nothing_is_found_where_nothing_is_allowed(
    tmp_path: Path,
    factory: str,
) -> None:
    vector_file = write_and_open(tmp_path, factory)
    assert vector_file.search(QUERIES, 3, mask_of([])).keys.shape == (len(QUERIES), 0)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("step", [1, 3])
def test_all_allowed_vectors_are_found(
    tmp_path: Path,
    factory: str,
    step: int,
) -> None:
    parameters = None
    if factory != "Flat":
        parameters = "nprobe=1"
    vector_file = write_and_open(tmp_path, factory, parameters=parameters)
    allowed_keys = KEYS[::step]
    is_allowed = None
    if step > 1:
        is_allowed = mask_of(allowed_keys)
    found_keys = vector_file.search(QUERIES, COUNT, is_allowed).keys
    assert np.sort(found_keys, axis=1).tolist() == [allowed_keys.tolist()] * len(QUERIES)
    # Some of the lists hold as many.
    assert (vector_file.search(QUERIES, COUNT // 4, is_allowed).keys >= 0).all()


@pytest.mark.parametrize("factory", FACTORIES)
def test_vectors_are_read_by_key(
    tmp_path: Path,
    factory: str,
) -> None:
    vector_file = write_and_open(tmp_path, factory)
    rows = np.delete(np.arange(5, 90), [3, 7])
    distances = np.abs(vector_file.vectors(KEYS[rows]) - VECTORS[rows])
    if factory.endswith("Flat"):
        assert distances.max() == 0
    else:
        assert distances.mean() < 0.2


@pytest.mark.parametrize("factory", FACTORIES)
def test_keys_are_removed_without_altering_others(
    tmp_path: Path,
    factory: str,
) -> None:
    kept_keys = KEYS[1::2]
    expected_vectors = write_and_open(tmp_path, factory).vectors(kept_keys)
    index = write_and_open(tmp_path, factory, mmap=False).remove(KEYS[::2])
    vector_file = save_and_open(tmp_path / "b.faiss", index)
    assert sorted(vector_file.search(QUERIES[:1], COUNT).keys[0].tolist()) == kept_keys.tolist()
    assert np.array_equal(vector_file.vectors(kept_keys), expected_vectors)


@pytest.mark.parametrize(
    ("state_changes", "reason"),
    [({"dimension": DIMENSION + 1}, "another"), ({"vector_file_size": 1}, "were written")],
)
def test_a_file_of_another_shape_is_refused(
    tmp_path: Path,
    state_changes: dict[str, int],
    reason: str,
) -> None:
    with pytest.raises(ValueError, match=reason):
        write_and_open(tmp_path, "Flat", **state_changes)


@pytest.mark.parametrize(
    ("max_flat_vectors", "factory", "parameters"),
    [(COUNT, "Flat", None), (COUNT - 1, "IVF80,Flat", "nprobe=8")],
)
def test_the_factory_follows_from_the_size(
    monkeypatch: pytest.MonkeyPatch,
    max_flat_vectors: int,
    factory: str,
    parameters: str | None,
) -> None:
    monkeypatch.setattr(factories, "MAX_FLAT_VECTORS", max_flat_vectors)
    trained = factories.train_index("auto", DIMENSION, None, SEGMENTS)
    assert (trained.factory, trained.parameters) == (factory, parameters)


@pytest.mark.parametrize("parameters", [None, ""])
def test_a_share_of_the_lists_is_probed(parameters: str | None) -> None:
    trained = factories.train_index("IVF321,Flat", DIMENSION, parameters, SEGMENTS)
    assert trained.parameters == "nprobe=11"


@pytest.mark.parametrize(("min_samples", "sample_size"), [(COUNT, COUNT), (1, 134)])
def test_a_sample_of_every_segment_trains_the_index(
    monkeypatch: pytest.MonkeyPatch,
    min_samples: int,
    sample_size: int,
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(
        factories.faiss.IndexIVFFlat, "train", lambda index, sample: sizes.append(len(sample))
    )
    monkeypatch.setattr(factories, "_MIN_SAMPLES", min_samples)
    factories.train_index("IVF2,Flat", DIMENSION, None, [Segment(KEYS, lambda: VECTORS)])
    assert sizes == [sample_size]


def test_a_block_without_a_candidate_is_passed_over() -> None:
    blocks = [
        Segment(np.array([3]), lambda: np.array([[1, 0]], np.float32)),
        Segment(np.array([5]), lambda: np.array([[0.5, 0]], np.float32)),
    ]
    query_vectors = np.array([[1, 0]], np.float32)
    assert search_exactly(query_vectors, 1, blocks).keys.tolist() == [[3]]


def test_a_file_that_is_replaced_while_it_is_opened_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not called damaged: the reader looks for the new one."""

    def remove_and_fail(path: str, flags: int) -> None:
        Path(path).unlink()
        raise RuntimeError("could not open it")

    monkeypatch.setattr(factories.faiss, "read_index", remove_and_fail)
    with pytest.raises(FileNotFoundError, match="the file of the vectors is missing"):
        write_and_open(tmp_path, "Flat")


def test_an_index_that_faiss_cannot_write_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="serialize"):
        vector_file_module.write_index_into(BytesIO(), factories.faiss.IndexRandom(DIMENSION))


def test_equal_scores_are_ranked_by_key_and_no_key_is_last() -> None:
    scores = np.array([[1, 2, 2, 3, 2]], np.float32)
    found_keys = np.array([[5, 4, 1, -1, 2]])
    ranking = top_k(scores, found_keys, 3)
    assert ranking.scores.tolist() == [[2, 2, 2]]
    assert ranking.keys.tolist() == [[1, 2, 4]]
    assert top_k(scores, found_keys, 9).keys.tolist() == [[1, 2, 4, 5, -1]]


def test_vectors_of_any_length_are_scaled_to_one() -> None:
    rows = np.array([[3e30, 4e30], [3e-30, 4e-30], [0, 0], [np.nan, 1]], np.float32)
    large, small, zero, broken = prepare_vectors(rows, "cosine")
    assert large.tolist() == pytest.approx([0.6, 0.8], abs=1e-6)
    assert small.tolist() == pytest.approx([0.6, 0.8], abs=1e-6)
    assert not zero.any()
    assert np.isnan(broken).any()
    assert prepare_vectors(rows[:2], "dot").tolist() == rows[:2].tolist()


def test_a_block_that_was_not_written_is_an_error_though_there_is_room_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vector_file_module, "_WRITE_SIZE", 100)
    index = factories.train_index("Flat", DIMENSION, None, SEGMENTS).index
    factories.add_vectors(index, SEGMENTS)
    full_disk = OSError(errno.ENOSPC, "No space left on device")
    stream = Mock()
    stream.write.side_effect = [100, full_disk, *[100] * COUNT]
    with pytest.raises(OSError, match="No space left on device"):
        vector_file_module.write_index_into(stream, index)
    assert stream.write.call_count == 2
