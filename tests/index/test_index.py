"""An index as its users see it: what is found, what changes, what is refused."""

from __future__ import annotations

import re
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from indexes import MODEL, QUIET, brute, build, documents, found, texts
from pyarrow import parquet
from tiny import tiny_model

import st_reba
from st_reba.corpus import encode_corpus
from st_reba.index import Document, Index, OtherModelError


def test_exact(tmp_path: Path) -> None:
    index = build(tmp_path / "index", documents(300))
    index.add(documents(320)[300:], **QUIET)
    index.upsert([Document("gold gold king", "d7", {"n": 7})], **QUIET)
    index.delete(["d3", "d301"])
    for query in ("cat ship", "gold", "moon rain king"):
        assert found(index, query, 10) == brute(index, query, 10)
    few = {one for _, one in found(index, "gold", 400, where={"n": {"<": 9}})}
    assert few == {f"d{n}" for n in range(9)} - {"d3"}


def test_equal_scores_in_the_order_of_addition(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat"] * 60)
    index.add(["cat"] * 20, **QUIET)
    index.delete(["5"])
    alone = index.search("cat", 30)
    assert [one.id for one in alone] == [str(n) for n in range(31) if n != 5]
    assert index.search(["cat", "dog"] * 20, 30)[0] == alone


def test_queries_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = build(tmp_path / "index")
    one = index.search("gold", np.int64(3), mode="vectors")
    vector = np.asarray(MODEL.encode_query("gold", show_progress_bar=False))
    assert (
        index.search(vector, 3)
        == index.search(["gold"], 3, mode="vectors")[0]
        == index.search(vector[None], 3)[0]
        == one
    )
    assert [result.rank for result in one] == [1, 2, 3]
    assert index.search([]) == [] and len(index.search("gold")) == 10 and len(index.search(np.eye(16))) == 16
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("queries", "options", "error"),
    [
        ("", {}, ValueError), (["cat", " "], {}, ValueError), (7, {}, TypeError), ([7], {}, ValueError),
        ("cat", {"k": 0}, ValueError), ("cat", {"k": 1.5}, TypeError), (np.ones(16, np.int64), {}, ValueError),
        (np.array([[1] * 16, [0] * 16], np.float32), {}, ValueError), (np.ones(15, np.float32), {}, ValueError),
        (np.array([np.nan] + [1] * 15, np.float32), {}, ValueError),
    ],
)  # fmt: skip
def test_queries_that_are_refused(tmp_path: Path, queries: Any, options: Any, error: type[Exception]) -> None:
    index = build(tmp_path / "index", ["cat", "dog"])
    with pytest.raises(error):
        index.search(queries, **options)


def test_documents(tmp_path: Path) -> None:
    index = build(tmp_path / "index")
    assert index.get("d3") == documents(40)[3] and index.get(["d3", "x", "\ud800"])[1:] == [None, None]
    assert "d3" in index and "x" not in index and 3 not in index
    with ThreadPoolExecutor() as pool:  # each document may be asked for by another thread
        there = iter(index)
        assert [next(there), *pool.submit(list, there).result()] == documents(40) and len(index) == 40
    assert str(index).endswith("40 documents, dim 16, cosine)")


def test_additions(tmp_path: Path) -> None:
    index = build(tmp_path / "index", documents(10))
    change = index.add([*documents(12), {"text": "gold"}], **QUIET)
    assert vars(change) == {
        "count": 13,
        "added": 3,
        "replaced": 0,
        "deleted": 0,
        "unchanged": 10,
        "rejected": {},
        "truncated": 0,
    }
    with pytest.raises(ValueError, match="upsert"):
        index.add([Document("moon", "d3")], **QUIET)
    change = index.add([Document("moon", "d3"), Document("moon", "e")], strict=False, **QUIET)
    assert change.rejected == {"id in the index": 1} and index.rejects()[0].id == "d3" and index.get("e")
    change = index.upsert([Document("moon", "d3"), *documents(3)], **QUIET)
    assert (change.replaced, change.unchanged, change.added) == (1, 3, 0) and index.get("d3").text == "moon"
    about = index.verify()
    names = ("documents", "vectors", "pending", "deleted", "indexed_count", "changes")
    assert [about[name] for name in names] == [14, 14, 5, 1, 10, 4]


