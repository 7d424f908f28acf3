"""Segments, searched one by one and together, with and without deleted rows, against brute force."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import clustered, mark
from numpy.typing import NDArray

from st_reba.files import StoredFile
from st_reba.index import Index
from st_reba.index.folder.commit import commit, free_segment_number, sweep
from st_reba.index.folder.generation import Generation
from st_reba.index.folder.manifest import Manifest, Segment
from st_reba.index.folder.segments import OpenSegment, segment_record, write_documents, write_flat_segment
from st_reba.index.vectors.factory import make_index

DIM = 8


def records(names: Sequence[str]) -> list[tuple[str, str, str]]:
    return [(name, f"text {name}", '{"n": 1}') for name in names]


def without(folder: Path, segment: Segment, rows: Sequence[int]) -> Segment:
    """The segment with some rows deleted."""
    path = folder / f"deleted-{segment.number}-1.npy"
    np.save(path, np.array(sorted(rows), np.int64))
    return replace(segment, deleted=StoredFile.of(path, folder), deleted_count=len(rows))


def write(folder: Path, parts: Sequence[NDArray[np.float32]], deleted: Sequence[Sequence[int]] = ()) -> Manifest:
    """An index of several flat segments; the id of row r of segment s is "s.r"."""
    segments = []
    for number, vectors in enumerate(parts, 1):
        names = [f"{number}.{row}" for row in range(len(vectors))]
        segment = write_flat_segment(folder, number, records(names), [vectors[:1], vectors[1:]], vectors.shape[1])
        gone = deleted[number - 1] if deleted else ()
        segments.append(without(folder, segment, gone) if len(gone) else segment)
    manifest = Manifest("now", mark(parts[0].shape[1]), "dot", tuple(segments), next_segment=len(parts) + 1)
    manifest.write(folder)
    return manifest


def brute(parts: Sequence[NDArray[np.float32]], deleted: Sequence[Sequence[int]], query: Any, k: int) -> list[str]:
    rows = [
        (-float(np.float32(np.dot(vector.astype(np.float64), query))), segment, row)
        for segment, vectors in enumerate(parts, 1)
        for row, vector in enumerate(vectors)
        if not deleted or row not in deleted[segment - 1]
    ]
    return [f"{segment}.{row}" for _, segment, row in sorted(rows)[:k]]


@pytest.mark.parametrize("k", [1, 3, 10, 500])
@pytest.mark.parametrize("some_deleted", [False, True])
def test_several_segments(tmp_path: Path, k: int, some_deleted: bool) -> None:
    rng = np.random.default_rng(k)
    # Whole numbers, so that many scores are equal and every sum is exact.
    parts = [rng.integers(-2, 3, (count, DIM)).astype(np.float32) for count in (60, 1, 200)]
    deleted: list[Any] = [list(range(0, 60, 3)), [], list(range(50, 190))] if some_deleted else [[], [], []]
    manifest = write(tmp_path, parts, deleted)
    queries = rng.integers(-2, 3, (25, DIM)).astype(np.float64)
    with Index.open(tmp_path) as index:
        found: Any = index.search(queries, k)
        assert len(index) == manifest.count == 261 - (160 if some_deleted else 0)
    for results, query in zip(found, queries, strict=True):
        assert [result.id for result in results] == brute(parts, deleted, query, k)
        assert [result.rank for result in results] == list(range(1, len(results) + 1))
        for result in results:
            segment, row = map(int, result.id.split("."))
            assert result.score == np.dot(parts[segment - 1][row], query)
            assert (result.text, result.metadata) == (f"text {result.id}", {"n": 1})


def test_the_nearest_are_all_deleted(tmp_path: Path) -> None:
    """More deleted rows in front than a first look fetches."""
    vectors = np.arange(1000, dtype=np.float32)[:, None].repeat(DIM, axis=1)
    gone = list(range(100, 1000))
    manifest = write(tmp_path, [vectors], [gone])
    segment = OpenSegment.open(tmp_path, manifest.segments[0], DIM)
    scores, rows = segment.search(np.ones((2, DIM), np.float32), 5)
    assert rows.tolist() == [[99, 98, 97, 96, 95]] * 2 and scores[0].tolist() == [8.0 * n for n in rows[0]]
    assert segment.search(np.ones((1, DIM), np.float32), 999)[1].tolist() == [list(range(99, -1, -1))]
    np.testing.assert_array_equal(segment.live_rows(), np.arange(100))
    assert segment.is_live(np.array([[99, 100], [999, -1]])).tolist() == [[True, False], [False, False]]
    assert segment.search(np.zeros((0, DIM), np.float32), 3)[1].shape == (0, 3)


def test_all_rows_of_a_segment_are_deleted(tmp_path: Path) -> None:
    parts = [clustered(5, DIM), clustered(4, DIM, seed=1)]
    write(tmp_path, parts, [range(5), [0]])
    found: Any = Index.open(tmp_path).search(np.ones(DIM), 9)
    assert sorted(result.id for result in found) == ["2.1", "2.2", "2.3"]


def test_an_index_without_segments(tmp_path: Path) -> None:
    Manifest("now", mark(DIM), "dot", ()).write(tmp_path)
    assert Index.open(tmp_path).search(np.ones((2, DIM))) == [[], []]


@pytest.mark.parametrize(
    ("factory", "exact"),
    [
        ("Flat", True),
        ("HNSW8", True),
        ("IVF4,Flat", True),
        ("IVF4,PQ4x4,RFlat", True),
        ("SQ8", False),
        ("PCA4,Flat", False),
        ("IVF4,PQ4x4", False),
        ("IVF4,PQ4x4fs", None),
    ],
)
def test_vectors_come_back(tmp_path: Path, factory: str, exact: bool | None) -> None:
    vectors = clustered(300, DIM)
    index = make_index(factory, DIM)
    index.train(vectors)
    index.add(vectors)
    import faiss

    faiss.write_index(index, str(tmp_path / "vectors-1.faiss"))
    write_documents(tmp_path / "documents-1.sqlite", records([str(row) for row in range(300)]))
    segment = OpenSegment.open(tmp_path, segment_record(tmp_path, 1, 300, factory), DIM)
    assert segment.is_exact is bool(exact)
    if exact is None:
        with pytest.raises(ValueError, match="does not give its vectors back"):
            segment.vectors(0, 10)
        return
    for start, stop in ((0, 300), (7, 8), (100, 250), (299, 300)):
        got = segment.vectors(start, stop)
        assert got.shape == (stop - start, DIM) and got.dtype == np.float32
        assert np.array_equal(got, vectors[start:stop]) is exact
    gone = without(tmp_path, segment.record, range(0, 300, 2))
    # An approximate index looks on for live rows as well.
    live = OpenSegment.open(tmp_path, gone, DIM)
    rows = live.search(vectors[:20], 6)[1]
    assert (rows[rows >= 0] % 2 == 1).all() and (rows >= 0).sum() >= 20 * 6 * 0.5


def test_an_approximate_index_may_find_fewer(tmp_path: Path) -> None:
    vectors = np.repeat(np.eye(2, DIM, dtype=np.float32), [3, 297], axis=0)
    index = make_index("IVF2,Flat", DIM)
    index.train(vectors)
    index.add(vectors)
    import faiss

    faiss.write_index(index, str(tmp_path / "vectors-1.faiss"))
    write_documents(tmp_path / "documents-1.sqlite", records([str(row) for row in range(300)]))
    record = segment_record(tmp_path, 1, 300, "IVF2,Flat", "nprobe=1")
    scores, rows = OpenSegment.open(tmp_path, record, DIM).search(vectors[:1], 5)
    assert rows.tolist() == [[0, 1, 2, -1, -1]] and scores.tolist() == [[1, 1, 1, -np.inf, -np.inf]]
    Manifest("now", mark(DIM), "dot", (record,)).write(tmp_path)
    found: Any = Index.open(tmp_path).search(vectors[0], 5)
    assert [result.id for result in found] == ["0", "1", "2"]
    wide = OpenSegment.open(tmp_path, replace(record, parameters="nprobe=2"), DIM)
    assert wide.search(vectors[:1], 5)[1].tolist()[0][:3] == [0, 1, 2] and wide.search(vectors[:1], 5)[1].min() >= 0
    with pytest.raises(ValueError, match="parameters='efSearch=2' do not fit"):
        OpenSegment.open(tmp_path, replace(record, parameters="efSearch=2"), DIM)


def test_segments_are_written_whole(tmp_path: Path) -> None:
    vectors = clustered(4, DIM)
    for names, given, message in (
        (["a", "b", "a", "c"], vectors, "'a' is used twice"),
        (["a", "b", "c"], vectors, "3 documents and 4 vectors"),
        ([], vectors[:0], "0 documents"),
    ):
        with pytest.raises(ValueError, match=message):
            write_flat_segment(tmp_path, 1, records(names), [given], DIM)
        sweep(tmp_path, None)
        assert list(tmp_path.iterdir()) == []


# Generations


def test_a_reader_that_loses_the_race_reads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write(tmp_path, [clustered(5, DIM)])
    segment = write_flat_segment(tmp_path, 2, records(["new"]), [clustered(1, DIM)], DIM)
    real = Manifest.read
    calls = []

    def read(folder: Any) -> Manifest:
        manifest = real(folder)
        calls.append(manifest.generation)
        if len(calls) == 1:  # a writer goes on just here, and removes what was read of
            commit(tmp_path, old.succeeding(segments=(segment,), next_segment=3))
        return manifest

    monkeypatch.setattr(Manifest, "read", read)
    generation = Generation.open(tmp_path)
    assert generation.manifest.count == 1 and calls == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "documents-2.sqlite",
        "manifest.json",
        "vectors-2.faiss",
    ]
    (tmp_path / "vectors-2.faiss").unlink()
    with pytest.raises(FileNotFoundError, match="vectors-2.faiss"):
        Generation.open(tmp_path)


def test_refresh(tmp_path: Path) -> None:
    old = write(tmp_path, [clustered(5, DIM)])
    index = Index.open(tmp_path)
    assert not index.refresh()
    segment = write_flat_segment(tmp_path, 2, records(["new"]), [clustered(1, DIM)], DIM)
    commit(tmp_path, old.succeeding(segments=(segment,), next_segment=3))
    assert len(index.search(np.ones(DIM), 9)) == len(index) == 5
    assert index.refresh() and not index.refresh()
    found: Any = index.search(np.ones(DIM), 9)
    assert [result.id for result in found] == ["new"]
    index.close()
    with pytest.raises(ValueError, match="closed"):
        index.search(np.ones(DIM))


def test_searching_while_it_changes(tmp_path: Path) -> None:
    """A search sees one generation or the other, never a closed file."""
    manifest = write(tmp_path, [clustered(50, DIM)])
    index = Index.open(tmp_path)
    errors: list[BaseException] = []
    stop = threading.Event()

    def search() -> None:
        try:
            while not stop.is_set():
                found: Any = index.search(np.ones((3, DIM)), 4)
                assert all(len({result.id.split(".")[0] for result in results}) == 1 for results in found)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=search) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for number in range(2, 25):
            names = [f"{number}.{row}" for row in range(20)]
            segment = write_flat_segment(tmp_path, number, records(names), [clustered(20, DIM, number)], DIM)
            manifest = manifest.succeeding(segments=(segment,), next_segment=number + 1)
            commit(tmp_path, manifest)
            assert index.refresh()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors


def test_sweep_and_numbers(tmp_path: Path) -> None:
    manifest = write(tmp_path, [clustered(3, DIM)])
    for name in ("vectors-9.faiss", "deleted-1-4.npy", "vectors.faiss", ".manifest.json.0123.tmp", "mine.npy"):
        (tmp_path / name).touch()
    assert free_segment_number(tmp_path, manifest) == 10
    sweep(tmp_path, manifest)
    names = ["documents-1.sqlite", "manifest.json", "mine.npy", "vectors-1.faiss"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert free_segment_number(tmp_path, manifest) == 2 and free_segment_number(tmp_path, None) == 2
