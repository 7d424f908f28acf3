"""The engines: several processes give what one gives, and no process outlives the run, whatever ends it."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import st_reba
from st_reba.corpus import Corpus, encode_corpus
from st_reba.corpus.engines import make_engine
from st_reba.corpus.engines.local import LocalEngine, _Results
from st_reba.corpus.engines.single import SingleEngine
from st_reba.corpus.progress import RunProgress

TEXTS = [f"{'很' * (number * 13 % 40)} Text {'very ' * (number * 7 % 9)}number {number}." for number in range(60)]
SIZES: dict[str, Any] = {"shard_size": 25, "batch_tokens": 400}


def vectors_of(corpus: Corpus) -> Any:
    return np.concatenate([np.array(vectors) for _, vectors in corpus.shards()])


def on_device(kind: str) -> Any:
    return SimpleNamespace(device=SimpleNamespace(type=kind))


def test_names() -> None:
    assert make_engine("single") == SingleEngine()
    assert make_engine("local", 3, ["cuda:0"]) == LocalEngine(3, ["cuda:0"])


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    threads = [16]
    monkeypatch.setattr("torch.get_num_threads", lambda: threads[0])
    cpu, gpu = on_device("cpu"), on_device("cuda")
    assert LocalEngine().places(gpu) == ["cuda:0", "cuda:1", "cuda:2"]
    assert LocalEngine(2).places(gpu) == ["cuda:0", "cuda:1"]
    assert LocalEngine(4).places(gpu) == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert LocalEngine(devices=["cuda:2"]).places(cpu) == ["cuda:2"]
    assert LocalEngine(2, ["cpu"]).places(gpu) == ["cpu", "cpu"]
    assert LocalEngine(5).places(cpu) == ["cpu"] * 5
    for threads[0], workers in ((16, 4), (4, 2), (2, 2), (1, 1)):
        assert LocalEngine().places(cpu) == ["cpu"] * workers
    with pytest.raises(ValueError, match=r"workers=1 are fewer than devices=.*--workers, --devices"):
        LocalEngine(1, ["cuda:0", "cuda:1"]).places(gpu)
    for devices in ("cuda:0", []):
        with pytest.raises(ValueError, match="devices=.*must be a list"):
            LocalEngine(devices=devices)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    model = st_reba.build("mini", "reba", prompts={"document": "Text: "})
    wanted = encode_corpus(model, TEXTS, tmp_path / "single", **SIZES)
    progress = RunProgress(show=False)
    found = encode_corpus(model, TEXTS, tmp_path / "local", engine="local", workers=2, progress=progress, **SIZES)
    np.testing.assert_allclose(vectors_of(found), vectors_of(wanted), atol=1e-6)
    np.testing.assert_allclose(vectors_of(found), model.encode_document(TEXTS), atol=1e-5)
    assert found.header()["totals"] == wanted.header()["totals"]
    assert (progress.texts, progress.positions) == (60, found.header()["totals"]["positions"])
    assert found.header()["seconds"]["encode"] > 0
    assert multiprocessing.active_children() == [] and "_st_reba_worker" not in vars(model)
    # Nothing is left to do, so nothing is started.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "start_multi_process_pool", None)
        encode_corpus(model, TEXTS, tmp_path / "single", engine="local", workers=2, **SIZES)


@pytest.mark.slow
def test_dead_worker(tmp_path: Path) -> None:
    """Told at once, finished shards kept; the same corpus then goes on with any engine, and equals that of one."""
    model = st_reba.build("mini", "echo")
    texts, sizes = TEXTS[:40], {"shard_size": 10, "batch_size": 2}

    class Deadly(RunProgress):
        def report(self, documents: int, record: Any) -> None:
            super().report(documents, record)
            if self.kept == 20:
                (worker,) = multiprocessing.active_children()
                os.kill(worker.pid or 0, signal.SIGKILL)

    with pytest.raises(ChildProcessError, match="exit code -9.*same command again"):
        encode_corpus(model, texts, tmp_path / "c", engine="local", workers=1, progress=Deadly(show=False), **sizes)
    assert multiprocessing.active_children() == []
    corpus = Corpus(tmp_path / "c")
    assert [corpus.vectors(number) is not None for number in range(4)] == [True, True, False, False]
    found = encode_corpus(model, texts, tmp_path / "c", **sizes)
    wanted = encode_corpus(model, texts, tmp_path / "wanted", **sizes)
    assert np.array_equal(vectors_of(found), vectors_of(wanted))


@pytest.mark.slow
def test_interrupted(tmp_path: Path) -> None:
    model = st_reba.build("mini", "echo")

    class Impatient(RunProgress):
        def __call__(self, texts: int, positions: int = 0, /) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_corpus(
            model, TEXTS, tmp_path / "c", engine="local", workers=1, progress=Impatient(show=False), batch_size=1
        )
    assert multiprocessing.active_children() == [] and not list(tmp_path.rglob("*.tmp"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("st-reba-worker")]


SCRIPT = """
import multiprocessing, sys, time
import st_reba
from st_reba.corpus import encode_corpus
from st_reba.corpus.progress import RunProgress

class Slow(RunProgress):
    def __call__(self, texts, positions=0, /):
        print(multiprocessing.active_children()[0].pid, flush=True)
        time.sleep(100)

if __name__ == "__main__":
    encode_corpus(st_reba.build("mini", "echo"), ["one", "two"], sys.argv[1], engine="local", workers=1,
                  progress=Slow(show=False))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills by signal")
def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    """A run that is killed cannot stop its workers; they would hold their GPU's memory for ever."""
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        worker = int(run.stdout.readline())
        assert alive(worker)
        run.kill()
        run.wait()
    for _ in range(300):
        if not alive(worker):
            break
        time.sleep(0.1)
    assert not alive(worker)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # Dead, but nobody's child any more to be waited for.
    state = Path(f"/proc/{process}/stat")
    return not (state.is_file() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_waiting_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.corpus.engines.local._LOOK_SECONDS", 0.01)
    results: queue.Queue[Any] = queue.Queue()
    stopped = threading.Event()
    process = SimpleNamespace(is_alive=lambda: True, pid=7, exitcode=None)
    watched = _Results(results, [process], stopped)
    results.put("a result")
    assert watched.get() == "a result"
    with pytest.raises(queue.Empty):
        watched.get(timeout=0.02)
    # What a process gave before it died counts.
    process.is_alive, process.exitcode = (lambda: False), -9
    results.put("its last")
    assert watched.get() == "its last"
    with pytest.raises(ChildProcessError, match="process 7, exit code -9"):
        watched.get()
    stopped.set()
    with pytest.raises(InterruptedError):
        watched.get()
