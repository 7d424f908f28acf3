"""Requests that wait are joined, and one's trouble is no other's."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from asking import Ask

from st_reba.serve import Settings, joining
from st_reba.serve.app import make_app

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny import WORDS, tiny_model

PATH = "/v1/embeddings"


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each forward pass gets; one that is "bad" makes it fail."""
    found: list[int] = []
    encode = joining.encode_batch

    def counting(model: Any, texts: list[str], **given: Any) -> Any:
        found.append(len(texts))
        if "bad" in texts:
            raise RuntimeError("out of memory")
        return encode(model, texts, **given)

    monkeypatch.setattr(joining, "encode_batch", counting)
    return found


def test_requests_are_joined(ask: Ask, sizes: list[int]) -> None:
    model = tiny_model()
    texts = [f"{one} {other}" for one in WORDS[:6] for other in WORDS[6:12]]
    requests = [(PATH, {"input": text}) for text in texts]
    app = make_app(model, "m", settings=Settings(batch_size=16, delay=200))
    answers = ask(*requests, (PATH, {"input": texts}), app=app)
    found = [one.json()["data"][0]["embedding"] for one in answers[:-1]]
    np.testing.assert_allclose(found, model.encode(texts), atol=1e-6, rtol=0)
    np.testing.assert_allclose([one["embedding"] for one in answers[-1].json()["data"]], found, atol=1e-6, rtol=0)
    assert sum(sizes) == 2 * len(texts) and max(sizes) == 16 and len(sizes) < 10


def test_a_text_that_fails_fails_its_own_request_alone(ask: Ask, sizes: list[int]) -> None:
    model = tiny_model()
    requests = [(PATH, {"input": text}) for text in ("cat", "bad", "dog")]
    first, failed, last = ask(*requests, app=make_app(model, "m", settings=Settings(delay=500)))
    assert 3 in sizes, "they were not joined"
    assert failed.status_code == 500 and failed.json()["error"]["type"] == "server_error"
    found = [one.json()["data"][0]["embedding"] for one in (first, last)]
    np.testing.assert_allclose(found, model.encode(["cat", "dog"]), atol=1e-6, rtol=0)


class _Held:
    """The model's passes, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, self.go, self.begun = 0, threading.Event(), threading.Event()
        encode = joining.encode_batch

        def held(model: Any, texts: list[str], **given: Any) -> Any:
            self.begun.set()
            assert self.go.wait(30)
            self.passed += len(texts)
            return encode(model, texts, **given)

        monkeypatch.setattr(joining, "encode_batch", held)


def test_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is refused at once; what was accepted is answered; then there is room again."""
    held = _Held(monkeypatch)
    app = make_app(tiny_model(), "m", settings=Settings(queue=10))

    async def run() -> None:
        async with _client(app) as client:
            accepted = [asyncio.create_task(client.post(PATH, json={"input": ["cat"] * 4})) for _ in range(2)]
            await asyncio.to_thread(held.begun.wait, 30)
            refused = await client.post(PATH, json={"input": ["dog"] * 3})
            assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
            assert (await client.get("/health")).json()["waiting"] == 8
            held.go.set()
            assert [one.status_code for one in await asyncio.gather(*accepted)] == [200, 200]
            assert (await client.post(PATH, json={"input": ["dog"] * 30})).status_code == 200
            assert (await client.get("/health")).json()["waiting"] == 0

    asyncio.run(run())


def test_a_client_that_hangs_up_is_not_worked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    held = _Held(monkeypatch)
    held.go.set()
    service = make_app(tiny_model(), "m", settings=Settings(batch_size=4))

    async def run() -> None:
        body = b'{"input": [' + b",".join([b'"cat"'] * 400) + b"]}"
        messages = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
        sent: list[Any] = []

        async def receive() -> Any:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers, "query_string": b""}
        await service(scope, receive, send)
        assert sent[0]["status"] == 499 and held.passed == 4

    asyncio.run(run())


def test_a_body_that_does_not_come() -> None:
    app = make_app(tiny_model(), "m", settings=Settings(read_seconds=1))

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"input": "'
        await asyncio.sleep(3)
        yield b'cat"}'

    async def run() -> None:
        async with _client(app) as client:
            answer = await client.post(PATH, content=slow(), headers={"Content-Type": "application/json"})
            assert answer.status_code == 408
            assert (await client.post(PATH, json={"input": "cat"})).status_code == 200

    asyncio.run(run())


def _client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=60)
