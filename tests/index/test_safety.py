"""What an index refuses: other models, damaged files, links; and full disks, other writers, threads and forks."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import DIM, MODEL, QUIET, make_corpus, texts, unit
from kills import run_child
from permissions import somebody_else
from tiny import cosines, tiny_model

import st_reba.fingerprint
import st_reba.index.changes as changes
import st_reba.index.store as store_module
from st_reba.index import Document, Index
from st_reba.index.ann import load_faiss
from st_reba.index.searcher import Searcher
from st_reba.index.store import Store

GIVEN = texts(40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An index with something in every table."""
    documents = [Document(text, f"d{n}", {"n": n}) for n, text in enumerate(GIVEN)]
    options: dict[str, Any] = {"factory": "IVF4,Flat", "parameters": "nprobe=4"}
    with Index.build(MODEL, documents, tmp_path / "index", **options, **QUIET) as index:
        index.add([*GIVEN[:5], " "], strict=False, **QUIET)
        index.delete(["d3", "d4", "41"])
    return tmp_path / "index"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


# Models


def test_other_models(path: Path) -> None:
    cut = tiny_model()
    cut.truncate_dim = 8
    for other, message in ((tiny_model(seed=1), "vectors of 8 probe texts"), (cut, "dimension: 16 there, 8 here")):
        with pytest.raises(ValueError, match=f"cannot be used with.*{message}"):
            Index.open(path, other)
        with pytest.raises(ValueError, match=message):
            Index.open(path).search("cat", model=other)
        with pytest.raises(ValueError, match=message):
            Index.open(path).add(["cat"], model=other)
    with pytest.raises(ValueError, match="does not say where its model is; name it: --model"):
        Index.open(path).search("cat")
    euclidean = tiny_model()
    euclidean.similarity_fn_name = "euclidean"
    with pytest.raises(ValueError, match="'euclidean'; an index compares by cosine or dot"):
        Index.build(euclidean, ["cat"], path.parent / "bad")
    assert not (path.parent / "bad").exists()


