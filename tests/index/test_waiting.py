"""A second writer waits; what a stopped one has encoded is kept, and reported."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from indexes import MODEL, QUIET, build, make_documents, make_texts

import st_reba
from st_reba.cli import main
from st_reba.corpus import Document
from st_reba.corpus import encode as corpus_encode
from st_reba.files import sole_writer
from st_reba.index import Index, stopped_progress

WRITERS: dict[str, Callable[[Index], object]] = {
    "add": lambda index: index.add(["cat salt"], **QUIET),
    "upsert": lambda index: index.upsert([Document("cat salt", "d1")], **QUIET),
    "build": lambda index: build(index.path, ["cat"], overwrite=True),
}
CHANGES: dict[str, Callable[[Index], object]] = {
    **WRITERS,
    "delete": lambda index: index.delete(["d1"]),
    "compact": Index.compact,
}


@pytest.fixture
def index(index_path: Path) -> Index:
    return build(index_path, make_documents(5))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.files.WRITER_PATIENCE", 0.1)


@pytest.mark.parametrize("write_index", WRITERS.values(), ids=WRITERS)
def test_a_second_writer_waits_for_the_first(
    index: Index,
    write_index: Callable[[Index], object],
) -> None:
    with sole_writer(index.path, "*"):
        second_writer = threading.Thread(target=write_index, args=(index,))
        second_writer.start()
        time.sleep(0.3)
        assert second_writer.is_alive()
    second_writer.join(20)
    assert index.verify()["changes"] == 2


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("make_change", CHANGES.values(), ids=CHANGES)
def test_the_error_of_a_wait_names_the_other_process(
    index: Index,
    make_change: Callable[[Index], object],
) -> None:
    message = "another process is .* did not end within 0.1 s; when it has ended, run the same"
    with index._store.writing(create=False), pytest.raises(BlockingIOError, match=message):
        make_change(index)


@pytest.mark.usefixtures("impatient")
def test_an_addition_that_waited_in_vain_keeps_its_vectors(
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with index._store.writing(create=False), pytest.raises(BlockingIOError) as raised:
        index.add(make_texts(1), **QUIET)
    assert stopped_progress(index.path) == (1, 1)
    note = f"{index.path}: 1 of 1 documents are encoded; repeat the call to resume"
    assert raised.value.__notes__ == [note]
    monkeypatch.setattr("st_reba.corpus.encode_part.encode_texts", None)
    assert index.add(make_texts(1), **QUIET).added
    assert stopped_progress(index.path) is None


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts: a shell ignores it in the commands that it runs in the background."""
    earlier_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier_handler)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_reports_what_it_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    signal_number: signal.Signals,
    status: int,
) -> None:
    st_reba.build("mini", "echo").save_pretrained(str(tmp_path / "model"))
    lines = [f"text {number}" for number in range(200)]
    (tmp_path / "texts.txt").write_text("\n".join(lines), encoding="utf-8")
    encode_part = corpus_encode.encode_part

    def stop_in_the_second_part(
        model: object,
        corpus: object,
        part_number: int,
        progress: object,
    ) -> int:
        if part_number == 1:
            signal.raise_signal(signal_number)
        return encode_part(model, corpus, part_number, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus_encode, "encode_part", stop_in_the_second_part)
    monkeypatch.setattr(corpus_encode, "encoding_rate", lambda model: 1)  # 64 texts per part
    arguments = ["index", tmp_path / "texts.txt", tmp_path / "index"]
    arguments += ["--model", tmp_path / "model"]
    assert main(list(map(str, arguments))) == status
    message = "Stopped. 64 of 200 documents are encoded; run the same command to resume"
    assert message in capsys.readouterr().err


def test_documents_longer_than_the_model_reads_are_counted(
    index_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = st_reba.build("mini", "echo", max_seq_length=32)
    rows = [Document("long text " * 40, f"long{number}") for number in range(3)]
    rows.append(Document("short", "short"))
    index = Index.build(model, rows, index_path, **QUIET)
    assert "3 of 4 documents are longer than the model reads" in caplog.text
    assert "cut long documents into passages (max_seq_length 32)" in caplog.text
    assert index.info()["truncated"] == 3
    new_rows = [Document("short too", "long0"), Document("longer " * 50, "another")]
    change = index.upsert(new_rows, **QUIET)
    assert "1 of 2 documents is longer than the model reads" in caplog.text
    assert change.truncated == 1
    assert index.verify()["truncated"] == 3
    index.delete(["long1", "short"])
    assert index.verify()["truncated"] == 2


@pytest.mark.parametrize("path", ["", " ", "a\0b", "\ud800", 5])
def test_a_path_that_no_file_has_is_refused(path: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="path="):
        Index.build(MODEL, ["cat"], path)
    with pytest.raises((ValueError, TypeError), match="path="):
        Index.open(path)
