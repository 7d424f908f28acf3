"""What the loopback Hub holds: repositories in memory, faults on demand, and the requests that it has seen."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Blob:
    """A file as a commit holds it."""

    data: bytes
    lfs: bool

    @property
    def git_oid(self) -> str:
        content = self.data
        if self.lfs:
            content = (
                f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.oid}\nsize {len(self.data)}\n".encode()
            )
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def oid(self) -> str:
        """What the Hub calls the file by in preupload and as ETag: sha256 of an LFS file, the git hash of another."""
        return hashlib.sha256(self.data).hexdigest() if self.lfs else self.git_oid


@dataclass
class Repo:
    """A repository: every commit's files, and where branches and tags point."""

    private: bool
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, Blob], message: str) -> str:
        text = json.dumps([self.branches.get(branch), message, {path: blob.oid for path, blob in files.items()}])
        oid = hashlib.sha1(f"{len(self.commits)} {text}".encode()).hexdigest()
        self.commits[oid], self.messages[oid], self.branches[branch] = files, message, oid
        return oid

    def find(self, revision: str) -> str | None:
        known = self.branches.get(revision) or self.tags.get(revision)
        return known or next((oid for oid in self.commits if len(revision) > 6 and oid.startswith(revision)), None)

    def files(self, revision: str = "main") -> dict[str, Blob]:
        return self.commits[str(self.find(revision))]


@dataclass
class Fault:
    """What goes wrong, how many times from the ``skip``-th request on, at one endpoint.

    ``kind`` is a status; ``"cut"``: the connection ends after ``after`` bytes of a body, sent or received; ``"lost"``:
    the work is done, the answer is not sent; ``"altered"``: one byte of the body differs; ``"short"``: it lacks its
    end, and says so; ``"slow"``: an answer after ``seconds``, for which any other kind
    may wait too.
    """

    kind: int | str
    times: int = 1
    skip: int = 0
    after: int = 0
    seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "as the test asked"
    path: str = ""


@dataclass(frozen=True)
class Seen:
    """A request that came in."""

    endpoint: str
    path: str
    received: int
    token: str | None
    host: str
    range: str | None


class Refused(Exception):
    """An error's answer."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Cut(Exception):
    """The connection ends here."""


class State:
    """Repositories, tokens, faults that are still to come, and requests that came."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.tokens = {"hf_writer": "write", "hf_reader": "read"}
        self.organizations = {"org", "writer"}
        self.faults: dict[str, list[Fault]] = {}
        self.seen: list[Seen] = []
        self.lock = threading.RLock()
        self.stopped = threading.Event()

    def fail(self, endpoint: str, kind: int | str, **options: Any) -> Fault:
        """Let requests to an endpoint (or ``"any"``) fail; see :class:`Fault`."""
        fault = Fault(kind, **options)
        with self.lock:
            self.faults.setdefault(endpoint, []).append(fault)
        return fault

    def heal(self) -> None:
        with self.lock:
            self.faults.clear()

    def take(self, endpoint: str, path: str) -> Fault | None:
        with self.lock:
            for fault in [*self.faults.get(endpoint, []), *self.faults.get("any", [])]:
                if fault.times < 1 or fault.path not in path:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def count(self, endpoint: str) -> int:
        return sum(seen.endpoint == endpoint for seen in self.seen)

    def received(self, endpoint: str) -> int:
        """Bytes of request bodies that came in at an endpoint."""
        return sum(seen.received for seen in self.seen if seen.endpoint == endpoint)


def altered(data: bytes) -> bytes:
    """The same length, and one byte that differs, in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x5A]) + data[middle + 1 :]
