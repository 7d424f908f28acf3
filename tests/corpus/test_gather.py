"""Gather: shards of documents, the same however often it was stopped; what has changed is refused; ids occur once."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from st_reba.corpus import Corpus, Document, Reject
from st_reba.corpus import gather as gather_module
from st_reba.corpus.gather import gather
from st_reba.corpus.ids import UsedIds
from st_reba.corpus.source import Source, open_source

Record = Document | Reject
SIZE = 10
MIXED: list[Any] = [
    {"text": f"text {number}"} if number % 3 else {"text": f"given {number}", "id": f"x{number}", "n": number}
    for number in range(34)
]
MIXED[7] = {"text": " "}
MIXED[12] = {"text": "twice", "id": "x3"}
MIXED[25] = {"text": "once more", "id": "x3"}
MIXED[13] = 5


def collect(corpus: Corpus) -> dict[str, str]:
    """Text by id of all shards."""
    found: dict[str, str] = {}
    for number in range(corpus.shard_count()):
        with corpus.open_documents(number) as store:
            for identity, text, _ in store.records():
                assert identity not in found
                found[identity] = text
    return found


def files(corpus: Corpus) -> dict[str, str]:
    """SHA-256 of every file."""
    return {
        path.relative_to(corpus.path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(corpus.path.rglob("*"))
        if path.is_file()
    }


def without_vectors(corpus: Corpus) -> dict[str, str]:
    return {name: sha for name, sha in files(corpus).items() if not name.endswith((".npy", ".vectors.json"))}


def put_vectors(corpus: Corpus) -> None:
    """As if every shard were encoded."""
    for number in range(corpus.shard_count()):
        for suffix in (".npy", ".vectors.json"):
            corpus.documents_path(number).with_suffix(suffix).write_text("{}")


def encoded(corpus: Corpus) -> list[int]:
    return sorted(int(path.name[:5]) for path in (corpus.path / "shards").glob("*.vectors.json"))


def run(path: Path, records: Any, **options: Any) -> Corpus:
    corpus = Corpus(path)
    gather(open_source(records), corpus, shard_size=SIZE, **options)
    return corpus


@pytest.fixture
def whole(tmp_path: Path) -> Corpus:
    return run(tmp_path / "whole", MIXED)


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


# What comes out


def test_shards(tmp_path: Path) -> None:
    seen: list[int] = []
    corpus = Corpus(tmp_path / "new" / "corpus")
    totals = gather(open_source(MIXED), corpus, shard_size=SIZE, progress=seen.append)
    assert totals == corpus.gathered()
    wanted = {"shards": 4, "documents": 30, "rejected": 4, "records": 34, "shard_size": SIZE, "first_record": 0}
    assert {key: totals[key] for key in wanted} == wanted and totals["source"] is None
    assert sum(seen) == 34
    expected = {
        str(item.get("id", number)): item["text"] for number, item in enumerate(MIXED) if number not in (7, 12, 13, 25)
    }
    assert collect(corpus) == expected
    shards = [corpus.documents(number) for number in range(4)]
    assert [(s.start, s.stop, s.count, s.rejected) for s in shards if s] == [
        (0, 10, 9, 1),
        (10, 20, 8, 2),
        (20, 30, 9, 1),
        (30, 34, 4, 0),
    ]
    assert all(shard and shard.documents.check(corpus.path) for shard in shards)
    with corpus.open_documents(0) as store:
        assert store.get([0, 1]) == [Document("given 0", "x0", {"n": 0}), Document("text 1", "1")]
    assert [str(reject).partition("; ")[0] for reject in corpus.rejects()] == [
        "record 7: no text: it is empty or blank",
        "record 12: the id 'x3' is used twice, by records 3 and 12 (counted from 0)",
        "record 13: a int, not a text",
        "record 25: the id 'x3' is used twice, by records 3 and 25 (counted from 0)",
    ]
    assert sorted(os.listdir(corpus.path)) == ["gathered.json", "shards"]
    assert not [name for name in os.listdir(corpus.path / "shards") if name.startswith(".")]


def test_a_shard_may_have_no_document(tmp_path: Path) -> None:
    corpus = run(tmp_path / "c", ["", *[" "] * 9, "one"])
    assert [getattr(corpus.documents(number), "count", None) for number in (0, 1)] == [0, 1]
    assert collect(corpus) == {"10": "one"}


def test_nothing_to_gather(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the list: no documents: it is empty"):
        run(tmp_path / "a", [])
    with pytest.raises(ValueError, match="no documents: 12 records were set aside, first this: record 0: no text"):
        run(tmp_path / "b", [""] * 12)
    assert Corpus(tmp_path / "b").gathered() is None
    with pytest.raises(ValueError, match="shard_size=0"):
        gather(open_source(["a"]), Corpus(tmp_path / "c"), shard_size=0)


def test_strict(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="record 12: the id 'x3' is used twice"):
        run(tmp_path / "c", [*MIXED[:7], "seven", *MIXED[8:]], strict=True)
    corpus = Corpus(tmp_path / "c")
    assert corpus.documents(0) is not None and corpus.documents(1) is None and corpus.gathered() is None
    assert not (corpus.path / "ids.sqlite").exists()
    assert len(collect(run(tmp_path / "c", ["one", "two"] * 20, strict=True, replace=True))) == 40
    # A gathered input that is not read again still has its rejects.
    source = open_source(write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": ""}]))
    gather(source, Corpus(tmp_path / "d"), shard_size=SIZE)
    with pytest.raises(ValueError, match="a.jsonl, line 2: no text"):
        gather(source, Corpus(tmp_path / "d"), shard_size=SIZE, strict=True)


def test_records_are_taken_as_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a chunk is read before it is written, whatever the shard's size; long texts make smaller chunks."""
    monkeypatch.setattr(gather_module, "_CHUNK_RECORDS", 7)
    monkeypatch.setattr(gather_module, "_CHUNK_CHARS", 1000)
    taken = written = 0
    ahead: list[int] = []

    def numbers() -> Iterator[str]:
        nonlocal taken
        for number in range(500):
            taken += 1
            ahead.append(taken - written)
            yield "x" * 400 if number >= 250 else "short"

    def progress(count: int) -> None:
        nonlocal written
        written += count

    gather(open_source(numbers()), Corpus(tmp_path / "c"), shard_size=400, progress=progress)
    assert max(ahead[:250]) == 7 and max(ahead[260:]) == 3 and written == 500