def test_texts_without_ids_are_known(tmp_path: Path) -> None:
    """By text and metadata, wherever they came from; texts of a .txt file by the file, on whatever line."""
    index = build(tmp_path / "index", ["cat", "cat", {"text": "cat", "n": 1}, Document("gold", "own")])
    assert len(index) == 4
    change = index.add(["cat", "dog", {"text": "cat", "n": 1}, {"text": "cat", "n": 2}, "gold"], **QUIET)
    assert (change.added, change.unchanged) == (3, 2)
    index.delete(["4"])
    assert index.add(["dog", "gold"], **QUIET).added == 1
    with pytest.raises(ValueError, match="no id"):
        index.upsert(["moon"], **QUIET)
    change = index.upsert(["moon", Document("moon", "own")], strict=False, **QUIET)
    assert (change.rejected, change.replaced) == ({"no id": 1}, 1)
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text("cat\nship\n", encoding="utf-8")
    index = build(tmp_path / "files", folder)
    assert index.get("3") == Document("ship", "3", {"file": "b.txt", "line": 2})
    (folder / "a.txt").write_text("king\ncat\nship\n", encoding="utf-8")
    change = index.add(folder, **QUIET)
    assert (change.added, change.unchanged) == (1, 4)
    index.verify()


def test_a_row_without_an_id_is_known_wherever_it_moves_in_its_file(tmp_path: Path) -> None:
    def write_tables(texts: list[str]) -> None:
        table = pd.DataFrame({"text": texts})
        table.to_json(tmp_path / "tables" / "a.jsonl", orient="records", lines=True)
        table.to_parquet(tmp_path / "tables" / "b.parquet")

    (tmp_path / "tables").mkdir()
    write_tables(["cat", "ship"])
    index = build(tmp_path / "index", tmp_path / "tables")
    write_tables(["king", "cat", "ship"])
    change = index.add(tmp_path / "tables", **QUIET)
    assert (change.added, change.unchanged) == (2, 4)


def test_ids_never_collide(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat", Document("dog", "3"), "ship"])
    for some in (["moon", "rain", "gold"], ["rain"], ["king"]):
        index.add(some, **QUIET)
    assert [one.id for one in index] == ["0", "3", "2", "6", "4", "5", "7"]
    # The second of an input never takes the place of the first, however often it is given.
    for change in (index.add, index.upsert, index.add, index.upsert):
        change([Document("gold", "a"), Document("ship", "a")], strict=False, **QUIET)
        assert index.get("a").text == "gold" and [one.kind for one in index.rejects()] == ["id used twice"]
    index.verify()
    # A number of this addition, which an id after it repeats.
    index = build(tmp_path / "named", [Document("cat", "a"), "dog", "ship"])
    change = index.add([Document("cat", "a"), "gold", Document("king", "3"), "zzzz"], strict=False, **QUIET)
    assert (change.added, change.unchanged, index.get("3").text) == (1, 1, "gold")
    rejects = [(one.place, one.kind, one.text) for one in index.rejects()]
    assert rejects == [("new record 1", "id used twice", "king"), ("new record 2", "no vector", "zzzz")]
    # The same again, whose numbers are ids by now.
    assert index.add([Document("cat", "a"), "gold"], **QUIET).unchanged == 2


def test_deletions(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: connect(*given, **{**options, "timeout": 0}))
    index = build(tmp_path / "index", [*documents(40), Document("cat xylophone", "secret")])
    index.add(["gold"], **QUIET)
    assert index.delete(["d1\0", "d2\0x"]).deleted == 0
    change = index.delete(["d0", *"zyxwvu", "d0", "41", "secret"])
    assert (change.deleted, change.unchanged) == (3, 0) and caplog.messages[-1].endswith(": u, v, w, x, y")
    assert {one.id for one in index.search("gold", 50)} == {f"d{n}" for n in range(1, 40)}
    with index._store.writing(create=False), pytest.raises(BlockingIOError):
        index.compact()
    with index._store.reading() as tx:
        tx.execute("SELECT * FROM meta").fetchone()
        assert index.compact().deleted == 2 and caplog.text.count("until the next compact") == 1
    assert index.compact().deleted == 0 and caplog.text.count("until the next compact") == 1
    assert not any(b"xylophone" in file.read_bytes() for file in index.path.iterdir())
    index.delete([one.id or "" for one in index])
    assert index.search("cat") == [] and index.compact().count == 0 and index.info()["vector_file"] is None
    index.add(["cat"], **QUIET)
    assert index.search("cat")[0].text == "cat"
    index.verify()
    for ids in ("d1", ["d1", 1]):
        with pytest.raises(TypeError):
            index.delete(ids)  # type: ignore[arg-type]


def test_another_index_in_its_place(tmp_path: Path) -> None:
    """Alike in all its numbers: as many documents, changes and pending vectors."""
    index = build(tmp_path / "index", documents(9))
    shutil.copytree(index.path, tmp_path / "other")
    index.add(["gold"], **QUIET)
    Index.open(tmp_path / "other", MODEL).add(["ship"], **QUIET)
    assert index.search("gold", 1)[0].text == "gold"
    index.path.rename(tmp_path / "old")
    (tmp_path / "other").rename(index.path)
    assert index.search("gold", 1, mode="vectors")[0].score < 0.999 and index.get("9").text == "ship"


def test_another_factory_without_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "index", documents(100))
    monkeypatch.setattr(type(MODEL), "encode_document", None)
    for factory in ("IVF2,Flat", "IVF2,SQ8", "Flat"):
        index.compact(factory=factory)
        assert index.info()["factory"] == factory and index.verify()["vectors"] == 100
    assert index.info()["parameters"] is None
    for options in ({"factory": "Nonsense"}, {"factory": "IVF200,Flat"}, {"parameters": "nprobe=2"}):
        with pytest.raises(ValueError):
            index.compact(**options)
    assert index.verify()["factory"] == "Flat"


