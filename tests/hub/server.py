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

Files = dict[str, bytes]
Query = dict[str, list[str]]


def object_id(data: bytes) -> str:
    """As git computes it."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """A repository: every commit's files, and where branches point."""

    repo_id: str
    private: bool
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: Files) -> str:
        content = f"{len(self.commits)} {files}"
        commit_id = hashlib.sha1(content.encode()).hexdigest()
        self.commits[commit_id] = files
        self.branches[branch] = commit_id
        return commit_id

    def find(self, revision: str) -> str:
        commit_id = self.branches.get(revision, revision)
        if commit_id not in self.commits:
            raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit_id

    def files(self, revision: str = "main") -> Files:
        return self.commits[self.find(revision)]


class RefusedError(Exception):
    """An error's answer."""

    def __init__(self, status: int, message: str, code: str = "", **fields: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = json.dumps({"error": message, **fields}).encode()
        self.headers = {"X-Error-Message": message}
        if code:
            self.headers["X-Error-Code"] = code


class Hub:
    """Repositories, the paths of the requests that came, and the messages of commits."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.repos: dict[str, Repo] = {}
        self.requested_paths: list[str] = []
        self.messages: list[str] = []


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that listens on 127.0.0.1 and always stops."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), RequestHandler)
    server.daemon_threads = True
    server.block_on_close = False
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    server.hub = hub  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class RequestHandler(BaseHTTPRequestHandler):
    """One request. The token that it may carry is the writer's."""

    protocol_version = "HTTP/1.1"
    # Else every answer waits for the client to acknowledge its headers.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.hub: Hub = self.server.hub  # type: ignore[attr-defined]
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        self.answer_headers: dict[str, str] = {}
        status = 200
        try:
            content = self.answer()
        except RefusedError as error:
            status = error.status
            content = error.body
            self.answer_headers |= error.headers
        self.answer_headers["Content-Length"] = str(len(content))
        self.send_response(status)
        for name, value in self.answer_headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_POST = do_HEAD = do_GET  # noqa: N815

    def answer(self) -> bytes:
        """What is sent."""
        url = urlsplit(self.path)
        self.hub.requested_paths.append(unquote(url.path))
        segments = [unquote(segment) for segment in url.path[1:].split("/")]
        if self.headers.get("Authorization") not in (None, "Bearer hf_writer"):
            raise RefusedError(401, "Invalid credentials in Authorization header")
        if segments == ["api", "repos", "create"]:
            result = self.create(json.loads(self.body))
        elif segments == ["api", "validate-yaml"]:
            result = {"errors": [], "warnings": []}
        else:
            result = self.answer_for_repo(segments, parse_qs(url.query))
        if isinstance(result, bytes):
            return result
        return json.dumps(result).encode()

    def answer_for_repo(self, segments: list[str], query: Query) -> Any:
        """Bytes, or what is to be written as JSON."""
        if segments[:2] == ["api", "models"]:
            segments = segments[2:]
        owner, name, *action = segments
        repo = self.hub.repos.get(f"{owner}/{name}")
        if repo is None:
            raise RefusedError(404, "Repository not found", "RepoNotFound")
        match action:
            case ["preupload", _]:
                return self.allow_upload()
            case ["commit", revision]:
                return self.commit(repo, revision, query)
            case ["branch", revision]:
                return self.create_branch(repo, revision)
            case []:
                return self.describe(repo, "main")
            case ["revision", revision]:
                return self.describe(repo, revision)
            case ["tree", revision]:
                return self.list_files(repo, revision)
            # The client asks for folders only to find that they are not there.
            case ["tree", revision, *folders]:
                raise RefusedError(
                    404,
                    f"{folders} does not exist on {revision}",
                    "EntryNotFound",
                )
            case ["resolve", revision, *names]:
                return self.send_file(repo, revision, "/".join(names))
        raise RefusedError(404, f"{self.command} {self.path}: this server does not know it")

    def create(self, settings: dict[str, Any]) -> Any:
        repo_id = f"{settings['organization']}/{settings['name']}"
        url = f"{self.hub.endpoint}/{repo_id}"
        if repo_id in self.hub.repos:
            raise RefusedError(409, "You already created this model repo", url=url)
        is_private = settings.get("visibility") == "private" or bool(settings.get("private"))
        repo = Repo(repo_id, is_private)
        repo.commit("main", {".gitattributes": b""})
        self.hub.repos[repo_id] = repo
        return {"url": url}

    def allow_upload(self) -> Any:
        allowed_files: list[dict[str, Any]] = []
        for file in json.loads(self.body)["files"]:
            allowed_files.append(
                {
                    "path": file["path"],
                    "uploadMode": "regular",
                    "shouldIgnore": False,
                }
            )
        return {"files": allowed_files}

    def commit(self, repo: Repo, revision: str, query: Query) -> Any:
        url = f"{self.hub.endpoint}/{repo.repo_id}"
        is_pull_request = query.get("create_pr") == ["1"]
        files = self.changed_files(repo.files(revision))
        commit_id = repo.commit("refs/pr/1" if is_pull_request else revision, files)
        answer = {
            "success": True,
            "commitOid": commit_id,
            "commitUrl": f"{url}/commit/{commit_id}",
        }
        if is_pull_request:
            answer["pullRequestUrl"] = f"{url}/discussions/1"
        return answer

    def changed_files(self, files: Files) -> Files:
        """The files after the commit that was sent."""
        files = dict(files)
        for line in self.body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
            else:
                self.hub.messages.append(value["summary"])
        return files

    def create_branch(self, repo: Repo, revision: str) -> Any:
        if revision in repo.branches:
            raise RefusedError(409, "Reference already exists")
        repo.branches[revision] = repo.find("main")
        return {}

    def describe(self, repo: Repo, revision: str) -> Any:
        commit_id = repo.find(revision)
        return {
            "id": repo.repo_id,
            "modelId": repo.repo_id,
            "private": repo.private,
            "tags": [],
            "siblings": [{"rfilename": path} for path in repo.files(commit_id)],
            "sha": commit_id,
        }

    def list_files(self, repo: Repo, revision: str) -> Any:
        entries: list[dict[str, Any]] = []
        for path, data in repo.files(revision).items():
            entries.append(
                {
                    "type": "file",
                    "path": path,
                    "size": len(data),
                    "oid": object_id(data),
                }
            )
        return entries

    def send_file(self, repo: Repo, revision: str, path: str) -> bytes:
        self.answer_headers["X-Repo-Commit"] = repo.find(revision)
        data = repo.files(revision).get(path)
        if data is None:
            raise RefusedError(404, "Entry not found", "EntryNotFound")
        self.answer_headers["ETag"] = f'"{object_id(data)}"'
        return data
