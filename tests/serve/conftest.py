"""Two small models, one with prompts, and a way to send an application several requests at once, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.serve.app import EmbeddingServer

# Each request is (path, body) or (path, body, headers); the body is JSON, bytes, or None for GET.
Ask = Callable[..., list[httpx.Response]]
Connect = Callable[[Any], httpx.AsyncClient]


@pytest.fixture(scope="session")
def prompted_model() -> SentenceTransformer:
    """Echo whose queries, documents and plain texts have three different vectors."""
    prompts = {"query": "Query: ", "document": "Document: "}
    return st_reba.build("mini", "echo", prompts=prompts, device="cpu")


@pytest.fixture(scope="session")
def plain_model() -> SentenceTransformer:
    return st_reba.build("mini", "classical", pooling="mean", device="cpu")


@pytest.fixture
def connect() -> Connect:
    """A client of an application, without a network."""
    return lambda app: httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=60
    )


async def send_request(
    client: httpx.AsyncClient,
    path: str,
    body: object,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    if body is None:
        return await client.get(path, headers=headers)
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    sent_headers = {"Content-Type": "application/json", **(headers or {})}
    return await client.post(path, headers=sent_headers, **content)


@pytest.fixture
def ask_server(prompted_model: SentenceTransformer, connect: Connect) -> Ask:
    """``ask_server(*requests, **options)``: the answers of an application with these options, all asked at once."""

    def ask_at_once(*requests: Any, app: Any = None, **options: Any) -> list[httpx.Response]:
        async def send_all() -> list[httpx.Response]:
            async with connect(app or EmbeddingServer(prompted_model, "m", **options)) as client:
                answers = [send_request(client, *request) for request in requests]
                return await asyncio.gather(*answers)

        return asyncio.run(send_all())

    return ask_at_once
