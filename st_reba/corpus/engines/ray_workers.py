"""What runs on the nodes of a Ray cluster: a stage that reads shards, and actors that encode and write them."""

from __future__ import annotations

import os
import pickle
import socket
import sqlite3
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..folder import Corpus, ShardVectors, is_corpus
from ..settings import EncodeSettings
from ..shard import encode_shard
from ..store import DocumentStore
from .ray_cluster import Share, load_ray

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ...fingerprint import ModelFingerprint

# Documents that travel from the reading stage to a worker; more of a shard are read where they are encoded, a chunk at
# a time, for a shard of books would fill the memory that Ray keeps blocks in.
DELIVERED_BYTES = 2**27
# A shard is read in a hundredth of the time that it is encoded in, by a process that takes memory of its own.
WORKERS_A_READER = 16


@dataclass(frozen=True)
class Loaded:
    """The model from where it is stored."""

    source: str
    dtype: str | None
    trust_remote_code: bool

    def __call__(self, device: str) -> SentenceTransformer:
        from ...persistence import load

        return load(self.source, device=device, dtype=self.dtype, trust_remote_code=self.trust_remote_code)


@dataclass(frozen=True)
class Sent:
    """The model itself, out of Ray's object store."""

    reference: Any

    def __call__(self, device: str) -> SentenceTransformer:
        model: SentenceTransformer = load_ray().get(self.reference)
        return model.to(device)


@dataclass(frozen=True)
class Job:
    """What every worker is told."""

    path: str
    settings: EncodeSettings
    fingerprint: ModelFingerprint
    model: Callable[[str], SentenceTransformer]
    share: Share
    counter: Any
    attempts: int

    def corpus(self) -> Corpus:
        """The corpus, on a node of the cluster."""
        if not is_corpus(self.path):
            raise ValueError(
                f"{self.path}: not there on the node {socket.gethostname()!r}. Put the corpus on storage that every "
                "node of the cluster has at the same path."
            )
        return Corpus(self.path)


@dataclass(frozen=True)
class Finished:
    """What a worker tells of a shard."""

    number: int
    texts: int
    record: ShardVectors


@dataclass(frozen=True)
class Failure:
    """An error of a worker. It is sent as a result, for Ray would wrap it in its own, and those in further ones."""

    error: Exception
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The error as it is, or its words where it cannot be sent."""
        trace = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return cls(RuntimeError(f"{type(error).__name__}: {error}"), trace)
        return cls(error, trace)


def start_counter() -> Any:
    """An actor that counts how often each shard was begun: workers die without a word."""

    # A class in a function is sent whole, so that the actor's process need not import all that models need.
    class Counter:
        def __init__(self) -> None:
            self._times: dict[int, int] = {}

        def add(self, number: int) -> int:
            self._times[number] = self._times.get(number, 0) + 1
            return self._times[number]

    return load_ray().remote(num_cpus=0)(Counter).remote()


def outcomes(job: Job, numbers: Sequence[int]) -> Generator[Finished | Failure, None, None]:
    """One outcome a shard, as they come."""
    data = load_ray().data
    shards = data.from_items([{"shard": number} for number in numbers], override_num_blocks=len(numbers))
    # Reading waits for disks and for nothing else: without a core of its own it never waits for the workers' cores.
    documents = shards.map_batches(
        _Reader(job),
        batch_size=1,
        num_cpus=0,
        compute=data.TaskPoolStrategy(size=-(-job.share.workers // WORKERS_A_READER)),
    )
    encoded = documents.map_batches(
        _Encoder,
        fn_constructor_args=(job,),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=job.share.reserved_cpus,
        num_gpus=job.share.gpus,
        # One shard is read ahead. More would be lost to the other workers at the end of the corpus.
        compute=data.ActorPoolStrategy(size=job.share.workers, max_tasks_in_flight_per_actor=2),
    )
    for row in encoded.iter_rows():
        yield pickle.loads(row["outcome"])


class _Reader:
    """The reading stage: a shard's texts, in a block."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, batch: dict[str, Any]) -> Any:
        pa = import_module("pyarrow")
        number = int(batch["shard"][0])
        texts: list[str] | None = None
        failure: bytes | None = None
        try:
            corpus = self._job.corpus()
            if corpus.documents_path(number).stat().st_size <= DELIVERED_BYTES:
                with corpus.open_documents(number) as store:
                    texts = [text for _, text, _ in store.records()]
        except Exception as error:
            failure = pickle.dumps(Failure.of(error))
        return pa.table(
            {
                "shard": pa.array([number], pa.int64()),
                "texts": pa.array([texts], pa.large_list(pa.large_string())),
                "failure": pa.array([failure], pa.binary()),
            }
        )


class _Encoder:
    """An actor of the pool. It loads the model at the first shard, so that an error is told as all others are."""

    def __init__(self, job: Job) -> None:
        import torch

        self._job = job
        self._model: SentenceTransformer | None = None
        torch.set_num_threads(job.share.threads)
        # The tokenizer's threads, which are started with its first texts.
        os.environ["RAYON_NUM_THREADS"] = str(job.share.threads)

    def __call__(self, table: Any) -> dict[str, list[bytes]]:
        number, texts, failure = (table[name][0].as_py() for name in ("shard", "texts", "failure"))
        if failure is not None:
            return {"outcome": [failure]}
        try:
            outcome: Finished | Failure = self._encode(number, texts)
        except Exception as error:
            outcome = Failure.of(error)
        return {"outcome": [pickle.dumps(outcome)]}

    def _encode(self, number: int, texts: list[str] | None) -> Finished:
        ray, attempts = load_ray(), self._job.attempts
        # Ray begins a shard again for ever, and one that is too much for every worker would never end.
        with suppress(ray.exceptions.RayError):
            if ray.get(self._job.counter.add.remote(number)) > attempts:
                raise RuntimeError(
                    f"shard {number}: {attempts} workers died over it, as happens when memory runs out. Finished "
                    "shards stay: run the same command again with fewer workers (--workers), or encode all anew with "
                    "fewer batch_tokens (--batch-tokens, --overwrite)."
                )
        if self._model is None:
            from ...fingerprint import check

            model = self._job.model("cuda" if self._job.share.gpus else "cpu")
            check(self._job.fingerprint, model, "the corpus")
            self._model = model
        corpus = self._job.corpus()
        if texts is not None:
            corpus = _Delivered(corpus.path, texts)
        record = encode_shard(self._model, corpus, number, self._job.settings)
        with corpus.open_documents(number) as store:
            return Finished(number, len(store), record)


class _Delivered(Corpus):
    """The corpus for a worker whose shard's texts have come to it: encoding reads them from there."""

    def __init__(self, path: Path, texts: list[str]) -> None:
        super().__init__(path)
        self._texts = texts

    def open_documents(self, number: int) -> DocumentStore:
        return _Texts(self.documents_path(number), self._texts)


class _Texts(DocumentStore):
    """Texts as a store; all that encoding asks of one."""

    def __init__(self, path: Path, texts: list[str]) -> None:
        super().__init__(sqlite3.connect(":memory:"), path, len(texts))
        self._texts = texts

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[str, str, str]]:
        for row, text in enumerate(self._texts[start:stop], start):
            yield str(row), text, "{}"
