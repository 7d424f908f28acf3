"""Adding, replacing, deleting and compacting: what happens to each record, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow_but

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny import DIM, WORDS, cosines, tiny_model

from st_reba.cli import main
from st_reba.files import StoredFile
from st_reba.index import Document, Index, add, compact, delete
from st_reba.index.changing.merging import Part, plan
from st_reba.index.folder.manifest import Manifest
from st_reba.index.folder.marks import MARK_FILE
from st_reba.index.vectors.flat import load_faiss
from st_reba.index.vectors.keeping import keep_rows, reconstructed
from st_reba.lock import writers_lock

MODEL = tiny_model()


def random_texts(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[:12], size=4)) for _ in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    documents = [Document("cat", "a", {"n": 1}), Document("dog", "b"), Document("ship", "c")]
    Index.build(MODEL, documents, tmp_path / "index", show_progress_bar=False).close()
    return tmp_path / "index"


def contents(path: Path) -> dict[str | None, str]:
    with Index.open(path) as index:
        found: Any = index.search(np.ones(DIM, np.float32), k=1000)
        assert len(found) == len(index)
        return {result.id: result.text for result in found}


def files(path: Path) -> set[str]:
    return set(os.listdir(path)) - {".lock"}


# Adding


def test_add_numbers_documents_on(path: Path) -> None:
    assert add(path, MODEL, ["moon", "king"]).added == 2
    assert add(path, MODEL, ["road"]).count == 6
    assert contents(path) == {"a": "cat", "b": "dog", "c": "ship", "3": "moon", "4": "king", "5": "road"}


def test_numbers_are_never_ids_that_are_there_or_were(path: Path) -> None:
    add(path, MODEL, ["moon", "king"], ids=["17", "900000000000000000000"])
    add(path, MODEL, ["rain"])
    delete(path, ["18"])
    add(path, MODEL, ["salt"])
    assert {"17", "19"} < set(contents(path)) and "18" not in contents(path)
    built = path.parent / "built"
    Index.build(MODEL, ["cat", "dog"], built, ids=["1", "2"]).close()
    assert add(built, MODEL, ["fish"], upsert=True).added == 1
    assert contents(built) == {"1": "cat", "2": "dog", "3": "fish"}


def test_an_id_that_is_there(path: Path) -> None:
    before = (path / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="the id 'b' is already in the index.*upsert"):
        add(path, MODEL, [Document("moon", "x"), Document("gold", "b")])
    # Of a file that was encoded before, too, which is not read again.
    (path.parent / "in.jsonl").write_text('{"id": "x", "text": "moon"}\n{"id": "b", "text": "gold"}\n')
    for _ in range(2):
        with pytest.raises(ValueError, match="the id 'b' is already in the index"):
            add(path, MODEL, path.parent / "in.jsonl")
    assert (path / "manifest.json").read_bytes() == before and files(path) == {
        "manifest.json",
        "vectors-1.faiss",
        "documents-1.sqlite",
    }
    change = add(path, MODEL, path.parent / "in.jsonl", strict=False)
    assert (change.added, change.rejected, change.replaced) == (1, 1, 0)
    assert change.rejects == path / "rejects.jsonl"
    (line,) = change.rejects.read_text().splitlines()
    assert json.loads(line)["id"] == "b" and "upsert" in json.loads(line)["reason"]
    assert contents(path) == {"a": "cat", "b": "dog", "c": "ship", "x": "moon"}


def test_what_is_there_already_is_left_as_it_is(path: Path) -> None:
    before = (path / "manifest.json").read_bytes()
    same = [Document("cat", "a", {"n": 1}), Document("dog", "b")]
    for upsert in (False, True):
        change = add(path, MODEL, same, upsert=upsert)
        assert (change.unchanged, change.added, change.replaced, change.generation) == (2, 0, 0, 1)
    assert (path / "manifest.json").read_bytes() == before
    # Other metadata is another document.
    assert add(path, MODEL, [Document("cat", "a", {"n": 2})], upsert=True).replaced == 1


def test_upsert_is_one_step(path: Path) -> None:
    with Index.open(path, MODEL) as reader:
        change = add(path, MODEL, [Document("moon gold", "b"), Document("rain", "d")], upsert=True)
        assert (change.added, change.replaced, change.count, change.generation) == (1, 1, 4, 2)
        assert [result.text for result in reader.search("dog", k=1)] == ["dog"] and len(reader) == 3
        assert reader.refresh() and not reader.refresh()
        assert reader.search("moon gold", k=1)[0].id == "b" and len(reader) == 4
    assert contents(path) == {"a": "cat", "b": "moon gold", "c": "ship", "d": "rain"}


def test_records_that_cannot_be_taken(path: Path) -> None:
    records: list[Any] = ["moon", "", Document("rain", "x"), Document("salt", "x"), 7]
    with pytest.raises(ValueError, match="record 1"):
        add(path, MODEL, records)
    change = add(path, MODEL, records, strict=False)
    assert (change.added, change.rejected) == (2, 3)
    assert Manifest.read(path).rejected == 3 and len((path / "rejects.jsonl").read_text().splitlines()) == 3
    assert contents(path)["3"] == "moon"
    # The file is that of the last change.
    add(path, MODEL, ["gold"])
    assert not (path / "rejects.jsonl").exists() and set(contents(path)) == {"a", "b", "c", "3", "x", "8"}


def test_files_without_ids_are_not_added_twice(path: Path) -> None:
    file = path.parent / "more.txt"
    file.write_text("moon\nking\n")
    assert add(path, MODEL, file).added == 2
    change = add(path, MODEL, file)
    assert change.repeated and change.count == 5 and change.generation == 2
    assert add(path, MODEL, file, again=True).count == 7
    delete(path, ["a"])
    assert add(path, MODEL, file).added == 2, "another change came between"
    # With ids it is the ids that tell.
    named = path.parent / "named.jsonl"
    named.write_text('{"id": "n", "text": "fish"}\n')
    assert add(path, MODEL, named).added == 1 and add(path, MODEL, named).unchanged == 1


def test_a_killed_addition_of_a_list_is_not_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import st_reba.index.changing.changes as changes

    def killed(folder: Path) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(changes, "clean_up", killed)
        with pytest.raises(SystemExit):
            add(path, MODEL, ["moon", "king"])
    assert (path / MARK_FILE).exists() and len(contents(path)) == 5
    assert add(path, MODEL, ["moon", "king"]).repeated
    assert len(contents(path)) == 5 and not (path / MARK_FILE).exists()
    # Once told, the same texts are more texts; and others never were the same.
    assert add(path, MODEL, ["moon", "king"]).added == 2
    with monkeypatch.context() as patched:
        patched.setattr(changes, "clean_up", killed)
        with pytest.raises(SystemExit):
            add(path, MODEL, ["salt"])
    assert add(path, MODEL, ["gold"]).added == 1 and len(contents(path)) == 9


def test_one_writer(path: Path) -> None:
    with writers_lock(path), pytest.raises(BlockingIOError, match="writing"):
        add(path, MODEL, ["moon"])
    with writers_lock(path), pytest.raises(BlockingIOError):
        delete(path, ["a"])
    assert len(contents(path)) == 3


def test_another_model_is_refused(path: Path) -> None:
    before = files(path)
    with pytest.raises(ValueError, match="weights or document prompt"):
        add(path, tiny_model(seed=1), ["moon"])
    assert files(path) == before
    with Index.open(path) as index, pytest.raises(ValueError, match="need a model"):
        index.add(["moon"])


def test_no_index_there(tmp_path: Path) -> None:
    for change in (lambda: add(tmp_path / "x", MODEL, ["moon"]), lambda: delete(tmp_path / "x", ["a"])):
        with pytest.raises(FileNotFoundError, match="not an index"):
            change()
    assert not (tmp_path / "x").exists()


# Deleting


def test_delete(path: Path) -> None:
    with pytest.raises(ValueError, match="1 of 2 ids are not in the index: 'z'; nothing was deleted"):
        delete(path, ["a", "z"])
    assert delete(path, ["a", "z", "a"], missing="ignore").deleted == 1
    assert contents(path) == {"b": "dog", "c": "ship"}
    assert delete(path, ["a"], missing="ignore").generation == 2
    with pytest.raises(TypeError, match="one string"):
        delete(path, "b")
    with pytest.raises(ValueError, match="missing='no'"):
        delete(path, ["b"], missing="no")  # type: ignore[arg-type]
    # Empty, and filled again.
    assert delete(path, ["b", "c"]).count == 0
    assert contents(path) == {} and Manifest.read(path).segments == ()
    add(path, MODEL, ["cat", "moon"], ids=["a", "b"])
    assert contents(path) == {"a": "cat", "b": "moon"}


def test_deleted_rows_are_marked_and_then_gone(tmp_path: Path) -> None:
    path = tmp_path / "index"
    Index.build(MODEL, random_texts(10), path, ids=[f"i{n}" for n in range(10)]).close()
    secret = "gold gold gold"
    add(path, MODEL, [secret], ids=["secret"], upsert=True)
    delete(path, ["i0", "i1"])
    (first, *_) = Manifest.read(path).segments
    assert first.deleted is not None and first.deleted_count == 2
    assert np.load(path / first.deleted.name).tolist() == [0, 1]
    delete(path, ["i3", "i4", "i5", "i6"])
    assert all(2 * segment.live >= segment.count for segment in Manifest.read(path).segments)
    delete(path, ["secret"])
    compact(path)
    assert not any(secret.encode() in file.read_bytes() for file in path.iterdir())
    assert set(contents(path)) == {"i2", "i7", "i8", "i9"}


def test_damage_is_found_before_it_is_copied(path: Path) -> None:
    add(path, MODEL, ["moon"])
    file = path / Manifest.read(path).segments[0].vectors.name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    before = (path / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="SHA-256.*build the index again"):
        compact(path)
    assert (path / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("built", "wanted"),
    [("Flat", None), ("IVF2,Flat", None), ("IVF2,Flat", "Flat"), ("Flat", "SQ8"), ("HNSW8", "auto")],
)
def test_compacting_reads_every_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: str, wanted: str | None
) -> None:
    path, read = tmp_path / "index", []
    Index.build(MODEL, random_texts(80), path, factory=built).close()
    add(path, MODEL, ["moon", "king"])
    delete(path, ["3", "81"])
    real = StoredFile.check

    def check(file: StoredFile, folder: Any, *, content: bool = True) -> Path:
        if content:
            read.append(file.name)
        return real(file, folder, content=content)

    monkeypatch.setattr(StoredFile, "check", check)
    there = [file.name for segment in Manifest.read(path).segments for file in segment.files]
    compact(path, factory=wanted)
    assert len(there) == 6 and sorted(read) == sorted(there)
    assert len(contents(path)) == 80


# Merging


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([8, 4, 2, 1], [[0], [1], [2], [3]]),
        ([8, 4, 2, 2], [[0, 1, 2, 3]]),
        ([100, 4, 3, 1], [[0], [1, 2], [3]]),
        ([0, 5, 0, 1], [[1], [3]]),
        ([0, 0], []),
        ([1], [[0]]),
    ],
)
def test_plan(sizes: list[int], expected: list[list[int]]) -> None:
    assert plan([Part(size, max(size, 1), True) for size in sizes]) == expected


def test_plan_leaves_other_factories_alone() -> None:
    assert plan([Part(3, 10, False), Part(2, 2, True), Part(2, 2, True)]) == [[0], [1, 2]]


def test_many_small_additions_make_few_segments(tmp_path: Path) -> None:
    path = tmp_path / "index"
    texts = random_texts(60)
    with Index.build(MODEL, texts[:20], path) as index:
        for text in texts[20:]:
            index.add([text])
            assert len(index.manifest.segments) <= 1 + np.log2(len(index))
        assert [int(one.id) for one in index.search("cat", k=60)] == np.lexsort(
            (np.arange(60), -cosines(MODEL, ["cat"], texts)[0].round(7))
        ).tolist()


# Approximate indexes

FACTORIES = ["HNSW8,Flat", "HNSW8,SQ8", "SQ8", "SQfp16", "PQ4x4", "IVF4,Flat", "IVF4,PQ4x4", "IVF4,SQ8"] + [
    *("OPQ4,PQ4x4", "OPQ4,IVF4,PQ4x4", "PCA8,IVF4,SQ8", "PCA8,HNSW8,Flat", "IVF4,PQ4x4,RFlat", "IVF4_HNSW8,Flat")
]


@pytest.mark.parametrize("factory", slow_but(FACTORIES, "HNSW8,Flat", "SQ8", "IVF4,SQ8"))
def test_rows_are_kept_bit_for_bit(factory: str) -> None:
    faiss = load_faiss()
    faiss.omp_set_num_threads(1)
    vectors = np.random.default_rng(0).normal(size=(800, DIM)).astype(np.float32)
    index = faiss.index_factory(DIM, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    rows = np.sort(np.random.default_rng(1).choice(800, 500, replace=False))
    expected = reconstructed(index, rows)
    lists = faiss.try_extract_index_ivf(index)
    if lists is not None:
        lists.nprobe = lists.nlist
    before = index.search(vectors[:20], 800)
    kept = keep_rows(faiss.clone_index(index), rows)
    assert kept.ntotal == 500 and np.array_equal(reconstructed(kept, np.arange(500)), expected)
    kept.add(vectors[:3])
    assert kept.ntotal == 503
    if "HNSW8," in factory or factory.endswith("RFlat"):
        return
    lists = faiss.try_extract_index_ivf(kept)
    if lists is not None:
        lists.nprobe = lists.nlist
    scores, found = kept.search(vectors[:20], 503)
    for line, numbers, old, old_numbers in zip(scores, found, *before, strict=True):
        theirs = dict(zip(old_numbers.tolist(), old.tolist(), strict=True))
        ours = {int(rows[n]): score for n, score in zip(numbers.tolist(), line.tolist(), strict=True) if 0 <= n < 500}
        assert len(ours) == 500 and ours == pytest.approx({row: theirs[row] for row in ours}, abs=1e-5)


def test_what_cannot_lose_rows_is_refused() -> None:
    faiss = load_faiss()
    vectors = np.random.default_rng(0).normal(size=(400, DIM)).astype(np.float32)
    index = faiss.index_factory(DIM, "IVF2,PQ4x4fs", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    with pytest.raises(ValueError, match="IVFPQFastScan cannot lose rows.*build the index again"):
        keep_rows(index, np.arange(100))


@pytest.mark.parametrize("factory", ["IVF2,Flat", "HNSW8", "SQ8"])
def test_life_of_an_approximate_index(tmp_path: Path, factory: str) -> None:
    path, texts = tmp_path / "index", random_texts(90)
    ids = [str(n) for n in range(90)]
    with Index.build(MODEL, texts[:80], path, factory=factory, ids=ids[:80]) as index:
        index.add(texts[80:], ids=ids[80:])
        index.delete(ids[:10])
        assert [segment.factory for segment in index.manifest.segments] == [factory, "Flat"]
        before = index.search("moon king", k=5)
        change = index.compact()
        assert (change.deleted, change.count) == (10, 80)
        (segment,) = index.manifest.segments
        assert (segment.factory, segment.count, segment.deleted) == (factory, 80, None)
        assert index.manifest.factory == factory
        # What was added is now coded as the rest is.
        tolerance = 0.02 if factory == "SQ8" else 1e-6
        after = index.search("moon king", k=5)
        assert [one.score for one in after] == pytest.approx([one.score for one in before], abs=tolerance)
        if factory == "SQ8":
            with pytest.raises(ValueError, match="keeps codes in place of vectors"):
                index.compact(factory="Flat")
            return
        index.compact(factory="Flat")
        assert index.manifest.recall is None and index.manifest.factory == "Flat"
        exact = np.sort(-cosines(MODEL, ["moon king"], texts[10:])[0])[:5]
        assert [-one.score for one in index.search("moon king", k=5)] == pytest.approx(exact.tolist(), abs=1e-5)
        index.compact(factory=factory)
        assert index.manifest.segments[0].factory == factory and index.manifest.recall is not None


# The command line


def test_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import st_reba.cli.life as life

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(life, "load_model", lambda options: MODEL)
    Index.build(MODEL, ["cat", "dog"], "index", model_source=".").close()

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(arguments)
        said = capsys.readouterr()
        return status, said.out, said.err

    Path("more.jsonl").write_text('{"id": "0", "text": "moon"}\n{"id": "x", "body": "king"}\n{"text": "rain"}\n')
    status, out, _ = run("add", "index", "more.jsonl", "--json")
    assert status == 0 and json.loads(out) == {
        **{"path": "index", "kind": "add", "generation": 2, "count": 3, "added": 1, "replaced": 0, "deleted": 0},
        **{"unchanged": 0, "rejected": 2, "rejects": str(tmp_path / "index" / "rejects.jsonl"), "repeated": False},
    }
    status, _, err = run("add", "index", "more.jsonl", "--strict", "--text-column", "body")
    assert status == 2 and "body" in err
    assert run("upsert", "index", "more.jsonl")[1].startswith("index: 1 added, 1 replaced, 1 set aside")
    status, _, err = run("delete", "index", "nobody")
    assert status == 2 and "--missing ignore" in err
    Path("ids.txt").write_text("0\n\n1\n")
    assert run("delete", "index", "nobody", "--ids", "ids.txt", "--missing", "ignore")[1].startswith("index: 2 deleted")
    assert run("delete", "index")[0] == 2
    assert run("compact", "index")[0] == 0
    assert run("export", "index", "out.npy", "--json")[0] == 0 and np.load("out.npy").shape[1] == DIM
    assert run("export", "index", "out.npy")[0] == 2


def test_stores_of_segments_are_plain_sqlite(path: Path) -> None:
    add(path, MODEL, ["moon"])
    (first, *_) = Manifest.read(path).segments
    connection = sqlite3.connect(shutil.copy(path / first.documents.name, path.parent / "copy.sqlite"))
    assert connection.execute("SELECT count(*) FROM documents").fetchone()[0] == first.count
    connection.close()
