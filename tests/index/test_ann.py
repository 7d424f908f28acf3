"""FAISS indexes: what is refused, the choice by size, the training sample, recall, and the files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from indexes import DIM, MODEL, QUIET, clustered, from_vectors, texts, unit
from numpy.typing import NDArray

import st_reba.index.ann as ann
from st_reba.index import Index
from st_reba.index.ann import Recipe, auto_factory, make_index, sample_rows
from st_reba.index.vectors import Segment, Vectors

COUNT = 600


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    vectors = clustered(COUNT, seed=2)
    vectors[100:130] = vectors[100]
    return vectors


def by_hand(factory: str, vectors: NDArray[np.float32], parameters: str | None, cuts: list[int]) -> Any:
    """What a reader of FAISS's manual would write."""
    index = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        index.train(vectors)
    for part in np.split(vectors, cuts):  # what a graph becomes depends on what is added together
        index.add(part)
    if parameters:
        faiss.ParameterSpace().set_index_parameters(index, parameters)
    return index


def test_more_lists_than_an_input_of_unknown_length_has_texts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="500 lists are too many"):
        Index.build(MODEL, (text for text in texts(40)), tmp_path / "i", factory="IVF500,Flat", **QUIET)


@pytest.mark.parametrize("factory", ["HNSW8", "IVF16,Flat", "OPQ4_8,IVF8,SQ8", "IVF16,PQ4x4,RFlat", "IVF16,PQ4x4fs"])
def test_is_what_faiss_does(factory: str, rows: NDArray[np.float32], tmp_path: Path) -> None:
    index = from_vectors(tmp_path / "i", rows, factory=factory)
    about, queries = index.info(), unit(clustered(40, seed=5))
    cuts = (np.linspace(0, 1, 4) ** 1.5 * COUNT).astype(int).tolist()[1:-1]
    plain = by_hand(factory, unit(rows), about["parameters"], cuts)
    # A few more than wanted are fetched. Where FAISS finds fewer, as some graphs have no way there, the index looks on.
    scores, places = plain.search(queries, 7 + 32)
    found: Any = index.search(queries * 3, 7)
    whole = (places >= 0).all(axis=1)
    ours = np.array([[one.score for one in line] for line in found])
    np.testing.assert_allclose(ours[whole], scores[whole, :7], atol=1e-5)
    assert whole.sum() > 5
    # Recall as the docstring of `Recall` says it, one query at a time.
    drawn = np.random.Generator(np.random.PCG64(0)).choice(COUNT, 256, replace=False)
    shares = []
    for own in drawn.tolist():
        exact = unit(rows).astype(np.float64) @ unit(rows)[own].astype(np.float64)
        others = np.sort(np.delete(exact, own))[::-1]
        near = [place for place in plain.search(unit(rows)[own][None], 11)[1][0].tolist() if place != own][:10]
        shares.append(sum(place >= 0 and exact[place] >= others[9] - 1e-6 for place in near) / 10)
    assert about["recall"] == {"recall": pytest.approx(np.mean(shares), abs=1e-6), "k": 10, "queries": 256, "seed": 0}


