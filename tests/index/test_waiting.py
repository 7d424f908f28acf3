"""A second writer waits; what a stopped one has encoded is kept, and told."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from indexes import MODEL, QUIET, build, documents, texts

import st_reba
from st_reba.cli import main
from st_reba.corpus import Document
from st_reba.index import Index, stopped_progress
from st_reba.storage.files import sole_writer

WRITERS: dict[str, Callable[[Index], object]] = {
    "add": lambda index: index.add(["cat salt"], **QUIET),
    "upsert": lambda index: index.upsert([Document("cat salt", "d1")], **QUIET),
    "build": lambda index: build(index.path, ["cat"], overwrite=True),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_second_writer_waits_for_the_first(
    tmp_path: Path, write: Callable[[Index], object]
) -> None:
    index = build(tmp_path / "index", documents(5))
    with sole_writer(index.path, "*"):
        second = threading.Thread(target=write, args=(index,))
        second.start()
        time.sleep(0.3)
        assert second.is_alive()
    second.join(20)
    assert index.verify()["changes"] == 2


@pytest.mark.parametrize(
    "write", [*WRITERS.values(), lambda index: index.delete(["d1"]), Index.compact]
)
def test_what_was_waited_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Index], object]
) -> None:
    index = build(tmp_path / "index", documents(5))
    monkeypatch.setattr("st_reba.storage.files.WRITER_PATIENCE", 0.1)
    expected = (
        "another process is .* did not end within 0.1 s; when it has ended, run the same again"
    )
    with index._store.writing(create=False), pytest.raises(BlockingIOError, match=expected):
        write(index)


def test_an_addition_that_waited_in_vain_keeps_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(tmp_path / "index", documents(5))
    monkeypatch.setattr("st_reba.storage.files.WRITER_PATIENCE", 0.1)
    with index._store.writing(create=False), pytest.raises(BlockingIOError) as raised:
        index.add(texts(9), **QUIET)
    assert stopped_progress(index.path) == (9, 9)
    assert raised.value.__notes__ == [
        f"{index.path}: 9 of 9 documents are encoded; the same call goes on"
    ]
    monkeypatch.setattr("st_reba.corpus.parts.encode_texts", None)
    assert index.add(texts(9), **QUIET).added and stopped_progress(index.path) is None


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_tells_what_it_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    status: int,
) -> None:
    st_reba.build("mini", "echo").save_pretrained(str(tmp_path / "model"))
    (tmp_path / "texts.txt").write_text(
        "\n".join(f"text {n}" for n in range(200)), encoding="utf-8"
    )
    encode_part = st_reba.corpus.encode.encode_part

    def stop_in_the_second_part(model: Any, corpus: Any, part: int, *rest: Any) -> int:
        if part == 1:
            signal.raise_signal(number)
        return encode_part(model, corpus, part, *rest)

    monkeypatch.setattr("st_reba.corpus.encode.encode_part", stop_in_the_second_part)
    monkeypatch.setattr(
        "st_reba.corpus.encode.encoding_rate", lambda model: 1
    )  # so that a part has 64 texts
    arguments = ["index", tmp_path / "texts.txt", tmp_path / "index", "--model", tmp_path / "model"]
    assert main([str(argument) for argument in arguments]) == status
    assert (
        "Stopped. 64 of 200 documents are encoded; the same command goes on"
        in capsys.readouterr().err
    )


def test_documents_longer_than_the_model_reads_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = st_reba.build("mini", "echo", max_seq_length=32)
    rows = [Document("long text " * 40, f"long{number}") for number in range(3)]
    index = Index.build(model, [*rows, Document("short", "short")], tmp_path / "index", **QUIET)
    assert "3 of 4 documents are longer than the model reads (max_seq_length 32)" in caplog.text
    assert index.info()["truncated"] == 3
    change = index.upsert(
        [Document("short too", "long0"), Document("longer " * 50, "another")], **QUIET
    )
    assert (change.truncated, index.verify()["truncated"]) == (1, 3)
    index.delete(["long1", "short"])
    assert index.verify()["truncated"] == 2


@pytest.mark.parametrize("path", ["", " ", "a\0b", "\ud800", 5])
def test_a_path_that_no_file_has_is_refused(path: Any) -> None:
    for use in (lambda: Index.build(MODEL, ["cat"], path), lambda: Index.open(path)):
        with pytest.raises((ValueError, TypeError), match="path="):
            use()
