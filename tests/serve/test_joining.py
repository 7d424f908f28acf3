"""Waiting requests are joined, and one's trouble is no other's."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from st_reba.serve import joining
from st_reba.serve.app import EmbeddingServer

PATH = "/v1/embeddings"


class Passes:
    """The texts of each joined batch. A text "bad" fails; batches wait while ``go`` is not set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        encode = joining.encode_texts

        def encoded(model: Any, texts: list[str], **given: Any) -> Any:
            self.begun.set()
            assert self.go.wait(30)
            self.sizes.append(len(texts))
            if "bad" in texts:
                raise RuntimeError("out of memory")
            return encode(model, texts, **given)

        monkeypatch.setattr(joining, "encode_texts", encoded)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


def rows(answer: Any) -> Any:
    return [one["embedding"] for one in answer.json()["data"]]


def test_requests_are_joined(ask: Any, plain: Any, passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those of other tasks and lengths, and a long list takes turns."""
    texts = [f"{number} cats " * (1 + number % 5) for number in range(36)]
    requests = [(PATH, {"input": text, "model": ("m:query", "m:document")[len(text) % 2]}) for text in texts]
    monkeypatch.setattr(joining, "DELAY", 200)
    *single, whole = ask(*requests, (PATH, {"input": texts}), app=EmbeddingServer(plain, "m", batch_size=16))
    expected = plain.encode(texts)
    np.testing.assert_allclose([rows(one)[0] for one in single], expected, atol=1e-6, rtol=0)
    np.testing.assert_allclose(rows(whole), expected, atol=1e-6, rtol=0)
    assert sum(passes.sizes) == 2 * len(texts) and max(passes.sizes) <= 16 and len(passes.sizes) < 16


def test_a_failing_text_fails_its_own_request_alone(
    ask: Any, plain: Any, passes: Passes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining, "DELAY", 500)
    requests = [(PATH, {"input": text}) for text in ("cat", "bad", "dog")]
    first, failed, last = ask(*requests, app=EmbeddingServer(plain, "m"))
    assert passes.sizes[0] == 3, "they were not joined"
    assert failed.status_code == 500 and failed.json()["error"]["type"] == "server_error"
    assert f"{PATH} failed" in caplog.text
    np.testing.assert_allclose([*rows(first), *rows(last)], plain.encode(["cat", "dog"]), atol=1e-6, rtol=0)


def test_too_many_wait(plain: Any, client: Any, passes: Passes) -> None:
    """What does not fit is refused at once; what was accepted is answered; then there is room again."""
    app = EmbeddingServer(plain, "m", queue=10)
    passes.go.clear()

    async def run() -> None:
        async with client(app) as to:
            accepted = [asyncio.create_task(to.post(PATH, json={"input": ["cat"] * 4})) for _ in range(2)]
            await asyncio.to_thread(passes.begun.wait, 30)
            refused = await to.post(PATH, json={"input": ["dog"] * 3})
            assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert (await to.get("/health")).json()["waiting"] == 8
            assert "st_reba_waiting_texts 8.0" in (await to.get("/metrics")).text.splitlines()
            passes.go.set()
            assert [one.status_code for one in await asyncio.gather(*accepted)] == [200, 200]
            # A request that is alone may exceed the queue.
            assert (await to.post(PATH, json={"input": ["dog"] * 30})).status_code == 200
            assert (await to.get("/health")).json()["waiting"] == 0

    asyncio.run(run())


def test_a_client_that_hangs_up(plain: Any, passes: Passes) -> None:
    """The rest of its texts is dropped."""
    app = EmbeddingServer(plain, "m", batch_size=4)
    body = b'{"input": [' + b",".join([b'"cat"'] * 400) + b"]}"
    messages = iter([{"type": "http.request", "body": body}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers, "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 499 and passes.sizes == [4]
