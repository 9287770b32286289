"""A real MLflow server for the tests, and a door to it that can be shut."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from polar.stack.ports import free_ports
from polar.stack.services import wait_ready


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Run a server with its data in `folder`; yields its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
        *("--artifacts-destination", str(folder / "artifacts")),
    ]
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        wait_ready(lambda: _healthy(url), f"mlflow, see {folder / 'log'}", timeout=150)
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(15)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


class Door:
    """Forwards connections to a server while it is open, and refuses them while it is shut."""

    def __init__(self, url: str) -> None:
        self._target = (httpx.URL(url).host, httpx.URL(url).port)
        [self._port] = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shut()

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._listener = listener
        threading.Thread(target=self._accept, args=[listener], daemon=True).start()

    def shut(self) -> None:
        if self._listener:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._target, timeout=10)
                self._open += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=[source, sink], daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError), closing(sink):
        while block := source.recv(65536):
            sink.sendall(block)
