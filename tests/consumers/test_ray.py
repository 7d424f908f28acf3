"""Ray's engine on this machine: two workers give what one process gives, whatever happens to one of them."""

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
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.corpus import Corpus, Document, encode_corpus
from st_reba.corpus.encode import Run
from st_reba.corpus.ray import ATTEMPTS

# The workers have no tests folder to import this module from.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

MARK = "†"
EXAMPLES = Path(__file__).parents[2] / "examples/sentences.jsonl"
SENTENCES = [json.loads(line)["text"] for line in EXAMPLES.read_text(encoding="utf-8").splitlines()]
# Mixed lengths, in several batches a part; the marked text runs after longer ones of its part.
DOCUMENTS = [
    Document(each * (1 + 7 * (row % 5 == 0)) + MARK * (row == 97), f"id-{row}")
    for row, each in enumerate(SENTENCES[:200])
]
# Ray's workers give way to all else on the machine, unless they are told not to before it starts.
os.environ.update(RAY_worker_niceness="0")
OPTIONS: dict[str, Any] = {"part_size": 20, "batch_tokens": 512, "show_progress_bar": False}


def build() -> SentenceTransformer:
    return st_reba.build("mini", "reba", pooling="mean", device="cpu")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The corpus as one process encodes it."""
    return encode_corpus(build(), DOCUMENTS, tmp_path_factory.mktemp("single") / "corpus", **OPTIONS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster that is there already, and that the engine is to leave alone."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    assert ray.is_initialized()
    ray.shutdown()


def check_same(found: Corpus, wanted: Corpus) -> None:
    """The same documents, each once and in the same place, and the same vectors to 1e-6."""
    found.verify()
    assert found.parts() == wanted.parts() == 10
    for number in range(10):
        rows = found.part(number).rows
        assert rows == wanted.part(number).rows
        assert [row.id for row in rows] == [f"id-{row}" for row in range(number * 20, number * 20 + 20)]
        np.testing.assert_allclose(found.vectors(number), wanted.vectors(number), atol=1e-6, rtol=0)
    assert not list((found.path / "vectors").glob(".*")), "what a dead worker left"


class Watched:
    """In place of a model's ``encode_document``: tells who encodes what, and acts when it meets the mark."""

    def __init__(self, model: SentenceTransformer, told: Path, act: Callable[[Path], None]) -> None:
        self.model, self.told, self.act = model, told, act

    def __call__(self, texts: list[str], **options: Any) -> Any:
        with self.told.open("a") as stream:
            stream.write(f"{os.getpid()} {MARK in ''.join(texts)}\n")
        if any(MARK in text for text in texts):
            self.act(self.told)
        return type(self.model).encode_document(self.model, texts, **options)


def watched(told: Path, act: Callable[[Path], None]) -> SentenceTransformer:
    model = build()
    vars(model)["encode_document"] = Watched(model, told, act)
    return model


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def die_once(told: Path) -> None:
    killed = told.with_name("killed")
    if not killed.exists():
        killed.write_text(str(os.getpid()))
        die()


def die_as_others_did(told: Path) -> None:
    # As if this were the last attempt: each worker takes seconds to start.
    (told.with_name("corpus") / "vectors" / ".00000.tries.tmp").write_bytes(b"." * ATTEMPTS)
    die()


def fail(told: Path) -> None:
    raise ZeroDivisionError("the model cannot read daggers")


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.is_file() and status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def test_two_workers_on_a_cluster_of_its_own(tmp_path: Path, single: Corpus) -> None:
    """Ray is started and ended."""
    assert not ray.is_initialized()
    run = Run()
    corpus = encode_corpus(build(), DOCUMENTS, tmp_path / "corpus", engine="ray", workers=2, run=run, **OPTIONS)
    assert not ray.is_initialized()
    check_same(corpus, single)
    assert (run.texts, run.kept) == (200, 200) and run.positions > 200


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_costs_nothing(tmp_path: Path, single: Corpus) -> None:
    told = tmp_path / "told"
    model = watched(told, die_once)
    check_same(encode_corpus(model, DOCUMENTS, tmp_path / "corpus", engine="ray", workers=2, **OPTIONS), single)
    killed = int((tmp_path / "killed").read_text())
    assert killed != os.getpid() and not is_alive(killed)
    lines = [line.split() for line in told.read_text().splitlines()]
    marked = [int(process) for process, mark in lines if mark == "True"]
    assert marked[0] == killed and len(marked) == 2 and marked[1] != killed, "another worker has taken the part over"
    # Its probe and some batches of the part that it died over.
    assert [int(process) for process, _ in lines].count(killed) > 3


@pytest.mark.usefixtures("cluster")
def test_an_error_is_told_in_its_own_words(tmp_path: Path, single: Corpus) -> None:
    told = tmp_path / "told"
    with pytest.raises(ZeroDivisionError, match=r"^the model cannot read daggers$"):
        encode_corpus(watched(told, fail), DOCUMENTS, tmp_path / "corpus", engine="ray", workers=1, **OPTIONS)
    workers = {int(line.split()[0]) for line in told.read_text().splitlines()} - {os.getpid()}
    limit = time.monotonic() + 30
    while any(map(is_alive, workers)) and time.monotonic() < limit:
        time.sleep(0.2)
    assert workers and not any(map(is_alive, workers)), "a worker is left behind"
    # What was finished stays, and the same call goes on from there, in this process.
    corpus = Corpus(tmp_path / "corpus")
    done = sorted(set(range(10)) - set(corpus.pending()))
    assert done and 4 not in done
    before = [corpus.vectors_path(number).stat().st_mtime_ns for number in done]
    check_same(encode_corpus(build(), DOCUMENTS, tmp_path / "corpus", **OPTIONS), single)
    assert [corpus.vectors_path(number).stat().st_mtime_ns for number in done] == before


@pytest.mark.usefixtures("cluster")
def test_a_part_that_kills_every_worker_ends_the_run(tmp_path: Path) -> None:
    model = watched(tmp_path / "told", die_as_others_did)
    with pytest.raises(RuntimeError, match=rf"^part 0: {ATTEMPTS} workers died over it.*\(--workers\)"):
        encode_corpus(model, DOCUMENTS[80:120], tmp_path / "corpus", engine="ray", workers=1, **OPTIONS)


@pytest.mark.usefixtures("cluster")
def test_more_workers_than_cores(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers=3: the Ray cluster has 2 cores"):
        encode_corpus(build(), DOCUMENTS[:20], tmp_path / "corpus", engine="ray", workers=3, **OPTIONS)


@pytest.mark.usefixtures("cluster")
def test_no_more_workers_than_parts(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Ray warns of actors that get nothing."""
    corpus = encode_corpus(build(), DOCUMENTS[:20], tmp_path / "corpus", engine="ray", workers=2, **OPTIONS)
    assert corpus.is_complete()
    assert not [one for one in recwarn if "concurrent actors" in str(one.message)]
