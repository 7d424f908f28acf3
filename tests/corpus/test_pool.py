"""Several processes: they give what one gives, and none outlives the run, whatever ends it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contents import vectors_of
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.corpus import Corpus, encode_corpus
from st_reba.corpus.encode import Run
from st_reba.corpus.pool import encode_in_processes

# Every test starts processes that import all there is.
pytestmark = pytest.mark.slow

TEXTS = [f"{'很' * (number * 13 % 40)} Text {'very ' * (number * 7 % 9)}number {number}." for number in range(60)]
SIZES: dict[str, Any] = {"part_size": 10, "batch_tokens": 400, "show_progress_bar": False}


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", "reba", prompts={"document": "Text: "})


def test_two_processes_give_what_one_gives(model: SentenceTransformer, tmp_path: Path) -> None:
    one, two = Run(), Run()
    wanted = encode_corpus(model, TEXTS, tmp_path / "one", run=one, **SIZES)
    found = encode_corpus(model, TEXTS, tmp_path / "two", workers=2, run=two, **SIZES)
    np.testing.assert_allclose(vectors_of(found), model.encode_document(TEXTS), atol=1e-6)
    assert found.header()["totals"] == wanted.header()["totals"]
    assert (two.texts, two.positions, two.kept) == (one.texts, one.positions, one.kept) and two.seconds > 0
    assert multiprocessing.active_children() == []
    # Nothing is left to do, so nothing is started.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("st_reba.corpus.encode.encode_in_processes", None)
        encode_corpus(model, TEXTS, tmp_path / "one", workers=2, **SIZES)


def encode_until(model: SentenceTransformer, path: Path, act: Any, device: str = "cpu") -> None:
    """Encode in another process; `act` is called when a part is finished."""
    with pytest.MonkeyPatch.context() as patch:

        def acting(*args: Any, **_: Any) -> None:
            model, corpus, parts, progress = args

            def told(texts: int, positions: int) -> None:
                progress(texts, positions)
                act()

            encode_in_processes(model, corpus, parts, told, workers=1, devices=[device])

        patch.setattr("st_reba.corpus.encode.encode_in_processes", acting)
        encode_corpus(model, TEXTS, path, workers=2, **SIZES)


def test_a_dead_worker_ends_the_run(model: SentenceTransformer, tmp_path: Path) -> None:
    """Finished parts are kept, and the same corpus goes on with any number of processes."""

    def kill() -> None:
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGKILL)

    with pytest.raises(ChildProcessError, match="a worker died.*run the same command again.*--workers"):
        encode_until(model, tmp_path / "c", kill)
    assert multiprocessing.active_children() == []
    assert 0 < len(Corpus(tmp_path / "c").pending()) < 6 and not list(tmp_path.rglob("*.npy.*.tmp*"))
    run = Run()
    corpus = encode_corpus(model, TEXTS, tmp_path / "c", run=run, **SIZES)
    assert run.texts < 60
    np.testing.assert_allclose(vectors_of(corpus), model.encode_document(TEXTS), atol=1e-6)


def test_an_interrupted_run_ends_its_workers(model: SentenceTransformer, tmp_path: Path) -> None:
    """As by Ctrl-C, which reaches the workers too; the parts that they are at are finished."""

    def interrupt() -> None:
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGINT)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_until(model, tmp_path / "c", interrupt)
    assert multiprocessing.active_children() == [] and not list(tmp_path.rglob("*.tmp"))
    assert 0 < len(Corpus(tmp_path / "c").pending()) < 6


def test_an_error_of_a_worker_is_told_in_its_own_words(model: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        encode_until(model, tmp_path / "c", lambda: None, "nowhere")
    assert multiprocessing.active_children() == [] and Corpus(tmp_path / "c").pending() == list(range(6))


SCRIPT = """
import multiprocessing, sys, time
import st_reba
from st_reba.corpus import encode_corpus
from st_reba.corpus.encode import Run

class Slow(Run):
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "texts" and value:
            print(*[worker.pid for worker in multiprocessing.active_children()], flush=True)
            time.sleep(100)

if __name__ == "__main__":
    encode_corpus(st_reba.build("mini", "echo"), ["one", "two", "three"], sys.argv[1], workers=2, part_size=1,
                  run=Slow(), show_progress_bar=False)
"""


@pytest.mark.skipif(os.name == "nt", reason="kills by signal")
def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    """A run that is killed cannot stop its workers; they would hold their GPU's memory for ever."""
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        workers = [int(worker) for worker in run.stdout.readline().split()]
        assert workers and all(map(alive, workers))
        run.kill()
        run.wait()
    limit = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(map(alive, workers))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # Dead, but nobody's child any more to be waited for.
    state = Path(f"/proc/{process}/stat")
    return not (state.is_file() and state.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z")
