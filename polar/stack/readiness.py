"""Is it ready? One question per kind of process, asked for real."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import psycopg
from psycopg import Connection


def listens(pid: int, port: int) -> bool:
    """Say whether the process or a child of it has this port: another's answer is not its own."""
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
        return any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port
            for member in members
            for each in member.net_connections("tcp")
        )
    except psutil.Error:
        return False


def http_ok(url: str) -> bool:
    """Say whether a GET of `url` answers 200."""
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def worker_seen(connect: Callable[[], Connection[tuple[object, ...]]], pid: int) -> bool:
    """Say whether the process `pid` has lately written its row in `workers`."""
    query = "SELECT 1 FROM workers WHERE pid = %s AND seen_at > now() - interval '1 minute'"
    try:
        with connect() as connection:
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


def main() -> int:
    """Exit 0 when a process of this host has a fresh row: the containers' health check."""
    query = "SELECT 1 FROM workers WHERE hostname = %s AND seen_at > now() - interval '1 minute'"
    address = os.environ["POLAR_DATABASE_URL"].replace("+psycopg", "", 1)
    try:
        with psycopg.connect(address, connect_timeout=5) as connection:
            found = connection.execute(query, [socket.gethostname()]).fetchone()
    except psycopg.Error:
        return 1
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
