"""B32: no word of a user makes a trainer connect to a host, a local network or a cloud's metadata.

The servers of these tests are on the loopback interface, which is not public: one that the guard
lets through answers, and counts its visitors.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.services import ROOT
from tests.trainer_core import chat
from trainer_core.errors import InvalidSpec
from trainer_core.outbound import Allowed, Refused, check
from trainer_core.spec import DataSource

NOT_PUBLIC = [
    *("127.0.0.1", "127.255.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),  # noqa: S104
    *("169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "168.63.129.16"),
    *("192.0.0.192", "192.0.2.1", "198.18.0.1", "192.88.99.1", "224.0.0.1", "239.1.1.1"),
    *("240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fc00::1", "fec0::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::7f00:1"),
    *("64:ff9b::10.0.0.1", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:1::1"),
    *("2001:db8::1", "100::1", "5f00::1"),
]
PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"]
# Other spellings of 127.0.0.1, which the kernel's resolver understands, and names.
SPELLINGS = [
    *("2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.1", "127.0.1"),
    *("localhost", "LOCALHOST.", "127.0.0.1.", "①②⑦.⓪.⓪.①", "127。0。0。1", "", "user@127.0.0.1"),
]


@pytest.mark.parametrize("host", NOT_PUBLIC)
def test_b32_addresses_that_are_not_the_internets_are_refused(host: str) -> None:
    with pytest.raises(Refused, match="POLAR_OUTBOUND_ALLOW"):
        check(host, Allowed([]))


@pytest.mark.parametrize("host", PUBLIC)
def test_b32_public_addresses_are_let_through(host: str) -> None:
    check(host, Allowed([]))


@pytest.mark.parametrize("host", SPELLINGS)
def test_b32_a_connection_needs_an_address_and_not_a_spelling_of_one(host: str) -> None:
    with pytest.raises(Refused):
        check(host, Allowed(["localhost", "127.0.0.0/8"]))


def test_b32_an_operator_allows_networks_addresses_and_names() -> None:
    allowed = Allowed(["10.0.0.0/8", "192.168.1.7", "fd00::/8", "[::1]", "localhost"])
    for host in ("10.9.9.9", "192.168.1.7", "::ffff:10.0.0.1", "fd00::5", "::1", "127.0.0.1"):
        check(host, allowed)
    for host in ("192.168.1.8", "172.16.0.1", "169.254.169.254"):
        with pytest.raises(Refused):
            check(host, allowed)


def test_b32_a_name_is_judged_by_what_it_means_at_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: the name server says something else the second time."""
    answers = iter(["93.184.216.34", "127.0.0.1", "127.0.0.1"])

    def resolve(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 80))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    first = str(socket.getaddrinfo("rebind.example", 80)[0][4][0])
    check(first, Allowed([]))
    second = str(socket.getaddrinfo("rebind.example", 80)[0][4][0])
    with pytest.raises(Refused):
        check(second, Allowed([]))
    check("127.0.0.1", Allowed(["rebind.example"]))  # unless the operator named it


class Inside(BaseHTTPRequestHandler):
    """A service of the local network that nobody outside should be able to talk to."""

    visits: list[str] = []  # noqa: RUF012 - of the process

    def do_GET(self) -> None:
        self.visits.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "21")
        self.end_headers()
        self.wfile.write(b'{"text": "a secret"}\n')

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def inside() -> Iterator[str]:
    Inside.visits.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Inside)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


CLIENTS = {
    "httpx": "import httpx; httpx.get(url, timeout=5, follow_redirects=True)",
    "urllib": "import urllib.request; urllib.request.urlopen(url, timeout=5).read()",
    "requests": "import requests; requests.get(url, timeout=5)",
    "socket": "import socket; socket.create_connection((host, port), timeout=5)",
    "connect_ex": "import socket; s = socket.socket(); s.settimeout(5); s.connect_ex((host, port))",
    "ipv6": "import socket; socket.create_connection(('::ffff:127.0.0.1', port), timeout=5)",
    "number": "import socket; socket.socket().connect(('2130706433', port))",
    "udp": "import socket\n"
    "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (host, port))",
    "aiohttp": "import asyncio, aiohttp\n"
    "async def f():\n  async with aiohttp.ClientSession() as s:\n    await s.get(url)\n"
    "asyncio.run(f())",
    "fsspec": "import fsspec; fsspec.open(url).open().read()",
}
GUARDED = """
import sys
from trainer_core import outbound
outbound.guard()
host, port, url = "127.0.0.1", int(sys.argv[1].rpartition(":")[2]), f"http://{sys.argv[1]}/"
"""