def test_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.index.nearest._TIES", 0)

    class Tokenizer:
        is_fast = True

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def __call__(self, items: list[str], **options: Any) -> dict[str, Any]:
            return {"offset_mapping": [[word.span() for word in re.finditer(r"\w+", text)] for text in items]}

    model = tiny_model()
    real = model[0].tokenizer
    model[0].tokenizer = Tokenizer()
    long = "cat cat dog dog ship ship gold gold moon"
    input = ["rain", long, "gold", "king king king king"]
    index = Index.build(model, input, tmp_path / "index", passages="2:0", **QUIET)
    assert index.export(tmp_path / "a.parquet") == index.info()["vectors"] == 1 + 5 + 1 + 2
    passages = [None, "cat cat ", "dog dog ", "ship ship ", "gold gold ", "gold moon", None, "king king ", "king king"]
    assert parquet.read_table(tmp_path / "a.parquet")["passage"].to_pylist() == passages
    best = index.search("gold", 2)
    assert {one.id for one in best} == {"1", "2"} and {one.passage for one in best} == {"gold gold ", "gold"}
    assert len(index.search("dog", 3)) == 3
    assert [len(one) for one in index.search(["gold", "king"], 2)] == [2, 2]
    index.delete(["1"])
    index.verify()
    assert index.compact().deleted == 5 and len(index.search("dog", 9)) == 3


def test_tables(tmp_path: Path) -> None:
    index = build(tmp_path / "index", pd.DataFrame({"_id": ["a", "b"], "body": ["cat", "dog"], "year": [2019, 2024]}))
    assert index.get("b") == Document("dog", "b", {"year": 2024})
    assert index.info()["columns"] == {"text_column": "body", "id_column": "_id"}
    # Columns of the build are those of an addition.
    index.add([{"text": "x", "body": "ship", "_id": "c"}], **QUIET)
    assert index.get("c").text == "ship"


def test_a_corpus_as_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = encode_corpus(MODEL, [*texts(20), " "], tmp_path / "corpus", part_size=7, **QUIET)
    index = build(tmp_path / "index", tmp_path / "corpus")
    assert [one.text for one in index] == texts(20) and found(index, "gold", 5) == brute(index, "gold", 5)
    assert [one.kind for one in index.rejects()] == ["no text"]
    with pytest.raises(ValueError, match="cannot be used"):
        Index.build(tiny_model(1), tmp_path / "corpus", tmp_path / "other", **QUIET)
    for name, value in {"encoding": "gb18030", "id_column": "id", "passages": "8:2", "workers": 1}.items():
        with pytest.raises(ValueError, match=f"{name}="):
            Index.build(MODEL, tmp_path / "corpus", tmp_path / "other", **{name: value}, **QUIET)
    corpus.write_vectors(1, np.ones((6, 16), np.float32), "float32")
    for why in ("not what was written", "for 7 texts"):
        with pytest.raises(ValueError, match=why):
            build(tmp_path / "other", tmp_path / "corpus")
        monkeypatch.setattr(type(corpus), "verify", lambda corpus: None)
    assert not (tmp_path / "other").exists()


