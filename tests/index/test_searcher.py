"""Searching: brute force in float64 over what the index knows, whatever was deleted, added or asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import DIM, MODEL, QUIET, WORDS, brute, clustered, from_vectors, known, texts, unit
from marks import slow_but
from tiny import cosines, tiny_model

from st_reba.index import Document, Index, SearchResult
from st_reba.index.ann import load_faiss
from st_reba.index.searcher import Searcher

COUNT = 400
FACTORIES = {
    "Flat": None,
    "IVF8,Flat": "nprobe=8",
    "IVF8_HNSW8,Flat": "nprobe=8",
    "HNSW8": "efSearch=400",
    "HNSW8,SQ8": "efSearch=400",
    "SQ8": None,
    "IVF8,SQ8": "nprobe=8",
    "PQ4x4": None,
    "OPQ4,IVF8,PQ4x4": "nprobe=8",
    "IVF8,PQ4x4,RFlat": "nprobe=8,k_factor_rf=64",
    "PQ4x4,RFlat": "k_factor_rf=64",
}


@pytest.mark.parametrize(
    "factory", slow_but(FACTORIES, "Flat", "IVF8,Flat", "HNSW8", "OPQ4,IVF8,PQ4x4", "IVF8,PQ4x4,RFlat")
)
def test_is_brute_force(factory: str, tmp_path: Path) -> None:
    """Of all, and of those that meet conditions; with what was deleted, folded in, deleted again and added."""
    metadata = [{"n": n, "group": n % 7} for n in range(COUNT)]
    parameters = FACTORIES[factory]
    index = from_vectors(tmp_path / "i", clustered(COUNT), factory=factory, parameters=parameters, metadata=metadata)
    queries = unit(clustered(12, seed=5))
    index.delete([str(n) for n in range(0, 60, 2)])
    index.add([Document(text, f"a{n}", {"group": n % 7}) for n, text in enumerate(texts(30, 1))], **QUIET)
    for step in ("marked", "folded", "marked again"):
        if step == "folded":
            index.compact()
        if step == "marked again":
            # As many keys are dead below the file's last as there are rows fewer than keys.
            index.delete([f"{n}" for n in range(61, 121, 2)])
            index.add(texts(5, 2), **QUIET)
            index.delete([str(COUNT + 32)])
        with Index.open(index.path) as other:
            ids, vectors, about = known(other)
        assert len(ids) == len(set(ids)) == len(index)
        for where, holds in (
            (None, lambda one: True),
            ({"group": 3}, lambda one: one.get("group") == 3),
            ({"n": {"in": [1, 3, 5, 399]}}, lambda one: one.get("n") in (1, 3, 5, 399)),
            ({"n": -1}, lambda one: False),
        ):
            rows = [row for row, one in enumerate(about) if holds(one)]
            for k in (5, COUNT + 50):
                for query, found in zip(queries, index.search(queries, k, where=where), strict=True):
                    assert isinstance(found, list) and len(found) == min(k, len(rows)), (step, where, k)
                    best, scores = brute(vectors[rows], query, k)
                    np.testing.assert_allclose([one.score for one in found], scores, atol=2e-5)
                    own = dict(zip(ids, vectors @ query, strict=True))
                    np.testing.assert_allclose([one.score for one in found], [own[r.id] for r in found], atol=2e-5)
                    if factory == "Flat":
                        assert [one.id for one in found] == [ids[rows[row]] for row in best]
                    assert len({one.id for one in found}) == len(found)


def test_equals_cost_one_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.build(MODEL, ["cat dog"] * 5000, tmp_path / "i", **QUIET)
    calls = []
    real = Searcher.search
    monkeypatch.setattr(Searcher, "search", lambda *given: calls.append(given[2]) or real(*given))
    assert [one.id for one in index.search("dog cat", k=5)] == list("01234")
    assert len(calls) == 1 and calls[0] < 100


def test_dot_and_texts(tmp_path: Path) -> None:
    model, given = tiny_model(), texts(40)
    model.similarity_fn_name = "dot"
    index = Index.build(model, given, tmp_path / "dot", **QUIET)
    assert index.info()["metric"] == "dot"
    queries = ["cat ship", "moon"]
    for query, found in zip(queries, index.search(queries, 7), strict=True):
        own = model.encode_query(query).astype(np.float64)
        best, scores = brute(model.encode_document(given), own, 7)
        assert [(one.rank, one.id, one.text) for one in found] == [
            (rank, str(row), given[row]) for rank, row in enumerate(best, 1)
        ]
        np.testing.assert_allclose([one.score for one in found], scores, rtol=1e-6)


def test_shapes_and_kinds(tmp_path: Path) -> None:
    documents = [Document(text, f"d{n}", {"n": n, "名": "é"}) for n, text in enumerate(WORDS[:6])]
    index = Index.build(MODEL, documents, tmp_path / "i", **QUIET)
    vectors = MODEL.encode_query(["gold moon", "fish"])
    expected = index.search(["gold moon", "fish"], k=np.int64(2))  # type: ignore[arg-type]
    order = np.argsort(-cosines(MODEL, ["gold moon"], WORDS[:6])[0])[:2]
    assert [one.id for one in expected[0]] == [f"d{n}" for n in order]
    for ready in (vectors, vectors.astype(np.float64) * 1e-30, np.asfortranarray(vectors * 7), vectors * 1e30):
        found: Any = index.search(ready, k=2)
        assert [[one.id for one in row] for row in found] == [[one.id for one in row] for row in expected]
    assert index.search(vectors[0], k=2) == index.search(("gold moon",), k=2)[0] == expected[0]
    assert index.search([]) == [] == index.search(vectors[:0])
    bare = index.search("fish", k=1, ids_only=True)
    assert bare == [SearchResult(1, expected[1][0].score, expected[1][0].id, "", {})]
    assert index.search("cat\ud800", k=1)
    assert MODEL.encode_query("x", prompt="cat ") is not None
    assert index.search("x", k=1, prompt="cat ")[0].id == "d0"


def test_refused_queries(tmp_path: Path) -> None:
    index = Index.build(MODEL, ["cat"], tmp_path / "i", **QUIET)
    wrong: Any
    for wrong in (0, -1, 1.5, "3", None):
        with pytest.raises(ValueError, match="k must be a whole number"):
            index.search("cat", wrong)
    for wrong in ("", " \n", ["cat", " "]):
        with pytest.raises(ValueError, match="query [01] is empty"):
            index.search(wrong)
    for wrong in ((DIM - 1,), (2, DIM + 1), (1, 1, DIM), ()):
        with pytest.raises(ValueError, match="shape"):
            index.search(np.ones(wrong))
    with pytest.raises(ValueError, match="int64"):
        index.search(np.ones(DIM, np.int64))
    for value, what in ((np.nan, "NaN"), (np.inf, "infinite"), (1e300, "infinite"), (0, "zero")):
        vectors = np.ones((3, DIM))
        vectors[1] = value
        with pytest.raises(ValueError, match=f"query 1: .*{what}"):
            index.search(vectors)
    for wrong in (3, [1.0, 2.0], ["a", None], b"bytes", torch.ones(DIM)):
        with pytest.raises(TypeError, match="give a text"):
            index.search(wrong)
    with pytest.raises(ValueError, match="is not known"):
        index.search("cat", where={"a": {"~": 1}})
    index.close()
    with pytest.raises(ValueError, match="closed"):
        index.search(np.ones(DIM))


def test_a_faiss_file_that_does_not_fit(tmp_path: Path) -> None:
    faiss, vectors = load_faiss(), np.eye(4, DIM, dtype=np.float32)

    def written(inner: Any, ids: list[int] | None) -> Path:
        whole = inner if ids is None else faiss.IndexIDMap(inner)
        whole.add(vectors) if ids is None else whole.add_with_ids(vectors, np.array(ids))
        faiss.write_index(whole, str(tmp_path / "x.faiss"))
        return tmp_path / "x.faiss"

    assert Searcher(written(faiss.IndexFlatIP(DIM), [1, 3, 4, 9]), DIM).count == 4
    for inner, ids, dim, message in (
        (faiss.IndexFlatIP(DIM), [1, 3, 4, 9], DIM + 1, f"of dimension {DIM}, not {DIM + 1}"),
        (faiss.IndexFlatL2(DIM), [1, 3, 4, 9], DIM, "or of another metric"),
        (faiss.IndexFlatIP(DIM), None, DIM, "its vectors have no ids"),
        (faiss.IndexFlatIP(DIM), [1, 4, 3, 9], DIM, "its ids do not ascend"),
        (faiss.IndexFlatIP(DIM), [1, 3, 3, 9], DIM, "its ids do not ascend"),
    ):
        with pytest.raises(ValueError, match=message):
            Searcher(written(inner, ids), dim)
