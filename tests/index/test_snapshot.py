"""What a reader sees while writers add, delete and compact: one state after the other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import (
    GIVEN,
    MODEL,
    QUIET,
    clustered,
    from_vectors,
    texts,
    unit,
)
from marks import slow_but
from tiny import cosines

import st_reba
import st_reba.index.changes as changes
import st_reba.index.store as store_module
from st_reba.corpus import encode_corpus
from st_reba.index import Document, Index
from st_reba.index.ann import load_faiss


def test_a_reader_loses_the_race(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what it reads of SQLite and the opening of the FAISS file, a writer replaces that file."""
    monkeypatch.setattr(store_module, "_WAIT_SECONDS", 0.1)
    writer, reader = Index.open(path, MODEL), Index.open(path, MODEL)
    real, calls = changes.open_file, []
    reader._snapshot = None

    def opened(*given: Any, **options: Any) -> Any:
        if not calls:
            calls.append(given)
            writer.delete(["d0"])
            with monkeypatch.context() as patched:
                patched.setattr("st_reba.index.snapshot.open_file", real)
                writer.compact()
        return real(*given, **options)

    monkeypatch.setattr("st_reba.index.snapshot.open_file", opened)
    found = reader.search(GIVEN[0], 100)
    assert calls and len(found) == 41 and "d0" not in {one.id for one in found}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what a process has mapped")
def test_vectors_are_not_read_but_mapped(path: Path) -> None:
    index = Index.open(path, MODEL)
    assert len(index.search("cat", 1)) == 1
    assert str(next(path.glob("*.faiss"))) in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_readers_while_an_index_is_compacted(path: Path) -> None:
    """Eight threads search while another object adds, deletes and compacts: each search sees one state."""
    load_faiss().omp_set_num_threads(1)
    reader, writer = Index.open(path, MODEL), Index.open(path, MODEL)
    query = MODEL.encode_query("cat")
    stop, errors, searches = threading.Event(), list[BaseException](), [0]
    sizes = {len(reader)}

    def search() -> None:
        try:
            while not stop.is_set():
                found: Any = reader.search(query, 1000)
                assert len(found) in sizes and len({one.id for one in found}) == len(found)
                scores = [one.score for one in found]
                assert scores == sorted(scores, reverse=True)
                exact = cosines(MODEL, ["cat"], [one.text for one in found[:5]])[0]
                np.testing.assert_allclose(scores[:5], exact, atol=1e-5)
                searches[0] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=search) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        for number in range(7):
            sizes.add(len(writer) + 3)
            writer.add(texts(3, number), **QUIET)
            sizes.add(len(writer) - 1)
            writer.delete([f"d{number + 5}"])
            if number % 3 == 0:
                writer.compact()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors and searches[0] > 8


def test_an_open_index_sees_one_deletion_after_the_other(tmp_path: Path) -> None:
    documents = [Document(text, f"d{n}") for n, text in enumerate(texts(50))]
    writer = Index.build(MODEL, documents, tmp_path / "index", **QUIET)
    with Index.open(writer.path, MODEL) as reader:
        for number, identity in enumerate(("d40", "d3")):
            assert len(reader.search("cat", 50)) == 50 - number
            writer.delete([identity])
        assert len(reader.search("cat", 50)) == 48


def test_one_by_one_is_as_in_a_batch(tmp_path: Path) -> None:
    """Bit for bit, with many or few vectors outside of the FAISS file; equal scores by key, wherever they lie."""
    vectors = clustered(300)
    vectors[50:90] = vectors[7]
    index = from_vectors(tmp_path / "i", vectors)
    queries = np.concatenate([unit(clustered(70, seed=3)), unit(vectors[7:8])])
    for more in (20, 200):
        index.add(["gold moon"] * more, **QUIET, again=True)
        for where in (None, {"x": {"exists": False}}):
            batch = index.search(queries, 25, where=where)
            assert [index.search(query, 25, where=where) for query in queries] == batch
            assert batch == index.search(queries, 25, where=where)
        assert [one.id for one in index.search(vectors[7], 41)] == ["7", *map(str, range(50, 90))]
        found: Any = index.search("moon gold", 15)
        assert [one.id for one in found] == [str(n) for n in range(300, 315)]
        assert {one.score for one in found} == {found[0].score}


@pytest.mark.parametrize("factory", slow_but(["Flat", "IVF2,Flat"], "Flat"))
def test_passages(factory: str, tmp_path: Path) -> None:
    """A document is found by its best passage, and once."""
    model = st_reba.build("mini", pooling="mean")
    long = "The bank raised its rates. " * 6 + "A cat sleeps on the roof. " + "Ships sail at dawn. " * 6
    short = [Document(f"Short {n}.", f"s{n}") for n in range(4)]
    given = [Document(long, "long"), *short, Document(long * 2, "longer")]
    options: dict[str, Any] = {"factory": factory, "parameters": "nprobe=2" if factory != "Flat" else None}
    index = Index.build(model, given, tmp_path / "i", passages="12:3", **options, **QUIET)
    index.add([Document(long[100:], "third")], **QUIET)
    index.delete(["s0"])
    rows = encode_corpus(model, [*given, Document(long[100:], "third")], tmp_path / "c", passages="12:3", **QUIET)
    passages = [(row, text, unit(vector[None])[0]) for row, vectors in rows.read(0)
                for text, vector in zip(row.passages, vectors, strict=True)]  # fmt: skip
    assert index.info()["vectors"] == len(passages) - 1 > 40 and len(index) == 6
    for query in ("A cat sleeps", "Ships sail"):
        own = unit(model.encode_query([query]))[0].astype(np.float64)
        best: dict[Any, float] = {}
        for row, _, vector in passages:
            if row.id != "s0":
                best[row.id] = max(best.get(row.id, -2.0), float(vector @ own))
        expected = sorted(best.values(), reverse=True)
        for k in (1, 2, 6, 9):
            found = index.search(query, k)
            assert [one.score for one in found] == pytest.approx(expected[:k], abs=1e-5)
            assert len({one.id for one in found}) == len(found) == min(k, 6)
            for one in found:
                of_it = [vector @ own for row, text, vector in passages if (row.id, text) == (one.id, one.passage)]
                assert max(of_it) == pytest.approx(one.score, abs=1e-5)
    assert index.search("A cat sleeps", 1, ids_only=True)[0].passage is None
    assert next(iter(index)).text == long and index.verify()["vectors"] == len(passages) - 1
