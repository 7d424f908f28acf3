"""Words of an index: what they find, that nothing in a query is an operator, and that they follow every change."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from indexes import MODEL, QUIET, build, documents, encoded, texts
from numpy.typing import NDArray
from tiny import tiny_model

from st_reba.index import Document, Index, SearchResult, fusion
from st_reba.index.query_terms import MAX_QUERY_TERMS, read_terms
from st_reba.index.terms import ENGLISH, OTHER, language_of

HOSTILE_PIECES = (
    *('"', '""', "'", "*", "cat*", "^cat", "-cat", "NOT", "AND cat", "OR", "NEAR(cat dog)", "NEAR/2", "text:cat", ":"),
    *(
        "{text}:",
        "(",
        ")",
        "((cat",
        "+",
        "cat + dog",
        "\0",
        "cat\0dog",
        "\ud800",
        "\udfffcat",
        "😀",
        "👩‍👩‍👧",
        "\u202ecat",
    ),
    *(
        "مرحبا",
        "שלום",
        "猫",
        "一只猫",
        "ﷺ",
        "\ufeff",
        "\u200b",
        ";",
        "--",
        "'; DROP TABLE words; --",
        "%",
        "?",
        "\\",
        "\n\t",
    ),
    *("rank", "bm25(words)", "words", "cat" * 40_000, "cat " * 25_000, "e\u0301" * 30, "🏳️‍🌈" * 50, "\x7f", "１２３"),
)


def reference_scores(texts: list[str], query: str) -> NDArray[np.float64]:
    """BM25 in plain loops, for words of Latin letters that are their own stems."""
    documents = [re.findall(r"\w+", text) for text in texts]
    mean_length = sum(map(len, documents)) / len(documents)
    scores = np.zeros(len(texts))
    for term, query_count in Counter(re.findall(r"\w+", query)).items():
        frequency = sum(term in document for document in documents)
        if frequency > len(texts) / 2:
            continue
        rarity = math.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
        for row, document in enumerate(documents):
            count = document.count(term)
            length_share = 0.25 + 0.75 * len(document) / mean_length
            scores[row] += query_count * rarity * count * 2.2 / (count + 1.2 * length_share)
    return scores


def reference_ranking(index: Index, query: str, allowed: set[str]) -> list[tuple[str, float]]:
    """Id and hybrid score of all documents that are allowed, best first."""
    stored = list(index)
    word_scores = reference_scores([document.text for document in stored], query)
    vector_scores = encoded([document.text for document in stored]) @ encoded([query], "encode_query")[0]
    rows = [row for row, document in enumerate(stored) if document.id in allowed]
    scaled_words = word_scores[rows] / (word_scores[rows].max() or 1)
    vectors = vector_scores[rows]
    scaled_vectors = (vectors - vectors.min()) / (vectors.max() - vectors.min())
    share = fusion.VECTORS_SHARE
    fused = share * scaled_vectors + (1 - share) * scaled_words
    return [(str(stored[rows[place]].id), fused[place]) for place in np.argsort(-fused, kind="stable")]


def ids(results: list[SearchResult]) -> list[str]:
    return [result.id for result in results]


def rows_of_words(index: Index) -> list[tuple[object, ...]]:
    """All occurrences of terms; keys count from 0."""
    with index._store.reading() as tx:
        keys = [key for (key,) in tx.execute("SELECT key FROM documents ORDER BY key")]
        occurrences = tx.execute("SELECT term, doc, offset FROM occurrences").fetchall()
    return sorted((term, keys.index(key), offset) for term, key, offset in occurrences)


def test_word_scores_are_bm25(tmp_path: Path) -> None:
    index = build(tmp_path / "index", documents(40))
    stored = list(index)
    for query in ("gold ship", "moon moon cat", "king"):
        results = index.search(query, 99, mode="words", explain=True)
        scores = reference_scores([document.text for document in stored], query)
        assert {result.id for result in results} == {stored[row].id for row in np.flatnonzero(scores)}
        assert [result.score for result in results] == pytest.approx(np.sort(scores[scores > 0])[::-1])
        assert all(result.word_score == result.score and result.vector_score is None for result in results)


@pytest.mark.parametrize("list_length", [100, 3])
def test_hybrid_agrees_with_brute_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, list_length: int) -> None:
    index = build(tmp_path / "index", documents(40))
    index.add([Document(text, f"e{row}", {"n": row}) for row, text in enumerate(texts(9, 1))], **QUIET)
    index.delete(["d3", "d7", "e2"])
    everything = {str(document.id) for document in index}
    few = {str(document.id) for document in index if document.metadata["n"] > 30}
    for where, allowed in ((None, everything), ({"n": {">": 30}}, few)):
        for query in ("gold ship", "rain king dog"):
            expected = dict(reference_ranking(index, query, allowed))
            results = index.search(query, len(allowed), where=where, explain=True)
            assert [result.score for result in results] == pytest.approx([expected[result.id] for result in results])
            assert [result.score for result in results] == pytest.approx(sorted(expected.values(), reverse=True))
            # Whatever is listed, both of a document's scores are its true ones.
            monkeypatch.setattr(fusion, "LIST_LENGTH", list_length)
            monkeypatch.setattr("st_reba.index.search.LIST_LENGTH", list_length)
            true_scores = {result.id: (result.vector_score, result.word_score) for result in results}
            for result in index.search(query, 3, where=where, explain=True):
                assert (result.vector_score, result.word_score) == pytest.approx(true_scores[result.id])


def test_each_mode_gives_its_own_score(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["gold moon", "cat", "ship king", "rain"])
    vector = np.asarray(MODEL.encode_query("gold", show_progress_bar=False))
    hybrid, by_vector = index.search("gold", 4), index.search("gold", 4, mode="vectors")
    assert hybrid[0].score == 1 and len(hybrid) == 4
    assert by_vector == index.search(vector, 4) and by_vector[0].score == pytest.approx(
        float(encoded(["gold moon"])[0] @ encoded(["gold"])[0]), abs=1e-6
    )
    assert ids(index.search("gold", 4, mode="words")) == ["0"]
    assert index.search("gold", 4, vectors=vector) == hybrid == index.search(["gold"], 4, vectors=vector[None])[0]
    assert hybrid[0].vector_score is None and "word_score" not in hybrid[0].to_json()


def test_words_need_no_model(tmp_path: Path) -> None:
    build(tmp_path / "index", documents(9)).close()  # of a model that is saved nowhere
    assert Index.open(tmp_path / "index").search("gold", mode="words")


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("cat", {"mode": "word"}), (np.ones(16, np.float32), {"mode": "hybrid"}),
        (np.ones(16, np.float32), {"mode": "words"}), ("cat", {"vectors": np.ones((2, 16), np.float32)}),
        ("cat", {"mode": "words", "vectors": np.ones(16, np.float32)}),
        (np.ones(16, np.float32), {"vectors": np.ones(16, np.float32)}),
    ],
)  # fmt: skip
def test_modes_that_are_refused(tmp_path: Path, query: str, options: dict[str, object]) -> None:
    index = build(tmp_path / "index", ["cat", "dog"])
    with pytest.raises(ValueError):
        index.search(query, **options)  # type: ignore[arg-type]


def test_hostile_queries_find_no_more_than_their_words(tmp_path: Path) -> None:
    index = build(tmp_path / "index", [*documents(40), Document("rain catalogue", "long"), Document("rain text", "t")])
    words_by_id = {str(document.id): set(re.findall(r"\w+", document.text)) for document in index}
    vector = np.ones(16, np.float32)
    random = np.random.default_rng(0)
    for _ in range(300):
        query = " ".join(random.choice(HOSTILE_PIECES, size=random.integers(1, 4))) or "*"
        if not query.strip():
            query = "\0"
        plain = query.replace("\0", " ").replace("１２３", "123").lower()
        asked = set(re.findall(r"\w+", plain))
        found = set(ids(index.search(query, 99, mode="words")))
        assert found == {name for name, words in words_by_id.items() if words & asked}
        assert len(index.search(query, 5, vectors=vector)) == 5


@pytest.mark.parametrize("query", ["!?", "\0", "\u200b", "😀", "zebra", '"*"'])
def test_hybrid_without_a_known_word_ranks_as_vectors_do(tmp_path: Path, query: str) -> None:
    index = build(tmp_path / "index")
    vector = np.linspace(-1, 1, 16, dtype=np.float32)
    assert index.search(query, mode="words") == []
    hybrid = index.search(query, 40, vectors=vector)
    assert ids(hybrid) == ids(index.search(query, 40, mode="vectors", vectors=vector))


def test_pairs_of_characters_find_chinese_and_single_ones_too(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["猫 一只猫在睡觉", "猫 国家银行", "cat 行走", "ship 中国"])
    for query, found in (
        ("睡觉", "0"),
        ("银行", "1"),
        ("行", "12"),
        ("猫在", "0"),
        ("中国", "3"),
        ("睡觉的银行", "01"),
    ):
        assert sorted(ids(index.search(query, mode="words"))) == list(found)


def test_english_is_stemmed_and_accents_do_not_count(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["The cat", "the cats of the CAFÉ", "dog fishing"])
    assert sorted(ids(index.search("cat's", mode="words"))) == ["0", "1"]
    assert ids(index.search("cafes", mode="words")) == ["1"] and ids(index.search("fish", mode="words")) == ["2"]
    german = ["Die Katze schläft auf dem Sofa, der Hund läuft durch den Garten."] * 9
    assert (
        language_of(german) == OTHER and language_of(["On the nature of things, and how to use them."] * 9) == ENGLISH
    )
    assert index.info()["words"] == ENGLISH


def test_terms_of_a_long_query_are_bounded() -> None:
    (terms,) = read_terms(OTHER, [" ".join(f"w{number}" for number in range(9_999))])
    assert len(terms.decisive) == MAX_QUERY_TERMS


def test_a_word_that_most_documents_have_tells_nothing(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat gold", "cat ship", "cat moon", "dog"])
    assert ids(index.search("cat gold", mode="words")) == ["0"]
    assert ids(index.search("cat", mode="words")) == ["0", "1", "2"]


def test_words_follow_every_change(tmp_path: Path) -> None:
    index = build(tmp_path / "index", documents(20))
    index.add([Document("gold xylophone", "x"), Document("moon", "y")], **QUIET)
    assert ids(index.search("xylophone", mode="words")) == ["x"]
    index.upsert([Document("gold trombone", "x")], **QUIET)
    assert index.search("xylophone", mode="words") == [] and ids(index.search("trombone", mode="words")) == ["x"]
    index.delete(["y", "d3"])
    same = build(tmp_path / "same", list(index))
    assert rows_of_words(index) == rows_of_words(same)
    index.verify()
    index.compact()
    assert rows_of_words(index) == rows_of_words(same)
    assert not any(b"xylo" in file.read_bytes() for file in index.path.iterdir())
    build(index.path, ["king"], overwrite=True)
    assert index.search("trombone", mode="words") == [] and ids(index.search("king", mode="words")) == ["0"]
    index.verify()


def test_words_are_of_whole_documents_and_passages_of_vectors(tmp_path: Path) -> None:
    class Spans:
        is_fast = True

        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

        def __call__(self, items: list[str], **options: object) -> dict[str, object]:
            return {"offset_mapping": [[word.span() for word in re.finditer(r"\w+", text)] for text in items]}

    model = tiny_model()
    tokenizer = model[0].tokenizer
    model[0].tokenizer = Spans()
    long = "cat cat dog dog ship ship gold gold moon"
    index = Index.build(
        model, ["rain", long, "gold", "king king king king"], tmp_path / "index", passages="2:0", **QUIET
    )
    passages = {
        "0": ["rain"],
        "1": ["cat cat ", "dog dog ", "ship ship ", "gold gold ", "gold moon"],
        "2": ["gold"],
        "3": ["king king "],
    }
    for query in ("gold moon", "dog rain", "king"):
        query_vector = encoded([query], "encode_query")[0]
        for result in index.search(query, 4, explain=True):
            scores = encoded(passages[result.id]) @ query_vector
            assert result.vector_score == pytest.approx(scores.max(), abs=1e-5)
            assert result.passage in (None, passages[result.id][int(scores.argmax())])
            expected = reference_scores([document.text for document in index], query)
            assert result.word_score == pytest.approx(expected[int(result.id)])
    assert index.search("moon", mode="words")[0].passage is None


def without_words(path: Path) -> None:
    """Make an index what it was before there were words."""
    connection = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    for table in ("frequencies", "occurrences", "words"):
        connection.execute(f"DROP TABLE {table}")
    state = json.loads(connection.execute("SELECT state FROM meta").fetchone()[0]) | {"format": 5}
    del state["words"]
    text = json.dumps(state, ensure_ascii=False)
    connection.execute("UPDATE meta SET state = ?, sha256 = ?", (text, hashlib.sha256(text.encode()).hexdigest()))
    connection.close()


def test_an_index_without_words_is_searched_by_vectors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path / "index").close()
    without_words(tmp_path / "index")
    index = Index.open(tmp_path / "index", MODEL)
    assert index.search("gold") == index.search("gold", mode="vectors")
    assert index.search("gold") and caplog.text.count("--compact) adds words") == 1
    for mode in ("words", "hybrid"):
        with pytest.raises(ValueError, match="compact"):
            index.search("gold", mode=mode)  # type: ignore[arg-type]
    index.add(["gold trombone"], **QUIET)
    index.delete(["d1"])
    index.verify()
    index.compact()
    index.verify()
    assert ids(index.search("trombone", mode="words")) == ["40"]
    assert rows_of_words(index) == rows_of_words(build(tmp_path / "same", list(index)))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO words (words, rowid, text) VALUES ('delete', 3, 'gold')",
        "INSERT INTO words (rowid, text) VALUES (99, 'gold')",
        "UPDATE words_docsize SET sz = x'7f' WHERE id = 3",
        "DELETE FROM words_docsize WHERE id = 3",
        "DROP TABLE words",
        "UPDATE words_data SET block = zeroblob(40) WHERE id > 10",
    ],
)
def test_words_that_do_not_fit_their_documents_are_noticed(tmp_path: Path, statement: str) -> None:
    index = build(tmp_path / "index", ["cat", "dog", "ship", "gold moon"])
    connection = sqlite3.connect(tmp_path / "index" / "index.sqlite")
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(ValueError, match=r"index\.sqlite: damaged"):
        index.verify()
    index.compact()
    index.verify()
    assert ids(index.search("gold", mode="words")) == ["3"]
