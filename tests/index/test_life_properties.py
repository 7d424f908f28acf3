"""Any sequence of changes and searches, held against a dictionary and brute force in float64."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny import WORDS, cosines, tiny_model

from st_reba.index import Document, Index

pytestmark = pytest.mark.slow

MODEL = tiny_model()
# One or two words each: equal sums are equal bit for bit, so that ties are ties.
WORD = st.sampled_from(WORDS[:6])
TEXT = st.one_of(WORD, st.tuples(WORD, WORD).map(" ".join))
ID = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "é 中", "'\"%", "0", "1", "3", "7", "12", "007"]))
RECORD = st.tuples(ID, TEXT, st.sampled_from([0, 0, 0, 1]))
RECORDS = st.lists(RECORD, min_size=1, max_size=7)

Record = tuple[str | None, str, int]


def documents(records: list[Record]) -> list[Document]:
    return [Document(text, identity, {"n": mark}) for identity, text, mark in records]


class Life(RuleBasedStateMachine):
    """The folder, and what it ought to hold: id → (text, metadata), in the order of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.path = self.folder / "index"
        self.there: dict[str, tuple[str, int]] = {}
        self.next = 0
        self.index: Any = None
        self.other: tuple[Any, dict[str, tuple[str, int]]] | None = None

    @initialize(records=RECORDS, shard_size=st.sampled_from([1, 2, 100]))
    def build(self, records: list[Record], shard_size: int) -> None:
        accepted, _ = self._take(records, {})
        self.there = accepted
        self._count(records, accepted)
        self.index = Index.build(
            MODEL, documents(records), self.path, strict=False, shard_size=shard_size, show_progress_bar=False
        )

    def _take(
        self, records: list[Record], there: dict[str, tuple[str, int]]
    ) -> tuple[dict[str, tuple[str, int]], bool]:
        """What an input adds, by id, and whether all of it can be taken."""
        accepted: dict[str, tuple[str, int]] = {}
        clean = True
        for number, (identity, text, mark) in enumerate(records):
            identity = str(self.next + number) if identity is None else identity
            if identity in accepted:
                clean = False
            else:
                accepted[identity] = (text, mark)
        return accepted, clean

    def _count(self, records: list[Record], accepted: dict[str, tuple[str, int]]) -> None:
        numbers = [int(identity) + 1 for identity in accepted if identity.isdecimal()]
        self.next = max(self.next + len(records), *numbers, 0)

    @rule(records=RECORDS, strict=st.booleans())
    def add(self, records: list[Record], strict: bool) -> None:
        accepted, clean = self._take(records, self.there)
        conflicts = {one for one, value in accepted.items() if one in self.there and self.there[one] != value}
        if strict and (conflicts or not clean):
            before = self.index.manifest
            with pytest.raises(ValueError, match="used twice|already in the index|its number"):
                self.index.add(documents(records), strict=True, show_progress_bar=False)
            self.index.refresh()
            assert self.index.manifest == before
            return
        change = self.index.add(documents(records), strict=strict, show_progress_bar=False)
        new = {one: value for one, value in accepted.items() if one not in self.there}
        assert change.added == len(new) and change.rejected == len(records) - len(accepted) + len(conflicts)
        assert change.unchanged == len(accepted) - len(new) - len(conflicts)
        self.there = {**self.there, **new}
        if new:
            self._count(records, accepted)

    @rule(records=RECORDS)
    def upsert(self, records: list[Record]) -> None:
        accepted, _ = self._take(records, self.there)
        change = self.index.upsert(documents(records), strict=False, show_progress_bar=False)
        changed = {one: value for one, value in accepted.items() if self.there.get(one) != value}
        replaced = [one for one in changed if one in self.there]
        assert (change.added, change.replaced) == (len(changed) - len(replaced), len(replaced))
        assert change.unchanged == len(accepted) - len(changed)
        kept = {one: value for one, value in self.there.items() if one not in replaced}
        self.there = {**kept, **changed}
        if changed:
            self._count(records, accepted)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        known = sorted(self.there)
        chosen = data.draw(st.lists(st.sampled_from([*known, "absent"]), max_size=max(3, len(known))))
        if "absent" in chosen:
            with pytest.raises(ValueError, match="'absent'"):
                self.index.delete(chosen)
        change = self.index.delete(chosen, missing="ignore")
        gone = set(chosen) & set(known)
        assert change.deleted == len(gone)
        self.there = {one: value for one, value in self.there.items() if one not in gone}

    @rule()
    def compact(self) -> None:
        self.index.compact()
        assert len(self.index.manifest.segments) == (1 if self.there else 0)
        assert all(segment.deleted is None for segment in self.index.manifest.segments)

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = Index.open(self.path, MODEL)

    @precondition(lambda self: self.other is None)
    @rule()
    def another_reader(self) -> None:
        self.other = (Index.open(self.path, MODEL), dict(self.there))

    @precondition(lambda self: self.other is not None)
    @rule(query=TEXT, refresh=st.booleans())
    def another_search(self, query: str, refresh: bool) -> None:
        assert self.other is not None
        reader, there = self.other
        self._compare(reader, there, [query], 5)
        if refresh:
            changed = reader.refresh()
            assert changed == (there != self.there) or changed
            assert not reader.refresh()
            self._compare(reader, self.there, [query], 5)
            self.other = (reader, dict(self.there))

    @rule(queries=st.lists(TEXT, min_size=1, max_size=3), k=st.integers(1, 12))
    def search(self, queries: list[str], k: int) -> None:
        self._compare(self.index, self.there, queries, k)

    def _compare(self, index: Any, there: dict[str, tuple[str, int]], queries: list[str], k: int) -> None:
        found = index.search(queries, k=k)
        assert len(index) == len(there)
        if not there:
            assert found == [[] for _ in queries]
            return
        ids = list(there)
        expected = cosines(MODEL, queries, [text for text, _ in there.values()])
        for scores, results in zip(expected, found, strict=True):
            order = np.lexsort((np.arange(len(ids)), -scores.round(9)))[:k]
            assert [result.id for result in results] == [ids[place] for place in order]
            assert [(result.text, result.metadata["n"]) for result in results] == [there[ids[n]] for n in order]
            assert [result.score for result in results] == pytest.approx(scores[order].tolist(), abs=1e-5)

    @invariant()
    def tidy(self) -> None:
        if self.index is None:
            return
        manifest = self.index.manifest
        named = {file.name for segment in manifest.segments for file in segment.files}
        assert set(os.listdir(self.path)) <= {"manifest.json", ".lock", "rejects.jsonl"} | named
        assert named <= set(os.listdir(self.path))
        sizes = [segment.live for segment in manifest.segments]
        assert len(sizes) <= 1 + np.log2(max(sum(sizes), 1))
        assert all(2 * segment.live >= segment.count for segment in manifest.segments)

    def teardown(self) -> None:
        if self.index is not None:
            self._compare(self.index, self.there, WORDS[:6], len(self.there) + 2)
        shutil.rmtree(self.folder, ignore_errors=True)


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=list(HealthCheck),
)
