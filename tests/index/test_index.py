"""An index as its users see it: results, documents, changes and refusals."""

from __future__ import annotations

import inspect
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from indexes import (
    MODEL,
    QUIET,
    build,
    ids_of,
    kinds_of,
    make_documents,
    make_texts,
    rank_by_brute_force,
    rank_by_index,
    scores_of,
)
from tiny import tiny_model

import st_reba
from st_reba.corpus import encode_corpus
from st_reba.index import Document, Index, OtherModelError
from st_reba.index.arguments import AddOptions
from st_reba.index.queries import SearchOptions


@pytest.mark.parametrize("query", ["cat ship", "gold", "moon rain king"])
def test_results_are_those_of_brute_force(
    index_path: Path,
    query: str,
) -> None:
    index = build(index_path, make_documents(300))
    index.add(make_documents(320)[300:], **QUIET)
    index.upsert([Document("gold gold king", "d7", {"n": 7})], **QUIET)
    index.delete(["d3", "d301"])
    assert rank_by_index(index, query, 10) == rank_by_brute_force(index, query, 10)


def test_conditions_limit_the_results(index_path: Path) -> None:
    index = build(index_path, make_documents(300))
    index.delete(["d3"])
    results = index.search("gold", 400, where={"n": {"<": 9}})
    assert set(ids_of(results)) == {"d0", "d1", "d2", "d4", "d5", "d6", "d7", "d8"}


def test_equal_scores_are_in_the_order_of_addition(index_path: Path) -> None:
    index = build(index_path, ["cat"] * 60)
    index.add(["cat"] * 20, **QUIET)
    index.delete(["5"])
    results = index.search("cat", 30)
    assert ids_of(results) == [str(number) for number in range(31) if number != 5]
    assert index.search(["cat", "dog"] * 20, 30)[0] == results


def test_texts_and_vectors_give_the_same_results(index_path: Path) -> None:
    index = build(index_path)
    results = index.search("gold", np.int64(3), mode="vectors")
    assert [result.rank for result in results] == [1, 2, 3]
    query_vector = np.asarray(MODEL.encode_query("gold", show_progress_bar=False))
    assert index.search(query_vector, 3) == results
    assert index.search(query_vector[None], 3) == [results]
    assert index.search(["gold"], 3, mode="vectors") == [results]


