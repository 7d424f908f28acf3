"""Parts of documents: the same however often a run was stopped; a changed input is refused; an id occurs once."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contents import MIXED, SIZE, broken, documents_of, files_of, run, times_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kills import Operation, State, Trial

from st_reba.corpus import Corpus, Document, encode, gather
from st_reba.corpus.gather import _cut_parts
from st_reba.corpus.source import open_source

# What comes out


def test_parts(whole: Corpus) -> None:
    parts = [whole.part(number) for number in range(whole.parts())]
    assert [(one.start, one.stop, len(one.rows), len(one.rejects)) for one in parts] == [
        (0, 10, 9, 1),
        (10, 20, 8, 2),
        (20, 30, 9, 1),
        (30, 34, 4, 0),
    ]
    assert documents_of(whole) == [
        Document(one["text"], one.get("id", str(number)), {"n": number} if "n" in one else {})
        for number, one in enumerate(MIXED)
        if number not in (7, 12, 13, 25)
    ]
    rejects = list(whole.rejects())
    assert [(one.place, one.kind, one.id) for one in rejects] == [
        ("record 7", "no text", None),
        ("record 12", "id used twice", "x3"),
        ("record 13", "wrong type", None),
        ("record 25", "id used twice", "x3"),
    ]
    assert "'x3' is that of record 3 too (counted from 0); give" in rejects[1].reason
    lines = (whole.path / "rejects.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [vars(reject) for reject in rejects]
    assert whole.header()["totals"] == {
        "parts": 4, "records": 34, "documents": 30, "vectors": 30, "rejected": 4, "unusable": 0
    }  # fmt: skip
    assert {*os.listdir(whole.path)} - {".lock"} == {"corpus.json", "documents", "rejects.jsonl", "vectors"}


def test_a_part_may_have_no_document(tmp_path: Path) -> None:
    corpus = run(tmp_path / "c", ["", *[" "] * 9, "one"])
    assert [corpus.counts(number) for number in (0, 1)] == [(0, 0), (1, 1)]
    assert [corpus.vectors(number).shape for number in (0, 1)] == [(0, 16), (1, 16)]
    assert documents_of(corpus) == [Document("one", "10")]


def test_nothing_to_gather(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no documents: 12 records were set aside, first this: record 0: no text"):
        run(tmp_path / "b", [""] * 12)
    assert not Corpus(tmp_path / "b").is_complete()


def test_strict(tmp_path: Path) -> None:
    """A run that stops at a bad record keeps the parts before it, and encodes none."""
    with pytest.raises(ValueError, match="record 12: id used twice: 'x3'"):
        run(tmp_path / "c", [*MIXED[:7], "seven", *MIXED[8:]], strict=True)
    corpus = Corpus(tmp_path / "c")
    assert corpus.parts() == 1 and corpus.pending() == [0] and not list(corpus.path.glob(".ids*"))


def test_long_records_make_shorter_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part, which is in memory at once, is written before more is read; its metadata counts."""
    monkeypatch.setattr(gather, "PART_CHARS", 1000)
    taken = 0
    read: list[int] = []
    real = Corpus.write_part

    def write_part(*args: Any) -> None:
        read.append(taken)
        real(*args)

    monkeypatch.setattr(Corpus, "write_part", write_part)

    def records() -> Iterator[Any]:
        nonlocal taken
        for number in range(100):
            taken += 1
            more = {"text": "x" * 400} if number < 60 else {"text": "x", "abstract": "y" * 400}
            yield {"text": "short"} if number < 20 else more

    run(tmp_path / "c", records(), part_size=15)
    assert read == [15, *range(23, 100, 3), 100]


