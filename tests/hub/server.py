"""A Hub on the loopback address, for huggingface_hub's own client: repositories in memory, faults on demand.

It speaks what publishing and loading a model need: creating and deleting repositories and branches, preupload, Git LFS
(basic transfer), commits, information, trees, and downloads with ranges and redirects to a second origin.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from hub_state import Blob, Cut, Refused, Repo, Seen, State, altered

LFS_SIZE = 10 * 1024  # a file from here on, and every file of weights, goes through LFS
SLICE = 64 * 1024

ROUTES = [
    ("POST", "whoami", r"/api/whoami-v2"),
    ("GET", "whoami", r"/api/whoami-v2"),
    ("POST", "create", r"/api/repos/create"),
    ("DELETE", "delete", r"/api/repos/delete"),
    ("POST", "yaml", r"/api/validate-yaml"),
    ("POST", "preupload", r"/api/(?:models|spaces)/(?P<repo>[^/]+/[^/]+)/preupload/(?P<revision>[^/]+)"),
    ("POST", "commit", r"/api/(?:models|spaces)/(?P<repo>[^/]+/[^/]+)/commit/(?P<revision>[^/]+)"),
    ("POST", "branch", r"/api/(?:models|spaces)/(?P<repo>[^/]+/[^/]+)/branch/(?P<revision>[^/]+)"),
    ("DELETE", "unbranch", r"/api/(?:models|spaces)/(?P<repo>[^/]+/[^/]+)/branch/(?P<revision>[^/]+)"),
    ("POST", "tag", r"/api/(?:models|spaces)/(?P<repo>[^/]+/[^/]+)/tag/(?P<revision>[^/]+)"),
    ("GET", "refs", r"/api/(?:models|spaces)/(?P<repo>[^/]+/[^/]+)/refs"),
    ("GET", "info", r"/api/(?:models|spaces)/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?"),
    ("GET", "tree", r"/api/(?:models|spaces)/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(/(?P<path>.+))?"),
    ("POST", "batch", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch"),
    ("PUT", "upload", r"/lfs/(?P<repo>[^/]+/[^/]+)/(?P<oid>[0-9a-f]{64})"),
    ("GET", "cdn", r"/lfs/(?P<repo>[^/]+/[^/]+)/(?P<oid>[0-9a-f]{64})"),
    ("HEAD", "head", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
    ("GET", "resolve", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
]
READS = ("refs", "info", "tree", "head", "resolve")
WRITES = ("create", "delete", "preupload", "commit", "branch", "unbranch", "tag", "batch")


class Hub(State):
    """The server, and what a test does with it."""

    def __init__(self) -> None:
        super().__init__()
        self.server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        assert self.server is not None
        return int(self.server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, port: int = 0) -> None:
        hub = self
        handler = type("Handler", (Answer,), {"hub": hub})
        self.stopped.clear()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that listens on 127.0.0.1 and always stops."""
    hub = Hub()
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


