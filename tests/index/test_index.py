"""Any sequence of changes and searches, of several who have the index open, against a dictionary; other models."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from indexes import GIVEN, MODEL, QUIET, WORDS
from tiny import cosines, tiny_model

import st_reba.fingerprint
import st_reba.index.changes as changes
from st_reba.index import Document, Index

# One or two words each: equal sums are equal bit for bit, so that ties are ties.
WORD = st.sampled_from(WORDS[:6])
TEXT = st.one_of(WORD, st.tuples(WORD, WORD).map(" ".join))
ID = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "é 中", "'\"%", "0", "1", "3", "7", "12", "007"]))
RECORDS = st.lists(st.tuples(ID, TEXT, st.sampled_from([0, 0, 0, 1])), min_size=1, max_size=7)
WHERE: list[tuple[Any, Callable[[int], bool]]] = [
    (None, lambda n: True),
    ({"n": 0}, lambda n: n == 0),
    ({"n": {">": 0}}, lambda n: n > 0),
    ({"n": {"in": [0, 1]}}, lambda n: True),
    ({"m": {"exists": True}}, lambda n: False),
]
INDEX = st.integers(0, 2)

Record = tuple[str | None, str, int]


class Life(RuleBasedStateMachine):
    """Three objects on one folder, and what it ought to hold: id → (text, n), in the order of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.there: dict[str, tuple[str, int]] = {}
        self.next = 0
        self.indexes: list[Any] = []
        self.last: Any = None
        self.flat = True
        # So few that some additions are folded in.
        self.usual, changes.FEWEST_PENDING = changes.FEWEST_PENDING, 6

    @initialize(records=RECORDS, factory=st.sampled_from(["Flat", "IVF1,Flat"]))
    def build(self, records: list[Record], factory: str) -> None:
        self.last, self.flat = ("add", records), factory == "Flat"
        self._take(records, upsert=False)
        path = self.folder / "index"
        index = Index.build(MODEL, self._given(records), path, strict=False, factory=factory, part_size=3, **QUIET)
        self.indexes = [index, Index.open(path, MODEL), Index.open(path, MODEL)]

    def _given(self, records: list[Record]) -> list[Document]:
        return [Document(text, identity, {"n": n}) for identity, text, n in records]

    def _take(self, records: list[Record], *, upsert: bool) -> dict[str, int]:
        """Do to the dictionary what an addition does, and count as it does."""
        did = dict.fromkeys(("added", "replaced", "unchanged", "rejected"), 0)
        # What is there as it is has no part in the numbering.
        new = [one for one in records if one[0] is None or self.there.get(one[0]) != one[1:]]
        did["unchanged"] = len(records) - len(new)
        if not upsert:
            accepted = [one if one[0] is None or one[0] not in self.there else None for one in new]
        else:
            accepted = list(new)
        before, used, mine = set(self.there), set[str](), set[str]()
        first, stop = self.next, self.next + len(new)
        self.next = stop if new else self.next
        for number, one in enumerate(accepted):
            if one is None:
                did["rejected"] += 1
                continue
            identity, text, n = one
            if (identity or str(first + number)) in used:
                did["rejected"] += 1
                continue
            used.add(identity or str(first + number))
            if identity is None:
                free = first + number
                while str(free) in self.there:
                    free = max(free + 1, self.next)
                    self.next = free + 1
                identity = str(free)
            elif identity in mine:
                did["rejected"] += 1
                continue
            did["replaced" if identity in before else "added"] += 1
            self.there.pop(identity, None)
            self.there[identity] = (text, n)
            mine.add(identity)
        return did

    @rule(records=RECORDS, who=INDEX, upsert=st.booleans(), again=st.booleans())
    def take(self, records: list[Record], who: int, upsert: bool, again: bool) -> None:
        change = self.indexes[who].upsert if upsert else self.indexes[who].add
        kind = ("upsert" if upsert else "add", records)
        known = [one for one in records if one[0] is not None and self.there.get(one[0]) == one[1:]]
        if self.last == kind and not again:
            result = change(self._given(records), strict=False, **QUIET)
            assert (result.added, result.replaced, result.unchanged) == (0, 0, len(known))
            return
        did = self._take(records, upsert=upsert)
        result = change(self._given(records), strict=False, again=again, **QUIET)
        assert {"added": result.added, "replaced": result.replaced, "unchanged": result.unchanged} == {
            name: did[name] for name in ("added", "replaced", "unchanged")
        }
        assert sum(result.rejected.values()) == did["rejected"] and not result.repeated
        if len(known) < len(records):
            self.last = kind

    @rule(data=st.data(), who=INDEX)
    def delete(self, data: st.DataObject, who: int) -> None:
        known = sorted(self.there)
        chosen = data.draw(st.lists(st.sampled_from([*known, "absent"]), max_size=max(3, len(known))))
        if "absent" in chosen:
            with pytest.raises(ValueError, match="'absent'"):
                self.indexes[who].delete(chosen)
        gone = set(chosen) & set(known)
        assert self.indexes[who].delete(chosen, missing="ignore").deleted == len(gone)
        self.there = {one: value for one, value in self.there.items() if one not in gone}
        self.last = None

    @rule(who=INDEX)
    def compact(self, who: int) -> None:
        self.indexes[who].compact()
        info = self.indexes[who].info()
        assert (info["pending"], info["deleted"], info["vectors"]) == (0, 0, len(self.there))

    @rule(who=INDEX)
    def reopen(self, who: int) -> None:
        self.indexes[who].close()
        self.indexes[who] = Index.open(self.folder / "index", MODEL)

    @rule(queries=st.lists(TEXT, min_size=1, max_size=3), k=st.integers(1, 12), who=INDEX, where=st.sampled_from(WHERE))
    def search(self, queries: list[str], k: int, who: int, where: tuple[Any, Callable[[int], bool]]) -> None:
        index = self.indexes[who]
        condition, holds = where
        there = {one: value for one, value in self.there.items() if holds(value[1])}
        found = index.search(queries, k=k, where=condition)
        assert len(index) == len(self.there)
        if not there:
            assert found == [[] for _ in queries]
            return
        ids = list(there)
        expected = cosines(MODEL, queries, [text for text, _ in there.values()])
        for scores, results in zip(expected, found, strict=True):
            order = np.lexsort((np.arange(len(ids)), -scores.round(7)))[:k]
            if self.flat:  # others leave the order of equals open
                assert [result.id for result in results] == [ids[place] for place in order]
            assert [(result.text, result.metadata["n"]) for result in results] == [there[one.id] for one in results]
            own = [scores[ids.index(result.id)] for result in results]
            assert own == pytest.approx(scores[order].tolist(), abs=1e-6) and len({one.id for one in results}) == len(
                own
            )
            assert [result.score for result in results] == pytest.approx(scores[order].tolist(), abs=1e-5)

    @rule(who=INDEX, identity=ID)
    def get(self, who: int, identity: str | None) -> None:
        document = self.indexes[who].get(identity or "x")
        found = None if document is None else (document.text, document.metadata["n"])
        assert found == self.there.get(identity or "x") and ((identity in self.indexes[who]) == (found is not None))

    @invariant()
    def tidy(self) -> None:
        if self.indexes:
            names = {name for name in os.listdir(self.folder / "index") if not name.startswith("index.sqlite")}
            assert len(names) == (1 if names else 0) and all(name.endswith(".faiss") for name in names)

    def teardown(self) -> None:
        changes.FEWEST_PENDING = self.usual
        if self.indexes:
            for who, index in enumerate(self.indexes):
                self.search(WORDS[:6], len(self.there) + 2, who, WHERE[0])
                assert [(one.id, one.text) for one in index] == [(one, text) for one, (text, _) in self.there.items()]
            self.indexes[0].verify()
        shutil.rmtree(self.folder, ignore_errors=True)


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=20,
    stateful_step_count=15,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=list(HealthCheck),
)


