"""Changes in any order against a dictionary; readers meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from indexes import (
    MODEL,
    QUIET,
    build,
    encoded,
    ids_of,
    make_documents,
    make_texts,
    scores_of,
    texts_of,
)

import st_reba.index.changes as changes
from st_reba.index import Document, Index

IDS = st.sampled_from([f"x{number}" for number in range(12)])
TEXTS = st.sampled_from(make_texts(30, 9))
METADATA = st.dictionaries(st.sampled_from("ab"), st.integers(0, 2))
CONTENTS = st.dictionaries(IDS, st.tuples(TEXTS, METADATA), min_size=1, max_size=6)
FACTORIES = ["Flat", "IVF2,Flat", "IVF2,SQ8"]

Contents = dict[str, tuple[str, dict[str, Any]]]
"""Texts and metadata by id."""


def to_documents(contents: Contents) -> list[Document]:
    return [Document(text, name, metadata) for name, (text, metadata) in contents.items()]


def to_contents(stored_documents: Any) -> Contents:
    return {document.id: (document.text, document.metadata) for document in stored_documents}


class Changes(RuleBasedStateMachine):
    """An index and a dictionary of what it should hold."""

    folder: Path
    index_count = 0

    @initialize(factory=st.sampled_from(FACTORIES))
    def build(self, factory: str) -> None:
        type(self).index_count += 1
        self.path = self.folder / str(self.index_count)
        self.index = build(self.path, make_documents(60), factory=factory)
        self.expected = to_contents(make_documents(60))

    @rule(contents=CONTENTS)
    def upsert(self, contents: Contents) -> None:
        self.index.upsert(to_documents(contents), **QUIET)
        self.expected |= contents

    @rule(contents=CONTENTS)
    def add(self, contents: Contents) -> None:
        change = self.index.add(to_documents(contents), strict=False, **QUIET)
        new_ids = contents.keys() - self.expected.keys()
        assert change.added == len(new_ids)
        self.expected = contents | self.expected

    @rule(ids=st.sets(IDS, max_size=5), first_number=st.integers(0, 60))
    def delete(
        self,
        ids: set[str],
        first_number: int,
    ) -> None:
        numbers = range(first_number, min(60, first_number + 9))
        deleted_ids = [*ids, *(f"d{number}" for number in numbers)]
        change = self.index.delete(deleted_ids)
        count_before = len(self.expected)
        for document_id in deleted_ids:
            self.expected.pop(document_id, None)
        assert change.deleted == count_before - len(self.expected)
        assert (change.added, change.replaced, change.unchanged) == (0, 0, 0)

    @rule()
    def compact(self) -> None:
        self.index.compact()

    @rule(min_pending=st.sampled_from([0, 5]))
    def rewrite_soon(self, min_pending: int) -> None:
        changes.MIN_PENDING = min_pending

    @rule()
    def reopen(self) -> None:
        self.index = Index.open(self.path, MODEL)

    @invariant()
    def holds_the_expected_documents(self) -> None:
        if not hasattr(self, "index"):
            return
        assert to_contents(self.index) == self.expected
        assert len(self.index) == len(self.expected)
        assert self.index.verify()["documents"] == len(self.expected)

    @invariant()
    def finds_all_by_vectors(self) -> None:
        if not hasattr(self, "index"):
            return
        results = self.index.search("gold ship", 99, mode="vectors")
        assert sorted(ids_of(results)) == sorted(self.expected)
        if results and self.index.info()["factory"] != "IVF2,SQ8":
            result_vectors = encoded(texts_of(results))
            scores = result_vectors @ encoded(["gold ship"], "encode_query")[0]
            assert scores_of(results) == pytest.approx(scores, abs=1e-5)

    @invariant()
    def finds_by_words_and_conditions(self) -> None:
        if not hasattr(self, "index"):
            return
        ids_with_word = set()
        ids_of_condition = set()
        for document_id, (text, metadata) in self.expected.items():
            if "gold" in text:
                ids_with_word.add(document_id)
            if metadata.get("a", 0) > 0:
                ids_of_condition.add(document_id)
        by_words = self.index.search("gold", 99, mode="words")
        assert set(ids_of(by_words)) == ids_with_word
        by_condition = self.index.search("gold", 99, where={"a": {">": 0}})
        assert set(ids_of(by_condition)) == ids_of_condition

    def teardown(self) -> None:
        changes.MIN_PENDING = 1_000


def test_an_index_agrees_with_a_dictionary_after_any_changes(tmp_path: Path) -> None:
    Changes.folder = tmp_path
    machine_settings = settings(
        max_examples=8,
        stateful_step_count=12,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Changes, settings=machine_settings)


def test_many_pending_vectors_are_written_to_the_file(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = build(index_path, make_documents(100))
    monkeypatch.setattr(changes, "MIN_PENDING", 5)  # fewer than the share
    index.add(make_texts(10, 1), **QUIET)
    assert index.info()["pending"] == 10
    index.add(make_texts(1, 2), **QUIET)
    assert index.info()["pending"] == 0
    assert index.verify()["vectors"] == 111
    assert len(list(index.path.glob("*.faiss"))) == 1


def test_pending_vectors_are_bounded_however_large_the_file_is(
    index_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(index_path, make_documents(100))
    monkeypatch.setattr(changes, "MIN_PENDING", 3)
    monkeypatch.setattr(changes, "MAX_PENDING", 4)  # fewer than the share
    index.add(make_texts(4, 1), **QUIET)
    assert index.info()["pending"] == 4
    index.add(make_texts(1, 2), **QUIET)
    assert index.info()["pending"] == 0


def test_a_change_that_fails_leaves_no_file(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = build(index_path, make_documents(20))
    files_before = set(index.path.iterdir())
    monkeypatch.setattr(changes, "write_state", lambda connection, state: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        index.compact()
    assert set(index.path.iterdir()) == files_before


def test_readers_see_whole_states(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Searches in threads, with their own object or a shared one, while pairs are replaced."""
    monkeypatch.setattr(changes, "MIN_PENDING", 3)
    pair_ids = {"p0", "q0"}
    pair = [Document("gold", "p0"), Document("king", "q0")]
    index = build(index_path, [*make_documents(50), *pair])
    is_done = threading.Event()

    def read(reader_index: Index) -> None:
        while not is_done.is_set():
            by_vectors = reader_index.search(np.ones(16, np.float32), 99)
            ids = set(ids_of(by_vectors))
            assert len(ids) == 52
            assert pair_ids <= ids
            by_words = reader_index.search("gold king", 99, mode="words")
            assert pair_ids <= set(ids_of(by_words))

    with ThreadPoolExecutor() as pool:
        reader_indexes = (index, index, Index.open(index_path))
        readers = [pool.submit(read, reader_index) for reader_index in reader_indexes]
        try:
            for length in range(1, 9):
                golden = Document(f"gold {'cat ' * length}", "p0")
                royal = Document(f"king {'dog ' * length}", "q0")
                index.upsert([golden, royal], **QUIET)
                if length % 4 == 0:
                    index.compact()
        finally:
            is_done.set()
        for reader in readers:
            reader.result()
    assert index.verify()["documents"] == 52
