"""Adding, replacing, deleting and compacting: what happens to each record, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import DIM, MARK, MODEL, QUIET, clustered, from_vectors, make_corpus, texts, unit

import st_reba.index.changes as changes
from st_reba.corpus import part as encoding
from st_reba.fingerprint import ModelFingerprint
from st_reba.index import Document, Index
from st_reba.index.vectors import scaled


def contents(index: Index) -> dict[str | None, str]:
    found: Any = index.search(np.ones(DIM, np.float32), k=1000)
    assert {one.id: one.text for one in found} == {one.id: one.text for one in index}
    assert len(found) == len(index) == index.info()["documents"] == index.verify()["vectors"]
    return {one.id: one.text for one in index}


# Adding


def test_add_numbers_documents_on(index: Index) -> None:
    assert index.add(["moon", "king"]).added == 2
    assert index.add(["road"]).count == 6
    assert contents(index) == {"a": "cat", "b": "dog", "c": "ship", "3": "moon", "4": "king", "5": "road"}
    index.delete(["5"])
    index.add(["rain", Document("salt", "7"), "gold"], strict=False)
    assert "5" not in contents(index), "a number is used once"
    # Numbers that are ids already are passed over, in front of it or behind it.
    index.add([Document("fish", "11"), "tree", "cat"], strict=False)
    assert contents(index)["7"] == "salt" and contents(index)["11"] == "fish"
    change = index.add(["moon", Document("dog", str(index._present().state.next_number))], strict=False)
    assert change.added == 1 and change.rejected == {"id used twice": 1}


def test_an_id_that_is_there(index: Index, tmp_path: Path) -> None:
    before = contents(index)
    for _ in range(2):
        with pytest.raises(ValueError, match="'b' is there already.*upsert"):
            index.add([Document("moon", "x"), Document("gold", "b")])
    assert contents(index) == before and not list(index.path.glob(".building"))
    change = index.add([Document("moon", "x"), Document("gold", "b")], strict=False)
    assert (change.added, change.rejected, change.replaced) == (1, {"id in the index": 1}, 0)
    assert [(one.id, one.text) for one in index.rejects()] == [("b", "gold")]
    assert contents(index) == {**before, "x": "moon"}


def test_rejects_are_part_of_the_commit(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Any] = ["moon", "", Document("rain", "x"), Document("salt", "x"), 7]
    with pytest.raises(ValueError, match="record 1: no text"):
        index.add(records)
    assert index.rejects() == []
    with monkeypatch.context() as patched:
        patched.setattr(changes, "write_state", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index.add(records, strict=False)
    assert index.rejects() == [] and len(index) == 3
    change = index.add(records, strict=False)
    assert change.rejected == {"no text": 1, "id used twice": 1, "wrong type": 1} and change.added == 2
    assert [(one.place, one.kind) for one in index.rejects()] == [
        *(("record 1", "no text"), ("record 3", "id used twice"), ("record 4", "wrong type"))
    ]
    index.add(["gold"])
    assert len(index.rejects()) == 3
    assert index.add([" "], strict=False).rejected == {"no text": 1} and len(index.rejects()) == 1


@pytest.mark.parametrize(("value", "reason"), [(np.nan, "NaN or infinite"), (0.0, "is zero")])
def test_vectors_that_cannot_be_used(index: Index, monkeypatch: pytest.MonkeyPatch, value: float, reason: str) -> None:
    real = encoding.encode_batch

    def encode(model: Any, texts: list[str], **options: Any) -> Any:
        vectors = np.array(real(model, texts, **options))
        vectors[[text == "salt" for text in texts]] = value
        return vectors

    monkeypatch.setattr(encoding, "encode_batch", encode)
    given = ["moon", Document("salt", "s"), "gold"]
    with pytest.raises(ValueError, match=f"record 1: no vector: .*{reason}"):
        index.add(given)
    assert len(index) == 3
    assert index.add(given, strict=False).rejected == {"no vector": 1}
    assert contents(index)["5"] == "gold" and index.rejects()[0].id == "s"


def test_inputs_without_ids_are_added_once(index: Index, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.txt", "two.txt")]
    for file, content in zip(files, ("moon\nking\n", "rain\ncold\n"), strict=True):
        file.write_text(content)
        os.utime(file, (10**9, 10**9))
    assert index.add(files[0]).added == 2
    again = index.add(files[0])
    assert again.repeated and (again.added, again.count) == (0, 5)
    # Of the same size and time, and yet another file.
    assert index.add(files[1]).added == 2
    assert index.add(files[0]).added == 2, "another change came between"
    assert index.add(files[0], again=True).added == 2
    assert list(contents(index).values()) == [
        *("cat", "dog", "ship", "moon", "king", "rain", "cold"),
        *["moon", "king"] * 2,
    ]


def test_columns_and_passages_are_remembered(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"body": ["cat", "dog"], "name": ["x", "y"], "year": [2020, 2021]})
    index = Index.build(MODEL, frame, tmp_path / "i", text_column="body", id_column="name", **QUIET)
    assert index.get("y") == Document("dog", "y", {"year": 2021})
    (tmp_path / "more.jsonl").write_text('{"name": "z", "body": "moon", "id": "q"}\n')
    assert index.add(tmp_path / "more.jsonl").added == 1
    assert index.get(["z", "q", ""]) == [Document("moon", "z", {"id": "q"}), None, None]
    assert index.add([{"text": "x", "name": "n"}], text_column="text").added == 1
    remembered = Index.open(tmp_path / "i").info()["reading"]
    assert (remembered["text_column"], remembered["id_column"]) == ("body", "name")


def test_reading_documents(index: Index) -> None:
    assert "a" in index and "z" not in index and 3 not in index
    assert index.get("a") == Document("cat", "a", {"n": 1}) and index.get("z") is None
    odd = ["a", "z", "a", "\ud800", "", "a\x00b"]
    assert [one and one.text for one in index.get(odd)] == ["cat", None, "cat", None, None, None]
    whole = iter(index)
    first = next(whole)
    index.delete(["b"])
    assert [first, *whole] == [Document("cat", "a", {"n": 1}), Document("dog", "b"), Document("ship", "c")]
    assert repr(index).endswith("2 documents, dim 16, cosine, built with 'an unnamed model')")
    names = ["path", "documents", "vectors", "dimension", "metric", "factory", "parameters", "recall", "model"]
    names += ["model_source", "reading", "pending", "deleted", "changes", "bytes", "unfinished"]
    assert list(index.info()) == names and index.info() == index.verify()


# Deleting


def test_delete(index: Index) -> None:
    with pytest.raises(ValueError, match="1 of 2 ids are not in the index: 'z'; nothing was deleted"):
        index.delete(["a", "z"])
    assert index.delete(["a", "z", "a"], missing="ignore").deleted == 1
    assert contents(index) == {"b": "dog", "c": "ship"}
    with pytest.raises(TypeError, match="one string"):
        index.delete("b")
    with pytest.raises(TypeError, match="ids are strings"):
        index.delete([1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="missing='no'"):
        index.delete(["b"], missing="no")  # type: ignore[arg-type]
    # Empty, compacted, and filled again, before the eyes of one who looks now and then.
    other = Index.open(index.path, MODEL)
    assert index.delete(["b", "c"]).count == 0 and contents(index) == {}
    index.compact()
    assert contents(index) == {} and index.search("cat") == [] and not list(index.path.glob("*.faiss"))
    index.add(["cat", "moon"], ids=["a", "b"])
    assert contents(other) == contents(index) == {"a": "cat", "b": "moon"}
    index.delete(["a", "b"])
    index.compact()
    index.add(["rain"], ids=["r"])
    index.delete(["r"])
    index.add(["gold"], ids=["g"])
    assert contents(other) == contents(index) == {"g": "gold"}


def test_a_bad_vector_of_a_document_whose_number_is_taken(tmp_path: Path) -> None:
    """It is told as what it is, and takes no number."""
    vectors = clustered(4)
    vectors[1] = 0
    with from_vectors(tmp_path / "index", vectors, ids=["1", None, "2", None], parts=1) as index:
        assert index.change is not None and index.change.rejected == {"no vector": 1}
        assert [one.id for one in index] == ["1", "2", "3"] and index._present().state.next_number == 4


def test_small_changes_touch_nothing_but_sqlite(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> dict[str, tuple[int, int]]:
        found = [path for path in index.path.rglob("*") if not path.name.startswith("index.sqlite")]
        return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in found}

    before = files()
    assert list(before) == ["vectors-1.faiss"]
    # Nor is the FAISS file read whole.
    for module in ("st_reba.index.changes", "st_reba.index.verify"):
        monkeypatch.setattr(f"{module}.sha256", lambda path: pytest.fail("read whole"))
    index.add(["moon"])
    index.delete(["a"])
    index.upsert(["rain"], ids=["b"])
    assert files() == before
    with Index.open(index.path, MODEL) as other:
        assert other.search("rain", 1)[0].id == "b" and files() == before


# Compacting


def test_what_is_deleted_leaves_the_disk(index: Index) -> None:
    secret, tag = "gold gold gold cat", "a secret tag"
    index.add([Document(secret, "s", {"t": tag}), Document(secret + " dog", "t")])
    index.compact()
    index.upsert(["moon"], ids=["t"])
    index.delete(["s"])
    change = index.compact()
    assert (change.deleted, change.count, index.info()["deleted"], index.info()["pending"]) == (2, 4, 0, 0)
    assert sorted(path.name for path in index.path.glob("*.faiss")) == ["vectors-6.faiss"]
    for path in index.path.iterdir():
        assert secret.encode() not in path.read_bytes() and tag.encode() not in path.read_bytes(), path.name
    assert contents(index) == {"a": "cat", "b": "dog", "c": "ship", "t": "moon"}


@pytest.mark.parametrize("factory", ["IVF8,SQ8", "IVF8,PQ4x4", "SQ8", "HNSW8", "IVF8,PQ4x4,RFlat"])
def test_codes_are_kept_bit_for_bit(factory: str, tmp_path: Path) -> None:
    """Compacting moves them; graphs and refined indexes, which lose nothing, are made again of their vectors."""
    vectors = clustered(400)
    index = from_vectors(tmp_path / "i", vectors, factory=factory)
    recall = index.info()["recall"]
    index.delete([str(n) for n in range(0, 400, 3)])
    index.add(texts(20), ids=[f"t{n}" for n in range(20)])
    kept = np.setdiff1d(np.arange(400), np.arange(0, 400, 3))

    def filed() -> tuple[Any, Any]:
        searcher: Any = index._present().searcher
        return searcher.count, searcher.vectors(kept)

    (count, before), _ = filed(), index.compact()
    later, after = filed()
    assert (count, later) == (400, len(kept) + 20)
    assert np.array_equal(before, after)
    if factory in ("HNSW8", "IVF8,PQ4x4,RFlat"):
        assert np.array_equal(after, unit(vectors)[kept])
    assert index.info()["recall"] == recall and index.info()["factory"] == factory
    assert index.search("cat", 1) and len(contents(index)) == len(kept) + 20
    index.delete([one.id or "" for one in index][5:])
    index.compact()
    assert len(contents(index)) == 5


def test_what_cannot_lose_vectors_keeps_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = from_vectors(tmp_path / "i", clustered(300), factory="IVF4,PQ4x4fs", parameters="nprobe=4")
    index.delete([str(n) for n in range(50)])
    index.add(["cat"])
    for _ in range(2):
        index.compact()
        assert {one.id for one in index.search("cat", 1000)} == {str(n) for n in range(50, 301)}  # type: ignore[union-attr]
        assert len(index) == 251 and index.verify()["vectors"] == 251
    for change in (lambda: index.compact(factory="Flat"), lambda: index.export(tmp_path / "x.faiss")):
        with pytest.raises(ValueError, match="does not give its vectors back"):
            change()
    assert len(index) == 251


def test_another_factory(tmp_path: Path) -> None:
    given = texts(120)
    index = Index.build(MODEL, given, tmp_path / "i", **QUIET)
    index.delete(["0", "1"])
    index.compact(factory="IVF4,Flat", parameters="nprobe=4")
    assert (index.info()["factory"], index.info()["parameters"]) == ("IVF4,Flat", "nprobe=4")
    ivf = index.search("cat moon", 120)
    assert index.compact(factory="auto").why is not None and index.info()["factory"] == "Flat"
    flat = index.search("cat moon", 120)
    assert [one.score for one in ivf] == pytest.approx([one.score for one in flat], abs=1e-6) and len(flat) == 118
    assert index.info()["recall"] is None
    for wrong, message in (("Flt", "no index that FAISS knows"), ("IVF500,Flat", "500 lists are too many")):
        with pytest.raises(ValueError, match=message):
            index.compact(factory=wrong)
    with pytest.raises(ValueError, match="parameters: of another index; name it with factory"):
        index.compact(parameters="nprobe=3")
    assert index.search("cat moon", 120) == flat
    index.delete([str(n) for n in range(2, 120)])
    with pytest.raises(ValueError, match="no index that FAISS knows"):
        index.compact(factory="Flt")


def test_vectors_are_folded_in_where_they_are_many(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "FEWEST_PENDING", 4)
    for number in range(4):
        index.add([f"moon {'cat ' * number}"] * 2, again=True)
    assert (index.info()["pending"], sorted(path.name for path in index.path.glob("*.faiss"))) == (
        2,
        ["vectors-4.faiss"],
    )
    assert [one.id for one in index.search("moon", 2)] == ["3", "4"] and len(contents(index)) == 11


# From corpora


def test_from_corpora(tmp_path: Path) -> None:
    vectors = clustered(60).astype(np.float16)
    first = make_corpus(tmp_path / "one", vectors)
    second = make_corpus(tmp_path / "two", vectors[:20], ids=[f"m{n}" for n in range(20)])
    index = Index.from_corpus([first, second], tmp_path / "i", MODEL, **QUIET)
    assert [one.id for one in index.search(vectors[7].astype(np.float32), 2)] == ["7", "m7"]
    assert len(index) == 80 and index.add(["cat"]).added == 1 and "80" in index
    snapshot: Any = index._present()
    np.testing.assert_array_equal(snapshot.searcher.vectors(np.arange(60)), scaled(vectors, "cosine"))
    other = ModelFingerprint(**{**vars(MARK), "probe": tuple(row[::-1] for row in MARK.probe), "name": "else"})
    twice = make_corpus(tmp_path / "twice", vectors[:3], ids=["a", "7", "b"])
    with Index.from_corpus([first, twice], tmp_path / "j") as lenient:
        assert lenient.change is not None and lenient.change.rejected == {"id used twice": 1} and len(lenient) == 62
    damaged = make_corpus(tmp_path / "damaged", vectors)
    (damaged / "vectors" / "00001.npy").write_bytes(b"x")
    altered = make_corpus(tmp_path / "altered", vectors)
    content = (altered / "vectors" / "00000.npy").read_bytes()
    (altered / "vectors" / "00000.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for corpora, message in (
        ([first, make_corpus(tmp_path / "other", vectors, mark=other)], "cannot be used with else"),
        ([damaged], "00001.npy"),
        ([altered], "00000.npy: missing, or not what was written"),
        ([], "there is no corpus"),
    ):
        with pytest.raises(ValueError, match=message):
            Index.from_corpus(corpora, tmp_path / "bad")
    with pytest.raises(ValueError, match="500 lists are too many"):
        Index.from_corpus(first, tmp_path / "bad", factory="IVF500,Flat")
    with pytest.raises(FileNotFoundError, match="not an encoded corpus"):
        Index.from_corpus(tmp_path, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