class Answer(BaseHTTPRequestHandler):
    """One request."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    timeout = 60
    # Else every answer waits for the client to acknowledge its headers.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (Cut, OSError):
            self.close_connection = True

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET

    def answer(self) -> None:
        if self.hub.stopped.is_set():
            # On a connection that was kept open.
            raise Cut
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        endpoint, match = "unknown", None
        for method, name, pattern in ROUTES:
            if method == self.command and (match := re.fullmatch(pattern, url.path)):
                endpoint = name
                break
        self.fault = self.hub.take(endpoint, url.path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.body = b""
        try:
            self.read_body()
        finally:
            host = str(self.headers.get("Host"))
            seen = Seen(endpoint, unquote(url.path), len(self.body), token, host, self.headers.get("Range"))
            with self.hub.lock:
                self.hub.seen.append(seen)
        fault = self.fault
        if fault is not None:
            self.hub.stopped.wait(fault.seconds)
        try:
            if fault is not None and isinstance(fault.kind, int):
                return self.send(
                    fault.kind, {"error": fault.message}, {"X-Error-Message": fault.message, **fault.headers}
                )
            if match is None:
                raise Refused(404, f"{self.command} {url.path}: this server does not know it")
            named = {name: unquote(value) for name, value in match.groupdict().items() if value is not None}
            with self.hub.lock:
                self.check_access(endpoint, token, named.get("repo"))
                result = getattr(self, f"on_{endpoint}")(**named)
            if result is not None:
                self.send(200, result)
        except Refused as refused:
            extra = {"X-Error-Message": refused.message, **({"X-Error-Code": refused.code} if refused.code else {})}
            self.send(refused.status, {"error": refused.message}, extra)

    def read_body(self) -> None:
        """Take the request's body, as far as the fault lets it come."""
        cut = (
            self.fault.after if self.fault is not None and self.fault.kind == "cut" and self.command == "PUT" else None
        )
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().strip() or b"0", 16):
                self.body += self.rfile.read(size)
                self.rfile.readline()
                if cut is not None and len(self.body) >= cut:
                    raise Cut
            self.rfile.readline()
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            part = self.rfile.read(min(left, SLICE))
            if not part:
                raise Cut
            self.body += part
            left -= len(part)
            if cut is not None and len(self.body) >= cut:
                raise Cut
        if cut is not None:
            raise Cut

    def check_access(self, endpoint: str, token: str | None, repo: str | None) -> None:
        role = self.hub.tokens.get(token) if token is not None else None
        if token is not None and role is None and endpoint not in ("cdn", "upload"):
            raise Refused(401, "Invalid credentials in Authorization header")
        if endpoint in ("create", "delete", "whoami") and role is None:
            raise Refused(401, "Invalid username or password.")
        found = self.hub.repos.get(repo) if repo is not None else None
        if endpoint in READS + WRITES and repo is not None and (found is None or (found.private and role is None)):
            raise Refused(401 if role is None else 404, "Repository not found", "RepoNotFound")
        if endpoint in WRITES and role is None:
            raise Refused(401, "Invalid username or password.")
        if endpoint in WRITES and role != "write":
            raise Refused(403, "You don't have the rights to do this: the token lacks write access")

    def revision(self, repo: Repo, revision: str) -> str:
        if (oid := repo.find(revision)) is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid

    def sent(self) -> Any:
        return json.loads(self.body)

    def on_whoami(self) -> Any:
        return {"type": "user", "name": "writer", "orgs": [{"name": name} for name in self.hub.organizations]}

    def on_create(self) -> Any:
        wanted = self.sent()
        owner, name = wanted.get("organization") or "writer", wanted["name"]
        if owner not in self.hub.organizations:
            raise Refused(403, f"You don't have the rights to create a model under the namespace {owner!r}")
        repo_id, url = f"{owner}/{name}", f"{self.hub.endpoint}/{owner}/{name}"
        if repo_id in self.hub.repos:
            self.send(409, {"error": "You already created this model repo", "url": url})
            return None
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        repo = self.hub.repos[repo_id] = Repo(private)
        attributes = Blob(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", lfs=False)
        repo.commit("main", {".gitattributes": attributes}, "initial commit")
        return {"url": url, "name": repo_id, "id": repo_id}

    def on_delete(self) -> Any:
        wanted = self.sent()
        if self.hub.repos.pop(f"{wanted.get('organization') or 'writer'}/{wanted['name']}", None) is None:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return {}

    def on_yaml(self) -> Any:
        return {"errors": [], "warnings": []}

    def on_preupload(self, repo: str, revision: str) -> Any:
        there = self.hub.repos[repo].commits[self.revision(self.hub.repos[repo], revision)]
        answers = []
        for file in self.sent()["files"]:
            lfs = file["size"] >= LFS_SIZE or file["path"].endswith(".safetensors")
            known = there.get(file["path"])
            oid = {"oid": known.oid} if known is not None else {}
            answers.append(
                {"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, **oid}
            )
        return {"files": answers}

    def on_batch(self, repo: str) -> Any:
        found = self.hub.repos[repo]
        objects: list[dict[str, Any]] = []
        for wanted in self.sent()["objects"]:
            actions = {"upload": {"href": f"{self.hub.endpoint}/lfs/{repo}/{wanted['oid']}", "header": {}}}
            objects.append({**wanted, **({} if wanted["oid"] in found.objects else {"actions": actions})})
        return {"transfer": "basic", "objects": objects}

    def on_upload(self, repo: str, oid: str) -> Any:
        data = self.body
        if self.fault is not None and self.fault.kind == "altered":
            data = altered(data)
        if hashlib.sha256(data).hexdigest() != oid:
            raise Refused(400, f"BadDigest: the content is not {oid}")
        self.hub.repos[repo].objects[oid] = data
        return {}

    def on_commit(self, repo: str, revision: str) -> Any:
        found = self.hub.repos[repo]
        if revision not in found.branches:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        files, message, changed = dict(found.files(revision)), "", 0
        for line in self.body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, found.branches[revision]):
                    raise Refused(412, "A commit has happened since. Please refresh and try again.")
                continue
            changed += 1
            if key == "file":
                files[value["path"]] = Blob(base64.b64decode(value["content"]), lfs=False)
            elif key == "lfsFile":
                if value["oid"] not in found.objects:
                    raise Refused(400, f"LFS pointer points to a file that does not exist: {value['oid']}")
                files[value["path"]] = Blob(found.objects[value["oid"]], lfs=True)
            elif key == "deletedFile":
                if files.pop(value["path"], None) is None:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
            else:
                raise Refused(400, f"{key}: this server does not know it")
        if not changed:
            raise Refused(400, "An empty commit")
        answer = {}
        if self.query.get("create_pr") == ["1"]:
            number = 1 + sum(name.startswith("refs/pr/") for name in found.branches)
            revision, before = f"refs/pr/{number}", found.branches[revision]
            found.branches[revision] = before
            answer = {"pullRequestUrl": f"{self.hub.endpoint}/{repo}/discussions/{number}"}
        oid = found.commit(revision, files, message)
        return {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo}/commit/{oid}", **answer}

    def on_branch(self, repo: str, revision: str) -> Any:
        found = self.hub.repos[repo]
        if revision in found.branches:
            raise Refused(409, "Reference already exists")
        found.branches[revision] = self.revision(found, self.sent().get("startingPoint") or "main")
        return {}

    def on_unbranch(self, repo: str, revision: str) -> Any:
        self.hub.repos[repo].branches.pop(revision)
        return {}

    def on_tag(self, repo: str, revision: str) -> Any:
        found = self.hub.repos[repo]
        found.tags[self.sent()["tag"]] = self.revision(found, revision)
        return {}

    def on_refs(self, repo: str) -> Any:
        found = self.hub.repos[repo]
        return {
            kind: [{"name": name, "ref": f"refs/{where}/{name}", "targetCommit": oid} for name, oid in refs.items()]
            for kind, where, refs in (
                ("branches", "heads", found.branches),
                ("tags", "tags", found.tags),
                ("converts", "convert", {}),
            )
        }

    def on_info(self, repo: str, revision: str = "main") -> Any:
        found = self.hub.repos[repo]
        oid = self.revision(found, revision)
        siblings = [{"rfilename": path} for path in found.commits[oid]]
        return {"id": repo, "modelId": repo, "sha": oid, "private": found.private, "tags": [], "siblings": siblings}

    def on_tree(self, repo: str, revision: str, path: str = "") -> Any:
        found = self.hub.repos[repo]
        files = found.commits[self.revision(found, revision)]
        recursive = self.query.get("recursive", ["false"])[0].lower() in ("true", "1")
        under = f"{path}/" if path else ""
        entries: dict[str, dict[str, Any]] = {}
        for name, blob in files.items():
            if not name.startswith(under):
                continue
            parts = name.removeprefix(under).split("/")
            for depth in range(1, len(parts) if recursive else min(2, len(parts))):
                folder = under + "/".join(parts[:depth])
                entries[folder] = {"type": "directory", "path": folder, "size": 0, "oid": "0" * 40}
            if recursive or len(parts) == 1:
                entry = {"type": "file", "path": name, "size": len(blob.data), "oid": blob.git_oid}
                lfs = {"lfs": {"oid": blob.oid, "size": len(blob.data), "pointerSize": 134}} if blob.lfs else {}
                entries[name] = {**entry, **lfs}
        if under and not entries:
            raise Refused(404, f"{path} does not exist on {revision}", "EntryNotFound")
        return list(entries.values())

    def on_head(self, repo: str, revision: str, path: str) -> None:
        found = self.hub.repos[repo]
        oid = self.revision(found, revision)
        blob = found.commits[oid].get(path)
        headers = {"X-Repo-Commit": oid, "Accept-Ranges": "bytes"}
        if blob is None:
            self.send(404, {"error": "Entry not found"}, {**headers, "X-Error-Code": "EntryNotFound"})
        elif blob.lfs:
            # As on the Hub, large files lie elsewhere: at an origin that must not be told the token.
            place = f"http://localhost:{self.hub.port}/lfs/{quote(repo)}/{blob.oid}"
            headers |= {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(len(blob.data)), "Location": place}
            self.send(302, {}, headers)
        else:
            self.send_data(blob.data, {**headers, "ETag": f'"{blob.oid}"'})

    on_resolve = on_head

    def on_cdn(self, repo: str, oid: str) -> None:
        self.send_data(self.hub.repos[repo].objects[oid], {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})

    def send_data(self, data: bytes, headers: dict[str, str]) -> None:
        fault = self.fault
        if fault is not None and fault.kind == "lost":
            raise Cut
        if fault is not None and fault.kind == "altered":
            data = altered(data)
        if fault is not None and fault.kind == "short":
            data = data[: len(data) // 2]
        status, wanted = 200, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted and int(wanted[1]) < len(data):
            first, last = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
            headers = {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"}
            status, data = 206, data[first : last + 1]
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is not None and fault.kind == "cut":
            self.wfile.write(data[: fault.after])
            self.wfile.flush()
            raise Cut
        self.wfile.write(data)

    def send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        if self.fault is not None and self.fault.kind == "lost":
            raise Cut
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