def run_guarded(code: str, address: str, allow: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "POLAR_REACHABLE": allow}
    return subprocess.run(
        [sys.executable, "-c", GUARDED + code, address],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.sampled
@pytest.mark.parametrize("client", CLIENTS)
def test_b32_no_client_of_a_guarded_process_gets_inside(client: str, inside: str) -> None:
    if client in ("aiohttp", "fsspec", "requests"):
        pytest.importorskip("datasets", reason="these come with the training stack")
    done = run_guarded(CLIENTS[client], inside)
    assert "was refused" in done.stderr, done.stderr
    assert Inside.visits == []


def test_b32_an_allowed_host_answers(inside: str) -> None:
    done = run_guarded(CLIENTS["httpx"], inside, allow="localhost")
    assert done.returncode == 0, done.stderr
    assert Inside.visits == ["/"]


def test_b32_a_redirect_leads_nowhere_inside(inside: str) -> None:
    """The first host is allowed, as the hub is; each hop is a connection of its own."""

    class Redirects(Inside):
        def do_GET(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"http://{inside}/latest/meta-data")
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.2", 0), Redirects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        code = CLIENTS["httpx"].replace("url,", f"'http://127.0.0.2:{server.server_port}/',")
        done = run_guarded(code, inside, allow="127.0.0.2")
    finally:
        server.shutdown()
        server.server_close()
    assert "a connection to 127.0.0.1 was refused" in done.stderr, done.stderr
    assert Inside.visits == []


# -- data sets of the hub ---------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """A hub with one data set, whose card lists the files that the test says."""

    protocol_version = "HTTP/1.1"
    commit = "b" * 40
    card = b""
    files: dict[str, bytes] = {}  # noqa: RUF012 - replaced by each test

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = {"README.md": self.card, **self.files}
        name = path.rpartition(f"/{self.commit}/")[2]
        if "/tree/" in path or "/paths-info/" in path:
            found = [
                {"type": "file", "path": n, "size": len(b), "oid": "1" * 40}
                for n, b in files.items()
            ]
            self.answer(200, json.dumps(found).encode())
        elif path.startswith("/api/datasets/owner/evil"):
            content = {"id": "owner/evil", "sha": self.commit, "tags": [], "siblings": []}
            self.answer(200, json.dumps(content).encode())
        elif path.startswith("/datasets/owner/evil/resolve/") and name in files:
            etag = f'"{hashlib.sha1(files[name], usedforsecurity=False).hexdigest()}"'
            self.answer(200, files[name], ETag=etag, **{"X-Repo-Commit": self.commit})
        else:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.commit}
            self.answer(404, b"", **headers)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.3", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.3:{server.server_port}"
    server.shutdown()
    server.server_close()


def prepare(folder: Path, hub: str, **source: str) -> dict[str, Any]:
    """Prepare from a hub data set as a worker does, guarded; returns what `exit.json` says."""
    chat.qwen().save_pretrained(folder / "model")
    launch = {
        "attempt_id": "a",
        "job_id": "j",
        "job_name": "n",
        "paths": {"work": str(folder), "model": str(folder / "model"), "data_folders": []},
        "spec": {
            "task": {"type": "sft"},
            "model": {"name_or_path": "owner/model"},
            "data": {"train": [{"source": "hub", "path": "owner/evil", **source}]},
        },
    }
    (folder / "launch.json").write_text(json.dumps(launch))
    arguments = ["prepare", str(folder / "launch.json"), "--out", str(folder / "out")]
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub,
        "HF_HOME": str(folder / "hub"),
        "POLAR_REACHABLE": "",
    }
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if done.returncode == 0:
        return {"reason": None}
    said: dict[str, Any] = json.loads((folder / "exit.json").read_text())
    return said | {"stderr": done.stderr}


def card(pattern: str) -> bytes:
    text = f"---\nconfigs:\n- config_name: default\n  data_files: {json.dumps(pattern)}\n---\n"
    return text.encode()


@pytest.mark.sampled
@pytest.mark.train
def test_a_data_set_of_the_hub_with_a_card_is_read(tmp_path: Path, hub: str) -> None:
    Hub.card, Hub.files = card("rows.jsonl"), {"rows.jsonl": b'{"text": "hello"}\n' * 3}
    said = prepare(tmp_path, hub)
    assert said["reason"] is None, said


@pytest.mark.sampled
@pytest.mark.train
def test_b32_a_data_sets_card_cannot_name_files_of_this_machine(tmp_path: Path, hub: str) -> None:
    (tmp_path / "key.txt").write_text("CANARY-of-this-host\n" * 3)
    Hub.card, Hub.files = card(str(tmp_path / "key.txt")), {}
    said = prepare(tmp_path, hub)
    assert said["reason"] == "invalid_data"
    assert "which is not on the hub" in said["message"]
    assert "CANARY" not in json.dumps(said)


@pytest.mark.sampled
@pytest.mark.train
def test_b32_a_data_sets_card_cannot_name_services_of_this_network(
    tmp_path: Path, hub: str, inside: str
) -> None:
    Hub.card, Hub.files = card(f"http://{inside}/rows.jsonl"), {}
    said = prepare(tmp_path, hub)
    assert said["reason"] in ("invalid_data", "data_unavailable")
    assert Inside.visits == []


@pytest.mark.train
@pytest.mark.parametrize(
    "name", ["json", "text", "pandas", "hf://buckets/a/b", "buckets/a", "a/.."]
)
def test_b32_names_that_mean_something_else_than_a_data_set_are_refused(name: str) -> None:
    """`datasets` would read the working folder, or another service, under these names."""
    from trainer_core.data.hub import read_dataset

    source = DataSource.model_validate({"source": "hub", "path": name})
    with pytest.raises(InvalidSpec, match="is no repository id of the hub"):
        list(read_dataset(source, "data.train[0]", {}))


@pytest.mark.sampled
@pytest.mark.train
def test_b34_archives_with_readers_of_their_own_are_not_read(tmp_path: Path, hub: str) -> None:
    Hub.card, Hub.files = card("rows.tar"), {"rows.tar": b"\0" * 10240}
    said = prepare(tmp_path, hub)
    assert said["reason"] == "invalid_data"
    assert "holds no text in a format that is read here" in said["message"], said
