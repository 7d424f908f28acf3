"""Words of an index: what they find, queries without operators, and words after changes."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import QUIET, build, ids_of, make_documents, run_sql
from ranking import all_documents, word_occurrences, words_in

from st_reba.evaluation.word_scores import word_scores
from st_reba.index import Document, bm25
from st_reba.index.query_terms import MAX_QUERY_TERMS, read_terms
from st_reba.index.terms import ENGLISH, OTHER, language_of, separated
from st_reba.index.words import create_words, insert_separated

SYNTAX_TEXT = r"""
" "" ' * cat* ^cat -cat NOT AND OR NEAR NEAR/2 NEAR(cat text:cat {text}: : ( ) ((cat + , ; -- % ? \
rank bm25(words) words '; DROP TABLE ﷺ مرحبا שלום 猫 一只猫 😀 👩‍👩‍👧 🏳️‍🌈 １２３
"""
CHARACTERS = [
    "\0",
    "cat\0dog",
    "\ud800",
    "\udfffcat",
    "\u202ecat",
    "\ufeff",
    "\u200b",
    "\x7f",
    "\n\t",
]
LONG = ["cat" * 40_000, "cat " * 25_000, "e\u0301" * 30]


@pytest.mark.parametrize("seed", range(10))
def test_hostile_queries_find_no_more_than_their_words(
    index_path: Path,
    seed: int,
) -> None:
    lookalikes = [Document("rain catalogue", "long"), Document("rain text", "text")]
    index = build(index_path, [*make_documents(40), *lookalikes])
    stored_documents = all_documents(index)
    query_vector = np.ones(16, np.float32)
    random = np.random.default_rng(seed)
    for _ in range(30):
        pieces = random.choice(
            [*SYNTAX_TEXT.split(), *CHARACTERS, *LONG], size=random.integers(1, 4)
        )
        query = "_".join(["", *pieces])  # a query may not be blank; "_" is not a part of a word
        plain_query = query.replace("\0", " ").replace("_", " ").replace("１２３", "123")
        query_words = set(words_in(plain_query.lower()))
        expected_ids = set()
        for document_id, document in stored_documents.items():
            if query_words & set(words_in(document.text)):
                expected_ids.add(document_id)
        assert set(ids_of(index.search(query, 99, mode="words"))) == expected_ids
        assert len(index.search(query, 5, vectors=query_vector)) == 5


@pytest.mark.parametrize(
    ("query", "expected_ids"),
    [
        ("睡觉", ["0"]),
        ("银行", ["1"]),
        ("行", ["1", "2"]),
        ("猫在", ["0"]),
        ("中国", ["3"]),
        ("睡觉的银行", ["0", "1"]),
    ],
)
def test_chinese_is_found_by_pairs_of_characters(
    index_path: Path,
    query: str,
    expected_ids: list[str],
) -> None:
    index = build(index_path, ["猫 一只猫在睡觉", "猫 国家银行", "cat 行走", "ship 中国"])
    results = index.search(query, mode="words")
    assert sorted(ids_of(results)) == expected_ids


def test_english_is_stemmed_and_accents_do_not_count(index_path: Path) -> None:
    index = build(index_path, ["The cat", "the cats of the CAFÉ", "dog fishing"])
    assert index.info()["words"] == ENGLISH
    assert sorted(ids_of(index.search("cat's", mode="words"))) == ["0", "1"]
    assert ids_of(index.search("cafes", mode="words")) == ["1"]
    assert ids_of(index.search("fish", mode="words")) == ["2"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("ещё", "еще"),
        ("Ελλάδα", "ΕΛΛΑΔΑ"),
        ("ὁδός", "ΟΔΟΣ"),
        ("مُحَمَّد", "محمد"),
        ("שָׁלוֹם", "שלום"),
        ("Łódź", "lodz"),
        ("Straße", "STRASSE"),
        ("Đà Nẵng", "da nang"),
        ("IŞIK", "ışık"),
        ("აბ", "ᲐᲑ"),
        ("Donau\u00addampf\u2060schiff", "donaudampfschiff"),
        ("葛\U000e0100城", "葛城"),
        ("क्\u200dष", "क्ष"),
        ("ᠠ\u180bᠨ", "ᠠᠨ"),
        ("a\u0305b", "ab"),
        ("क\u034fष", "कष"),
    ],
)
def test_accents_of_other_scripts_do_not_count(index_path: Path, text: str, query: str) -> None:
    index = build(index_path, [f"cat {text}", f"cat {query}", "dog"])
    for either_spelling in (text, query):
        assert sorted(ids_of(index.search(either_spelling, mode="words"))) == ["0", "1"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("⚠️Warning", "warning"),
        ("great🤔", "great"),
        ("👍🏽ok", "ok"),
        ("500₽", "500"),
        ("₺750", "750"),
        ("1️⃣ first", "1"),
    ],
)
def test_symbols_are_no_part_of_words(index_path: Path, text: str, query: str) -> None:
    """Also those that are newer than SQLite's table of characters."""
    index = build(index_path, [f"cat {text} ❤️ step", "dog ✂️ scissors"])
    assert ids_of(index.search(query, mode="words")) == ["0"]
    assert not index.search("❤️", mode="words")


