"""Indexes of passages, of tables and of encoded corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from indexes import (
    MODEL,
    QUIET,
    WordSpans,
    build,
    kinds_of,
    make_texts,
    rank_by_brute_force,
    rank_by_index,
    texts_of,
)
from pyarrow import parquet
from tiny import tiny_model

from st_reba.corpus import Corpus, encode_corpus
from st_reba.corpus import folder as corpus_folder
from st_reba.index import Document, Index


@pytest.fixture
def index_of_passages(index_path: Path) -> Index:
    model = tiny_model()
    model[0].tokenizer = WordSpans(model[0].tokenizer)
    long_text = "cat cat dog dog ship ship gold gold moon"
    input_texts = ["rain", long_text, "gold", "king king king king"]
    return Index.build(model, input_texts, index_path, passages="2:0", **QUIET)


def test_a_document_with_keys_in_another_order_is_unchanged(index_path: Path) -> None:
    index = build(
        index_path, [{"id": "x", "text": "cat", "a": 1, "b": 2}, {"text": "dog", "a": 1, "b": 2}]
    )
    rows = [{"b": 2, "a": 1, "text": "cat", "id": "x"}, {"b": 2, "a": 1, "text": "dog"}]
    change = index.add(rows, **QUIET)
    assert (change.added, change.unchanged) == (0, 2)
    assert index.upsert(rows[:1], **QUIET).unchanged == 1


def test_additions_need_not_have_the_columns_of_the_build(index_path: Path) -> None:
    table = pd.DataFrame({"key": ["x"], "body": ["cat"]})
    index = build(index_path, table, text_column="body", id_column="key")
    assert index.add([{"text": "dog"}], **QUIET).added == 1
    assert index.add([{"body": "ship", "key": "y", "id": "z"}], **QUIET).added == 1
    assert [document.id for document in index] == ["x", "1", "y"]
    with pytest.raises(ValueError, match="id_column='key' is not a column"):
        index.add([{"text": "dog"}], id_column="key", **QUIET)


def test_an_index_without_ids_takes_none_from_additions(index_path: Path) -> None:
    index = build(index_path, pd.DataFrame({"id": ["x"], "text": ["cat"]}), id_column="")
    index.add([{"id": "y", "text": "dog"}], **QUIET)
    assert [document.id for document in index] == ["0", "1"]


def test_passages_have_vectors(
    index_of_passages: Index,
    tmp_path: Path,
) -> None:
    assert index_of_passages.export(tmp_path / "a.parquet") == 1 + 5 + 1 + 2
    assert index_of_passages.info()["vectors"] == 1 + 5 + 1 + 2
    passages = parquet.read_table(tmp_path / "a.parquet")["passage"].to_pylist()
    long_passages = ["cat cat ", "dog dog ", "ship ship ", "gold gold ", "gold moon"]
    assert passages == [None, *long_passages, None, "king king ", "king king"]


def test_results_are_documents_with_their_nearest_passage(
    index_of_passages: Index,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("st_reba.index.nearest._TIES", 0)
    results = index_of_passages.search("gold", 2, mode="vectors")
    assert {result.id: result.passage for result in results} == {"1": "gold gold ", "2": "gold"}
    assert len(index_of_passages.search("dog", 3, mode="vectors")) == 3
    # The two nearest passages are of two documents for one query, of one for the other.
    results_by_query = index_of_passages.search(["gold", "cat ship"], 2, mode="vectors")
    assert list(map(len, results_by_query)) == [2, 2]


def test_a_document_is_deleted_with_all_its_passages(index_of_passages: Index) -> None:
    index_of_passages.delete(["1"])
    index_of_passages.verify()
    assert index_of_passages.compact().deleted == 5
    assert len(index_of_passages.search("dog", 9)) == 3


def test_columns_of_the_build_are_those_of_an_addition(index_path: Path) -> None:
    table = pd.DataFrame({"_id": ["a", "b"], "body": ["cat", "dog"], "year": [2019, 2024]})
    index = build(index_path, table)
    assert index.get("b") == Document("dog", "b", {"year": 2024})
    assert index.info()["columns"] == {"text_column": "body", "id_column": "_id"}
    index.add([{"text": "x", "body": "ship", "_id": "c"}], **QUIET)
    assert index.get("c").text == "ship"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return encode_corpus(MODEL, [*make_texts(20), " "], tmp_path / "corpus", part_size=7, **QUIET)


def test_an_encoded_corpus_is_indexed(
    index_path: Path,
    corpus: Corpus,
) -> None:
    index = build(index_path, corpus.path)
    assert texts_of(index) == make_texts(20)
    assert rank_by_index(index, "gold", 5) == rank_by_brute_force(index, "gold", 5)
    assert kinds_of(index.rejects()) == ["no text"]


def test_a_corpus_of_passages_gives_an_index_of_passages(tmp_path: Path) -> None:
    model = tiny_model()
    model[0].tokenizer = WordSpans(model[0].tokenizer)
    texts = ["cat cat gold gold", "dog dog dog"]
    encode_corpus(model, texts, tmp_path / "corpus", passages="2:0", **QUIET)
    index = Index.build(model, tmp_path / "corpus", tmp_path / "index", **QUIET)
    assert index.info()["passages"] == "2:0"
    assert index.search("gold", 1, mode="vectors")[0].passage == "gold gold"


def test_the_facts_of_a_part_are_read_once(
    index_path: Path,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_schema = parquet.read_schema
    read_paths: list[Path] = []

    def count_and_read(path: Path) -> Any:
        read_paths.append(path)
        return read_schema(path)

    monkeypatch.setattr(corpus_folder.parquet, "read_schema", count_and_read)
    build(index_path, corpus.path)
    assert len(read_paths) == len(set(read_paths)) == corpus.part_count()


def test_a_corpus_of_another_model_is_refused(
    index_path: Path,
    corpus: Corpus,
) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        Index.build(tiny_model(1), corpus.path, index_path, **QUIET)
    assert not (index_path).exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("encoding", "gb18030"), ("id_column", "id"), ("passages", "8:2"), ("workers", 1)],
)
def test_options_of_encoding_are_refused_for_a_corpus(
    index_path: Path,
    corpus: Corpus,
    name: str,
    value: Any,
) -> None:
    with pytest.raises(ValueError, match=f"{name}="):
        build(index_path, corpus.path, **{name: value})


def test_a_corpus_with_other_vectors_is_refused(
    index_path: Path,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus.write_vectors(1, np.ones((6, 16), np.float32), "float32")
    with pytest.raises(ValueError, match="not what was written"):
        build(index_path, corpus.path)
    monkeypatch.setattr(Corpus, "check_complete", lambda corpus: None)
    with pytest.raises(ValueError, match="for 7 texts"):
        build(index_path, corpus.path)
    assert not (index_path).exists()


def test_a_corpus_is_no_addition(
    index_path: Path,
    corpus: Corpus,
) -> None:
    index = build(index_path, ["cat"])
    with pytest.raises(ValueError, match="an encoded corpus"):
        index.add(corpus.path, **QUIET)
