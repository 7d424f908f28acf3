"""Parts encoded by Ray: one stage of Ray Data, a pool of actors with a model each."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..files import remove_leftovers
from ..optional import required
from ..probe import Probe
from .encode_part import encode_part
from .folder import Corpus

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# The run stops after this many workers have died on one part, which may need too much memory.
ATTEMPTS = 4


def encode_on_ray(
    model: SentenceTransformer,
    corpus: Corpus,
    part_numbers: list[int],
    progress: Callable[[int], object],
    workers: int,
) -> None:
    """Encode parts on a Ray cluster: one already joined, that of RAY_ADDRESS, or a local one.

    The corpus must be on storage that every node has at the same path, and st_reba on every node.
    A worker that dies is replaced, and its part encoded again.
    """
    required("ray.data", "ray", f"workers={workers} needs Ray")
    import ray  # type: ignore[import-not-found, unused-ignore]

    with _joined_cluster(ray, workers), _quiet_logger("ray.data"):
        try:
            for result in _encode_parts(ray, model, corpus, part_numbers, workers).iter_rows():
                if result["error"]:
                    raise pickle.loads(result["error"])
                progress(int(result["texts"]))
        except ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            summary = lines[0].rstrip(".")
            raise RuntimeError(
                f"Ray failed: {summary}; run the same again to resume; finished parts are kept"
            ) from error
    remove_leftovers(corpus.path / "vectors")


@contextmanager
def _joined_cluster(ray: Any, workers: int) -> Iterator[None]:
    """Within the ``with`` block, this process is on a cluster."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    local_options = {}
    if address == "local":
        core_count = os.cpu_count() or 1
        local_options = {"num_cpus": max(workers, core_count), "include_dashboard": False}
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local_options)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _quiet_logger(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _encode_parts(
    ray: Any,
    model: SentenceTransformer,
    corpus: Corpus,
    part_numbers: list[int],
    workers: int,
) -> Any:
    """A data set of Ray with the result of every part."""
    resources = ray.cluster_resources()
    gpu_count = int(resources.get("GPU", 0))
    core_count = int(resources.get("CPU", 0))
    device = "cpu"
    threads = max(1, core_count // workers)
    available = f"{core_count} cores"
    if gpu_count:
        device = "cuda"
        threads = 1
        available = f"{gpu_count} GPUs"
    if workers > (gpu_count or core_count):
        raise ValueError(
            f"workers={workers}: Ray has {available}, and each worker needs one; give fewer"
        )
    own_device = model.device
    try:
        # A tensor on a GPU could be read only where there is one.
        shared_model = ray.put(model.to("cpu"))
    finally:
        model.to(own_device)
    part_rows = [{"part": part_number} for part_number in part_numbers]
    part_dataset = ray.data.from_items(part_rows, override_num_blocks=len(part_numbers))
    pool_size = min(workers, len(part_numbers))
    results = part_dataset.map_batches(
        _Encoder,
        fn_constructor_args=(shared_model, os.path.abspath(corpus.path), device, threads),
        batch_size=1,
        num_cpus=threads,
        num_gpus=int(gpu_count > 0),
        compute=ray.data.ActorPoolStrategy(size=pool_size, max_tasks_in_flight_per_actor=2),
    )
    results.context.enable_progress_bars = False
    results.context.print_on_execution_start = False
    return results


class _Encoder:
    """A worker.

    Args:
        shared_model: Ray's reference to the model.
        path: The folder of the corpus.
        device: The device to encode on.
        threads: Threads of torch and of the tokenizer.
    """

    def __init__(self, shared_model: Any, path: str, device: str, threads: int) -> None:
        import torch

        self._shared_model = shared_model
        self._corpus = Corpus(path)
        self._device = device
        torch.set_num_threads(threads)
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer

    @cached_property
    def _model(self) -> SentenceTransformer:
        """The model, fetched with the first part, so that an error is reported like any other."""
        import ray

        model = ray.get(self._shared_model).to(self._device)
        Probe.from_json(self._corpus.header()["model"]).check_same(model, "the corpus")
        return model  # type: ignore[no-any-return]

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        text_count = 0
        pickled_error = b""
        try:
            text_count = self._encode(int(batch["part"][0]))
        except Exception as error:  # sent as a result, as Ray would wrap it in its own errors
            pickled_error = _pickle_error(error)
        return {"texts": [text_count], "error": [pickled_error]}

    def _encode(self, part_number: int) -> int:
        # Ray restarts a failed part forever; one that is too large for any worker would never end.
        attempts = self._corpus.path / "vectors" / f".{part_number:05d}.tries.tmp"
        with attempts.open("ab") as stream:
            stream.write(b".")
        if attempts.stat().st_size > ATTEMPTS:
            attempts.unlink()
            raise RuntimeError(
                f"part {part_number}: {ATTEMPTS} workers died on it, as happens when memory runs "
                "out; run the same again with fewer workers, or with overwrite=True and fewer "
                "batch_tokens"
            )
        text_count = encode_part(self._model, self._corpus, part_number)
        attempts.unlink(missing_ok=True)
        return text_count


def _pickle_error(error: Exception) -> bytes:
    """An error as bytes; turned into a RuntimeError if it cannot be pickled and unpickled."""
    try:
        pickled_error = pickle.dumps(error)
        pickle.loads(pickled_error)
        return pickled_error
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
