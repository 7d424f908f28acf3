"""Parts are encoded on a Ray cluster: one stage of Ray Data, a pool of actors with a model each."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..fingerprint import ModelFingerprint, check
from ..optional import required
from .folder import Corpus, Progress, is_corpus
from .part import encode_part

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Workers that may die over one part before the run stops: it may need more memory than any has.
ATTEMPTS = 4


def load_ray() -> Any:
    """The package, which is imported only where it is asked for.

    Raises:
        ImportError: It is not installed.
    """
    required("ray.data", "ray", "engine='ray' needs Ray Data")
    return required("ray", "ray")


def encode_on_ray(
    model: SentenceTransformer,
    corpus: Corpus,
    parts: list[int],
    progress: Progress,
    *,
    workers: int | None,
    devices: Sequence[str] | None,
) -> None:
    """Encode parts on a cluster: the one that this process has joined, or RAY_ADDRESS, or this machine.

    The corpus must be on storage that every node has at the same path, and st_reba on every node. The model is sent
    once a node, by Ray's object store. A worker that dies is replaced, and its part encoded again.

    Args:
        model: The model.
        corpus: The folder.
        parts: The parts to encode.
        progress: Called after each part.
        workers: Actors; None: one a GPU, or without GPUs one a node.
        devices: ["cpu"] leaves GPUs alone.

    Raises:
        ValueError: There are more workers than GPUs or cores, or a node does not see the corpus's folder.
        RuntimeError: Workers died again and again over one part, which is named. Finished parts stay.
    """
    if devices is not None and list(devices) != ["cpu"]:
        raise ValueError(
            f"devices={list(devices)!r} does not go with engine='ray', which gives each worker a GPU of its own where "
            "there are any. Leave it out and set workers (--workers), or give 'cpu' to use no GPU."
        )
    ray = load_ray()
    with _joined(ray, workers):
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        count, threads, gpus = share_out(
            [(int(node.get("CPU", 0)), 0 if devices else int(node.get("GPU", 0))) for node in nodes], workers
        )
        device = model.device
        try:
            sent = ray.put(model.to("cpu"))  # a tensor on a GPU could be read only where there is one
        finally:
            model.to(device)
        encoded = ray.data.from_items([{"part": number} for number in parts], override_num_blocks=len(parts))
        encoded = encoded.map_batches(
            _Encoder,
            fn_constructor_args=(sent, os.path.abspath(corpus.path), "cuda" if gpus else "cpu", threads),
            batch_size=1,
            # Cores spread the workers over the nodes, unless GPUs do that.
            num_cpus=0 if gpus else threads,
            num_gpus=gpus,
            compute=ray.data.ActorPoolStrategy(size=min(count, len(parts)), max_tasks_in_flight_per_actor=2),
        )
        try:
            for row in encoded.iter_rows():
                if row["error"]:
                    raise pickle.loads(row["error"])
                progress(int(row["texts"]), int(row["positions"]))
        except ray.exceptions.RayError as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise RuntimeError(
                f"the Ray cluster failed: {said}. Finished parts stay: run the same command again to go on. st_reba, "
                "and all else that the model needs, must be installed on every node."
            ) from error
    for left in (corpus.path / "vectors").glob(".*"):
        left.unlink(missing_ok=True)


def share_out(nodes: Sequence[tuple[int, int]], workers: int | None) -> tuple[int, int, int]:
    """Share out a cluster.

    Args:
        nodes: Cores and GPUs of each node.
        workers: How many are wanted; None: one a GPU, or without GPUs one a node that has cores.

    Returns:
        Workers; threads of each, as many as every one can have wherever it is put; GPUs of each, 1 or 0.

    Raises:
        ValueError: There are more workers than GPUs, or than cores.

    Example:
        >>> share_out([(16, 4), (32, 4)], None), share_out([(16, 0), (8, 0)], 3)
        ((8, 4, 1), (3, 8, 0))
    """
    gpus = sum(gpus for cores, gpus in nodes if cores)
    if gpus:
        if workers is not None and workers > gpus:
            raise ValueError(
                f"workers={workers}: the Ray cluster has {gpus} GPUs, and each worker needs one. Give at most {gpus} "
                "(--workers), or devices=['cpu'] (--devices cpu) to use none."
            )
        return workers or gpus, max(1, min(cores // gpus for cores, gpus in nodes if cores and gpus)), 1
    cores = [cores for cores, _ in nodes if cores]
    wanted = workers or max(1, len(cores))
    for threads in range(max(cores, default=0), 0, -1):
        if sum(count // threads for count in cores) >= wanted:
            return wanted, threads, 0
    raise ValueError(
        f"workers={wanted}: the Ray cluster has {sum(cores)} cores, and each worker needs one. Give fewer (--workers), "
        "or add nodes."
    )


class _Encoder:
    """An actor of the pool. It takes the model at its first part, so that an error is told as all others are."""

    def __init__(self, sent: Any, path: str, device: str, threads: int) -> None:
        import torch

        self._sent, self._path, self._device = sent, path, device
        self._model: Any = None
        torch.set_num_threads(threads)
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizer's, which start with its first texts

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        texts, positions, error = 0, 0, b""
        try:
            texts, positions = self._encode(int(batch["part"][0]))
        except Exception as raised:  # sent as a result, for Ray would wrap it in errors of its own
            try:
                error = pickle.dumps(raised)
                pickle.loads(error)
            except Exception:
                error = pickle.dumps(RuntimeError(f"{type(raised).__name__}: {raised}"))
        return {"texts": [texts], "positions": [positions], "error": [error]}

    def _encode(self, number: int) -> tuple[int, int]:
        if not is_corpus(self._path):
            raise ValueError(
                f"{self._path}: not there on the node {socket.gethostname()!r}. Put the corpus on storage that every "
                "node of the cluster has at the same path."
            )
        corpus = Corpus(self._path)
        # Ray begins a part again for ever, and one that is too much for every worker would never end.
        tries = corpus.path / "vectors" / f".{number:05d}.tries.tmp"  # one that is left is removed by the next run
        with tries.open("ab") as stream:
            stream.write(b".")
        if tries.stat().st_size > ATTEMPTS:
            tries.unlink()
            raise RuntimeError(
                f"part {number}: {ATTEMPTS} workers died over it, as happens when memory runs out. Finished parts "
                "stay: run the same command again with fewer workers (--workers), or encode all anew with fewer "
                "batch_tokens (--batch-tokens, --overwrite)."
            )
        if self._model is None:
            model = load_ray().get(self._sent).to(self._device)
            check(ModelFingerprint.from_json(corpus.header()["model"]), model, "the corpus")
            self._model = model
        done = encode_part(self._model, corpus, number)
        tries.unlink(missing_ok=True)
        return done


@contextmanager
def _joined(ray: Any, workers: int | None) -> Iterator[None]:
    """A cluster that is joined, without its bars and messages; what was started for it is ended."""
    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            options |= {"num_cpus": max(workers or 1, os.cpu_count() or 1), "include_dashboard": False}
            os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        try:
            ray.init(**options)
        except ConnectionError as error:
            raise RuntimeError(
                f"no Ray cluster at {address!r} ({error}): start one (ray start --head), set RAY_ADDRESS to one that "
                "runs, or unset it to run on this machine alone."
            ) from error
    context, logger = ray.data.DataContext.get_current(), logging.getLogger("ray.data")
    before = (context.enable_progress_bars, context.print_on_execution_start, logger.level)
    context.enable_progress_bars, context.print_on_execution_start = False, False
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        context.enable_progress_bars, context.print_on_execution_start = before[:2]
        logger.setLevel(before[2])
        if started:
            ray.shutdown()
