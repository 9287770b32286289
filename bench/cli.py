"""What the command line costs to start: CPU seconds of `polar --help`, and `polar list` against a
bare httpx script that prints the same. The sides take turns; the service is a socket with one
answer, which costs both sides the same."""

import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parent.parent
HELP_LIMIT = 0.4  # CPU seconds
LIST_LIMIT = 2.0  # times the bare script's
ROUNDS = 5 if os.environ.get("BENCH_QUICK") else 15
JOBS = 20

BARE = """
import os, httpx
headers = {"Authorization": "Bearer " + os.environ["POLAR_API_KEY"]}
answer = httpx.get(os.environ["POLAR_URL"] + "/jobs", params={"limit": 20}, headers=headers,
                   trust_env=False)
rows = [("id", "name", "status", "phase", "step", "loss", "created")]
for job in answer.raise_for_status().json()["items"]:
    progress, metrics = job["progress"] or {}, job["latest_metrics"] or {}
    step = f"{progress['step']}/{progress['total_steps']}" if progress else ""
    loss = f"{metrics['loss']:.3f}" if metrics else ""
    created = job["created_at"][:19].replace("T", " ")
    rows.append((job["id"], job["name"], job["status"], job["phase"] or "", step, loss, created))
widths = [max(map(len, column)) for column in zip(*rows)]
for row in rows:
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
"""


def page() -> bytes:
    """An answer as `GET /jobs` gives it."""
    unset = ("reason", "message", "waiting_for", "retry_of", "clone_of", "finished_at")
    items = [
        {
            "id": f"job_01J8ZQ4M7RBX9D2W5K3T6V{n:04}",
            "name": f"shop-{n}",
            "labels": {"team": "search"},
            "priority": 0,
            "status": "running",
            "phase": "training",
            "task_type": "sft",
            "backend": "hf",
            "target": "local",
            "progress": {"step": n, "total_steps": 100, "eta_seconds": 12.5},
            "latest_metrics": {"loss": 2.5 - n / 50, "learning_rate": 1e-4},
            "created_at": "2026-11-30T10:00:00.123456Z",
            "updated_at": "2026-11-30T10:00:00.123456Z",
            "started_at": "2026-11-30T10:00:00.123456Z",
            **dict.fromkeys(unset),
        }
        for n in range(JOBS)
    ]
    return json.dumps({"items": items, "next_cursor": None}).encode()


class Service(BaseHTTPRequestHandler):
    body = page()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def cpu_seconds(command: list[str], url: str = "") -> tuple[float, str]:
    """Run a command; returns the CPU seconds that it took, and what it printed."""
    environment = {**os.environ, "POLAR_URL": url, "POLAR_API_KEY": "polar_key"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is compiled once is no cost of a start
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said
    return usage.ru_utime + usage.ru_stime, said


def main() -> int:
    polar = [str(Path(sys.executable).with_name("polar"))]
    sides = {"polar": [*polar, "list"], "bare": [sys.executable, "-c", BARE]}
    took: dict[str, list[float]] = {"help": [], "polar": [], "bare": []}
    with serving() as url:
        said = {name: cpu_seconds(command, url)[1] for name, command in sides.items()}
        assert said["polar"] == said["bare"], said
        cpu_seconds([*polar, "--help"])  # compiled once
        for _ in range(ROUNDS):
            took["help"].append(cpu_seconds([*polar, "--help"])[0])
            for name, command in sides.items():
                took[name].append(cpu_seconds(command, url)[0])
    middle = {name: statistics.median(values) for name, values in took.items()}
    ratio = statistics.median(a / b for a, b in zip(took["polar"], took["bare"], strict=True))
    print(
        f"CPU seconds, median of {ROUNDS}: " + "  ".join(f"{n} {v:.3f}" for n, v in middle.items())
    )
    ok = {
        f"polar --help  {middle['help']:.3f} s of CPU (at most {HELP_LIMIT} s)": middle["help"]
        <= HELP_LIMIT,
        f"polar list    {ratio:.2f}× of a bare httpx script (at most {LIST_LIMIT}×)": ratio
        <= LIST_LIMIT,
    }
    for text, holds in ok.items():
        print(f"{'ok ' if holds else 'NOT'} {text}")
    return 0 if all(ok.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