FIRST_AND_LAST_INVISIBLE = (
    *(0xAD, 0x200D, 0x200E, 0x200F, 0xFEFF),
    *(0x180B, 0x180F, 0x2060, 0x2064, 0x20D0, 0x20FF),
    *(0xFE00, 0xFE0F, 0xE0100, 0xE01EF, 0x300, 0x36F),
)


@pytest.mark.parametrize("code", FIRST_AND_LAST_INVISIBLE)
def test_invisible_characters_and_marks_do_not_part_a_word(code: int) -> None:
    assert separated(f"x{chr(code)}y") == "xy"


@pytest.mark.parametrize(("text", "plain_text"), [("x\u1810y", "x\u1810y"), ("\u1f00", "α")])
def test_characters_beside_the_invisible_ones_are_letters(text: str, plain_text: str) -> None:
    assert separated(text) == plain_text


@pytest.mark.parametrize("text", ["cat\0dog", "cat\0höhe"])
def test_a_nul_parts_words(text: str) -> None:
    """SQLite would end the text there."""
    assert separated(text) == text.replace("\0", " ")


def test_letters_of_their_own_stay(index_path: Path) -> None:
    index = build(index_path, ["cat мой", "cat мои"])
    assert ids_of(index.search("мой", mode="words")) == ["0"]


def test_the_language_is_told_by_its_frequent_words() -> None:
    german_texts = ["Die Katze schläft auf dem Sofa, der Hund läuft durch den Garten."] * 9
    english_texts = ["On the nature of things, and how to use them."] * 9
    assert language_of(german_texts) == OTHER
    assert language_of(english_texts) == ENGLISH
    assert language_of([*german_texts, *english_texts]) == ENGLISH
    assert language_of([*german_texts, "The name of the rose"]) == OTHER


def test_english_words_are_counted_among_fifty_or_more() -> None:
    assert language_of(["wort " * 49]) == ENGLISH
    assert language_of(["the", "wort " * 49]) == OTHER
    assert language_of(["WORT " * 50]) == OTHER
    assert language_of(["the " * 3, "wort " * 97]) == ENGLISH


def test_terms_of_a_long_query_are_bounded() -> None:
    long_query = " ".join(map("w{}".format, range(9_999)))
    (query_terms,) = read_terms(OTHER, [long_query])
    assert len(query_terms.decisive) == MAX_QUERY_TERMS


def test_a_word_that_most_documents_have_tells_nothing(index_path: Path) -> None:
    index = build(index_path, ["cat gold", "cat ship", "cat moon dog", "dog"])
    assert ids_of(index.search("cat gold", mode="words")) == ["0"]
    assert ids_of(index.search("cat", mode="words")) == ["0", "1", "2"]
    # Half of them are not most.
    assert sorted(ids_of(index.search("dog gold", mode="words"))) == ["0", "2", "3"]


def test_few_weights_of_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["cat gold", "cat ship", "dog moon", "dog gold", "ship moon", "rain"]
    queries = ["cat", "gold moon", "ship dog", "rain cat", "gold"]
    expected_scores = word_scores(queries, texts)
    monkeypatch.setattr(bm25, "MAX_CACHED_WEIGHTS", 4)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_words(connection, ENGLISH)
        insert_separated(connection, enumerate(texts))
        words = bm25.WordScores(connection, len(texts))
        for terms, scores in zip(read_terms(ENGLISH, queries), expected_scores, strict=True):
            assert words.score(connection, terms) == pytest.approx(scores)
            assert sum(len(postings.weights) for postings in words._postings.values()) <= 4


