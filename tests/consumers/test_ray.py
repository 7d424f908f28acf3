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
from given import SENTENCES
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.corpus import Corpus, Document, encode_corpus
from st_reba.corpus.ray import ATTEMPTS

# The workers have no tests folder to import this module from.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
# Ray's workers give way to all else on the machine, unless they are told not to before it starts.
os.environ.update(RAY_worker_niceness="0")

MARK = "†"
# Mixed lengths, in several batches a part; the marked text runs after longer ones of its part.
DOCUMENTS = [
    Document(json.loads(line)["text"] * (1 + 7 * (row % 5 == 0)) + MARK * (row == 97), f"id-{row}")
    for row, line in enumerate(SENTENCES.read_text(encoding="utf-8").splitlines()[:200])
]


def encode(folder: Path, workers: int | None = None, act: Callable[[Path], None] | None = None) -> Corpus:
    """Encode all documents; `act` is called by whoever meets the mark."""
    model = st_reba.build("mini", "reba", pooling="mean", device="cpu")
    if act is not None:
        vars(model)["encode_document"] = Watched(model, folder / "told", act)
    options: dict[str, Any] = {"part_size": 20, "batch_tokens": 512, "workers": workers, "show_progress_bar": False}
    return encode_corpus(model, DOCUMENTS, folder / "corpus", **options)


class Watched:
    """In place of a model's ``encode_document``: tells who encodes, and acts when it meets the mark."""

    def __init__(self, model: SentenceTransformer, told: Path, act: Callable[[Path], None]) -> None:
        self.model, self.told, self.act = model, told, act

    def __call__(self, texts: list[str], **options: Any) -> Any:
        marked = MARK in "".join(texts)
        with self.told.open("a") as stream:
            stream.write(f"{os.getpid()} {marked}\n")
        if marked:
            self.act(self.told.parent)
        return type(self.model).encode_document(self.model, texts, **options)


def workers_of(folder: Path) -> list[tuple[int, bool]]:
    """Who encoded a batch other than this process, and whether it held the mark."""
    lines = [line.split() for line in (folder / "told").read_text().splitlines()]
    return [(int(process), marked == "True") for process, marked in lines if int(process) != os.getpid()]


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.is_file() and status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Corpus], None]:
    """Assert the same documents as one process encodes, each once and in the same place, and vectors to 1e-6."""
    wanted = encode(tmp_path_factory.mktemp("single"))

    def check(found: Corpus) -> None:
        found.verify()
        assert found.parts() == wanted.parts() == 10
        for number in range(10):
            assert found.part(number) == wanted.part(number)
            np.testing.assert_allclose(found.vectors(number), wanted.vectors(number), atol=1e-6, rtol=0)
        assert not list((found.path / "vectors").glob(".*")), "what a dead worker left"

    return check


@pytest.fixture
def cluster() -> Iterator[None]:
    """A cluster that is there already, and that is to be left alone."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    assert ray.is_initialized()
    ray.shutdown()


def die(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def die_once(folder: Path) -> None:
    if not (folder / "killed").exists():
        (folder / "killed").write_text(str(os.getpid()))
        die(folder)


def die_as_others_did(folder: Path) -> None:
    # As if this were the last attempt: each worker takes seconds to start.
    (folder / "corpus" / "vectors" / ".00004.tries.tmp").write_bytes(b"." * ATTEMPTS)
    die(folder)


def fail(folder: Path) -> None:
    raise ZeroDivisionError("the model cannot read daggers")


def test_two_workers_on_a_cluster_of_its_own(tmp_path: Path, check: Callable[[Corpus], None]) -> None:
    """Ray is started and ended."""
    corpus = encode(tmp_path, workers=2)
    assert not ray.is_initialized()
    check(corpus)


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_costs_nothing(tmp_path: Path, check: Callable[[Corpus], None]) -> None:
    with pytest.raises(ValueError, match="workers=3"):
        encode(tmp_path, workers=3)
    check(encode(tmp_path, workers=2, act=die_once))
    killed = int((tmp_path / "killed").read_text())
    assert not is_alive(killed)
    first, second = (process for process, marked in workers_of(tmp_path) if marked)
    assert first == killed != second, "another worker has taken the part over"


@pytest.mark.usefixtures("cluster")
def test_an_error_is_told_in_its_own_words(tmp_path: Path, check: Callable[[Corpus], None]) -> None:
    with pytest.raises(ZeroDivisionError, match=r"^the model cannot read daggers$"):
        encode(tmp_path, workers=1, act=fail)
    limit, workers = time.monotonic() + 30, {process for process, _ in workers_of(tmp_path)}
    while any(map(is_alive, workers)) and time.monotonic() < limit:
        time.sleep(0.2)
    assert workers and not any(map(is_alive, workers)), "a worker is left behind"
    # What was finished stays, and the same call goes on from there, in this process.
    corpus = Corpus(tmp_path / "corpus")
    done = sorted(set(range(10)) - set(corpus.pending()))
    assert done and 4 not in done
    before = [corpus.vectors_path(number).stat().st_mtime_ns for number in done]
    check(encode(tmp_path))
    assert [corpus.vectors_path(number).stat().st_mtime_ns for number in done] == before


@pytest.mark.usefixtures("cluster")
def test_a_part_that_kills_every_worker_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=f"part 4: {ATTEMPTS} workers died over it"):
        encode(tmp_path, workers=1, act=die_as_others_did)
