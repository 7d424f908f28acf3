"""Waiting requests are joined, and a fault of one does not reach another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import MutableMapping
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from serving import PATH, assert_near, vectors_of

from st_reba.serve import joining
from st_reba.serve.app import EmbeddingServer


class BatchRecorder:
    """Records the size and the longest text of each joined batch.

    A text "bad" fails; batches wait until ``may_run`` is set.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batch_sizes: list[int] = []
        self.longest_texts: list[int] = []  # in characters
        self.may_run = threading.Event()
        self.may_run.set()
        self.has_begun = threading.Event()
        self.encode_texts = joining.encode_texts
        monkeypatch.setattr(joining, "encode_texts", self.encode_batch)

    def encode_batch(self, model: Any, texts: list[str], **options: Any) -> NDArray[np.float32]:
        self.has_begun.set()
        assert self.may_run.wait(30)
        self.batch_sizes.append(len(texts))
        self.longest_texts.append(max(map(len, texts)))
        if "bad" in texts:
            raise RuntimeError("out of memory")
        return self.encode_texts(model, texts, **options)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> BatchRecorder:
    return BatchRecorder(monkeypatch)


def test_requests_are_joined(
    ask_server: Any,
    plain_model: SentenceTransformer,
    batches: BatchRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With those of other tasks and lengths, and a long list takes turns."""
    monkeypatch.setattr(joining, "DELAY", 200)
    texts = [f"{number} cats " * (1 + number % 5) for number in range(36)]
    requests: list[Any] = []
    for text in texts:
        model_name = "m:document" if len(text) % 2 else "m:query"
        requests.append((PATH, {"input": text, "model": model_name}))
    requests.append((PATH, {"input": texts}))
    *single_answers, whole_answer = ask_server(
        *requests, app=EmbeddingServer(plain_model, "m", batch_size=16)
    )
    expected_vectors = plain_model.encode(texts)
    single_vectors = [vectors_of(answer)[0] for answer in single_answers]
    assert_near(single_vectors, expected_vectors)
    assert_near(vectors_of(whole_answer), expected_vectors)
    assert sum(batches.batch_sizes) == 2 * len(texts)
    assert max(batches.batch_sizes) <= 16
    assert len(batches.batch_sizes) < 16


def test_texts_of_similar_length_share_a_batch(
    ask_server: Any, plain_model: SentenceTransformer, batches: BatchRecorder
) -> None:
    texts = ["cat", "a cat " * 40, "dog", "a dog " * 40]
    (answer,) = ask_server(
        (PATH, {"input": texts}), app=EmbeddingServer(plain_model, "m", batch_size=2)
    )
    assert batches.longest_texts == [240, 3]
    assert_near(vectors_of(answer), plain_model.encode(texts))


def test_a_failing_text_fails_its_own_request_alone(
    ask_server: Any,
    plain_model: SentenceTransformer,
    batches: BatchRecorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(joining, "DELAY", 500)
    requests = [(PATH, {"input": text}) for text in ("cat", "bad", "dog")]
    first, failed, last = ask_server(*requests, app=EmbeddingServer(plain_model, "m"))
    assert batches.batch_sizes[0] == 3, "they were not joined"
    assert failed.status_code == 500
    assert failed.json()["error"]["type"] == "server_error"
    assert f"{PATH} failed" in caplog.text
    vectors = np.concatenate([vectors_of(first), vectors_of(last)])
    assert_near(vectors, plain_model.encode(["cat", "dog"]))


def test_a_request_beyond_the_queue_is_refused(
    plain_model: SentenceTransformer, connect: Any, batches: BatchRecorder
) -> None:
    """At once; what was accepted is answered; then there is room again."""
    app = EmbeddingServer(plain_model, "m", queue=8)
    batches.may_run.clear()

    async def send_requests() -> None:
        async with connect(app) as client:
            accepted_requests: list[asyncio.Task[httpx.Response]] = []
            for _ in range(2):
                request = client.post(PATH, json={"input": ["cat"] * 4})
                accepted_requests.append(asyncio.create_task(request))
            await asyncio.to_thread(batches.has_begun.wait, 30)
            refused = await client.post(PATH, json={"input": ["dog"] * 3})
            assert refused.status_code == 429
            assert refused.headers["Retry-After"] == "1"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            health = await client.get("/health")
            assert health.json()["waiting"] == 8
            metrics = await client.get("/metrics")
            assert "st_reba_waiting_texts 8.0" in metrics.text.splitlines()
            batches.may_run.set()
            for answer in await asyncio.gather(*accepted_requests):
                assert answer.status_code == 200
            # A request that is alone may exceed the queue.
            large = await client.post(PATH, json={"input": ["dog"] * 30})
            assert large.status_code == 200
            health = await client.get("/health")
            assert health.json()["waiting"] == 0

    asyncio.run(send_requests())


def test_a_client_that_hangs_up_drops_the_rest_of_its_texts(
    plain_model: SentenceTransformer, batches: BatchRecorder
) -> None:
    app = EmbeddingServer(plain_model, "m", batch_size=4)
    body = b'{"input": [' + b",".join([b'"cat"'] * 400) + b"]}"
    messages = [{"type": "http.request", "body": body}]
    sent_messages: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent_messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }
    asyncio.run(app(scope, receive, send))
    assert sent_messages[0]["status"] == 499
    assert batches.batch_sizes == [4]
