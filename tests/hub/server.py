"""A Hub on the loopback address, for huggingface_hub's own client: repositories in memory, small files only."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_REPO = r"/api/models/(?P<repo>[^/]+/[^/]+)"
ROUTES = [
    ("POST", "create", r"/api/repos/create"),
    ("POST", "yaml", r"/api/validate-yaml"),
    ("POST", "preupload", _REPO + r"/preupload/(?P<revision>[^/]+)"),
    ("POST", "commit", _REPO + r"/commit/(?P<revision>[^/]+)"),
    ("POST", "branch", _REPO + r"/branch/(?P<revision>[^/]+)"),
    ("GET", "info", _REPO + r"(/revision/(?P<revision>[^/]+))?"),
    ("GET", "tree", _REPO + r"/tree/(?P<revision>[^/]+)(/(?P<path>.+))?"),
    ("HEAD", "file", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
    ("GET", "file", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
]


def oid_of(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """A repository: every commit's files, and where branches point."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        oid = hashlib.sha1(f"{len(self.commits)} {files}".encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        return oid

    def find(self, revision: str) -> str:
        oid = self.branches.get(revision, revision)
        if oid not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.find(revision)]


class Refused(Exception):
    """An error's answer."""

    def __init__(self, status: int, message: str, code: str = "", **more: str) -> None:
        super().__init__(message)
        self.body = json.dumps({"error": message, **more}).encode()
        self.status, self.headers = status, {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}


class Hub:
    """Repositories, the paths of the requests that came, and the messages of commits."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.repos, self.seen, self.lock = endpoint, dict[str, Repo](), list[str](), threading.RLock()
        self.messages: list[str] = []


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that listens on 127.0.0.1 and always stops."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Answer,), {}))
    server.daemon_threads, server.block_on_close = True, False
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass.hub = hub  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class Answer(BaseHTTPRequestHandler):
    """One request."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    # Else every answer waits for the client to acknowledge its headers.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.query, self.body = parse_qs(url.query), self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = [(name, re.fullmatch(each, url.path)) for method, name, each in ROUTES if method == self.command]
        name, match = next(((name, match) for name, match in found if match), ("", None))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        try:
            if match is None:
                raise Refused(404, f"{self.command} {url.path}: this server does not know it")
            named = {name: unquote(value) for name, value in match.groupdict().items() if value is not None}
            with self.hub.lock:
                self.hub.seen.append(unquote(url.path))
                self.check_access(name, token, named)
                result = getattr(self, f"on_{name}")(**named)
            self.send(200, result if isinstance(result, bytes) else json.dumps(result).encode())
        except Refused as refused:
            self.send(refused.status, refused.body, refused.headers)

    do_POST = do_HEAD = do_GET

    def check_access(self, name: str, token: str | None, named: dict[str, str]) -> None:
        writer = token == "hf_writer"
        if token is not None and not writer:
            raise Refused(401, "Invalid credentials in Authorization header")
        found = self.hub.repos.get(named.get("repo", ""))
        if "repo" in named and (found is None or (found.private and not writer)):
            raise Refused(404 if writer else 401, "Repository not found", "RepoNotFound")
        if name in ("create", "preupload", "commit", "branch") and not writer:
            raise Refused(401, "You don't have the rights to do this")
        self.repo: Any = found
        self.extra: dict[str, str] = {}

    def on_create(self) -> Any:
        wanted = json.loads(self.body)
        repo_id = f"{wanted.get('organization') or 'writer'}/{wanted['name']}"
        url = f"{self.hub.endpoint}/{repo_id}"
        if repo_id in self.hub.repos:
            raise Refused(409, "You already created this model repo", url=url)
        repo = self.hub.repos[repo_id] = Repo(wanted.get("visibility") == "private" or bool(wanted.get("private")))
        repo.commit("main", {".gitattributes": b""})
        return {"url": url, "name": repo_id, "id": repo_id}

    def on_yaml(self) -> Any:
        return {"errors": [], "warnings": []}

    def on_preupload(self, repo: str, revision: str) -> Any:
        files = [each["path"] for each in json.loads(self.body)["files"]]
        return {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]}

    def on_commit(self, repo: str, revision: str) -> Any:
        files = dict(self.repo.files(revision))
        for item in map(json.loads, self.body.splitlines()):
            if item["key"] == "file":
                files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "deletedFile":
                del files[item["value"]["path"]]
            else:
                self.hub.messages.append(item["value"]["summary"])
        answer = {}
        if self.query.get("create_pr") == ["1"]:
            revision, answer = "refs/pr/1", {"pullRequestUrl": f"{self.hub.endpoint}/{repo}/discussions/1"}
        oid = self.repo.commit(revision, files)
        return {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo}/commit/{oid}", **answer}

    def on_branch(self, repo: str, revision: str) -> Any:
        if revision in self.repo.branches:
            raise Refused(409, "Reference already exists")
        self.repo.branches[revision] = self.repo.find("main")
        return {}

    def on_info(self, repo: str, revision: str = "main") -> Any:
        siblings = [{"rfilename": path} for path in self.repo.files(revision)]
        facts = {"id": repo, "modelId": repo, "private": self.repo.private, "tags": [], "siblings": siblings}
        return {**facts, "sha": self.repo.find(revision)}

    def on_tree(self, repo: str, revision: str, path: str = "") -> Any:
        """All files; the client asks for folders only to find that they are not there."""
        files = self.repo.files(revision)
        if path and not any(name.startswith(f"{path}/") for name in files):
            raise Refused(404, f"{path} does not exist on {revision}", "EntryNotFound")
        return [{"type": "file", "path": name, "size": len(each), "oid": oid_of(each)} for name, each in files.items()]

    def on_file(self, repo: str, revision: str, path: str) -> bytes:
        oid = self.repo.find(revision)
        self.extra = {"X-Repo-Commit": oid}
        if path not in self.repo.commits[oid]:
            raise Refused(404, "Entry not found", "EntryNotFound")
        data: bytes = self.repo.commits[oid][path]
        self.extra["ETag"] = f'"{oid_of(data)}"'
        return data

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        more = {**getattr(self, "extra", {}), **(headers or {}), "Content-Length": str(len(content))}
        for name, text in more.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
