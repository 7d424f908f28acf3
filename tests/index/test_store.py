"""The SQLite file: other formats, full disks, other writers, threads and forks."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import DIM, GIVEN, MODEL, QUIET, make_corpus, unit
from kills import run_child
from permissions import somebody_else

import st_reba.index.store as store_module
from st_reba.index import Document, Index
from st_reba.index.ann import load_faiss
from st_reba.index.store import Store


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_other_formats_and_places(path: Path) -> None:
    def edit(**values: Any) -> None:
        with closing(sqlite3.connect(path / "index.sqlite")) as connection:
            ((text,),) = connection.execute("SELECT state FROM meta")
            changed = json.dumps(json.loads(text) | values)
            digest = hashlib.sha256(changed.encode()).hexdigest()
            connection.execute("UPDATE meta SET state = ?, sha256 = ?", (changed, digest))
            connection.commit()

    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        file = json.loads(connection.execute("SELECT state FROM meta").fetchone()[0])["file"]
    for wrong, message in (
        ({"file": {**file, "name": "../x.faiss"}}, "not in the folder"),
        ({"format": 2}, "another version of st_reba"),
        ({"unknown": 3}, "unknown"),
    ):
        before = (path / "index.sqlite").read_bytes()
        edit(**wrong)
        with pytest.raises(ValueError, match=message):
            Index.open(path)
        (path / "index.sqlite").write_bytes(before)
    (path / "index.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        Index.build(MODEL, ["cat"], path, **QUIET)
    with pytest.raises((ValueError, FileExistsError)):
        Index.open(path)


@contextmanager
def small_disk(limit: int) -> Iterator[None]:
    """Files cannot grow beyond a size: as on a full disk, writing fails in the middle."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("factory", ["Flat", "SQ8"])
@pytest.mark.parametrize("wide", [False, True])
def test_disk_full(path: Path, tmp_path: Path, factory: str, wide: bool) -> None:
    """While the vectors are written, by hand or by FAISS, or the documents."""
    vectors = unit(np.random.default_rng(0).normal(size=(3000, DIM)))
    long = [f"{row:0{300 if wide else 1}d}" for row in range(3000)]
    corpus = make_corpus(tmp_path / "corpus", vectors, ids=long)
    limit = 200_000 if wide else 180_000 if factory == "Flat" else 60_000
    before = Index.open(path, MODEL).search(GIVEN[0], 5)
    for target in (path, tmp_path / "new"):
        with small_disk(limit), pytest.raises(OSError, match=r"index\.sqlite|vectors-"):
            Index.from_corpus(corpus, target, factory=factory, overwrite=True, **QUIET)
    assert not (tmp_path / "new").exists()
    with Index.open(path, MODEL) as index:
        assert index.search(GIVEN[0], 5) == before and index.verify()
        with small_disk(4096), pytest.raises(OSError, match="again"):
            index.add(["cat"] * 100, **QUIET)
        assert index.search(GIVEN[0], 5) == before
        assert index.add(["cat"] * 100, **QUIET).added == 100
    assert len(Index.from_corpus(corpus, path, factory=factory, overwrite=True, **QUIET)) == 3000


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users and permissions")
def test_read_only_folder(path: Path) -> None:
    """It can be searched, with or without a log that was not written back; and writing is refused with its name."""
    for file in path.rglob("*"):
        file.chmod(0o644)
    expected = Index.open(path, MODEL).search(GIVEN[0], 5)
    gc.collect()
    path.chmod(0o555)
    before = content(path)
    with somebody_else(path):
        with Index.open(path, MODEL) as index:
            assert index.search(GIVEN[0], 5) == expected and index.verify()["documents"] == len(list(index)) == 42
            for change in (lambda: index.add(["cat"]), lambda: index.delete(["d0"]), index.compact):
                with pytest.raises(PermissionError, match=str(path)):
                    change()
        with pytest.raises(PermissionError, match=str(path)):
            Index.build(MODEL, ["cat"], path, overwrite=True)
    (path / "index.sqlite").chmod(0)
    with somebody_else(path), pytest.raises(PermissionError, match="make the folder readable"):
        Index.open(path, MODEL)
    path.chmod(0o755)
    assert content(path) == before


def test_a_second_writer_waits_and_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_WAIT_SECONDS", 0.1)
    index = Index.open(path, MODEL)
    before = index.search("cat", 50)
    with Store(path).writing() as tx:
        tx.execute("DELETE FROM documents")
        for change in (lambda: index.add(["rain"]), lambda: index.delete(["d0"]), index.compact):
            with pytest.raises(BlockingIOError, match="another process is writing here.*run the same again"):
                change()
        assert index.search("cat", 50) == before
        tx.execute("ROLLBACK")
        tx.execute("BEGIN")
    assert index.add(["rain"]).added == 1
    monkeypatch.setattr(store_module, "_WAIT_SECONDS", 30)
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda n: Index.open(path, MODEL).add([f"rain {n}"] * (n + 1), **QUIET).added, range(4)))
    assert added == [1, 2, 3, 4] and len(index) == len(before) + 11 and index.verify()


def test_what_stays_on_the_disk_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_module, "_WAIT_SECONDS", 0.1)
    index = Index.open(path, MODEL)
    with Store(path).reading() as tx:
        tx.execute("SELECT 1 FROM documents").fetchone()
        assert index.compact().deleted
        assert "it is being read, so what was deleted stays on the disk" in caplog.text
    caplog.clear()
    index.compact()
    assert "being read" not in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_fork(path: Path) -> None:
    load_faiss().omp_set_num_threads(1)
    index = Index.open(path, MODEL)
    expected = index.search(GIVEN[0], 10)

    def child() -> None:
        assert index.search(GIVEN[0], 10) == expected
        index.add(["moon moon moon"], ids=["child"], **QUIET)
        index.close()

    assert run_child(child)[:2] == (0, "")
    assert (
        index.get("child") == Document("moon moon moon", "child") and index.add(["gold"]).added == 1 and index.verify()
    )


def test_descriptors_stay_flat(path: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("this system does not list them")
    index, query = Index.open(path), MODEL.encode_query("cat")
    index.search(query)
    gc.collect()
    before = len(list(folder.iterdir()))
    for _ in range(500):
        index.search(query, 3)
    for _ in range(200):
        with Index.open(path) as other:
            other.search(query, 1)
    for _ in range(50):
        thread = threading.Thread(target=lambda: index.search(query, 1))
        thread.start()
        thread.join()
    gc.collect()
    assert len(list(folder.iterdir())) <= before + 3


def test_plain_faiss_and_plain_sqlite_read_it(path: Path) -> None:
    import faiss

    (file,) = path.glob("*.faiss")
    connection = sqlite3.connect(path / "index.sqlite")
    index = faiss.read_index(str(file))
    _, keys = index.search(unit(MODEL.encode_query(["cat"])), 40)
    documents = dict(connection.execute("SELECT key, text FROM documents"))
    texts = [documents[key] for key in keys[0].tolist() if key in documents]
    pending = {key: np.frombuffer(blob, "<f4") for key, blob in connection.execute("SELECT * FROM pending")}
    connection.close()
    assert sorted(texts) == sorted(text for n, text in enumerate(GIVEN) if n not in (3, 4))
    vectors = unit(MODEL.encode_document([documents[key] for key in pending]))
    assert len(pending) == 4 and np.allclose(list(pending.values()), vectors, atol=1e-6)