def test_another_configuration_of_the_same_model(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another version of a library, a new key with its default, another dtype: the vectors decide."""
    monkeypatch.setattr(st_reba.fingerprint, "_configuration", lambda *given: "another")
    assert Index.open(path, tiny_model()).search(GIVEN[0], 1) and "another configuration" in caplog.text
    monkeypatch.undo()
    half = tiny_model().half()
    assert Index.open(path, half).search(GIVEN[0], 1)[0].text == GIVEN[0]


def test_a_model_that_is_trained_on(path: Path) -> None:
    model = tiny_model()
    index = Index.open(path, model)
    assert index.search("cat", 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    for use in (lambda: index.search("cat", 1), lambda: index.add(["cat"])):
        with pytest.raises(ValueError, match="cannot be used"):
            use()


def test_the_index_finds_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "some where 模型 😀"
    MODEL.save_pretrained(str(folder / "model"), create_model_card=False)
    with Index.build(folder / "model", GIVEN, folder / "an index", **QUIET) as built:
        expected = built.search("cat moon", 5)
    moved = folder.rename(tmp_path / "moved #1?%20")
    with Index.open(moved / "an index") as index:
        assert index.search("cat moon", 5) == expected
        assert index.add(["moon moon"]).added == 1 and index.info()["model_source"] == "../model"
        assert index.verify()["path"] == str(moved / "an index")
    shutil.rmtree(moved / "model")
    with pytest.raises(ValueError, match="which is gone; name it"):
        Index.open(moved / "an index").search("cat")


# Damage


def test_one_byte_less_or_another(path: Path, tmp_path: Path) -> None:
    """A shorter file is found when it is opened, an altered one by `verify`; none gives other texts or crashes."""
    (name,) = (file.name for file in path.glob("*.faiss"))
    original = (path / name).read_bytes()
    for bad in (original[:-1], b"", original + b"x"):
        (path / name).write_bytes(bad)
        with pytest.raises(ValueError, match=f"{name}: damaged.*build the index again"):
            Index.open(path, MODEL)
    for place in (0, 9, len(original) // 2, len(original) - 1):
        changed = bytearray(original)
        changed[place] ^= 0x20
        (path / name).write_bytes(changed)
        with pytest.raises(ValueError, match=name):
            Index.open(path).verify()
    (path / name).write_bytes(os.urandom(len(original)))
    with pytest.raises(ValueError, match=name):
        Index.open(path)
    (path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
        Index.open(path)
    (path / name).mkdir()
    with pytest.raises(ValueError, match=f"{name}: damaged"):
        Index.open(path)
    (path / name).rmdir()
    (path / name).write_bytes(original)
    whole = (path / "index.sqlite").read_bytes()
    for bad in (whole[:4096], whole[:100], b"garbage" * 1000, os.urandom(len(whole))):
        (path / "index.sqlite").write_bytes(bad)
        with pytest.raises(ValueError, match="index.sqlite: damaged.*build the index again"):
            Index.open(path).verify()
    (path / "index.sqlite").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="no index is there"):
        Index.open(path)
    (path / "index.sqlite").write_bytes(whole)
    assert Index.open(path).verify()["documents"] == 42


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE documents SET text = 'x' WHERE key = 9",
        "UPDATE documents SET metadata = '{}' WHERE key = 9",
        "UPDATE documents SET id = 'x' WHERE key = 9",
        "DELETE FROM documents WHERE key = 9",
        "INSERT INTO documents VALUES (900, 'x', '{}', NULL, 'x')",
        "UPDATE pending SET vector = zeroblob(64) WHERE key = 40",
        "DELETE FROM pending WHERE key = 40",
        "DELETE FROM dead WHERE key = 3",
        "UPDATE meta SET state = replace(state, 'nprobe=4', 'nprobe=1')",
        "UPDATE meta SET sha256 = 'x'",
        "DELETE FROM meta",
        "DROP TABLE meta",
        "DROP TABLE pending",
    ],
)
def test_rows_that_somebody_changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        assert connection.execute(statement).rowcount
        connection.commit()
    with pytest.raises((ValueError, FileNotFoundError), match="index.sqlite: damaged|no index is there"):
        Index.open(path).verify()


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


def test_what_is_not_replaced(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    (tmp_path / "file").touch()
    for target, message in (
        (path, "already there; give another path, or overwrite=True"),
        (tmp_path / "other", "not an index"),
        (tmp_path / "file", "a file is there"),
    ):
        with pytest.raises(FileExistsError, match=message):
            Index.build(MODEL, ["cat"], target, overwrite=target != path)
    with pytest.raises(TypeError, match="colour='red': there is no such option"):
        Index.build(MODEL, ["cat"], tmp_path / "new", colour="red")
    assert os.listdir(tmp_path / "other") == ["mine.txt"] and not (tmp_path / "new").exists()
    for missing in (tmp_path / "nowhere", tmp_path / "other", tmp_path / "file"):
        with pytest.raises(FileNotFoundError, match="no index is there"):
            Index.open(missing)
    with Index.open(path, MODEL) as old:
        Index.build(MODEL, ["moon"], path, overwrite=True, **QUIET).close()
        assert [one.text for one in old.search("moon")] == ["moon"] and len(list(path.glob("*.faiss"))) == 1


def test_links_are_refused(path: Path, tmp_path: Path) -> None:
    """Nothing is written or removed through them."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    for link in (path / ".building", path / "vectors-9.faiss"):
        link.symlink_to(outside, target_is_directory=True)
        with Index.open(path, MODEL) as index:
            for change in (lambda: index.add(["cat"]), index.compact, lambda: index.delete(["d0"])):
                with pytest.raises(ValueError, match=f"{link.name}: a link"):
                    change()
        link.unlink()
    (path / ".building").mkdir()
    (path / ".building" / "x").symlink_to(outside, target_is_directory=True)
    with Index.open(path, MODEL) as index, pytest.raises(ValueError, match="a link"):
        index.add(["cat"])
    assert os.listdir(outside) == ["mine.txt"]


# Disks


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


# Others


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