def test_parameters_are_doubled_until_the_aim(
    rows: NDArray[np.float32], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for aim in (0.3, 0.9, 1.0):
        about = from_vectors(tmp_path / str(aim), rows, factory="IVF32,Flat", recall_aim=aim).info()
        found.append(int(about["parameters"].removeprefix("nprobe=")))
        assert about["recall"]["recall"] >= aim
    assert sorted(found) == found and 1 < found[1] < 32 and "below the aim" not in caplog.text
    given = from_vectors(tmp_path / "given", rows, factory="IVF32,Flat", parameters="nprobe=1").info()
    assert given["parameters"] == "nprobe=1" and given["recall"]["recall"] < 0.95
    with Index.open(tmp_path / "given") as opened:
        searcher: Any = opened._present().searcher
        assert searcher.inner.nprobe == 1
    both = from_vectors(tmp_path / "both", rows, factory="IVF32,PQ4x4,RFlat", recall_aim=0.97).info()
    knobs = dict(part.split("=") for part in both["parameters"].split(","))
    assert both["recall"]["recall"] >= 0.97 and int(knobs["nprobe"]) > 1 and int(knobs["k_factor_rf"]) > 1
    least = from_vectors(tmp_path / "least", rows, factory="IVF32,PQ4x4,RFlat", recall_aim=0.01).info()
    assert least["parameters"] == "nprobe=1,k_factor_rf=1"
    caplog.clear()
    poor = from_vectors(tmp_path / "poor", rows, factory="IVF8,SQ4", recall_aim=1.0).info()
    assert poor["recall"]["recall"] < 1 and "',RFlat'" in caplog.text and "'Flat', which is exact" in caplog.text


@pytest.mark.parametrize(
    ("told", "wanted"), [([0.5, 0.5, 0.99], (0.99, "nprobe=4")), ([0.5, 0.4, 0.5, 0.99], (0.5, "nprobe=1"))]
)
def test_the_second_step_without_a_gain_is_the_last(
    monkeypatch: pytest.MonkeyPatch, told: list[float], wanted: tuple[float, str]
) -> None:
    monkeypatch.setattr(ann, "_share", lambda *given: told.pop(0))
    vectors = Vectors([Segment(np.arange(30), lambda rows: clustered(30)[rows])], DIM)
    found, parameters = ann.measure_recall(make_index("IVF16,Flat", DIM), vectors, Recipe("IVF16,Flat"))
    assert (found.recall, parameters) == wanted


@pytest.mark.parametrize("count", [1, 2, 30])
def test_recall_of_few_or_equal_vectors(count: int, tmp_path: Path) -> None:
    vectors = clustered(count) if count < 30 else np.repeat(clustered(1), count, axis=0)
    about = from_vectors(tmp_path / "i", vectors, factory="HNSW8", parts=1).info()
    assert (about["recall"]["k"], about["recall"]["recall"]) == (min(10, count - 1), 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factory": "Flt"}, "no index that FAISS knows.*'HNSW32'"),
        ({"factory": "IDMap,Flat"}, "leave IDMap out"),
        ({"factory": "PCA8,Flat"}, "PCA subtracts the mean.*OPQM_D"),
        ({"factory": "PQ7"}, "divide the dimension, 16: it may be one of 1, 2, 4, 8, 16;"),
        ({"factory": "OPQ4_12,IVF4,PQ5"}, "divide the dimension, 12: it may be one of 1, 2, 3, 4, 6, 12;"),
        ({"factory": "LSH"}, "no such index for the inner product"),
        ({"factory": "HNSW16,PQ8"}, "Euclidean"),
        ({"factory": "IVF0,Flat"}, "at least one list"),
        ({"factory": "IVF8,Flat"}, "8 lists are too many for 2 vectors; use 'Flat'"),
        ({"factory": "PQ4"}, "256 centroids, more than the 2 vectors"),
        ({"recall_aim": 0.0}, "recall_aim=0.0"),
        ({"train_size": 0}, "train_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"parameters": "efSearch=3"}, "parameters='efSearch=3' do not fit .*IndexFlat"),
    ],
)
def test_is_refused_before_a_text_is_read(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Index.build(MODEL, ["one", "two"], tmp_path / "i", **options)
    assert not (tmp_path / "i").exists()


def test_a_sample_that_is_too_small_is_told(
    rows: NDArray[np.float32], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="train_size=7 .* less than the 8 centroids"):
        from_vectors(tmp_path / "i", rows, factory="IVF8,Flat", train_size=7)
    from_vectors(tmp_path / "many", rows, factory="IVF100,Flat")
    # All there are, so that no other train_size would help.
    assert "100 lists are many for 600 vectors; use at most IVF15" in caplog.text and "train_size" not in caplog.text
    caplog.clear()
    from_vectors(tmp_path / "few", rows, factory="IVF8,Flat")
    assert "are many" not in caplog.text and "train_size" not in caplog.text
    for number, seed in enumerate((1, 1, 2)):
        from_vectors(tmp_path / str(number), rows, factory="IVF8,Flat", train_size=100, seed=seed)
    files = [(tmp_path / str(number) / "vectors-1.faiss").read_bytes() for number in range(3)]
    assert files[0] == files[1] != files[2] and "trained on 100 vectors" in caplog.text
    caplog.clear()
    # 39 for each of 8 lists.
    from_vectors(tmp_path / "enough", rows, factory="IVF8,Flat", train_size=312)
    assert "trained on" not in caplog.text


def test_sample() -> None:
    lists = make_index("IVF64,Flat", 16)
    drawn = sample_rows(lists, 100_000, 16, Recipe(train_size=5000, seed=3))
    assert len(np.unique(drawn)) == 5000 and (np.diff(drawn) > 0).all() and drawn[0] >= 0 and drawn[-1] < 100_000
    # Over all alike: 50 expected in each hundredth, standard deviation 7.
    counts = np.histogram(drawn, bins=100, range=(0, 100_000))[0]
    assert counts.min() > 15 and counts.max() < 90
    assert len(sample_rows(make_index("IVF4096,Flat", 16), 10**6, 16, Recipe())) == 64 * 4096
    # Bounded in bytes, but never below a vector a centroid.
    assert len(sample_rows(make_index("IVF4096,Flat", 65536), 10**6, 65536, Recipe())) == 2**32 // (4 * 65536)


def test_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [auto_factory(count, 192)[0] for count in (1, 200_000, 200_001, 2_000_000, 2_000_001, 50_000_000)] == [
        "Flat", "Flat", "IVF1789,Flat", "IVF5657,Flat", "IVF5657,SQ8", "IVF28285,SQ8",
    ]  # fmt: skip
    for dim, m in ((192, 48), (768, 192), (99, 11), (7, 1), (1, 1)):
        assert auto_factory(10**9, dim)[0] == f"IVF65536,PQ{m}"
        make_index(f"IVF16,PQ{m}", dim)
    monkeypatch.setattr(ann, "FLAT_UP_TO", 50)
    index = Index.build(MODEL, texts(100), tmp_path / "i", factory="auto", **QUIET)
    assert index.info()["factory"] == "IVF40,Flat" and index.change is not None and "100" in (index.change.why or "")


def test_flat_files_are_faiss_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written without FAISS, to the byte as FAISS would; another version that reads them otherwise is refused."""
    vectors, keys = unit(clustered(50)), np.arange(50) * 3
    own = faiss.IndexIDMap(faiss.IndexFlatIP(DIM))
    own.add_with_ids(vectors, keys)
    ann.write_flat(tmp_path / "flat", [vectors[:7], vectors[7:]], keys, DIM)
    assert (tmp_path / "flat").read_bytes() == faiss.serialize_index(own).tobytes()
    monkeypatch.setattr(ann, "read_faiss", lambda path: own)
    with pytest.raises(RuntimeError, match="another version of faiss-cpu"):
        ann.write_flat(tmp_path / "wrong", [vectors[:9]], keys[:9], DIM)
    assert not (tmp_path / "wrong").exists()


def test_where_files_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.build(MODEL, texts(50), tmp_path / "i", factory="IVF4,Flat", **QUIET)
    expected = index.search("cat moon", 50)
    with monkeypatch.context() as patched:
        patched.delattr(faiss, "IO_FLAG_MMAP_IFC")
        assert Index.open(tmp_path / "i", MODEL).search("cat moon", 50) == expected
    real = faiss.read_index

    def refused(source: Any, *flags: int) -> Any:
        if flags:
            raise RuntimeError("not mapped")
        return real(source)

    monkeypatch.setattr(faiss, "read_index", refused)
    assert Index.open(tmp_path / "i", MODEL).search("cat moon", 50) == expected


def test_what_runs_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Index.build(MODEL, texts(50), tmp_path / "i", factory="IVF4,Flat", **QUIET)
    assert "recall@10 1.000 with nprobe=" in caplog.text
