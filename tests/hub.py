"""A hub in small, which takes pushes: what `huggingface_hub` asks for, over real HTTP.

Repositories, branches, small files inline and large ones by LFS, commits; faults on demand.
"""

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

LARGE = (".safetensors", ".bin", ".pt", ".pth", ".model")


@dataclass
class Commit:
    """A commit: its id, its message, and every file after it."""

    oid: str
    message: str
    files: dict[str, bytes]


@dataclass
class Repo:
    """A repository: its visibility, and the commits of each branch."""

    private: bool
    branches: dict[str, list[Commit]]

    @property
    def files(self) -> dict[str, bytes]:
        return self.branches["main"][-1].files


@dataclass
class Fault:
    """An answer instead of the right one, for requests whose path matches, so many times."""

    pattern: str
    status: int
    body: dict[str, Any] | bytes = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 10**9


@dataclass
class Hub:
    """What the emulator knows; `token` alone may do anything."""

    token: str
    url: str = ""
    storage: str = ""  # where signed addresses lead: another host, which knows no tokens
    repos: dict[str, Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    part: int | None = None  # larger files come in parts of so many bytes
    parts: dict[str, bytes] = field(default_factory=dict)
    held: threading.Event | None = None  # uploads stand still until it is set
    arrived: threading.Event = field(default_factory=threading.Event)  # one of them came so far

    def commits(self, repo_id: str, branch: str = "main") -> list[Commit]:
        """Commits of pushes: all but the first, which makes a repository."""
        return self.repos[repo_id].branches[branch][1:]

    def create(self, repo_id: str, *, private: bool, **files: bytes) -> Repo:
        first = Commit("0" * 40, "initial commit", {".gitattributes": b"", **files})
        self.repos[repo_id] = Repo(private, {"main": [first]})
        return self.repos[repo_id]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    # -- requests -------------------------------------------------------------------------------

    def do_POST(self) -> None:
        self._serve()

    do_GET = do_PUT = do_POST  # noqa: N815 - the names that http.server calls

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        fault = self._fault(path)
        if self.command == "PUT" and fault is None:
            self._take_blob(path)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault is not None:
            self._answer(fault.status, fault.body, **fault.headers)
        elif path.startswith("/complete/"):
            self._complete(path.rpartition("/")[2], json.loads(body)["parts"])
        elif self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._answer(401, {"error": f"Invalid token {self.headers.get('Authorization')}"})
        else:
            self._route(path, body)

    def _fault(self, path: str) -> Fault | None:
        for fault in self.hub.faults:
            if fault.times > 0 and re.search(fault.pattern, path):
                fault.times -= 1
                return fault
        return None

    def _route(self, path: str, body: bytes) -> None:
        for pattern, handle in _ROUTES:
            if found := re.fullmatch(pattern, path):
                handle(self, body, **found.groupdict())
                return
        self._answer(404, {"error": f"no such page: {path}"})

    # -- what is asked --------------------------------------------------------------------------

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        repo_id = f"{asked['organization']}/{asked['name']}"
        url = f"{self.hub.url}/{repo_id}"
        if repo_id in self.hub.repos:
            self._answer(409, {"error": "You already created it", "url": url})
            return
        self.hub.create(repo_id, private=asked.get("visibility") == "private")
        self._answer(200, {"url": url})

    def info(self, _: bytes, repo_id: str, branch: str = "main") -> None:
        if (commit := self._newest(repo_id, branch)) is not None:
            private = self.hub.repos[repo_id].private
            self._answer(200, {"id": repo_id, "sha": commit.oid, "private": private, "tags": []})

    def branch(self, _: bytes, repo_id: str, branch: str) -> None:
        branches = self.hub.repos[repo_id].branches
        if branch in branches:
            self._answer(409, {"error": "Reference already exists"})
            return
        branches[branch] = branches["main"][-1:]
        self._answer(200, {})

    def validate(self, body: bytes) -> None:
        """As the hub does: front matter of names and lists, a base model that is a repository."""
        front = json.loads(body)["content"].split("---\n")[1]
        base = re.search(r'^base_model: "?(.*?)"?$', front, re.MULTILINE)
        if base and not re.fullmatch(r"[\w.-]+/[\w.-]+", base[1]):
            errors = [{"message": '"base_model" with value "…" is not valid'}]
            self._answer(400, {"errors": errors, "warnings": [], "error": "Invalid metadata"})
            return
        self._answer(200, {"errors": [], "warnings": []})

    def paths(self, body: bytes, repo_id: str, branch: str) -> None:
        if (commit := self._newest(repo_id, branch)) is not None:
            wanted = parse_qs(body.decode())["paths"]
            known = [(path, commit.files[path]) for path in wanted if path in commit.files]
            self._answer(
                200,
                [{"type": "file", "path": p, "size": len(c), "oid": _git(c)} for p, c in known],
            )

    def resolve(self, _: bytes, repo_id: str, branch: str, path: str) -> None:
        commit = self._newest(repo_id, branch)
        if commit is not None:
            self._answer(200, commit.files[path])

    def preupload(self, body: bytes, repo_id: str, branch: str) -> None:
        if (commit := self._newest(repo_id, branch)) is None:
            return
        files = []
        for asked in json.loads(body)["files"]:
            path, there = asked["path"], commit.files.get(asked["path"])
            large = path.endswith(LARGE)
            oid = None if there is None else (_sha(there) if large else _git(there))
            mode = "lfs" if large else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._answer(200, {"files": files})

    def batch(self, body: bytes, repo_id: str) -> None:  # noqa: ARG002 - blobs are the hub's
        objects = []
        for asked in json.loads(body)["objects"]:
            entry = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.hub.blobs:
                entry["actions"] = {"upload": self._place(**entry)}
            objects.append(entry)
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _place(self, oid: str, size: int) -> dict[str, Any]:
        """Where a file is to be sent: whole, or in parts that the hub is told of in the end."""
        part, there = self.hub.part, self.hub.storage
        if part is None or size <= part:
            return {"href": f"{there}/blobs/{oid}?X-Signature=signed"}
        numbers = range(1, -(-size // part) + 1)
        places = {str(n): f"{there}/parts/{oid}-{n}?X-Signature=signed" for n in numbers}
        header = {"chunk_size": str(part), **places}
        return {"href": f"{self.hub.url}/complete/{oid}", "header": header}

    def _complete(self, oid: str, parts: list[dict[str, Any]]) -> None:
        whole = b"".join(self.hub.parts[f"{oid}-{each['partNumber']}"] for each in parts)
        self._keep(oid, whole)

    def _keep(self, oid: str, content: bytes) -> None:
        right = _sha(content) == oid
        if right:
            self.hub.blobs[oid] = content
        self._answer(200 if right else 400, {})

    def _take_blob(self, path: str) -> None:
        held, name = self.hub.held, path.rpartition("/")[2]
        left, parts = int(self.headers["Content-Length"]), []
        while left:
            part = self.rfile.read(min(left, 2**16))
            if not part:
                return  # who sent it is gone
            parts.append(part)
            left -= len(part)
            self.hub.arrived.set()
            if held is not None:
                held.wait(60)
        if path.startswith("/parts/"):
            self.hub.parts[name] = b"".join(parts)
            self._answer(200, {}, ETag=f'"{name}"')
        else:
            self._keep(name, b"".join(parts))

    def commit(self, body: bytes, repo_id: str, branch: str) -> None:
        if (newest := self._newest(repo_id, branch)) is None:
            return
        files, message = dict(newest.files), ""
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        commits = self.hub.repos[repo_id].branches[branch]
        oid = _sha(body + str(len(commits)).encode())[:40]
        commits.append(Commit(oid, message, files))
        url = f"{self.hub.url}/{repo_id}/commit/{oid}"
        self._answer(200, {"commitUrl": url, "commitOid": oid})

    # -- answers --------------------------------------------------------------------------------

    def _newest(self, repo_id: str, branch: str) -> Commit | None:
        repo = self.hub.repos.get(repo_id)
        if repo is None or branch not in repo.branches:
            code = "RepoNotFound" if repo is None else "RevisionNotFound"
            self._answer(404, {"error": "Not found"}, **{"X-Error-Code": code})
            return None
        return repo.branches[branch][-1]

    def _answer(self, status: int, content: Any, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


_REPO = r"(?P<repo_id>[^/]+/[^/]+)"
_ROUTES = (
    ("/api/repos/create", _Handler.create),
    ("/api/validate-yaml", _Handler.validate),
    (rf"/api/models/{_REPO}", _Handler.info),
    (rf"/api/models/{_REPO}/revision/(?P<branch>.+)", _Handler.info),
    (rf"/api/models/{_REPO}/branch/(?P<branch>.+)", _Handler.branch),
    (rf"/api/models/{_REPO}/paths-info/(?P<branch>.+)", _Handler.paths),
    (rf"/api/models/{_REPO}/preupload/(?P<branch>.+)", _Handler.preupload),
    (rf"/api/models/{_REPO}/commit/(?P<branch>.+)", _Handler.commit),
    (rf"/{_REPO}\.git/info/lfs/objects/batch", _Handler.batch),
    (rf"/{_REPO}/resolve/(?P<branch>[^/]+)/(?P<path>.+)", _Handler.resolve),
)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git(content: bytes) -> str:
    blob = b"blob %d\0" % len(content) + content
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest()


@contextmanager
def running_hub(token: str) -> Iterator[Hub]:
    """A hub on the loopback interface that knows one token."""
    hub = Hub(token)
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        if hub.held is not None:
            hub.held.set()
        for server in servers:
            server.shutdown()
            server.server_close()
