"""Clients that misbehave, and a thousand at once, against a real process: what is accepted is answered."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import st_reba

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from serving import process

pytestmark = pytest.mark.slow

TEXTS = [f"{number} cats sleep on the roof." for number in range(1000)]
_MIB = 2**20


@pytest.fixture(scope="module")
def plain() -> SentenceTransformer:
    return st_reba.build("mini", "classical", pooling="mean", device="cpu")


@pytest.fixture(scope="module")
def server(plain: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The process and port of a server."""
    # A thousand connections are more than many systems allow at first; the server inherits this.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 <= hard < 4096 else 4096, hard))
    folder = tmp_path_factory.mktemp("served")
    plain.save_pretrained(str(folder / "model"))
    with process(folder) as (started, address):
        yield started.pid, int(address.rpartition(":")[2])


def memory(pid: int, name: str = "VmRSS") -> float:
    """MiB that a process holds, or (VmHWM) has held."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def head(length: int) -> bytes:
    lines = ("POST /v1/embeddings HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Connection: close")
    return ("\r\n".join([*lines, f"Content-Length: {length}"]) + "\r\n\r\n").encode()


async def ask(port: int, text: Any) -> tuple[int, Any]:
    body = json.dumps({"input": text}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(len(body)) + body)
    answer = await reader.read()
    writer.close()
    first, _, content = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(content)


def check(plain: SentenceTransformer, texts: list[str], answers: list[tuple[int, Any]]) -> None:
    assert [status for status, _ in answers] == [200] * len(texts)
    found = [content["data"][0]["embedding"] for _, content in answers]
    np.testing.assert_allclose(found, plain.encode(texts), atol=1e-6, rtol=0)


def test_a_thousand_at_once(server: tuple[int, int], plain: SentenceTransformer) -> None:
    """None is lost, and the second thousand needs no more memory than the first."""
    pid, port = server

    async def storm() -> list[tuple[int, Any]]:
        return await asyncio.gather(*(ask(port, text) for text in TEXTS))

    check(plain, TEXTS, asyncio.run(storm()))
    before = memory(pid)
    check(plain, TEXTS, asyncio.run(storm()))
    assert memory(pid) - before < 48


def test_clients_that_hang_up_or_are_slow(server: tuple[int, int], plain: SentenceTransformer) -> None:
    """In the middle of the head, of the body and of the answer; one that sends a byte now and then holds up nobody."""
    _, port = server
    body = json.dumps({"input": TEXTS}).encode()

    async def leave(data: bytes) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        await writer.drain()
        writer.transport.abort()

    async def run() -> list[tuple[int, Any]]:
        _, slow = await asyncio.open_connection("127.0.0.1", port)
        slow.write(head(len(body)) + body[:10])
        whole = head(len(body)) + body
        await asyncio.gather(*(leave(data) for data in (whole[:20], whole[:-20], whole) for _ in range(20)))
        slow.write(body[10:11])
        answers = [await ask(port, text) for text in TEXTS[:3]]
        slow.close()
        return answers

    check(plain, TEXTS[:3], asyncio.run(run()))


def test_a_body_of_100_mb(server: tuple[int, int], plain: SentenceTransformer) -> None:
    """Refused by its length before it is read, or while it is, when the length was not told."""
    pid, port = server
    before = memory(pid, "VmHWM")

    async def send(start: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = asyncio.create_task(reader.read())
        writer.write(start)
        with suppress(ConnectionError):
            for _ in range(100):
                piece = b"a" * _MIB
                writer.write(piece if b"Content-Length" in start else b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
        return await answer

    told = head(100 * _MIB)
    untold = told.replace(b"Content-Length: 104857600", b"Transfer-Encoding: chunked")
    for start in (told, untold):
        # It may be cut off before the answer was read.
        with suppress(ConnectionError):
            assert b" 413 " in asyncio.run(send(start)).partition(b"\r\n")[0]
    assert memory(pid, "VmHWM") - before < 32
    check(plain, TEXTS[:1], [asyncio.run(ask(port, TEXTS[0]))])
