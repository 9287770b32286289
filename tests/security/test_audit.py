"""The audit of the pinned packages, against an index of our own."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.services import ROOT


class Index(BaseHTTPRequestHandler):
    """Knows one vulnerability of one package."""

    vulnerable = ""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        results = [
            {"vulns": [{"id": "GHSA-test"}]} if q["package"]["name"] == self.vulnerable else {}
            for q in asked
        ]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def index() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def audit(address: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, ".ci/audit.py"],
        cwd=ROOT,
        env={**os.environ, "AUDIT_URL": address, "NO_PROXY": "*", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_packages_without_known_vulnerabilities_pass(index: str) -> None:
    code, said = audit(index)
    assert (code, "have no known vulnerability" in said) == (0, True), said


def test_a_vulnerable_package_is_named(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "vulnerable", "fastapi")
    code, said = audit(index)
    assert code == 1
    assert "fastapi" in said
    assert "GHSA-test" in said


def test_without_an_answer_it_says_that_nothing_was_audited() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    code, said = audit(address)
    assert (code, "NOT audited" in said) == (0, True), said
    assert audit(address, AUDIT_REQUIRED="1")[0] == 2
