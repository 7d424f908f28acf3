"""Parts are encoded by several processes of this machine, each with a copy of the model."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from .folder import Corpus, Progress
from .part import encode_part

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# What a worker has: its model, and the device that is its own.
_model: Any = None
_device: str = ""


def encode_in_processes(
    model: SentenceTransformer,
    corpus: Corpus,
    parts: list[int],
    progress: Progress,
    *,
    workers: int | None,
    devices: Sequence[str] | None,
) -> None:
    """Encode parts in several processes, one part at a time each.

    Raises:
        ChildProcessError: A worker died. Finished parts stay.
    """
    import torch.multiprocessing  # makes tensors travel in shared memory

    count = workers or len(devices or ()) or 1
    places = [str(device) for device in (devices or [str(model.device)])]
    device, threads = model.device, torch.get_num_threads()
    on_cpu = sum(places[number % len(places)].startswith("cpu") for number in range(count))
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    for number in range(count):
        queue.put(places[number % len(places)])
    model.to("cpu").share_memory()
    pool = ProcessPoolExecutor(count, context, _start, (model, queue, max(1, threads // max(1, on_cpu))))
    try:
        futures = {pool.submit(_encode, os.fspath(corpus.path), number): number for number in parts}
        for future in as_completed(futures):
            progress(*future.result())
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker died, which is mostly a lack of memory. All finished parts are kept: run the same command again, "
            "with fewer workers (--workers) if memory was short."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        model.to(device)


def _start(model: Any, queue: Any, threads: int) -> None:
    global _model, _device
    import torch

    torch.set_num_threads(threads)
    # Ctrl-C reaches every process of a terminal; the one that started the workers ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()
    _model, _device = model, queue.get()


def _follow() -> None:
    """End with the process that started this one: killed, it could not end its workers, which would hold their GPUs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _encode(path: str, number: int) -> tuple[int, int]:
    # Moved by the first part, so that an error is told as all others are.
    return encode_part(_model.to(_device), Corpus(path), number)