def test_ids_that_are_numbers(tmp_path: Path) -> None:
    records = ["a", Document("b", "0"), Document("c", "4"), Document("d", "04"), "e", Document("f", "9" * 30), "g"]
    corpus = run(tmp_path / "c", records, part_size=2)
    assert {one.id: one.text for one in documents_of(corpus)} == {
        "0": "a", "4": "c", "04": "d", "9" * 30: "f", "6": "g"
    }  # fmt: skip
    assert [(one.place, one.id) for one in corpus.rejects()] == [("record 1", "0"), ("record 4", "4")]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(-1, 12).map(str), st.sampled_from(["a", "00", "é"])), max_size=30),
    st.integers(0, 3),
)
def test_used_ids_are_those_of_a_dictionary(ids: list[str | None], first: int) -> None:
    owners: dict[str, int] = {}
    for number, identity in enumerate(ids):
        owners.setdefault(str(first + number) if identity is None else identity, number)
    used = sqlite3.connect(":memory:", isolation_level=None)
    used.execute("CREATE TABLE used (id TEXT PRIMARY KEY, record INTEGER NOT NULL) WITHOUT ROWID")
    parts = list(_cut_parts(open_source([Document("text", identity) for identity in ids]), 4, used, False, first))
    kept = [row.record for part in parts for row in part.rows]
    assert kept == sorted(owners.values())
    for reject in (reject for part in parts for reject in part.rejects):
        assert f"is that of record {owners[reject.id or '']} too" in reject.reason
    used.close()


# Stopped and gone on with


@pytest.mark.parametrize("stop", [1, 9, 10, 11, 29, 30, 34])
def test_stopped_input(tmp_path: Path, whole: Corpus, stop: int) -> None:
    corpus = Corpus(tmp_path / "c")
    with pytest.raises(KeyboardInterrupt):
        run(corpus.path, broken(stop))
    # A run that stored nothing leaves nothing.
    assert corpus.parts() == stop // SIZE and corpus.path.exists() == (stop >= SIZE)
    run(corpus.path, MIXED)
    assert files_of(corpus.path) == files_of(whole.path)


def killed(path: Path, before: list[Any] | None, records: list[Any]) -> list[str]:
    """Kill a run before each thing that it does to files, and run it again; what was wrong."""

    def state(folder: Path) -> State:
        corpus = Corpus(folder / "corpus")
        if not (corpus.path / "corpus.json").exists() or not corpus.is_complete():
            return None
        corpus.verify()
        documents = documents_of(corpus)
        return None if before and documents[0].text == before[0] else (documents, files_of(corpus.path))

    def prepare(folder: Path) -> None:
        if before:
            run(folder / "corpus", before)

    def work(folder: Path) -> None:
        run(folder / "corpus", records, overwrite=before is not None)

    trial = Trial(Operation("encode", prepare, work, state), path)
    assert trial.events > 10
    outcomes = [trial.kill(event=number) for number in range(1, trial.events + 1)]
    assert all(outcome.killed for outcome in outcomes)
    return [f"event {number}: {outcome.problem}" for number, outcome in enumerate(outcomes, 1) if outcome.problem]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    assert killed(tmp_path / "new", None, MIXED[:12]) == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_while_another_input_is_replaced(tmp_path: Path) -> None:
    """By a shorter one: a reader never takes some parts of the one and some of the other for a whole corpus."""
    old = [f"old {number}" for number in range(24)]
    assert killed(tmp_path / "over", old, ["new", *old[1:10], *MIXED[10:12]]) == []


def test_leftovers_of_a_killed_run(tmp_path: Path, whole: Corpus) -> None:
    """Before the header was written, and of files that were not yet whole."""
    for name in ("documents/.00000.parquet.0123456789ab.tmp", ".corpus.json.0123456789ab.tmp", ".lock", "vectors/x"):
        (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / name).touch()
    with pytest.raises(FileExistsError, match="not an encoded corpus"):
        run(tmp_path / "c", MIXED)
    (tmp_path / "c" / "vectors" / "x").unlink()
    (tmp_path / "c" / "documents" / ".00000.parquet.0123456789ab.tmp").unlink()
    assert files_of(run(tmp_path / "c", MIXED).path) == files_of(whole.path)
    (whole.path / "documents" / ".00000.parquet.0123456789ab.tmp").touch()
    (whole.path / "vectors" / ".00000.tries.tmp").touch()
    run(whole.path, MIXED)
    assert files_of(tmp_path / "c") == files_of(whole.path)


