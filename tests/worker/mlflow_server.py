"""A real MLflow server for the tests."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
