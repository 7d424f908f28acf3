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
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from indexes import MODEL, QUIET, build, documents, encoded, texts

import st_reba.index.changes as changes
from st_reba.index import Document, Index

IDS = st.sampled_from([f"x{n}" for n in range(12)])
TEXTS = st.sampled_from(texts(30, 9))
METADATA = st.dictionaries(st.sampled_from("ab"), st.integers(0, 2))
FACTORIES = ["Flat", "IVF2,Flat", "IVF2,SQ8"]


class Changes(RuleBasedStateMachine):
    """An index and a dictionary of what it should hold."""

    folder: Path
    number = 0

    @initialize(factory=st.sampled_from(FACTORIES))
    def build(self, factory: str) -> None:
        type(self).number += 1
        self.path = self.folder / str(self.number)
        self.index = build(self.path, documents(60), factory=factory)
        self.there = {one.id: (one.text, one.metadata) for one in documents(60)}

    @rule(some=st.dictionaries(IDS, st.tuples(TEXTS, METADATA), min_size=1, max_size=6))
    def upsert(self, some: dict[str, Any]) -> None:
        self.index.upsert([Document(text, name, data) for name, (text, data) in some.items()], **QUIET)
        self.there |= some

    @rule(some=st.dictionaries(IDS, st.tuples(TEXTS, METADATA), min_size=1, max_size=6))
    def add(self, some: dict[str, Any]) -> None:
        documents = [Document(text, name, data) for name, (text, data) in some.items()]
        change = self.index.add(documents, strict=False, **QUIET)
        new = {name: value for name, value in some.items() if name not in self.there}
        assert change.added == len(new)
        self.there |= new

    @rule(ids=st.sets(IDS, max_size=5), first=st.integers(0, 60))
    def delete(self, ids: set[str], first: int) -> None:
        chosen = [*ids, *(f"d{n}" for n in range(first, min(60, first + 9)))]
        change = self.index.delete(chosen)
        gone = [one for one in chosen if self.there.pop(one, None) is not None]
        assert change.deleted == len(gone)

    @rule()
    def compact(self) -> None:
        self.index.compact()

    @rule(fewest=st.sampled_from([0, 5]))
    def fold_soon(self, fewest: int) -> None:
        changes.MIN_PENDING = fewest

    @rule()
    def reopen(self) -> None:
        self.index = Index.open(self.path, MODEL)

    @invariant()
    def holds_what_it_should(self) -> None:
        if not hasattr(self, "index"):
            return
        assert {one.id: (one.text, one.metadata) for one in self.index} == self.there
        assert len(self.index) == self.index.verify()["documents"] == len(self.there)
        results = self.index.search("gold ship", 99, mode="vectors")
        assert sorted(one.id for one in results) == sorted(self.there)
        if results and self.index.info()["factory"] != "IVF2,SQ8":
            wanted = encoded([one.text for one in results]) @ encoded(["gold ship"], "encode_query")[0]
            assert [one.score for one in results] == pytest.approx(wanted, abs=1e-5)
        by_words = {one.id for one in self.index.search("gold", 99, mode="words")}
        assert by_words == {name for name, (text, _) in self.there.items() if "gold" in text}
        where = {"a": {">": 0}}
        some = {name for name, (_, data) in self.there.items() if data.get("a", 0) > 0}
        assert {one.id for one in self.index.search("gold", 99, where=where)} == some

    def teardown(self) -> None:
        changes.MIN_PENDING = 1_000


def test_any_order_of_changes(tmp_path: Path) -> None:
    Changes.folder = tmp_path
    quick = settings(max_examples=8, stateful_step_count=12, deadline=None, derandomize=True)
    run_state_machine_as_test(Changes, settings=settings(quick, suppress_health_check=list(HealthCheck)))


def test_pending_vectors_are_folded_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "index", documents(100))
    monkeypatch.setattr(changes, "MIN_PENDING", 5)  # fewer than the share
    index.add(texts(10, 1), **QUIET)
    assert index.info()["pending"] == 10
    index.add(texts(1, 2), **QUIET)
    assert index.info()["pending"] == 0 and index.verify()["vectors"] == 111
    assert len(list(index.path.glob("*.faiss"))) == 1


def test_a_change_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "index", documents(20))
    before = set(index.path.iterdir())
    monkeypatch.setattr(changes, "write_state", lambda tx, state: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        index.compact()
    assert set(index.path.iterdir()) == before


def test_readers_see_whole_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches in other threads, with an object of their own or a shared one, while documents are moved in pairs."""
    monkeypatch.setattr(changes, "MIN_PENDING", 3)
    index = build(tmp_path / "index", [*documents(50), Document("gold", "p0"), Document("king", "q0")])
    done = threading.Event()

    def read(own: Index) -> None:
        while not done.is_set():
            ids = {one.id for one in own.search(np.ones(16, np.float32), 99)}
            assert len(ids) == 52 and {"p0", "q0"} <= ids
            assert {"p0", "q0"} <= {one.id for one in own.search("gold king", 99, mode="words")}

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read, own) for own in (index, index, Index.open(tmp_path / "index"))]
        try:
            for n in range(1, 9):
                index.upsert([Document(f"gold {'cat ' * n}", "p0"), Document(f"king {'dog ' * n}", "q0")], **QUIET)
                if n % 4 == 0:
                    index.compact()
        finally:
            done.set()
        for reader in readers:
            reader.result()
    assert index.verify()["documents"] == 52
