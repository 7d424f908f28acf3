"""One shard: its documents are read, encoded in batches of like length, and their vectors written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..encode import encode_batch, in_order, planned_batches
from ..files import StoredFile
from .arrays import storable
from .clock import Clock
from .folder import Corpus, ShardVectors
from .settings import EncodeSettings
from .store import DocumentStore

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Texts that are sorted by length and encoded together: enough to fill batches of every length, few enough for memory.
# Both decide the batches, so they are the same in every run and with every engine.
CHUNK_TEXTS = 4096
CHUNK_CHARS = 2**24


class Progress(Protocol):
    """Called with the number of texts that have just been encoded, and of their positions (0: not counted)."""

    def __call__(self, texts: int, positions: int = 0, /) -> object: ...


@dataclass(frozen=True)
class Encoded:
    """A chunk of texts that is encoded.

    Args:
        vectors: [texts, d] float32, in the order of the texts.
        positions: Positions that the model ran, all copies, without padding; None: not counted.
    """

    vectors: NDArray[np.float32]
    positions: int | None


# Encodes chunks in order; one that is asked for early may be begun before the one before it is done.
EncodeChunks = Callable[[Iterable[list[str]], Clock], Iterator[Encoded]]


def encode_shard(
    model: SentenceTransformer,
    corpus: Corpus,
    number: int,
    settings: EncodeSettings,
    progress: Progress | None = None,
) -> ShardVectors:
    """Encode a shard's documents in this process and write their vectors.

    The batches depend on the shard alone, so the file is the same bit for bit whoever writes it, however often it was
    tried, on the same hardware with as many threads. Nothing is there until all of it is.

    Args:
        model: The model.
        corpus: The folder, with the shard's documents.
        number: The shard.
        settings: How.
        progress: Called after every batch with its number of texts and of positions.

    Returns:
        The record, as it is written. Of its seconds, ``tokenize`` is the time of counting positions and of the model's
        ``preprocess``, ``encode`` the rest of the model's time.

    Raises:
        OSError: The disk is full, or the folder cannot be written to.

    Example:
        >>> import st_reba
        >>> from st_reba.corpus import encode_corpus
        >>> model = st_reba.build("mini")
        >>> corpus = encode_corpus(model, ["Cats sleep.", "Ships sail."], "my_corpus")
        >>> encode_shard(model, corpus, 0, EncodeSettings()).positions
        28
    """

    def encode(chunks: Iterable[list[str]], clock: Clock) -> Iterator[Encoded]:
        return _in_process(model, chunks, clock, settings, progress)

    return write_shard(model, corpus, number, settings, encode)


def write_shard(
    model: SentenceTransformer, corpus: Corpus, number: int, settings: EncodeSettings, encode: EncodeChunks
) -> ShardVectors:
    """Write a shard's vectors, whoever encodes them; otherwise as :func:`encode_shard`."""
    clock = Clock("read", "tokenize", "encode", "write")
    unusable: dict[int, str] = {}
    positions: int | None = 0
    row = 0
    with corpus.open_documents(number) as store, ExitStack() as stack:
        write = stack.enter_context(corpus.vectors_writer(number, len(store), settings.dtype))
        if not len(store):
            write(np.zeros((0, dimension_of(model)), settings.dtype))
        for encoded in encode(_chunks(store, clock), clock):
            with clock.stage("write"):
                rows, bad = storable(encoded.vectors, settings.dtype, row)
                write(rows)
            unusable |= bad
            row += len(rows)
            positions = None if positions is None or encoded.positions is None else positions + encoded.positions
        with clock.stage("write"):
            # Closing is what puts the file on the disk.
            stack.close()
            file = StoredFile.of(corpus.vectors_path(number), corpus.path)
    record = ShardVectors(file, positions, clock.seconds, unusable)
    corpus.finish_vectors(number, record)
    return record


def dimension_of(model: SentenceTransformer) -> int:
    """The number of values in a document's vector."""
    return model.get_embedding_dimension() or int(encode_batch(model, ["."], task="document").shape[1])


def _chunks(store: DocumentStore, clock: Clock) -> Iterator[list[str]]:
    texts = (text for _, text, _ in store.records())
    while True:
        with clock.stage("read"):
            chunk, chars = [], 0
            for text in texts:
                chunk.append(text)
                chars += len(text)
                if len(chunk) == CHUNK_TEXTS or chars >= CHUNK_CHARS:
                    break
        if not chunk:
            return
        yield chunk


def _in_process(
    model: SentenceTransformer,
    chunks: Iterable[list[str]],
    clock: Clock,
    settings: EncodeSettings,
    progress: Progress | None,
) -> Iterator[Encoded]:
    for texts in chunks:
        with clock.stage("tokenize"):
            batches, counts = planned(model, texts, settings)
        rows = []
        with _timed_preprocess(model, clock):
            for batch in batches:
                with clock.stage("encode"):
                    rows.append(encode_batch(model, [texts[index] for index in batch], task="document"))
                if progress is not None:
                    progress(len(batch), sum(counts[index] for index in batch) if counts else 0)
        yield Encoded(in_order(rows, batches), None if counts is None else sum(counts))


def planned(
    model: SentenceTransformer, texts: list[str], settings: EncodeSettings
) -> tuple[list[list[int]], list[int] | None]:
    """The batches of a chunk of documents, and the positions of each document."""
    sizes = {"batch_size": settings.batch_size, "batch_tokens": settings.batch_tokens}
    return planned_batches(model, texts, task="document", **sizes)


@contextmanager
def _timed_preprocess(model: SentenceTransformer, clock: Clock) -> Iterator[None]:
    """Count the time that a model takes to tokenize its input, which it does within its encode."""
    preprocess = model.preprocess

    def timed(*arguments: Any, **options: Any) -> Any:
        with clock.stage("tokenize"):
            return preprocess(*arguments, **options)

    own = vars(model).get("preprocess")
    vars(model)["preprocess"] = timed
    try:
        yield
    finally:
        if own is None:
            del vars(model)["preprocess"]
        else:
            vars(model)["preprocess"] = own
