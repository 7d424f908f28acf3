"""Batches of waiting requests. A vector depends on its text alone, so other callers' texts never change it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from batched.aio import AsyncBatchProcessor  # type: ignore[import-untyped]
from numpy.typing import NDArray

from ..encode import Task, encode_texts, in_order, measure_lengths
from .requests import Refusal

# Milliseconds that an incomplete batch waits for more texts.
DELAY = 2.0


@dataclass(frozen=True)
class Encoded:
    """The texts of a request.

    Args:
        vectors: [texts, d].
        tokens: Positions that they took.
        cut_texts: How many of them are longer than the model reads.
    """

    vectors: NDArray[np.float32]
    tokens: int
    cut_texts: int


class Joining:
    """Encode texts of concurrent requests together, one batch at a time; ``on_batch`` gets each batch's size."""

    def __init__(
        self, model: Any, batch_size: int, max_tokens: int, queue: int, on_batch: Callable[[int], object]
    ) -> None:
        self.model, self.batch_size, self.max_tokens, self.queue = model, batch_size, max_tokens, queue
        self.on_batch = on_batch
        self.waiting = 0  # texts that were accepted and not answered
        # A thread of its own never waits for those that tokenize and write answers.
        self._thread = ThreadPoolExecutor(1, "st_reba")
        tasks: tuple[Task | None, ...] = (None, "query", "document")
        options = {"batch_size": batch_size, "timeout_ms": DELAY}
        self._joined = {task: AsyncBatchProcessor(partial(self._run, task), **options) for task in tasks}

    async def encode(
        self,
        texts: list[str],
        task: Task | None,
        gone: Callable[[], Awaitable[bool]],
        *,
        may_cut: bool = True,
    ) -> Encoded:
        """Encode the texts of a request.

        Args:
            texts: One text or more.
            task: Whose prompt is put in front.
            gone: Tells whether the client has hung up.
            may_cut: Cut the end of a text that is too long; False: refuse it.

        Raises:
            Refusal: Too much, or a text is too long.
        """
        # A request that is alone may be as large as a request can be.
        if self.waiting and self.waiting + len(texts) > self.queue:
            raise Refusal(429, f"{self.waiting} texts are waiting: send this again later.", code="rate_limit_exceeded")
        self.waiting += len(texts)
        try:
            lengths = await asyncio.to_thread(measure_lengths, self.model, texts, task=task)
            counts = lengths.positions
            if lengths.truncated and not may_cut:
                position = f"input[{lengths.truncated[0]}]"
                message = f"{position} is longer than the model reads, and is not to be cut. Split it."
                raise Refusal(400, message, "input")
            if (total := sum(counts)) > self.max_tokens:
                raise Refusal(422, f"{total} tokens exceed {self.max_tokens}: send several requests.", "input")
            # Texts of similar length share a batch. At most one batch at a time: requests take turns.
            order = sorted(range(len(texts)), key=lambda row: -counts[row])
            parts = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
            rows: list[NDArray[np.float32]] = []
            for part in parts:
                if rows and await gone():
                    raise Refusal(499, "The client has hung up.")
                found = await self._joined[task]([texts[row] for row in part])
                if error := next((one for one in found if isinstance(one, Exception)), None):
                    raise error
                rows.append(np.stack(found))
            return Encoded(in_order(rows, parts), total, len(lengths.truncated))
        finally:
            self.waiting -= len(texts)

    async def _run(self, task: Task | None, texts: list[str]) -> list[Any]:
        self.on_batch(len(texts))
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._vectors, texts, task)

    def _vectors(self, texts: list[str], task: Task | None) -> list[Any]:
        """A vector for each text, or the exception it raised: a text never fails another caller's request."""
        try:
            # What is cut is counted for each request, and is no news for the log.
            return list(encode_texts(self.model, texts, task=task, on_truncated=_ignore_truncation))
        except Exception as error:
            return [error] if len(texts) == 1 else [one for text in texts for one in self._vectors([text], task)]


def _ignore_truncation(indices: list[int]) -> None:
    """Of the joined texts of several requests, indices say nothing."""
