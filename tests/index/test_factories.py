"""Indexes of every kind, built from corpora of made-up vectors, against FAISS by hand and against brute force."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from indexes import clustered, make_corpus, mark
from numpy.typing import NDArray

from st_reba.index import Index
from st_reba.index.building.build import IndexSettings
from st_reba.index.building.shards import Shards
from st_reba.index.vectors.factory import auto_factory, centroids, make_index, sample_rows

FACTORIES = [
    "Flat",
    "HNSW16",
    "IVF16,Flat",
    "IVF16,PQ8x4",
    "SQ8",
    "OPQ4_16,PQ4x4",
    "PCA16,IVF8,SQ8",
    "IVF16,PQ8x4,RFlat",
    "IVF16,PQ8x4fs",
]
COUNT, DIM = 900, 32
UNUSABLE = (0, 17, 450, 899)


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    return clustered(COUNT, DIM)


@pytest.fixture(scope="module")
def corpus(vectors: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "c", vectors, unusable=UNUSABLE)


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    vectors = vectors.astype(np.float64)
    return (vectors / np.linalg.norm(vectors, axis=1)[:, None]).astype(np.float32)


def by_hand(factory: str, rows: NDArray[np.float32], parameters: str | None, cuts: list[int]) -> Any:
    """What a reader of FAISS's manual would write."""
    index = faiss.index_factory(rows.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        index.train(rows)
    for part in np.split(rows, cuts):  # what a graph becomes depends on what is added together
        index.add(part)
    if parameters:
        faiss.ParameterSpace().set_index_parameters(index, parameters)
    return index


@pytest.mark.parametrize("factory", FACTORIES)
def test_is_what_faiss_does(factory: str, vectors: NDArray[np.float32], corpus: Path, tmp_path: Path) -> None:
    index = Index.from_corpus(corpus, tmp_path / "index", factory=factory)
    kept = np.setdiff1d(np.arange(COUNT), UNUSABLE)
    rows = unit(vectors[kept])
    parameters = index.manifest.segments[0].parameters
    cuts = np.cumsum([len(block) for block in Shards([corpus], DIM, "cosine").blocks()]).tolist()[:-1]
    oracle = by_hand(factory, rows, parameters, cuts)
    queries = unit(clustered(40, DIM, seed=5))
    scores, places = oracle.search(queries, 7)
    # Reading the file with FAISS alone gives the same rows, and needs no parameters.
    plain = faiss.read_index(str(tmp_path / "index" / "vectors-1.faiss"))
    np.testing.assert_array_equal(plain.search(queries, 7)[1], places)
    for mmap in (True, False):
        with Index.open(tmp_path / "index", mmap=mmap) as opened:
            found: Any = opened.search(queries * 3, 7)
        for results, row, line in zip(found, places, scores, strict=True):
            # Codes give many equal scores, whose order FAISS leaves open.
            expected = sorted(zip(-line, row, strict=True))
            assert {result.id for result in results if result.score > line[-1] + 1e-6} == {
                str(kept[place]) for score, place in expected if -score > line[-1] + 1e-6
            }
            np.testing.assert_allclose([result.score for result in results], line, atol=1e-5)
            assert [result.rank for result in results] == list(range(1, 8))
    assert index.manifest.factory == index.manifest.segments[0].factory == factory
    assert len(index) == len(kept) and index.manifest.rejected == len(UNUSABLE) and index.manifest.next_record == COUNT
    if factory == "Flat":
        assert index.manifest.recall is None
        exact = queries.astype(np.float64) @ rows.astype(np.float64).T
        for results, line in zip(found, exact, strict=True):
            assert [result.id for result in results] == [str(kept[n]) for n in np.argsort(-line, kind="stable")[:7]]


def test_many_read_in_one_process(vectors: NDArray[np.float32], tmp_path: Path) -> None:
    """float16 shards and inner products; no row is missed where blocks and shards meet."""
    half = vectors.astype(np.float16)
    for metric in ("dot", "cosine"):
        path = make_corpus(tmp_path / f"corpus-{metric}", half, metric=metric, shards=4)
        index = Index.from_corpus(path, tmp_path / metric)
        rows = half.astype(np.float32) if metric == "dot" else unit(half)
        stored = faiss.read_index(str(tmp_path / metric / "vectors-1.faiss")).reconstruct_n(0, COUNT)
        np.testing.assert_array_equal(stored, rows)
        best: Any = index.search(vectors[3].astype(np.float64), 5)
        order = np.argsort(-(rows.astype(np.float64) @ vectors[3]), kind="stable")[:5]
        assert [result.id for result in best] == [str(row) for row in order]


def test_shards_by_blocks(
    vectors: NDArray[np.float32], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("st_reba.index.building.shards.BLOCK_BYTES", 8 * DIM * 70)
    other = make_corpus(tmp_path / "more", vectors[:90] * 2, ids=[f"m{row}" for row in range(90)], unusable=[5])
    shards = Shards([corpus, other], DIM, "dot")
    kept = np.setdiff1d(np.arange(COUNT), UNUSABLE)
    expected = np.concatenate([vectors[kept], np.delete(vectors[:90], 5, axis=0) * 2])
    blocks = list(shards.blocks())
    assert max(map(len, blocks)) <= shards.block_rows == 70
    np.testing.assert_array_equal(np.concatenate(blocks), expected)
    rows = np.sort(np.random.default_rng(1).choice(len(expected), 300, replace=False))
    np.testing.assert_array_equal(shards.take(rows), expected[rows])
    ids = [identity for identity, _, _ in shards.records()]
    assert ids == [str(row) for row in kept] + [f"m{row}" for row in range(90) if row != 5]
    assert shards.count == len(ids) == len(expected) == COUNT + 90 - 5


def test_several_corpora(vectors: NDArray[np.float32], corpus: Path, tmp_path: Path) -> None:
    names = [f"m{row}" for row in range(50)]
    more = make_corpus(tmp_path / "more", vectors[:50], ids=names)
    index = Index.from_corpus([corpus, more], tmp_path / "index")
    assert len(index) == COUNT - len(UNUSABLE) + 50 and index.manifest.next_record == COUNT + 50
    found: Any = index.search(vectors[20], 2)
    assert [result.id for result in found] == ["20", "m20"]
    for bad, message in (
        (make_corpus(tmp_path / "twice", vectors[:3], ids=["a", "77", "b"]), "the id '77' is used twice"),
        (make_corpus(tmp_path / "other", vectors[:3], model=mark(DIM, "else")), "other was encoded with another model"),
        (make_corpus(tmp_path / "dot", vectors[:3], metric="dot", ids=list("abc")), "another model.*cosine.*dot"),
    ):
        with pytest.raises(ValueError, match=message):
            Index.from_corpus([corpus, bad], tmp_path / "bad")
    with pytest.raises(FileNotFoundError, match="not an encoded corpus"):
        Index.from_corpus(tmp_path, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("", "no index that FAISS knows.*'HNSW32'"),
        ("Flt", "no index that FAISS knows"),
        ("IDMap,Flat", "leave IDMap out"),
        ("PQ7", "divide the dimension, 32: it may be one of 1, 2, 4, 8, 16, 32;"),
        ("PCA12,IVF4,PQ5", "divide the dimension, 12: it may be one of 1, 2, 3, 4, 6, 12;"),
        ("LSH", "no such index for the inner product"),
        ("HNSW16,PQ8", "Euclidean"),
        ("IVF0,Flat", "at least one list"),
        ("IVF1000,Flat", "1000 lists are too many for 896 documents; use at most IVF22"),
        ("IVF16,PQ8x10", "1024 centroids, more than the 896 documents"),
    ],
)
def test_factories_that_do_not_fit(corpus: Path, tmp_path: Path, factory: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Index.from_corpus(corpus, tmp_path / "index", factory=factory)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recall_aim": 0.0}, "recall_aim=0.0"),
        ({"recall_aim": 1.5}, "recall_aim=1.5"),
        ({"train_size": 0}, "train_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"factory": "IVF8,Flat", "train_size": 7}, "train_size=7 .* less than the 8 centroids"),
        ({"factory": "IVF8,Flat", "parameters": "efSearch=3"}, "parameters='efSearch=3' do not fit .*IndexIVFFlat"),
    ],
)
def test_settings_that_do_not_fit(corpus: Path, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Index.from_corpus(corpus, tmp_path / "index", **options)
    assert not (tmp_path / "index").exists()


def test_is_refused_before_a_text_is_read(tmp_path: Path) -> None:
    import st_reba

    texts = iter(["never read"])
    for factory, message in (("IVF8,PQ7", "M of PQ"), ("nothing", "no index")):
        with pytest.raises(ValueError, match=message):
            Index.build(st_reba.build("mini"), texts, tmp_path / "index", factory=factory)
    with pytest.raises(ValueError, match="8 lists are too many for 2 documents; use 'Flat'"):
        Index.build(st_reba.build("mini"), ["one", "two"], tmp_path / "index", factory="IVF8,Flat")
    assert next(texts) == "never read" and not (tmp_path / "index").exists()


def test_few_documents_a_list_are_told(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Index.from_corpus(corpus, tmp_path / "many", factory="IVF100,Flat")
    assert "100 lists are many for 896 documents; use at most IVF22" in caplog.text
    caplog.clear()
    Index.from_corpus(corpus, tmp_path / "few", factory="IVF16,Flat")
    assert "lists are many" not in caplog.text and "train_size" not in caplog.text
    Index.from_corpus(corpus, tmp_path / "sampled", factory="IVF16,Flat", train_size=100)
    assert "trained on 100 vectors" in caplog.text and "--train-size" in caplog.text


# The choice by size


def test_auto(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [auto_factory(count, 192)[0] for count in (1, 200_000, 200_001, 2_000_000, 2_000_001, 50_000_000)] == [
        "Flat", "Flat", "IVF1789,Flat", "IVF5657,Flat", "IVF5657,SQ8", "IVF28285,SQ8",
    ]  # fmt: skip
    for dim, m in ((192, 48), (768, 192), (100, 25), (99, 11), (7, 1), (1, 1)):
        assert auto_factory(10**9, dim)[0] == f"IVF65536,PQ{m}"
        make_index(f"IVF16,PQ{m}", dim)
    assert "few enough" in auto_factory(5, 8)[1]
    monkeypatch.setattr("st_reba.index.vectors.factory.FLAT_UP_TO", 500)
    index = Index.from_corpus(corpus, tmp_path / "index", factory="auto")
    assert index.manifest.factory == "IVF120,Flat"
    assert index.report is not None and index.report.why is not None and "896" in index.report.why


# The training sample


def test_sample() -> None:
    lists = make_index("IVF64,Flat", 16)
    drawn = sample_rows(lists, 100_000, 16, 5000, seed=3)
    assert len(np.unique(drawn)) == 5000 and (np.diff(drawn) > 0).all() and drawn[0] >= 0 and drawn[-1] < 100_000
    # Over the whole corpus alike: 50 expected in each hundredth, standard deviation 7.
    counts = np.histogram(drawn, bins=100, range=(0, 100_000))[0]
    assert counts.min() > 15 and counts.max() < 90
    np.testing.assert_array_equal(drawn, sample_rows(lists, 100_000, 16, 5000, seed=3))
    assert not np.array_equal(drawn, sample_rows(lists, 100_000, 16, 5000, seed=4))
    np.testing.assert_array_equal(sample_rows(lists, 5000, 16, None, seed=3), np.arange(5000))
    assert len(sample_rows(make_index("IVF4096,Flat", 16), 10**6, 16, None, 0)) == 64 * 4096
    # Bounded in bytes, but never below a vector a centroid.
    assert len(sample_rows(make_index("IVF4096,Flat", 65536), 10**6, 65536, None, 0)) == 2**32 // (4 * 65536)
    assert centroids(make_index("OPQ4_16,IVF64,PQ4x4,RFlat", 32)) == (64, 16)


def test_training_uses_the_sample(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    real = Shards.take
    monkeypatch.setattr(Shards, "take", lambda self, rows: taken.append(rows) or real(self, rows))
    files = []
    for number, seed in enumerate((1, 1, 2)):
        Index.from_corpus(corpus, tmp_path / str(number), factory="IVF4,Flat", train_size=300, seed=seed)
        files.append((tmp_path / str(number) / "vectors-1.faiss").read_bytes())
    assert files[0] == files[1] != files[2]
    index = make_index("IVF4,Flat", DIM)
    np.testing.assert_array_equal(taken[0], sample_rows(index, COUNT - len(UNUSABLE), DIM, 300, 1))


def test_what_runs_is_logged(caplog: pytest.LogCaptureFixture, corpus: Path, tmp_path: Path) -> None:
    """What runs is told at the level that programs may show."""
    with caplog.at_level(logging.INFO):
        Index.from_corpus(corpus, tmp_path / "index", factory="IVF4,Flat")
    assert "training IVF4,Flat on 896 of 896 vectors" in caplog.text and "nprobe=1" in caplog.text
    assert IndexSettings().factory == "Flat"