def test_other_models(path: Path) -> None:
    cut = tiny_model()
    cut.truncate_dim = 8
    for other, message in ((tiny_model(seed=1), "vectors of 8 probe texts"), (cut, "dimension: 16 there, 8 here")):
        with pytest.raises(ValueError, match=f"cannot be used with.*{message}"):
            Index.open(path, other)
        with pytest.raises(ValueError, match=message):
            Index.open(path).search("cat", model=other)
        with pytest.raises(ValueError, match=message):
            Index.open(path).add(["cat"], model=other)
    with pytest.raises(ValueError, match="does not say where its model is; name it: --model"):
        Index.open(path).search("cat")
    euclidean = tiny_model()
    euclidean.similarity_fn_name = "euclidean"
    with pytest.raises(ValueError, match="'euclidean'; an index compares by cosine or dot"):
        Index.build(euclidean, ["cat"], path.parent / "bad")
    assert not (path.parent / "bad").exists()


def test_another_configuration_of_the_same_model(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another version of a library, a new key with its default, another dtype: the vectors decide."""
    monkeypatch.setattr(st_reba.fingerprint, "_configuration", lambda *given: "another")
    assert Index.open(path, tiny_model()).search(GIVEN[0], 1) and "another configuration" in caplog.text
    monkeypatch.undo()
    half = tiny_model().half()
    assert Index.open(path, half).search(GIVEN[0], 1)[0].text == GIVEN[0]


def test_a_model_that_is_trained_on(path: Path) -> None:
    model = tiny_model()
    index = Index.open(path, model)
    assert index.search("cat", 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    for use in (lambda: index.search("cat", 1), lambda: index.add(["cat"])):
        with pytest.raises(ValueError, match="cannot be used"):
            use()


def test_the_index_finds_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "some where 模型 😀"
    MODEL.save_pretrained(str(folder / "model"), create_model_card=False)
    with Index.build(folder / "model", GIVEN, folder / "an index", **QUIET) as built:
        expected = built.search("cat moon", 5)
    moved = folder.rename(tmp_path / "moved #1?%20")
    with Index.open(moved / "an index") as index:
        assert index.search("cat moon", 5) == expected
        assert index.add(["moon moon"]).added == 1 and index.info()["model_source"] == "../model"
        assert index.verify()["path"] == str(moved / "an index")
    shutil.rmtree(moved / "model")
    with pytest.raises(ValueError, match="which is gone; name it"):
        Index.open(moved / "an index").search("cat")


def test_what_is_not_replaced(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    (tmp_path / "file").touch()
    for target, message in (
        (path, "already there; give another path, or overwrite=True"),
        (tmp_path / "other", "not an index"),
        (tmp_path / "file", "a file is there"),
    ):
        with pytest.raises(FileExistsError, match=message):
            Index.build(MODEL, ["cat"], target, overwrite=target != path)
    with pytest.raises(TypeError, match="colour='red': there is no such option"):
        Index.build(MODEL, ["cat"], tmp_path / "new", colour="red")
    assert os.listdir(tmp_path / "other") == ["mine.txt"] and not (tmp_path / "new").exists()
    for missing in (tmp_path / "nowhere", tmp_path / "other", tmp_path / "file"):
        with pytest.raises(FileNotFoundError, match="no index is there"):
            Index.open(missing)
    with Index.open(path, MODEL) as old:
        Index.build(MODEL, ["moon"], path, overwrite=True, **QUIET).close()
        assert [one.text for one in old.search("moon")] == ["moon"] and len(list(path.glob("*.faiss"))) == 1
