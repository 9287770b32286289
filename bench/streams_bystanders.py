"""`GET /jobs` while 1000 streams are open, a client is slow, and a million events are replayed."""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.streams_fill import fill, settle
from bench.streams_rig import ROOT, Rig, path_of, running, watching

EVENTS = 1_000_000
CLIENTS, JOBS = 1000, 50
LIMIT = 1.5
MEMORY_LIMIT_MB = 64  # what the replay and the slow client may add; a million events are 200 MB


@dataclass
class Found:
    """What was measured."""

    idle: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)
    grown: float = 0.0
    replays: list[dict[str, float]] = field(default_factory=list)


def measure(folder: Path) -> list[tuple[bool, str]]:
    """Measure and return what was found about the limits."""
    quick = bool(os.environ.get("BENCH_QUICK"))
    rounds, asks = (2, 300) if quick else (5, 600)
    found = Found()
    with running(folder) as rig:
        long = fill(rig, 1, 1, EVENTS)[0]
        fill(rig, 2, 200, 20)
        settle(rig)
        followed = rig.jobs(JOBS)
        _p99(rig, 200)
        for _ in range(rounds):
            found.idle.append(_p99(rig, asks))
            with _load(rig, found, long, followed):
                found.loaded.append(_p99(rig, asks))
            time.sleep(1)
    return _verdicts(found)


def _p99(rig: Rig, count: int) -> float:
    client = rig.client()
    for _ in range(20):
        client.ask("GET", "/jobs")
    times = sorted(client.ask("GET", "/jobs")[0] for _ in range(count))
    client.close()
    return times[int(count * 0.99)]


@contextmanager
def _load(rig: Rig, found: Found, long: str, followed: list[str]) -> Iterator[None]:
    paths = [(path_of(followed[n % JOBS]), 0) for n in range(CLIENTS)]
    with watching(rig.port, rig.key, paths), _slow(rig, long):
        time.sleep(1)
        api = psutil.Process(rig.api_pid)
        before = api.memory_info().rss
        with _replaying(rig, found, long):
            time.sleep(0.5)
            yield
            found.grown = max(found.grown, (api.memory_info().rss - before) / 2**20)


@contextmanager
def _slow(rig: Rig, job: str) -> Iterator[None]:
    """Ask for a million events and take none of them."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", rig.port))
        client.sendall(
            f"GET {path_of(job)} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {rig.key}\r\n\r\n".encode()
        )
        yield


@contextmanager
def _replaying(rig: Rig, found: Found, job: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.streams_replay", str(rig.port), path_of(job), "100"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(rig.key + "\n")
    process.stdin.flush()
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
    reader.start()
    try:
        yield
        deadline = time.monotonic() + 60
        while not lines and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
        reader.join()
        found.replays += [json.loads(line) for line in lines]


def _verdicts(found: Found) -> list[tuple[bool, str]]:
    print("GET /jobs, p99 in ms")
    for name, times in (("idle", found.idle), ("loaded", found.loaded)):
        print(f"{name:8} " + " ".join(f"{1000 * t:7.2f}" for t in times))
    whole = [r for r in found.replays if r["count"] == r["last"] == EVENTS and r["ended"]]
    seconds = statistics.median(r["seconds"] for r in found.replays) if found.replays else 0.0
    print(f"{len(found.replays)} replays of {EVENTS} events, {seconds:.1f} s each")
    ratio = statistics.median(a / b for a, b in zip(found.loaded, found.idle, strict=True))
    return [
        (
            ratio <= LIMIT,
            f"GET /jobs with {CLIENTS} streams, a slow client and a replay: "
            f"p99 {ratio:.2f}× of idle (at most {LIMIT}×)",
        ),
        (
            bool(found.replays) and len(whole) == len(found.replays),
            f"replay: {len(whole)} of {len(found.replays)} whole and in order to the end",
        ),
        (
            found.grown <= MEMORY_LIMIT_MB,
            f"memory of the API: {found.grown:.0f} MB more during replays "
            f"(at most {MEMORY_LIMIT_MB} MB)",
        ),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for good, said in measure(Path(name)):
            print("ok " if good else "NOT", said)
    sys.exit(0)
