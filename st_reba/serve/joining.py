"""Batches of waiting requests: a vector depends only on its text, not on other callers' texts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from batched.aio import AsyncBatchProcessor  # type: ignore[import-untyped]
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ..encode import Role, TextLengths, encode_texts, measure_lengths
from .requests import Refusal
from .tasks import TEXT_KINDS, describe_unserved_tasks

Vectors = NDArray[np.float32]
# Milliseconds that an incomplete batch waits for more texts.
DELAY = 2.0


@dataclass(frozen=True)
class EncodedRequest:
    """The texts of a request, encoded.

    Args:
        vectors: [texts, d].
        token_count: Positions that the texts took.
        truncated_count: Texts that are longer than the model reads.
    """

    vectors: Vectors
    token_count: int
    truncated_count: int


class RequestJoiner:
    """Encodes texts of concurrent requests together, one batch at a time.

    Args:
        model: The SentenceTransformer.
        batch_size: Texts of a batch.
        max_tokens: Positions of a request; 422 beyond.
        queue: Texts that may wait, over all requests; 429 beyond.
        report_batch: Called with the size of each batch.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        batch_size: int,
        max_tokens: int,
        queue: int,
        report_batch: Callable[[int], object],
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.queue = queue
        self.report_batch = report_batch
        self.unserved_tasks = describe_unserved_tasks(model)
        self.waiting_texts = 0  # accepted and not answered
        # A separate thread never waits for those that tokenize and write answers.
        self._encoding_thread = ThreadPoolExecutor(1, "st_reba")
        self._processors: dict[Role | None, AsyncBatchProcessor] = {}
        for task in TEXT_KINDS:
            run_batch = partial(self._run_batch, task)
            self._processors[task] = AsyncBatchProcessor(
                run_batch, batch_size=batch_size, timeout_ms=DELAY
            )

    async def encode(
        self,
        texts: list[str],
        task: Role | None,
        is_disconnected: Callable[[], Awaitable[bool]],
        *,
        may_truncate: bool = True,
    ) -> EncodedRequest:
        """Encode the texts of a request.

        Args:
            texts: One text or more.
            task: The task whose prompt is put in front.
            is_disconnected: Whether the client has hung up.
            may_truncate: Cut the end of a text that is too long; False: refuse it.

        Raises:
            Refusal: Too much, a text is too long, or the task cannot be served.
        """
        if task in self.unserved_tasks:
            raise Refusal(400, self.unserved_tasks[task])
        # If no other texts are waiting, a request may exceed the queue's limit.
        if self.waiting_texts and self.waiting_texts + len(texts) > self.queue:
            message = f"{self.waiting_texts} texts are waiting: send this again later."
            raise Refusal(429, message, code="rate_limit_exceeded")
        self.waiting_texts += len(texts)
        try:
            lengths = await asyncio.to_thread(measure_lengths, self.model, texts, task=task)
            self._check_lengths(lengths, may_truncate)
            vectors = await self._encode(texts, task, lengths.positions, is_disconnected)
            return EncodedRequest(vectors, sum(lengths.positions), len(lengths.truncated))
        finally:
            self.waiting_texts -= len(texts)

    def _check_lengths(self, lengths: TextLengths, may_truncate: bool) -> None:
        if lengths.truncated and not may_truncate:
            field = f"input[{lengths.truncated[0]}]"
            message = f"{field} is longer than the model reads, and must not be cut. Split it."
            raise Refusal(400, message, "input")
        token_count = sum(lengths.positions)
        if token_count > self.max_tokens:
            message = f"{token_count} tokens exceed {self.max_tokens}: send several requests."
            raise Refusal(422, message, "input")

    async def _encode(
        self,
        texts: list[str],
        task: Role | None,
        text_lengths: list[int],
        is_disconnected: Callable[[], Awaitable[bool]],
    ) -> Vectors:
        # Texts of similar length share a batch. At most one batch at a time: requests take turns.
        order = sorted(range(len(texts)), key=text_lengths.__getitem__, reverse=True)
        vector_of_text: dict[int, Vectors] = {}
        for start in range(0, len(order), self.batch_size):
            if vector_of_text and await is_disconnected():
                raise Refusal(499, "The client has hung up.")
            batch = order[start : start + self.batch_size]
            batch_texts = [texts[text_index] for text_index in batch]
            batch_outcomes = await self._processors[task](batch_texts)
            for text_index, outcome in zip(batch, batch_outcomes, strict=True):
                if isinstance(outcome, Exception):
                    raise outcome
                vector_of_text[text_index] = outcome
        return np.stack([vector_of_text[text_index] for text_index in range(len(texts))])

    async def _run_batch(self, task: Role | None, texts: list[str]) -> list[Vectors | Exception]:
        self.report_batch(len(texts))
        event_loop = asyncio.get_running_loop()
        return await event_loop.run_in_executor(
            self._encoding_thread, self._try_encode, texts, task
        )

    def _try_encode(self, texts: list[str], task: Role | None) -> list[Vectors | Exception]:
        """A vector or an exception for each text; none makes another caller's request fail."""
        try:
            # Cut texts are counted per request; their indices among joined texts are not needed.
            vectors = encode_texts(self.model, texts, task=task, on_truncated=lambda indices: None)
            return list(vectors)
        except Exception as error:
            if len(texts) == 1:
                return [error]
        text_outcomes: list[Vectors | Exception] = []
        for text in texts:
            text_outcomes += self._try_encode([text], task)
        return text_outcomes
