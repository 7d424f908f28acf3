"""Recall against exact search, recomputed by plain loops, and the search parameters that reach it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from indexes import clustered, make_corpus

from st_reba.index import Index
from st_reba.index.building.build import IndexSettings
from st_reba.index.building.recall import measure_recall
from st_reba.index.building.shards import Shards
from st_reba.index.vectors.factory import make_index

COUNT, DIM = 700, 16


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vectors = clustered(COUNT, DIM, seed=2)
    vectors[100:130] = vectors[100]  # equals
    return make_corpus(tmp_path_factory.mktemp("corpus") / "c", vectors, unusable=[3, 699])


def rows_of(corpus: Path) -> Any:
    rows = np.concatenate(list(Shards([corpus], DIM, "cosine").blocks()))
    assert len(rows) == COUNT - 2
    return rows


def by_loops(index: Any, rows: Any, seed: int, k: int = 10, queries: int = 256) -> float:
    """As the docstring of `Recall` says it, one query at a time."""
    drawn = np.random.Generator(np.random.PCG64(seed)).choice(len(rows), min(queries, len(rows)), replace=False)
    shares = []
    for own in drawn.tolist():
        scores = [float(np.dot(row.astype(np.float64), rows[own].astype(np.float64))) for row in rows]
        others = sorted((score for place, score in enumerate(scores) if place != own), reverse=True)
        found = [place for place in index.search(rows[own][None], k + 1)[1][0].tolist() if place != own][:k]
        shares.append(sum(place >= 0 and scores[place] >= others[k - 1] - 1e-6 for place in found) / k)
    return sum(shares) / len(shares)


@pytest.mark.parametrize("factory", ["IVF32,Flat", "HNSW4", "SQ4", "IVF16,PQ4x4", "PQ4x4,RFlat"])
def test_recall_by_loops(corpus: Path, tmp_path: Path, factory: str) -> None:
    index = Index.from_corpus(corpus, tmp_path / "index", factory=factory, seed=7, recall_aim=0.9)
    recall: Any = index.manifest.recall
    plain = faiss.read_index(str(tmp_path / "index" / "vectors-1.faiss"))
    assert recall["recall"] == pytest.approx(by_loops(plain, rows_of(corpus), seed=7), abs=1e-3)
    assert (recall["k"], recall["queries"], recall["seed"]) == (10, 256, 7)
    assert recall["parameters"] == index.manifest.segments[0].parameters
    stored = json.loads((tmp_path / "index" / "manifest.json").read_text())["recall"]
    assert stored == recall == dict(Index.open(tmp_path / "index").manifest.recall or {})


def test_parameters_are_doubled_until_the_aim(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = {}
    for aim in (0.3, 0.7, 0.9, 1.0):
        index = Index.from_corpus(corpus, tmp_path / str(aim), factory="IVF32,Flat", recall_aim=aim)
        recall: Any = index.manifest.recall
        found[aim] = int(recall["parameters"].removeprefix("nprobe="))
        assert recall["recall"] >= aim
        # Half as many lists would not do.
        if found[aim] > 1:
            shards = Shards([corpus], DIM, "cosine")
            plain = faiss.read_index(str(tmp_path / str(aim) / "vectors-1.faiss"))
            assert measure_recall(plain, shards, parameters=f"nprobe={found[aim] // 2}").recall < aim
    assert sorted(found.values()) == list(found.values()) and 1 < found[0.9] < 32
    assert "below the aim" not in caplog.text


def test_given_parameters_are_kept(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = Index.from_corpus(corpus, tmp_path / "index", factory="IVF32,Flat", parameters="nprobe=1")
    recall: Any = index.manifest.recall
    assert recall["parameters"] == "nprobe=1" == index.manifest.segments[0].parameters
    assert f"is {recall['recall']:.3f}, below the aim of 0.95 (nprobe=1); leave parameters='nprobe=1'" in caplog.text
    index.close()
    # What is opened has them set; the file alone as well.
    with Index.open(tmp_path / "index", mmap=False) as opened:
        assert opened._generation.segments[0].index.nprobe == 1


@pytest.mark.parametrize(("factory", "remedy"), [("PQ2x4", "',RFlat'"), ("IVF8,SQ4", "',RFlat'")])
def test_what_cannot_reach_the_aim_is_told(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, factory: str, remedy: str
) -> None:
    index = Index.from_corpus(corpus, tmp_path / "index", factory=factory, recall_aim=1.0)
    recall: Any = index.manifest.recall
    assert recall["recall"] < 1 and remedy in caplog.text and "'Flat', which is exact" in caplog.text


def test_both_parameters_are_found(corpus: Path) -> None:
    """Lists and refined candidates limit each other: neither alone reaches the aim."""
    shards = Shards([corpus], DIM, "cosine")
    rows = rows_of(corpus)
    index = make_index("IVF32,PQ4x4,RFlat", DIM)
    index.train(rows)
    index.add(rows)
    lines: list[str] = []
    recall = measure_recall(index, shards, aim=0.97, say=lines.append)
    assert recall.recall >= 0.97
    found = dict(part.split("=") for part in (recall.parameters or "").split(","))
    assert int(found["nprobe"]) > 1 and int(found["k_factor_rf"]) > 1
    assert measure_recall(index, shards, parameters="nprobe=32,k_factor_rf=1").recall < 0.97
    assert measure_recall(index, shards, parameters=f"nprobe=1,k_factor_rf={found['k_factor_rf']}").recall < 0.97
    assert len(lines) > 3 and all(line.startswith("recall@10 0.") for line in lines[:2])


def test_small_corpora(tmp_path: Path) -> None:
    """Fewer documents than neighbours that are looked for, down to one."""
    for count in (1, 2, 5):
        path = make_corpus(tmp_path / f"c{count}", clustered(count, DIM), shards=1)
        recall: Any = Index.from_corpus(path, tmp_path / f"i{count}", factory="HNSW8").manifest.recall
        assert (recall["k"], recall["queries"], recall["recall"]) == (count - 1, count, 1.0)


def test_equals_count_whichever_is_found(tmp_path: Path) -> None:
    """Thirty copies of one vector: any ten of them are the nearest."""
    vectors = np.repeat(clustered(1, DIM), 30, axis=0)
    path = make_corpus(tmp_path / "c", vectors)
    recall: Any = Index.from_corpus(path, tmp_path / "i", factory="HNSW8").manifest.recall
    assert recall["recall"] == 1.0


def test_settings_are_checked() -> None:
    IndexSettings(recall_aim=1.0)
    with pytest.raises(ValueError, match="M of PQ"):
        IndexSettings("PQ5").check(16)