# Stopped and gone on with


@pytest.mark.parametrize("stop", [0, 1, 5, 9, 10, 11, 19, 20, 21, 29, 30, 31, 33, 34])
@pytest.mark.parametrize("replace", [False, True])
def test_stopped_input(tmp_path: Path, whole: Corpus, stop: int, replace: bool) -> None:
    def broken() -> Iterator[Any]:
        yield from MIXED[:stop]
        raise KeyboardInterrupt

    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        run(path, broken(), replace=replace)
    corpus = Corpus(path)
    assert [number for number in range(4) if corpus.documents(number)] == list(range(stop // SIZE))
    assert corpus.gathered() is None and sorted(os.listdir(path)) == ["shards"]
    run(path, MIXED, replace=replace)
    assert files(corpus) == files(whole)


def stopped_at(step: int, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do something until it has changed the disk so many times; nothing is tidied up, as when a process is killed."""
    count = 0

    def guard(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count > step:
                raise KeyboardInterrupt
            return real(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
            patch.setattr(owner, name, guard(getattr(owner, name)))
        try:
            action()
        except KeyboardInterrupt:
            return True
    return False


def test_stopped_at_every_change_on_disk(tmp_path: Path, whole: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever shards that are replaced are half done, what is recorded is true, and the next run gives all."""
    other = [*MIXED[:15], "changed", *MIXED[16:]]
    path = tmp_path / "c"
    steps = 0
    while True:
        old = files(run(path, other, replace=True))
        corpus = Corpus(path)
        put_vectors(corpus)
        stopped = stopped_at(steps, lambda: run(path, MIXED, replace=True), monkeypatch)
        for number in range(4):
            if (record := corpus.documents(number)) is not None:
                assert record.documents.check(path)
                changed = record.documents.sha256 != old[f"shards/{number:05d}.sqlite"]
                assert not (changed and number in encoded(corpus))
        if (totals := corpus.gathered()) is not None:
            last = corpus.documents(3)
            assert last is not None and last.digest == totals["digest"]
        run(path, MIXED, replace=True)
        assert encoded(corpus) == [0]
        assert without_vectors(corpus) == files(whole)
        if not stopped:
            break
        steps += 1
    assert steps > 20


def test_leftovers_of_a_killed_writer(tmp_path: Path, whole: Corpus) -> None:
    (tmp_path / "c" / "shards").mkdir(parents=True)
    for name in ("shards/.00000.sqlite.0123456789ab.tmp", "shards/00000.sqlite", "shards/00000.npy", "ids.sqlite"):
        (tmp_path / "c" / name).write_bytes(b"half")
    assert files(run(tmp_path / "c", MIXED)) == files(whole)


def test_a_damaged_shard_is_made_again(tmp_path: Path, whole: Corpus) -> None:
    before = files(whole)
    put_vectors(whole)
    path = whole.documents_path(1)
    path.write_bytes(path.read_bytes()[:-1])
    run(whole.path, MIXED)
    assert encoded(whole) == [0, 2, 3]
    assert without_vectors(whole) == before


# The same input, a grown one, another one


def test_an_unchanged_input_keeps_all(whole: Corpus) -> None:
    put_vectors(whole)
    before = files(whole)
    for replace in (False, True):
        run(whole.path, iter(MIXED), replace=replace)
        assert files(whole) == before


@pytest.mark.parametrize("length", [1, 29, 30, 31, 33, 34])
def test_a_grown_input_goes_on(tmp_path: Path, whole: Corpus, length: int) -> None:
    corpus = run(tmp_path / "c", MIXED[:length])
    put_vectors(corpus)
    run(tmp_path / "c", MIXED)
    assert encoded(corpus) == [number for number in range(4) if (number + 1) * SIZE <= length or length == 34]
    assert without_vectors(corpus) == files(whole)


CHANGES: list[tuple[str, list[Any], int]] = [
    ("a text", [*MIXED[:15], "changed", *MIXED[16:]], 1),
    ("metadata", [{**MIXED[0], "n": 1}, *MIXED[1:]], 0),
    ("an id", [*MIXED[:30], {**MIXED[30], "id": "y"}, *MIXED[31:]], 3),
    ("the last text", [*MIXED[:33], {"text": "given 33", "id": "x33"}], 3),
    ("a reject", [*MIXED[:7], 5, *MIXED[8:]], 0),
    ("one less", MIXED[:33], 3),
    ("one in front", ["new", *MIXED], 0),
    ("a shard less", MIXED[:30], 3),
    ("two shards less", MIXED[:20], 2),
    ("grown and changed", [*MIXED[:33], "changed", "new"], 3),
]


@pytest.mark.parametrize(("what", "records", "shard"), CHANGES, ids=[what for what, _, _ in CHANGES])
def test_a_changed_input_is_refused_or_replaces(
    tmp_path: Path, whole: Corpus, what: str, records: list[Any], shard: int
) -> None:
    put_vectors(whole)
    before = files(whole)
    with pytest.raises(ValueError, match=rf"from record {shard * SIZE} on .*shard {shard} of .*--overwrite"):
        run(whole.path, records)
    assert files(whole) == before
    run(whole.path, records, replace=True)
    assert encoded(whole) == list(range(shard))
    assert without_vectors(whole) == files(run(tmp_path / "new", records))


@pytest.mark.parametrize("options", [{"shard_size": 5}, {"shard_size": 20}, {"shard_size": 40}, {"first_record": 1}])
def test_another_cut_is_another_corpus(whole: Corpus, tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"shard_size": SIZE, **options}
    with pytest.raises(ValueError, match="from record 0 on .*shard_size and first_record"):
        gather(open_source(MIXED), whole, **options)
    assert gather(open_source(MIXED), whole, replace=True, **options) == whole.gathered()
    fresh = Corpus(tmp_path / "fresh")
    gather(open_source(MIXED), fresh, **options)
    assert files(whole) == files(fresh)


def test_files_that_have_not_changed_are_not_read_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [item for item in MIXED if isinstance(item, dict)])
    reads: list[int] = []

    def source() -> Source:
        real = open_source(path)

        def read() -> Iterator[Record]:
            reads.append(1)
            return real.records()

        return Source(real.name, real.identity, real.total, read)

    corpus = Corpus(tmp_path / "c")
    first = gather(source(), corpus, shard_size=SIZE)
    put_vectors(corpus)
    before = files(corpus)
    assert gather(source(), corpus, shard_size=SIZE) == first and len(reads) == 1
    assert files(corpus) == before
    os.utime(path, ns=(1, 1))
    second = gather(source(), corpus, shard_size=SIZE)
    assert len(reads) == 2 and second == {**first, "source": open_source(path).identity} == corpus.gathered()
    assert encoded(corpus) == [0, 1, 2, 3]
    corpus.documents_path(2).unlink()
    gather(source(), corpus, shard_size=SIZE)
    assert len(reads) == 3 and encoded(corpus) == [0, 1, 3]


# Ids


def test_default_ids_and_numbers_as_ids(tmp_path: Path) -> None:
    records = ["a", Document("b", "0"), Document("c", "4"), Document("d", "04"), "e", Document("f", "9" * 30), "g"]
    corpus = run(tmp_path / "c", records)
    assert collect(corpus) == {"0": "a", "4": "c", "04": "d", "9" * 30: "f", "6": "g"}
    assert [str(reject).partition(";")[0] for reject in corpus.rejects()] == [
        "record 1: the id '0' is used twice, by records 0 and 1 (counted from 0)",
        "record 4: it has no id, and its number, 4, is the id of record 2",
    ]
    corpus = Corpus(tmp_path / "d")
    gather(open_source(records), corpus, shard_size=2, first_record=100)
    assert collect(corpus) == {"100": "a", "0": "b", "4": "c", "04": "d", "104": "e", "9" * 30: "f", "106": "g"}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(-1, 12).map(str), st.sampled_from(["a", "00", "é"])), max_size=40),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_used_ids_are_those_of_a_dictionary(ids: list[str | None], first: int, size: int) -> None:
    owners: dict[str, int] = {}
    expected = {}
    for number, identity in enumerate(ids):
        name = str(first + number) if identity is None else identity
        if (owner := owners.setdefault(name, number)) != number:
            expected[number] = owner
    found: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder, UsedIds(Path(folder) / "ids.sqlite", first) as used:
        for start in range(0, len(ids), size):
            found.update(used.claim(list(enumerate(ids[start : start + size], start))))
    assert found == expected


# Disks


@pytest.mark.parametrize(("limit", "name"), [(100_000, "00001.sqlite"), (100, "ids.sqlite")])
def test_no_more_room(tmp_path: Path, limit: int, name: str) -> None:
    """A full disk is an OSError that names a file; what was finished stays, and the next run goes on."""
    resource = pytest.importorskip("resource")
    texts = ["short"] * 10 + ["long " * 3000] * 10
    corpus = Corpus(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError) as raised:
            run(tmp_path, texts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert name in raised.value.filename
    assert corpus.gathered() is None and (corpus.documents(0) is not None) == (limit > 100)
    assert not [found for found in os.listdir(tmp_path / "shards") if found.startswith(".")]
    assert len(collect(run(tmp_path, texts))) == 20


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        run(tmp_path / "file", ["a"])
    (tmp_path / "c" / "ids.sqlite").mkdir(parents=True)
    with pytest.raises(OSError, match="ids.sqlite"):
        run(tmp_path / "c", ["a"])