def test_queries_may_be_none_or_many(
    index_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    index = build(index_path)
    assert index.search([]) == []
    assert index.search(np.zeros((0, 16), np.float32)) == []
    assert len(index.search("gold")) == 10
    assert len(index.search(np.eye(16))) == 16
    assert capsys.readouterr().err == ""


def test_texts_may_be_in_an_array(tmp_path: Path) -> None:
    index = build(tmp_path)
    queries = ["a dog", "a cat"]
    results = index.search(queries, 2)
    assert index.search(np.array(queries), 2) == results
    assert index.search(np.array(queries, object), 2) == results


@pytest.mark.parametrize(
    ("queries", "options", "error"),
    [
        ("", {}, ValueError),
        (["cat", " "], {}, ValueError),
        (7, {}, TypeError),
        ([7], {}, ValueError),
        ("cat", {"k": 0}, ValueError),
        ("cat", {"k": 1.5}, TypeError),
        ("cat", {"k": True}, TypeError),
        (np.ones(16, np.int64), {}, ValueError),
        (np.eye(2, 16, dtype=np.float32) * [[1], [0]], {}, ValueError),
        (np.ones(15, np.float32), {}, ValueError),
        (np.array([np.nan] + [1] * 15, np.float32), {}, ValueError),
    ],
)
def test_queries_that_cannot_be_searched_are_refused(
    index_path: Path,
    queries: Any,
    options: Any,
    error: type[Exception],
) -> None:
    index = build(index_path, ["cat", "dog"])
    with pytest.raises(error):
        index.search(queries, **options)


def test_the_first_vector_that_cannot_be_used_is_named(index_path: Path) -> None:
    index = build(index_path, ["cat", "dog"])
    vectors = np.eye(4, 16) * [[1], [1], [0], [0]]
    with pytest.raises(ValueError, match="query 2: its vector is zero"):
        index.search(vectors)


def test_the_size_of_an_index_is_that_of_its_files(index_path: Path) -> None:
    index = build(index_path, ["cat", "dog"])
    (index_path / ".building").mkdir()
    sizes = [file.stat().st_size for file in index_path.iterdir() if file.is_file()]
    assert index.info()["bytes"] == sum(sizes)


def test_documents_are_read_by_id(index_path: Path) -> None:
    index = build(index_path)
    assert index.get("d3") == make_documents(40)[3]
    assert index.get(["d3", "x", "\ud800"]) == [make_documents(40)[3], None, None]
    assert "d3" in index
    assert "x" not in index
    assert 3 not in index
    assert str(index).endswith("40 documents, dim 16, cosine)")


def test_iteration_may_go_on_in_another_thread(index_path: Path) -> None:
    index = build(index_path)
    with ThreadPoolExecutor() as pool:
        iterator = iter(index)
        first_document = next(iterator)
        other_documents = pool.submit(list, iterator).result()
    assert [first_document, *other_documents] == make_documents(40)
    assert len(index) == 40


def test_an_addition_leaves_known_documents(index_path: Path) -> None:
    index = build(index_path, make_documents(10))
    change = index.add([*make_documents(12), {"text": "gold"}], **QUIET)
    assert vars(change) == {
        "count": 13,
        "added": 3,
        "replaced": 0,
        "deleted": 0,
        "unchanged": 10,
        "rejected": {},
        "truncated": 0,
    }


def test_an_addition_rejects_ids_with_another_text(index_path: Path) -> None:
    index = build(index_path, make_documents(10))
    with pytest.raises(ValueError, match="upsert"):
        index.add([Document("moon", "d3")], **QUIET)
    new_documents = [Document("moon", "d3"), Document("moon", "e")]
    change = index.add(new_documents, strict=False, **QUIET)
    assert change.rejected == {"id in the index": 1}
    assert ids_of(index.rejects()) == ["d3"]
    assert "e" in index


def test_upsert_replaces_documents_by_id(index_path: Path) -> None:
    index = build(index_path, make_documents(10))
    change = index.upsert([Document("moon", "d3"), *make_documents(3)], **QUIET)
    assert (change.replaced, change.unchanged, change.added) == (1, 3, 0)
    assert index.get("d3").text == "moon"
    facts = index.verify()
    assert (facts["documents"], facts["vectors"]) == (10, 10)
    assert (facts["pending"], facts["deleted"], facts["indexed_count"]) == (1, 1, 10)
    assert facts["changes"] == 2


def test_texts_without_ids_are_recognized_by_text_and_metadata(index_path: Path) -> None:
    first_input = ["cat", "cat", {"text": "cat", "n": 1}, Document("gold", "own")]
    index = build(index_path, first_input)
    assert len(index) == 4
    second_input = ["cat", "dog", {"text": "cat", "n": 1}, {"text": "cat", "n": 2}, "gold"]
    change = index.add(second_input, **QUIET)
    assert (change.added, change.unchanged) == (3, 2)
    index.delete(["4"])
    assert index.add(["dog", "gold"], **QUIET).added == 1
    index.verify()


def test_a_number_that_is_given_is_another_id_than_one_that_is_not(index_path: Path) -> None:
    index = build(index_path, ["cat", "gold"])
    cat = Document("cat", "0")
    assert index.get("0") == cat
    assert index.add([cat], strict=False, **QUIET).rejected == {"id in the index": 1}
    assert index.upsert([cat], **QUIET).replaced == 1
    change = index.add([cat, "cat", "gold"], **QUIET)
    assert (change.added, change.unchanged) == (1, 2)


def test_upsert_rejects_texts_without_ids(index_path: Path) -> None:
    index = build(index_path, ["moon", Document("gold", "own")])
    with pytest.raises(ValueError, match="no id"):
        index.upsert(["moon"], **QUIET)
    change = index.upsert(["moon", Document("moon", "own")], strict=False, **QUIET)
    assert (change.rejected, change.replaced) == ({"no id": 1}, 1)


def test_lines_are_recognized_wherever_they_move_in_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("cat\nship\n", encoding="utf-8")
    index = build(tmp_path / "index", folder)
    assert index.get("3") == Document("ship", "3", {"file": "b.txt", "line": 2})
    (folder / "a.txt").write_text("king\ncat\nship\n", encoding="utf-8")
    change = index.add(folder, **QUIET)
    assert (change.added, change.unchanged) == (1, 4)


def test_rows_are_recognized_wherever_they_move_in_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    write_tables(folder, ["cat", "ship"])
    index = build(tmp_path / "index", folder)
    write_tables(folder, ["king", "cat", "ship"])
    change = index.add(folder, **QUIET)
    assert (change.added, change.unchanged) == (2, 4)


def write_tables(
    folder: Path,
    table_texts: list[str],
) -> None:
    table = pd.DataFrame({"text": table_texts})
    table.to_json(folder / "a.jsonl", orient="records", lines=True)
    table.to_parquet(folder / "b.parquet")


def test_positions_in_metadata_of_the_user_count(index_path: Path) -> None:
    """They may look like those that a folder's texts are given."""
    index = build(index_path, [{"text": "cat", "file": "a.txt", "line": 1}])
    change = index.add([{"text": "cat", "file": "a.txt", "line": 2}], **QUIET)
    assert (change.added, change.unchanged) == (1, 0)


def test_numbers_of_texts_avoid_ids(index_path: Path) -> None:
    index = build(index_path, ["cat", Document("dog", "3"), "ship"])
    for new_texts in (["moon", "rain", "gold"], ["rain"], ["king"]):
        index.add(new_texts, **QUIET)
    assert ids_of(index) == ["0", "3", "2", "6", "4", "5", "7"]


def test_the_second_use_of_an_id_is_rejected(index_path: Path) -> None:
    """However often the input is given."""
    index = build(index_path, ["cat"])
    new_documents = [Document("gold", "a"), Document("ship", "a")]
    for change in (index.add, index.upsert, index.add, index.upsert):
        change(new_documents, strict=False, **QUIET)
        assert index.get("a").text == "gold"
        assert kinds_of(index.rejects()) == ["id used twice"]
    index.verify()


def test_an_id_may_be_the_number_of_a_new_text(tmp_path: Path) -> None:
    index = build(tmp_path / "named", [Document("cat", "a"), "dog", "ship"])
    new_documents = [Document("cat", "a"), "gold", Document("king", "3"), "zzzz"]
    change = index.add(new_documents, strict=False, **QUIET)
    assert (change.added, change.unchanged, index.get("3").text) == (1, 1, "gold")
    rejects = [(reject.place, reject.kind, reject.id, reject.text) for reject in index.rejects()]
    assert rejects == [
        ("new record 1", "id used twice", "3", "king"),
        ("new record 2", "no vector", "5", "zzzz"),
    ]
    # The same again, whose numbers are ids by now.
    assert index.add(new_documents[:2], **QUIET).unchanged == 2


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite does not wait for others."""
    connect = sqlite3.connect

    def connect_without_waiting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        options["timeout"] = 0
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", connect_without_waiting)


def test_deleted_documents_are_not_found(
    index_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = build(index_path)
    assert index.delete(["d1\0", "d2\0x"]).deleted == 0
    change = index.delete(["d0", *"zyxwvu", "d0"])
    assert (change.deleted, change.unchanged, change.truncated) == (1, 0, 0)
    assert caplog.messages[-1].endswith(": u, v, w, x, y")
    expected_ids = {f"d{number}" for number in range(1, 40)}
    assert set(ids_of(index.search("gold", 50))) == expected_ids


@pytest.mark.parametrize("ids", ["d1", ["d1", 1]])
def test_ids_to_delete_are_strings(
    index_path: Path,
    ids: Any,
) -> None:
    index = build(index_path)
    with pytest.raises(TypeError):
        index.delete(ids)


@pytest.mark.usefixtures("impatient")
def test_compact_removes_deleted_texts_from_the_disk(
    index_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = build(index_path, [*make_documents(40), Document("cat xylophone", "secret")])
    index.add(["gold"], **QUIET)
    index.delete(["d0", "41", "secret"])
    with index._store.writing(create=False), pytest.raises(BlockingIOError):
        index.compact()
    with index._store.reading() as connection:
        connection.execute("SELECT * FROM meta").fetchone()
        assert index.compact().deleted == 2
        assert caplog.text.count("until the next compact") == 1
    assert index.compact().deleted == 0
    assert caplog.text.count("until the next compact") == 1
    for file in index.path.iterdir():
        assert b"xylophone" not in file.read_bytes()


def test_an_index_may_become_empty_and_be_filled_again(index_path: Path) -> None:
    index = build(index_path, make_documents(9), factory="IVF2,Flat")
    index.delete(ids_of(index))
    assert index.search("cat") == []
    assert index.compact().count == 0
    facts = index.info()
    assert (facts["vector_file"], facts["first_pending_key"]) == (None, 0)
    assert (facts["factory"], facts["parameters"]) == ("Flat", None)
    index.add(["cat"], **QUIET)
    assert index.search("cat")[0].text == "cat"
    index.verify()


def test_an_index_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    """Alike in all its numbers: as many documents, changes and pending vectors."""
    index = build(tmp_path / "index", make_documents(9))
    shutil.copytree(index.path, tmp_path / "other")
    index.add(["gold"], **QUIET)
    Index.open(tmp_path / "other", MODEL).add(["ship"], **QUIET)
    assert index.search("gold", 1)[0].text == "gold"
    index.path.rename(tmp_path / "old")
    (tmp_path / "other").rename(index.path)
    assert index.search("gold", 1, mode="vectors")[0].score < 0.999
    assert index.get("9").text == "ship"


def test_compact_changes_the_factory_without_encoding(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = build(index_path, make_documents(100))
    monkeypatch.setattr(type(MODEL), "encode_document", None)
    for factory in ("IVF2,Flat", "IVF2,SQ8", "Flat"):
        index.compact(factory=factory)
        assert index.info()["factory"] == factory
        assert index.verify()["vectors"] == 100
    assert index.info()["parameters"] is None


@pytest.mark.parametrize(
    "options", [{"factory": "Nonsense"}, {"factory": "IVF200,Flat"}, {"parameters": "nprobe=2"}]
)
def test_compact_refuses_factories_that_cannot_be_used(
    index_path: Path,
    options: dict[str, str],
) -> None:
    index = build(index_path, make_documents(100))
    with pytest.raises(ValueError):
        index.compact(**options)
    assert index.verify()["factory"] == "Flat"


def test_the_longest_input_is_that_of_the_build(tmp_path: Path) -> None:
    model = st_reba.build("mini", "reba", pooling="mean")
    index = Index.build(model, ["cat"], tmp_path / "index", **QUIET)
    encode_corpus(model, ["cat"], tmp_path / "corpus", **QUIET)
    model.max_seq_length -= 8
    uses: list[Callable[[], object]] = [
        lambda: index.add(["dog"], **QUIET),
        lambda: encode_corpus(model, ["cat"], tmp_path / "corpus"),
        lambda: Index.build(model, tmp_path / "corpus", tmp_path / "other"),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="max_seq_length"):
            use()
    assert not (tmp_path / "other").exists()


def test_the_model_is_found_again(tmp_path: Path) -> None:
    model_folder = tmp_path / "here" / "model"
    tiny_model().save(str(model_folder))
    Index.build(str(model_folder), ["cat", "dog"], tmp_path / "here" / "index", **QUIET)
    shutil.move(tmp_path / "here", tmp_path / "there")
    with Index.open(tmp_path / "there" / "index") as index:
        assert index.search("cat")[0].text == "cat"
        assert index.info()["model_source"] == "../model"
    assert index._model.loaded is None
    assert index._snapshots.latest is None


def test_an_index_without_its_model_is_searched_by_vectors(tmp_path: Path) -> None:
    tiny_model().save(str(tmp_path / "model"))
    Index.build(str(tmp_path / "model"), ["cat", "dog"], tmp_path / "index", **QUIET)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(ValueError, match="gone"):
        Index.open(tmp_path / "index").search("cat")
    query_vector = np.ones(16, np.float32)
    results = Index.open(tmp_path / "index").search(query_vector)
    assert len(results) == 2
    index = Index.open(tmp_path / "index")
    assert index.search("cat", vectors=query_vector, mode="vectors") == results


def test_a_model_from_nowhere_is_not_known(index_path: Path) -> None:
    build(index_path, ["cat"])
    with pytest.raises(ValueError, match="not known"):
        Index.open(index_path).search("cat")


def test_another_model_is_refused(index_path: Path) -> None:
    build(index_path, ["cat"])
    with pytest.raises(OtherModelError):
        Index.open(index_path, tiny_model(1))
    with pytest.raises(TypeError, match="loaded already"):
        Index.open(index_path, MODEL, device="cpu")


@pytest.mark.parametrize("query", ["cat", np.ones(16, np.float32)], ids=["text", "vector"])
def test_an_index_of_another_model_in_the_same_place_is_refused(
    index_path: Path,
    query: Any,
) -> None:
    index = build(index_path, ["cat"])
    assert index.search("cat")
    Index.build(tiny_model(1), ["cat"], index_path, overwrite=True, **QUIET)
    with pytest.raises(OtherModelError):
        index.search(query)


def test_a_model_that_was_trained_is_refused(index_path: Path) -> None:
    build(index_path, ["cat"])
    model = deepcopy(MODEL)
    index = Index.open(index_path, model)
    assert index.search("cat")
    with torch.no_grad():
        next(model.parameters()).mul_(torch.linspace(0, 2, 16))
    for use in (index.search, index.add):
        with pytest.raises(OtherModelError):
            use(["cat"])


def test_other_similarities_are_refused(index_path: Path) -> None:
    model = tiny_model()
    model.similarity_fn_name = "euclidean"
    with pytest.raises(ValueError, match="similarity"):
        Index.build(model, ["cat"], index_path, **QUIET)


def test_scores_may_be_inner_products(index_path: Path) -> None:
    model = tiny_model()
    model.similarity_fn_name = "dot"
    index = Index.build(model, make_texts(30), index_path, **QUIET)
    query_vector = model.encode_query("gold ship", show_progress_bar=False)
    document_vectors = model.encode_document(make_texts(30), show_progress_bar=False)
    products = document_vectors.astype(np.float64) @ query_vector.astype(np.float64)
    expected_scores = np.sort(products)[::-1][:5]
    results = index.search("gold ship", 5, mode="vectors")
    assert scores_of(results) == pytest.approx(expected_scores, rel=1e-5)


def test_editors_are_told_the_options_of_the_methods() -> None:
    add_options = set(inspect.signature(Index._extend).parameters) - {"self", "input", "upsert"}
    assert AddOptions.__optional_keys__ == add_options
    search_options = set(inspect.signature(Index.search).parameters) - {"self", "queries", "k"}
    assert SearchOptions.__optional_keys__ == search_options
