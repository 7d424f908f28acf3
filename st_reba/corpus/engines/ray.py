"""Shards are encoded on a Ray cluster: Ray Data reads them, and a pool of actors, one model each, encodes them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...files import remove_leftovers
from ..folder import Corpus
from ..settings import EncodeSettings
from ..shard import Progress
from . import Report
from .ray_cluster import first_line, joined, load_ray, quiet, share_out
from .ray_workers import Failure, Job, Loaded, Sent, outcomes, start_counter

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Another node's new files may stay unseen for so long on shared storage that keeps names in a cache.
VISIBLE_SECONDS = 60.0


@dataclass(frozen=True)
class RayEngine:
    """The engine for a cluster, or for all of one machine; see :class:`~st_reba.corpus.engines.Engine`.

    The corpus's folder must be on storage that every node has at the same path, and st_reba must be installed on every
    node. A worker that dies is replaced, and the shard that it had begun is encoded again.

    A cluster that this process has joined is used and left as it is; else the one at ``address``; else the one that
    the environment's RAY_ADDRESS names; else Ray is started on this machine for the time of the run.

    Args:
        workers: Actors, each with a model; None: one a GPU, or without GPUs one a node with all of its cores.
        devices: ``["cpu"]`` leaves GPUs alone. Ray itself says which worker has which, so that nothing else is taken.
        address: Of a cluster.
        source: Folder or Hub id that every node can load the model from, saved with `save_pretrained`. None: the model
            itself is sent, with its weights, by Ray's object store, once a node.
        trust_remote_code: Allow the source's own Python code.
        verbose: Show Ray's progress bars and messages.
        attempts: Workers that may die over one shard before the run stops: it may need more memory than any has.

    Raises:
        ImportError: Ray is not installed.
        ValueError: The devices are others.

    Example:
        >>> RayEngine(workers=2).workers  # doctest: +SKIP
        2
    """

    workers: int | None = None
    devices: Sequence[str] | None = None
    address: str | None = None
    source: str | None = None
    trust_remote_code: bool = False
    verbose: bool = False
    attempts: int = 4

    def __post_init__(self) -> None:
        if self.devices is not None and list(self.devices) != ["cpu"]:
            raise ValueError(
                f"devices={list(self.devices)!r} does not go with engine='ray', which gives each worker a GPU of its "
                "own where there are any. Leave it out and set workers (--workers), or give 'cpu' to use no GPU."
            )
        load_ray()

    def encode(
        self,
        model: SentenceTransformer,
        corpus: Corpus,
        numbers: Sequence[int],
        settings: EncodeSettings,
        report: Report,
        progress: Progress,
    ) -> None:
        """Encode the shards with these numbers, in any order; arguments as for the protocol.

        Raises:
            ValueError: There are more workers than GPUs or cores, a node does not see the corpus's folder, or what
                `source` gives is another model.
            RuntimeError: Workers died again and again, or the cluster failed. Shards that are finished stay.
        """
        if not numbers:
            return
        ray = load_ray()
        from ...fingerprint import fingerprint

        with joined(self.address, self.workers, self.verbose), quiet(self.verbose):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            share = share_out(
                [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in nodes],
                self.workers,
                use_gpus=self.devices is None,
            )
            job = Job(
                path=os.path.abspath(corpus.path),
                settings=settings,
                fingerprint=fingerprint(model),
                model=self._model(model),
                # One that gets no shard would be started for nothing, and Ray would warn of it.
                share=replace(share, workers=min(share.workers, len(numbers))),
                counter=start_counter(),
                attempts=self.attempts,
            )
            try:
                with closing(outcomes(job, numbers)) as stream:
                    for outcome in stream:
                        if isinstance(outcome, Failure):
                            raise outcome.error from RuntimeError(f"in a worker:\n{outcome.trace}")
                        report(outcome.number, outcome.record)
                        progress(outcome.texts, outcome.record.positions or 0)
            except ray.exceptions.RayError as error:
                raise RuntimeError(
                    f"the Ray cluster failed: {first_line(error)}. Finished shards stay: run the same command again "
                    "to go on, and with verbose=True (--verbose) to see Ray's own messages. st_reba, and all "
                    "else that the model needs, must be installed on every node."
                ) from error
        # What dead workers left.
        remove_leftovers(corpus.vectors_path(0).parent)
        _wait_until_seen(corpus, numbers)

    def _model(self, model: SentenceTransformer) -> Callable[[str], SentenceTransformer]:
        """How a worker comes to the model: ``model("cuda")``."""
        if self.source is not None:
            source = str(os.path.abspath(self.source)) if os.path.isdir(self.source) else self.source
            dtype = next((parameter.dtype for parameter in model.parameters()), None)
            return Loaded(source, None if dtype is None else str(dtype).removeprefix("torch."), self.trust_remote_code)
        # A tensor on a GPU could be read only where there is one.
        device = model.device
        try:
            return Sent(load_ray().put(model.to("cpu")))
        finally:
            model.to(device)


def _wait_until_seen(corpus: Corpus, numbers: Sequence[int]) -> None:
    """Until this node sees what the others wrote."""
    latest = time.monotonic() + VISIBLE_SECONDS
    for number in numbers:
        while corpus.vectors(number) is None or not corpus.vectors_path(number).is_file():
            if time.monotonic() > latest:
                raise RuntimeError(
                    f"{corpus.path}: shard {number} was encoded, but its vectors do not appear here. Put the corpus on "
                    "storage that every node of the cluster has at the same path, and run the same command again."
                )
            time.sleep(0.2)
            # Naming all files makes the storage look again.
            os.listdir(corpus.vectors_path(number).parent)
