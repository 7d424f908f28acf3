"""Texts of requests that wait are joined into batches: a vector depends on its text alone, so none is changed by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..batches import token_batches
from ..encode import Task, encode_batch, in_order, planned_batches
from ..optional import required
from .errors import Refusal
from .metrics import Metrics
from .settings import Settings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class _Item(NamedTuple):
    text: str
    task: Task | None
    positions: int


class Joining:
    """The one that runs the model: a batch after the other, in a thread of its own.

    Args:
        model: The model.
        settings: How much is joined, and how much may wait.
        metrics: What is counted.
    """

    def __init__(self, model: SentenceTransformer, settings: Settings, metrics: Metrics) -> None:
        self.model, self.settings, self.metrics = model, settings, metrics
        self.waiting = 0
        # Its own, so that it never waits for one of the threads that count positions and write answers.
        self._thread = ThreadPoolExecutor(1, "st_reba")
        self._queue = required("batched.aio", "serve").AsyncBatchProcessor(
            self._run, batch_size=settings.batch_size, timeout_ms=settings.delay
        )

    async def encode(
        self, texts: list[str], task: Task | None, gone: Callable[[], Awaitable[bool]]
    ) -> tuple[NDArray[np.float32], int]:
        """Vectors of texts, [texts, d], and how many positions they took.

        Args:
            texts: One text or more.
            task: Whose prompt stands in front.
            gone: Whether the client has hung up; what it still waits for is then left.

        Raises:
            Refusal: There are too many texts or positions, or too many wait already.
        """
        limits = self.settings
        if len(texts) > limits.max_texts:
            raise Refusal(422, f"{len(texts)} texts are more than {limits.max_texts}: send several requests.", "input")
        # What a lone request may hold can always wait.
        if self.waiting and self.waiting + len(texts) > limits.queue:
            raise Refusal(429, f"{self.waiting} texts are waiting: send this again later.", code="rate_limit_exceeded")
        self._wait(len(texts))
        try:
            counts = await asyncio.to_thread(self._positions, texts, task)
            if sum(counts) > limits.max_tokens:
                raise Refusal(
                    422, f"{sum(counts)} tokens are more than {limits.max_tokens}: send several requests.", "input"
                )
            # Those of like length together, and no more at once than a batch: requests take turns.
            order = sorted(range(len(texts)), key=lambda row: -counts[row])
            parts = [order[start : start + limits.batch_size] for start in range(0, len(order), limits.batch_size)]
            rows = []
            for part in parts:
                found = await self._queue([_Item(texts[row], task, counts[row]) for row in part])
                for one in found:
                    if isinstance(one, Exception):
                        raise one
                rows.append(np.stack(found))
                if len(parts) > 1 and await gone():
                    raise Refusal(499, "The client has hung up.")
            return in_order(rows, parts), sum(counts)
        finally:
            self._wait(-len(texts))

    def _wait(self, count: int) -> None:
        self.waiting += count
        self.metrics.waiting.set(self.waiting)

    def _positions(self, texts: list[str], task: Task | None) -> list[int]:
        # Without padding, characters measure the work as well as any.
        _, counts = planned_batches(self.model, texts, task=task, batch_size=len(texts))
        return [len(text) for text in texts] if counts is None else counts

    async def _run(self, items: list[_Item]) -> list[Any]:
        self.metrics.batch.observe(len(items))
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._encoded, items)

    def _encoded(self, items: list[_Item]) -> list[Any]:
        found: list[Any] = [None] * len(items)
        for task in {item.task for item in items}:
            rows = [row for row, item in enumerate(items) if item.task == task]
            for batch in token_batches([items[row].positions for row in rows], self.settings.batch_tokens):
                vectors = self._vectors([items[rows[one]].text for one in batch], task)
                for one, vector in zip(batch, vectors, strict=True):
                    found[rows[one]] = vector
        return found

    def _vectors(self, texts: list[str], task: Task | None) -> list[Any]:
        """A vector a text, or the error that it raised: no request fails by another's text."""
        try:
            return list(encode_batch(self.model, texts, task=task))
        except Exception as error:
            return [error] if len(texts) == 1 else [one for text in texts for one in self._vectors([text], task)]
