"""Shards are encoded by several processes on this machine: sentence-transformers' own pools, fed by token budget."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ...encode import encode_batch, in_order
from ..clock import Clock
from ..folder import Corpus
from ..settings import EncodeSettings
from ..shard import Encoded, Progress, planned, write_shard
from . import Report

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# How often a thread that waits for a worker looks whether it is still alive.
_LOOK_SECONDS = 0.5
# Chunks that are tokenized ahead, so that no worker waits for this process at the end of one.
_AHEAD = 2
# Threads a CPU worker: several processes of a few threads do more than one of many.
_CPU_THREADS = 4


@dataclass(frozen=True)
class LocalEngine:
    """Several processes, each with a copy of the model; see :class:`~st_reba.corpus.engines.Engine`.

    Args:
        workers: How many; None: one a GPU, or one for every four threads of this process, two at least.
        devices: Where each of them runs, as ``["cuda:0", "cuda:1"]``; None: all GPUs, if the model is on one, else CPU.
    """

    workers: int | None = None
    devices: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.devices is not None and (isinstance(self.devices, str) or not self.devices):
            raise ValueError(f"devices={self.devices!r} must be a list, as ['cuda:0', 'cuda:1'] (--devices).")

    def encode(
        self,
        model: SentenceTransformer,
        corpus: Corpus,
        numbers: Sequence[int],
        settings: EncodeSettings,
        report: Report,
        progress: Progress,
    ) -> None:
        """Encode the shards with these numbers, in order; arguments as for the protocol.

        Raises:
            ChildProcessError: A worker died.
        """
        if not numbers:
            return
        with _workers(model, self.places(model)) as workers:

            def encode(chunks: Iterable[list[str]], clock: Clock) -> Iterator[Encoded]:
                return workers.encode(model, chunks, clock, settings, progress)

            for number in numbers:
                report(number, write_shard(model, corpus, number, settings, encode))

    def places(self, model: SentenceTransformer) -> list[str]:
        """The device of each worker.

        Raises:
            ValueError: There are fewer workers than devices.
        """
        import torch

        devices = None if self.devices is None else [str(device) for device in self.devices]
        if devices is None and model.device.type == "cuda":
            devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())][: self.workers]
        if devices is None:
            devices = [model.device.type]
        count = self.workers
        if count is None:
            alone = devices == ["cpu"] and self.devices is None
            threads = torch.get_num_threads()
            count = max(min(2, threads), threads // _CPU_THREADS) if alone else len(devices)
        if count < len(devices):
            raise ValueError(
                f"workers={count} are fewer than devices={devices}: each device needs one. Give as many, or more for "
                "several on each (--workers, --devices)."
            )
        return [devices[number % len(devices)] for number in range(count)]


class _Workers:
    """Processes, and as many threads of this one, each of which hands its process one batch at a time."""

    def __init__(self, pools: Sequence[dict[str, Any]], stopped: threading.Event) -> None:
        self._stopped = stopped
        self._free: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        for pool in pools:
            self._free.put(pool)
        self._threads = ThreadPoolExecutor(len(pools), thread_name_prefix="st-reba-worker")

    def encode(
        self,
        model: SentenceTransformer,
        chunks: Iterable[list[str]],
        clock: Clock,
        settings: EncodeSettings,
        progress: Progress,
    ) -> Iterator[Encoded]:
        """The chunks' vectors in order; the next ones are already in work while one is waited for."""
        under_way: deque[Callable[[], Encoded]] = deque()
        for texts in chunks:
            with clock.stage("tokenize"):
                batches, counts = planned(model, texts, settings)
            futures = [self._threads.submit(self._run, model, [texts[index] for index in batch]) for batch in batches]
            under_way.append(_waiting(batches, counts, futures, clock, progress))
            if len(under_way) >= _AHEAD:
                yield under_way.popleft()()
        while under_way:
            yield under_way.popleft()()

    def _run(self, model: SentenceTransformer, texts: list[str]) -> NDArray[np.float32]:
        pool = self._free.get()
        try:
            if self._stopped.is_set():
                raise InterruptedError("the workers are being stopped")
            # A pool of one process and a chunk of the whole batch: one forward pass.
            return encode_batch(model, texts, task="document", pool=pool, chunk_size=len(texts))
        finally:
            self._free.put(pool)

    def stop(self) -> None:
        self._stopped.set()
        self._threads.shutdown(wait=True, cancel_futures=True)


def _waiting(
    batches: list[list[int]],
    counts: list[int] | None,
    futures: list[Future[NDArray[np.float32]]],
    clock: Clock,
    progress: Progress,
) -> Callable[[], Encoded]:
    def wait() -> Encoded:
        rows = []
        with clock.stage("encode"):
            for batch, future in zip(batches, futures, strict=True):
                rows.append(future.result())
                progress(len(batch), sum(counts[index] for index in batch) if counts else 0)
        return Encoded(in_order(rows, batches), None if counts is None else sum(counts))

    return wait


@contextmanager
def _workers(model: SentenceTransformer, places: Sequence[str]) -> Iterator[_Workers]:
    """Start the processes, and stop them whatever happens."""
    import torch

    device = model.device
    on_cpu = sum(1 for place in places if place.startswith("cpu"))
    threads = max(1, torch.get_num_threads() // max(1, on_cpu))
    stopped = threading.Event()
    pools: list[dict[str, Any]] = []
    workers: _Workers | None = None
    try:
        for place in places:
            vars(model)["_st_reba_worker"] = _InWorker(threads)
            try:
                # One process a pool: each batch goes to whichever is free, and one that dies is known by its pool.
                pools.append(cast(dict[str, Any], model.start_multi_process_pool([place])))
            finally:
                del vars(model)["_st_reba_worker"]
        watched = [{**pool, "output": _Results(pool["output"], pool["processes"], stopped)} for pool in pools]
        workers = _Workers(watched, stopped)
        yield workers
    finally:
        if workers is not None:
            workers.stop()
        for pool in pools:
            model.stop_multi_process_pool(cast(Any, pool))
        # Starting a pool leaves the model on the CPU.
        model.to(device)


class _Results:
    """A pool's output queue; waiting on it ends when the process that fills it is dead, or the work is stopped."""

    def __init__(self, results: Any, processes: Sequence[Any], stopped: threading.Event) -> None:
        self._results = results
        self._processes = processes
        self._stopped = stopped

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            dead = [process for process in self._processes if not process.is_alive()]
            try:
                return self._results.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                pass
            if self._stopped.is_set():
                raise InterruptedError("the workers are being stopped")
            if dead:
                ends = ", ".join(f"process {process.pid}, exit code {process.exitcode}" for process in dead)
                raise ChildProcessError(
                    f"a worker died ({ends}; -9 is mostly a lack of memory). All finished shards are kept: run the "
                    "same command again, with fewer workers (--workers) if memory was short"
                )
            if until is not None and time.monotonic() >= until:
                raise queue.Empty


class _InWorker:
    """Travels with the model into a worker, and sets the process up as it is unpacked there."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return _set_up, (self.threads,)


def _set_up(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    # Bars would each make a lock that is shared between processes, and Python complain when the worker is ended.
    tqdm.set_lock(threading.RLock())
    # Ctrl-C reaches every process of a terminal; the one that started the workers stops them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End with the process that started this one: killed, it could not end its workers, which would hold their GPUs."""
    while (parent := parent_process()) is None:
        # This is only known once the process is unpacked.
        time.sleep(0.05)
    parent.join()
    os._exit(1)
