"""Two small models, one with prompts, and a way to ask an application several things at once, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import st_reba
from st_reba.serve.app import EmbeddingServer

# Each request is (path, JSON or bytes or None for GET), with headers or not.
Ask = Callable[..., list[httpx.Response]]


@pytest.fixture(scope="session")
def model() -> Any:
    """Echo whose queries, documents and plain texts have three different vectors."""
    return st_reba.build("mini", "echo", prompts={"query": "Query: ", "document": "Document: "}, device="cpu")


@pytest.fixture(scope="session")
def plain() -> Any:
    return st_reba.build("mini", "classical", pooling="mean", device="cpu")


@pytest.fixture
def client() -> Callable[[Any], httpx.AsyncClient]:
    """A client of an application, without a network."""
    return lambda app: httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=60)


@pytest.fixture
def ask(model: Any, client: Any) -> Ask:
    """``ask(*requests, **options)``: the answers of an application with these options, all asked at once."""

    def call(*requests: Any, app: Any = None, **options: Any) -> list[httpx.Response]:
        async def one(to: httpx.AsyncClient, path: str, given: Any, headers: Any = None) -> httpx.Response:
            if given is None:
                return await to.get(path, headers=headers)
            content = {"content": given} if isinstance(given, bytes) else {"json": given}
            return await to.post(path, headers={"Content-Type": "application/json", **(headers or {})}, **content)

        async def run() -> list[httpx.Response]:
            async with client(app or EmbeddingServer(model, "m", **options)) as to:
                return await asyncio.gather(*(one(to, *request) for request in requests))

        return asyncio.run(run())

    return call
