"""Is it ready? One question per kind of process, asked for real."""

import socket
from pathlib import Path

import httpx
import psycopg

from polar.stack.services import Postgres


def http_ok(url: str) -> bool:
    """Say whether a GET of `url` answers 200."""
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def worker_seen(postgres: Postgres, pid: int) -> bool:
    """Say whether the process `pid` has lately written its row in `workers`."""
    query = "SELECT 1 FROM workers WHERE pid = %s AND seen_at > now() - interval '1 minute'"
    try:
        with postgres.connect("polar") as connection:
            return connection.execute(query, [pid]).fetchone() is not None
    except psycopg.Error:
        return False


def socket_answers(path: Path) -> bool:
    """Say whether the warm fork server answers `ping` on its Unix socket."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(path))
            client.sendall(b'{"op": "ping"}\n')
            return bool(client.recv(4096))
    except OSError:
        return False
