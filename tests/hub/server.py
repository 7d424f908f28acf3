"""A Hub on the loopback address, for huggingface_hub's own client: repositories in memory, small files only."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


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
        if (oid := self.branches.get(revision, revision)) in self.commits:
            return oid
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")

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
        self.endpoint, self.repos, self.seen, self.messages = endpoint, dict[str, Repo](), list[str](), list[str]()


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that listens on 127.0.0.1 and always stops."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads, server.block_on_close = True, False
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    server.hub = hub  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class Answer(BaseHTTPRequestHandler):
    """One request. The token that it may carry is the writer's."""

    protocol_version = "HTTP/1.1"
    # Else every answer waits for the client to acknowledge its headers.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.hub: Hub = self.server.hub  # type: ignore[attr-defined]
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.extra: dict[str, str] = {}
        url = urlsplit(self.path)
        try:
            self.hub.seen.append(unquote(url.path))
            result = self.answer([unquote(each) for each in url.path[1:].split("/")], parse_qs(url.query))
            status, content = 200, result if isinstance(result, bytes) else json.dumps(result).encode()
        except Refused as refused:
            status, content = refused.status, refused.body
            self.extra |= refused.headers
        self.send_response(status)
        for name, text in {**self.extra, "Content-Length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_POST = do_HEAD = do_GET

    def answer(self, parts: list[str], query: dict[str, list[str]]) -> Any:
        """What is sent, as bytes or to be written as JSON."""
        if self.headers.get("Authorization") not in (None, "Bearer hf_writer"):
            raise Refused(401, "Invalid credentials in Authorization header")
        if parts == ["api", "repos", "create"]:
            return self.create(json.loads(self.body))
        if parts == ["api", "validate-yaml"]:
            return {"errors": [], "warnings": []}
        owner, name, *rest = parts[2:] if parts[:2] == ["api", "models"] else parts
        repo = self.hub.repos.get(id := f"{owner}/{name}")
        if repo is None:
            raise Refused(404, "Repository not found", "RepoNotFound")
        match rest:
            case ["preupload", _]:
                files = [each["path"] for each in json.loads(self.body)["files"]]
                return {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]}
            case ["commit", revision]:
                url, pull = f"{self.hub.endpoint}/{id}", query.get("create_pr") == ["1"]
                oid = repo.commit("refs/pr/1" if pull else revision, self.changed(repo.files(revision)))
                answer = {"success": True, "commitOid": oid, "commitUrl": f"{url}/commit/{oid}"}
                return answer | ({"pullRequestUrl": f"{url}/discussions/1"} if pull else {})
            case ["branch", revision]:
                if revision in repo.branches:
                    raise Refused(409, "Reference already exists")
                repo.branches[revision] = repo.find("main")
                return {}
            case [] | ["revision", _]:
                sha = repo.find(rest[-1] if rest else "main")
                siblings = [{"rfilename": path} for path in repo.files(sha)]
                return {"id": id, "modelId": id, "private": repo.private, "tags": [], "siblings": siblings, "sha": sha}
            case ["tree", revision, *folder]:  # the client asks for folders only to find that they are not there
                if folder:
                    raise Refused(404, f"{folder} does not exist on {revision}", "EntryNotFound")
                sizes = {path: {"size": len(each), "oid": oid_of(each)} for path, each in repo.files(revision).items()}
                return [{"type": "file", "path": path, **each} for path, each in sizes.items()]
            case ["resolve", revision, *names]:
                self.extra["X-Repo-Commit"] = repo.find(revision)
                data = repo.files(revision).get("/".join(names))
                if data is None:
                    raise Refused(404, "Entry not found", "EntryNotFound")
                self.extra["ETag"] = f'"{oid_of(data)}"'
                return data
        raise Refused(404, f"{self.command} {self.path}: this server does not know it")

    def create(self, wanted: dict[str, Any]) -> Any:
        id = f"{wanted['organization']}/{wanted['name']}"
        url = f"{self.hub.endpoint}/{id}"
        if id in self.hub.repos:
            raise Refused(409, "You already created this model repo", url=url)
        repo = self.hub.repos[id] = Repo(wanted.get("visibility") == "private" or bool(wanted.get("private")))
        repo.commit("main", {".gitattributes": b""})
        return {"url": url}

    def changed(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """The files after the commit that was sent."""
        files = dict(files)
        for item in map(json.loads, self.body.splitlines()):
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "deletedFile":
                del files[value["path"]]
            else:
                self.hub.messages.append(value["summary"])
        return files