# The same input, a grown one, another one


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_unchanged_input_keeps_all(whole: Corpus, overwrite: bool) -> None:
    before = times_of(whole.path), (whole.path / "corpus.json").stat().st_mtime_ns
    run(whole.path, iter(MIXED), overwrite=overwrite)
    assert (times_of(whole.path), (whole.path / "corpus.json").stat().st_mtime_ns) == before


@pytest.mark.parametrize("length", [1, 29, 30, 31, 33])
def test_a_grown_input_goes_on(tmp_path: Path, whole: Corpus, length: int) -> None:
    run(tmp_path / "c", MIXED[:length])
    before = times_of(tmp_path / "c")
    run(tmp_path / "c", MIXED)
    after = times_of(tmp_path / "c")
    kept = {int(name[:5]) for name in before if before[name] == after[name]}
    assert kept == set(range(length // SIZE))
    assert files_of(tmp_path / "c") == files_of(whole.path)


CHANGES: list[tuple[str, list[Any], int]] = [
    ("a text", [*MIXED[:15], {"text": "changed"}, *MIXED[16:]], 1),
    ("metadata", [{**MIXED[0], "n": 1}, *MIXED[1:]], 0),
    ("an id", [*MIXED[:30], {**MIXED[30], "id": "y"}, *MIXED[31:]], 3),
    ("a reject", [*MIXED[:7], 5, *MIXED[8:]], 0),
    ("one less", MIXED[:33], 3),
    ("two parts less", MIXED[:20], 2),
    ("grown and changed", [*MIXED[:33], "changed", "new"], 3),
]


@pytest.mark.parametrize(("what", "records", "part"), CHANGES, ids=[what for what, _, _ in CHANGES])
def test_a_changed_input_is_refused_or_replaces(
    tmp_path: Path, whole: Corpus, what: str, records: list[Any], part: int
) -> None:
    before, times = files_of(whole.path), times_of(whole.path)
    with pytest.raises(ValueError, match=rf"the list: .*part {part} of {whole.path}.*--overwrite"):
        run(whole.path, records)
    assert files_of(whole.path) == before and whole.is_complete()
    run(whole.path, records, overwrite=True)
    kept = {int(name[:5]) for name, time in times_of(whole.path).items() if times.get(name) == time}
    assert kept == set(range(whole.parts())) - {part}
    assert files_of(whole.path) == files_of(run(tmp_path / "new", records).path)


def test_a_changed_corpus_is_complete_at_its_end_alone(whole: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its vectors are all there before the header tells of them."""

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(encode, "finish", stop)
        run(whole.path, [{"text": "changed"}, *MIXED[1:]], overwrite=True)
    assert whole.pending() == [] and not whole.is_complete()


def test_links_are_refused(tmp_path: Path, whole: Corpus) -> None:
    """What would be written or removed through them is somebody else's."""
    for name in ("documents", "vectors", ".lock"):
        moved = (whole.path / name).rename(tmp_path / name)
        (whole.path / name).symlink_to(moved)
        before = files_of(tmp_path)
        with pytest.raises(FileExistsError, match=f"{name}: a link"):
            run(whole.path, ["another"], overwrite=True)
        assert files_of(tmp_path) == before
        (whole.path / name).unlink()
        moved.rename(whole.path / name)


# Disks


@pytest.mark.parametrize("limit", [100_000, 100])
def test_no_more_room(tmp_path: Path, limit: int) -> None:
    """An error with the folder and the remedy; what is finished stays, and the next run goes on."""
    resource = pytest.importorskip("resource")
    records = ["short"] * SIZE + [os.urandom(20_000).hex() for _ in range(SIZE)]
    corpus = Corpus(tmp_path / "c")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError) as raised:
            run(corpus.path, records)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.filename == str(corpus.path)
    assert "another file system), then run the same again; what is finished stays" in str(raised.value)
    assert corpus.parts() == (limit > 100) and not list(tmp_path.rglob("*.tmp"))
    assert len(documents_of(run(corpus.path, records))) == 20