def test_longer_texts_need_the_length_of_the_build(tmp_path: Path) -> None:
    model = st_reba.build("mini", "reba", pooling="mean")
    index = Index.build(model, ["cat"], tmp_path / "index", **QUIET)
    encode_corpus(model, ["cat"], tmp_path / "corpus", **QUIET)
    model.max_seq_length -= 8
    calls: list[Any] = [lambda: index.add(["dog"], **QUIET), lambda: encode_corpus(model, ["cat"], tmp_path / "corpus")]
    calls += [lambda: Index.build(model, tmp_path / "corpus", tmp_path / "other")]
    for call in calls:
        with pytest.raises(ValueError, match="max_seq_length"):
            call()
    assert not (tmp_path / "other").exists()
    with pytest.raises(ValueError, match="an encoded corpus"):
        index.add(tmp_path / "corpus", **QUIET)


def test_the_model_is_found_again(tmp_path: Path) -> None:
    tiny_model().save(str(tmp_path / "here" / "model"))
    Index.build(str(tmp_path / "here" / "model"), ["cat", "dog"], tmp_path / "here" / "index", **QUIET)
    shutil.move(tmp_path / "here", tmp_path / "there")
    with Index.open(tmp_path / "there" / "index") as index:
        assert index.search("cat")[0].text == "cat" and index.info()["model_source"] == "../model"
    assert index._model.loaded is None and index._snapshots.latest is None
    shutil.rmtree(tmp_path / "there" / "model")
    with pytest.raises(ValueError, match="gone"):
        Index.open(tmp_path / "there" / "index").search("cat")
    assert len(Index.open(tmp_path / "there" / "index").search(np.ones(16, np.float32))) == 2


def test_another_model_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "index", ["cat"])
    with pytest.raises(ValueError, match="not known"):  # the model came from nowhere
        Index.open(tmp_path / "index").search("cat")
    with pytest.raises(OtherModelError):
        Index.open(tmp_path / "index", tiny_model(1))
    with pytest.raises(TypeError, match="loaded already"):
        Index.open(tmp_path / "index", MODEL, device="cpu")
    model = deepcopy(MODEL)
    index = Index.open(tmp_path / "index", model)
    assert index.search("cat")
    # Another model's index takes its place; then the model is trained.
    Index.build(tiny_model(1), ["cat"], tmp_path / "index", overwrite=True, **QUIET)
    for query in ("cat", np.ones(16, np.float32)):
        with pytest.raises(OtherModelError):
            index.search(query)
    build(tmp_path / "index", ["cat"], overwrite=True)
    with torch.no_grad():
        next(model.parameters()).mul_(torch.linspace(0, 2, 16))
    for use in (index.search, index.add):
        with pytest.raises(OtherModelError):
            use(["cat"])
    model.similarity_fn_name = "euclidean"
    with pytest.raises(ValueError, match="similarity"):
        Index.build(model, ["cat"], tmp_path / "euclidean", **QUIET)


def test_inner_products(tmp_path: Path) -> None:
    model = tiny_model()
    model.similarity_fn_name = "dot"
    index = Index.build(model, texts(30), tmp_path / "index", **QUIET)
    query = np.asarray(model.encode_query("gold ship", show_progress_bar=False), np.float64)
    products = np.asarray(model.encode_document(texts(30), show_progress_bar=False), np.float64) @ query
    assert [one.score for one in index.search("gold ship", 5, mode="vectors")] == pytest.approx(
        np.sort(products)[::-1][:5], rel=1e-5
    )


def test_queries_in_an_array_are_texts(tmp_path: Path) -> None:
    index = build(tmp_path)
    wanted = index.search(["a dog", "a cat"], 2)
    assert (
        index.search(np.array(["a dog", "a cat"]), 2) == index.search(np.array(["a dog", "a cat"], object), 2) == wanted
    )
