"""A model that is made once, and a way to ask an application several things at once, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette

import st_reba
from st_reba.serve.app import make_app

# (path, JSON); or (path, JSON, headers).
Ask = Callable[..., list[httpx.Response]]


@pytest.fixture(scope="session")
def model() -> SentenceTransformer:
    """Echo with prompts: a query, a document and a plain text have three vectors."""
    return st_reba.build("mini", "echo", prompts={"query": "Query: ", "document": "Document: "}, device="cpu")


@pytest.fixture
def ask(model: SentenceTransformer) -> Ask:
    """``ask(*requests, **options)``: the answers of an application of ``options``, all asked at once."""

    def call(*requests: Any, app: Starlette | None = None, **options: Any) -> list[httpx.Response]:
        served = app or make_app(model, "m", **options)

        async def one(client: httpx.AsyncClient, path: str, given: Any, headers: Any = None) -> httpx.Response:
            if given is None:
                return await client.get(path, headers=headers)
            content = {"content": given} if isinstance(given, bytes) else {"json": given}
            return await client.post(path, headers={"Content-Type": "application/json", **(headers or {})}, **content)

        async def run() -> list[httpx.Response]:
            transport = httpx.ASGITransport(served)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                return await asyncio.gather(*(one(client, *request) for request in requests))

        return asyncio.run(run())

    return call
