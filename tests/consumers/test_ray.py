"""Ray Data on this machine: two workers give what one process gives, whatever happens to one of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from consumer_texts import SENTENCES
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.corpus import Corpus, Document, encode_corpus
from st_reba.corpus.ray import ATTEMPTS

# The workers have no tests folder to import this module from.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
# Ray's workers give way to all else on the machine, unless they are told not to before it starts.
os.environ.update(RAY_worker_niceness="0")

MARK = "†"
MARKED_ROW = 97
MARKED_PART = 4
PART_COUNT = 10


def documents_of_mixed_lengths() -> list[Document]:
    """In several batches a part; the marked text runs after longer ones of its part."""
    documents: list[Document] = []
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    for row, line in enumerate(lines[:200]):
        text = json.loads(line)["text"]
        if row % 5 == 0:
            text = text * 8
        if row == MARKED_ROW:
            text = text + MARK
        documents.append(Document(text, f"id-{row}"))
    return documents


DOCUMENTS = documents_of_mixed_lengths()
Action = Callable[[Path], None]


def encode(folder: Path, workers: int | None = None, action: Action | None = None) -> Corpus:
    """Encode all documents; `action` is called by whoever meets the mark."""
    model = st_reba.build("mini", "reba", pooling="mean", device="cpu")
    if action is not None:
        vars(model)["encode_document"] = WatchedEncode(model, folder / "batches", action)
    return encode_corpus(
        model,
        DOCUMENTS,
        folder / "corpus",
        part_size=20,
        batch_tokens=512,
        workers=workers,
        show_progress_bar=False,
    )


class WatchedEncode:
    """In place of a model's ``encode_document``: writes down who encodes, and acts when it meets the mark."""

    def __init__(self, model: SentenceTransformer, batch_log: Path, action: Action) -> None:
        self.model = model
        self.batch_log = batch_log
        self.action = action

    def __call__(self, texts: list[str], **options: Any) -> Any:
        has_mark = MARK in "".join(texts)
        with self.batch_log.open("a") as stream:
            stream.write(f"{os.getpid()} {has_mark}\n")
        if has_mark:
            self.action(self.batch_log.parent)
        return type(self.model).encode_document(self.model, texts, **options)


def worker_batches(folder: Path) -> list[tuple[int, bool]]:
    """Who encoded a batch other than this process, and whether it held the mark."""
    batches: list[tuple[int, bool]] = []
    for line in (folder / "batches").read_text().splitlines():
        process_id, has_mark = line.split()
        if int(process_id) != os.getpid():
            batches.append((int(process_id), has_mark == "True"))
    return batches


def is_alive(process_id: int) -> bool:
    status_file = Path(f"/proc/{process_id}/stat")
    if not status_file.is_file():
        return False
    status = status_file.read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return status != "Z"


@pytest.fixture(scope="module")
def check_corpus(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Corpus], None]:
    """Assert the same documents as one process encodes, each once and in the same place, and vectors to 1e-6."""
    expected = encode(tmp_path_factory.mktemp("single"))

    def check(corpus: Corpus) -> None:
        corpus.verify()
        assert corpus.part_count() == expected.part_count() == PART_COUNT
        for part_index in range(PART_COUNT):
            assert corpus.part(part_index) == expected.part(part_index)
            np.testing.assert_allclose(
                corpus.vectors(part_index),
                expected.vectors(part_index),
                atol=1e-6,
                rtol=0,
            )
        assert not list((corpus.path / "vectors").glob(".*")), "what a dead worker left"

    return check


@pytest.fixture
def cluster() -> Iterator[None]:
    """A cluster that is there already, and that is to be left alone."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    assert ray.is_initialized()
    ray.shutdown()


def die(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def die_once(folder: Path) -> None:
    killed_file = folder / "killed"
    if not killed_file.exists():
        killed_file.write_text(str(os.getpid()))
        # As if it had begun to write its vectors.
        (folder / "corpus" / "vectors" / f".{MARKED_PART:05}.npy.0.tmp").touch()
        die(folder)


def die_as_others_did(folder: Path) -> None:
    # As if this were the last attempt: each worker takes seconds to start.
    attempts_file = folder / "corpus" / "vectors" / f".{MARKED_PART:05}.tries.tmp"
    attempts_file.write_bytes(b"." * ATTEMPTS)
    die(folder)


def fail(folder: Path) -> None:
    raise ZeroDivisionError("the model cannot read daggers")


def test_two_workers_start_and_end_a_cluster_of_their_own(
    tmp_path: Path, check_corpus: Callable[[Corpus], None]
) -> None:
    corpus = encode(tmp_path, workers=2)
    assert not ray.is_initialized()
    check_corpus(corpus)


@pytest.mark.usefixtures("cluster")
def test_more_workers_than_processors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers=3"):
        encode(tmp_path, workers=3)


@pytest.mark.usefixtures("cluster")
def test_another_worker_takes_the_part_of_a_killed_one_over(
    tmp_path: Path, check_corpus: Callable[[Corpus], None]
) -> None:
    corpus = encode(tmp_path, workers=2, action=die_once)
    check_corpus(corpus)
    # Counts of attempts, and what the killed worker began to write, are gone.
    assert not list(corpus.vectors_path(0).parent.glob(".*"))
    killed_process = int((tmp_path / "killed").read_text())
    assert not is_alive(killed_process)
    first_process, second_process = (
        process_id for process_id, has_mark in worker_batches(tmp_path) if has_mark
    )
    assert first_process == killed_process
    assert second_process != killed_process


def wait_for_end_of(process_ids: set[int]) -> None:
    deadline = time.monotonic() + 30
    while any(map(is_alive, process_ids)) and time.monotonic() < deadline:
        time.sleep(0.2)


@pytest.mark.usefixtures("cluster")
def test_an_error_of_a_worker_is_raised_in_its_own_words(
    tmp_path: Path,
) -> None:
    with pytest.raises(ZeroDivisionError, match=r"^the model cannot read daggers$"):
        encode(tmp_path, workers=1, action=fail)
    process_ids = {process_id for process_id, _ in worker_batches(tmp_path)}
    assert process_ids
    wait_for_end_of(process_ids)
    assert not any(map(is_alive, process_ids)), "a worker is left behind"


@pytest.mark.usefixtures("cluster")
def test_the_same_call_goes_on_after_an_error(
    tmp_path: Path, check_corpus: Callable[[Corpus], None]
) -> None:
    """In this process; what was finished stays."""
    with pytest.raises(ZeroDivisionError):
        encode(tmp_path, workers=1, action=fail)
    wait_for_end_of({process_id for process_id, _ in worker_batches(tmp_path)})
    corpus = Corpus(tmp_path / "corpus")
    finished_parts = sorted(set(range(PART_COUNT)) - set(corpus.parts_to_encode()))
    assert finished_parts
    assert MARKED_PART not in finished_parts
    finished_times = times_of_parts(corpus, finished_parts)
    check_corpus(encode(tmp_path))
    assert times_of_parts(corpus, finished_parts) == finished_times


def times_of_parts(corpus: Corpus, part_indices: list[int]) -> list[int]:
    """When each was written."""
    return [corpus.vectors_path(part_index).stat().st_mtime_ns for part_index in part_indices]


@pytest.mark.usefixtures("cluster")
def test_a_part_that_kills_every_worker_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeError,
        match=f"part {MARKED_PART}: {ATTEMPTS} workers died on it",
    ):
        encode(tmp_path, workers=1, action=die_as_others_did)