def test_single_characters_add_to_the_scores_of_found_documents() -> None:
    texts = ["睡觉 觉", "觉", "cat", "dog"]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_words(connection, ENGLISH)
        insert_separated(connection, [(key, separated(text)) for key, text in enumerate(texts)])
        words = bm25.WordScores(connection, len(texts))
        (terms,) = read_terms(ENGLISH, ["睡觉"])
        scores = words.score(connection, terms)
        scores_of_pairs = words.score(connection, replace(terms, supporting=Counter()))
    assert scores[0] > scores_of_pairs[0] > 0
    assert not scores[1:].any()


def test_the_best_keys_are_by_score_and_then_by_key() -> None:
    scores = np.array([0.0, 2.0, 1.0, 2.0, 3.0])
    assert bm25.best_keys(scores, 2).tolist() == [4, 1]
    assert bm25.best_keys(scores, 9).tolist() == [4, 1, 3, 2]


def test_words_follow_every_change(tmp_path: Path) -> None:
    index = build(tmp_path / "index", make_documents(20))
    index.add([Document("gold xylophone", "x"), Document("moon", "y")], **QUIET)
    assert ids_of(index.search("xylophone", mode="words")) == ["x"]
    index.upsert([Document("gold trombone", "x")], **QUIET)
    assert index.search("xylophone", mode="words") == []
    assert ids_of(index.search("trombone", mode="words")) == ["x"]
    index.delete(["y", "d3"])
    index.verify()
    rebuilt_index = build(tmp_path / "rebuilt", list(index))
    assert word_occurrences(index) == word_occurrences(rebuilt_index)


def test_words_of_deleted_documents_leave_the_disk_at_compact(tmp_path: Path) -> None:
    index = build(tmp_path / "index", make_documents(20))
    index.add([Document("gold xylophone", "x")], **QUIET)
    index.delete(["x"])
    index.compact()
    rebuilt_index = build(tmp_path / "rebuilt", list(index))
    assert word_occurrences(index) == word_occurrences(rebuilt_index)
    for file in index.path.iterdir():
        assert b"xylo" not in file.read_bytes()


def test_an_index_without_documents_has_no_words(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat"])
    index.delete(["0"])
    assert index.search("cat", mode="words") == []
    index.verify()


def test_an_index_in_the_place_of_another_has_its_own_words(index_path: Path) -> None:
    index = build(index_path, make_documents(20))
    build(index_path, ["king trombone"], overwrite=True)
    assert index.search("gold", mode="words") == []
    assert ids_of(index.search("trombone", mode="words")) == ["0"]
    index.verify()


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
def test_words_that_do_not_fit_their_documents_are_noticed(
    tmp_path: Path,
    statement: str,
) -> None:
    index = build(tmp_path / "index", ["cat", "dog", "ship", "gold moon"])
    run_sql(index.path, statement)
    with pytest.raises(ValueError, match=r"index\.sqlite: damaged"):
        index.verify()
    index.compact()
    index.verify()
    assert ids_of(index.search("gold", mode="words")) == ["3"]


def test_words_that_documents_have_exchanged_are_noticed(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat", "dog"])
    remove_words = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
    for key, text, other_text in ((0, "cat", "dog"), (1, "dog", "cat")):
        run_sql(index.path, remove_words, key, text)
        run_sql(index.path, "INSERT INTO words (rowid, text) VALUES (?, ?)", key, other_text)
    with pytest.raises(ValueError, match="its words are not those of its documents"):
        index.verify()


@pytest.mark.parametrize("mode", ["words", "hybrid"])
@pytest.mark.parametrize(
    ("key", "problem"),
    [(99, "its words are not those of its documents"), (1, "documents are missing")],
    ids=["never there", "deleted"],
)
def test_words_of_a_document_that_is_not_there_are_noticed_by_a_search(
    tmp_path: Path, key: int, problem: str, mode: Any
) -> None:
    index = build(tmp_path / "index", ["cat", "dog", "ship", "gold moon"])
    index.delete(["1"])
    run_sql(index.path, "INSERT INTO words (rowid, text) VALUES (?, 'gold')", key)
    with pytest.raises(ValueError, match=problem):
        index.search("gold", mode=mode)
