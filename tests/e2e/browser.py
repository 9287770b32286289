"""A real Chromium on a page of our own, whose origin is not the service's: as XGen's page is."""

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.services import wait_until

CHROMIUM = shutil.which("chromium")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-port=0",  # else it may end once the page is loaded
)


@dataclass
class Pages:
    """A server of one page and the JSON that it asks for; `said` is what the page tells."""

    origin: str
    html: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    said: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, html: str, config: dict[str, Any], folder: Path, timeout: float) -> Any:
        """Open the page in a browser and return what it tells."""
        self.html, self.config, self.said = html, config, []
        command = [str(CHROMIUM), *_FLAGS, f"--user-data-dir={folder}", self.origin]
        with (folder / "chromium.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            return wait_until(lambda: self.said, timeout=timeout)[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextmanager
def serving() -> Iterator[Pages]:
    """Serve pages until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = self.path == "/"
            content = pages.html if is_page else json.dumps(pages.config)
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if is_page else "application/json")
            self.end_headers()
            self.wfile.write(content.encode())

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            pages.said.append(json.loads(self.rfile.read(length)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pages = Pages(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield pages
    finally:
        server.shutdown()
        thread.join(10)
