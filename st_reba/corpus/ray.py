"""Parts encoded by Ray: one stage of Ray Data, a pool of actors with a model each."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..files import remove_leftovers
from ..optional import required
from ..probe import Probe
from .encode import encode_part
from .folder import Corpus

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Workers that may die over one part before the run stops: it may need more memory than there is.
ATTEMPTS = 4


def encode_on_ray(
    model: SentenceTransformer, corpus: Corpus, parts: list[int], progress: Callable[[int], object], workers: int
) -> None:
    """Encode parts on the cluster that this process has joined, that of RAY_ADDRESS, or this machine.

    The corpus must be on storage that every node has at the same path, and st_reba on every node. A worker that dies
    is replaced, and its part encoded again.
    """
    required("ray.data", "ray", f"workers={workers} needs Ray")
    import ray  # type: ignore[import-not-found, unused-ignore]

    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS") or "local"
        own = {"num_cpus": max(workers, os.cpu_count() or 1), "include_dashboard": False} if address == "local" else {}
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        for row in _encoded(ray, model, corpus, parts, workers).iter_rows():
            if row["error"]:
                raise pickle.loads(row["error"])
            progress(int(row["texts"]))
    except ray.exceptions.RayError as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RuntimeError(f"Ray failed: {said}; run the same again to go on, finished parts stay") from error
    finally:
        logger.setLevel(level)
        if started:
            ray.shutdown()
    remove_leftovers(corpus.path / "vectors")


def _encoded(ray: Any, model: SentenceTransformer, corpus: Corpus, parts: list[int], workers: int) -> Any:
    resources = ray.cluster_resources()
    gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    if workers > (gpus or cores):
        have = f"{gpus} GPUs" if gpus else f"{cores} cores"
        raise ValueError(f"workers={workers}: Ray has {have}, and each worker needs one; give fewer")
    device, threads = model.device, 1 if gpus else max(1, cores // workers)
    try:
        sent = ray.put(model.to("cpu"))  # a tensor on a GPU could be read only where there is one
    finally:
        model.to(device)
    numbers = ray.data.from_items([{"part": number} for number in parts], override_num_blocks=len(parts))
    encoded = numbers.map_batches(
        _Encoder,
        fn_constructor_args=(sent, os.path.abspath(corpus.path), "cuda" if gpus else "cpu", threads),
        batch_size=1,
        num_cpus=threads,
        num_gpus=1 if gpus else 0,
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(parts)), max_tasks_in_flight_per_actor=2),
    )
    encoded.context.enable_progress_bars = encoded.context.print_on_execution_start = False
    return encoded


class _Encoder:
    def __init__(self, sent: Any, path: str, device: str, threads: int) -> None:
        import torch

        self._sent, self._corpus, self._device = sent, Corpus(path), device
        torch.set_num_threads(threads)
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer

    @cached_property
    def _model(self) -> SentenceTransformer:
        """Taken with the first part, so that an error is reported as all others are."""
        import ray

        model = ray.get(self._sent).to(self._device)
        Probe.from_json(self._corpus.header()["model"]).check_same(model, "the corpus")
        return model  # type: ignore[no-any-return]

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        texts, error = 0, b""
        try:
            texts = self._encode(int(batch["part"][0]))
        except Exception as raised:  # sent as a result, for Ray would wrap it in errors of its own
            try:
                error = pickle.dumps(raised)
                pickle.loads(error)
            except Exception:
                error = pickle.dumps(RuntimeError(f"{type(raised).__name__}: {raised}"))
        return {"texts": [texts], "error": [error]}

    def _encode(self, number: int) -> int:
        # Ray begins a part again for ever, and one that is too much for every worker would never end.
        tries = self._corpus.path / "vectors" / f".{number:05d}.tries.tmp"
        with tries.open("ab") as stream:
            stream.write(b".")
        if tries.stat().st_size > ATTEMPTS:
            tries.unlink()
            raise RuntimeError(
                f"part {number}: {ATTEMPTS} workers died over it, as happens when memory runs out; run the same again "
                "with fewer workers, or with overwrite=True and fewer batch_tokens"
            )
        done = encode_part(self._model, self._corpus, number)
        tries.unlink(missing_ok=True)
        return done
