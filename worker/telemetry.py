"""What an attempt uses: processor and memory of its tree, and of its CUDA devices."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import psutil

from worker.proctree import Identity, tree

_QUERY = "index,utilization.gpu,memory.used,memory.total"


class Telemetry:
    """Samples one attempt; CPU use is the share of one core since the sample before."""

    def __init__(self, who: Identity, mark: str, devices: Sequence[int | str]) -> None:
        self._who = who
        self._mark = mark
        self._devices = set(devices) if shutil.which("nvidia-smi") else set()
        self._seconds: float | None = None
        self._time = time.monotonic()

    def sample(self) -> dict[str, Any]:
        """Return the newest numbers: `cpu_percent`, `memory_mb`, `processes` and `devices`."""
        seconds, memory, count = 0.0, 0, 0
        for who in tree(self._who, self._mark):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(who.pid)
                with process.oneshot():
                    times = process.cpu_times()
                    seconds += times.user + times.system
                    memory += process.memory_info().rss
                count += 1
        sample: dict[str, Any] = {"memory_mb": round(memory / 2**20), "processes": count}
        now = time.monotonic()
        if self._seconds is not None and now > self._time:
            used = max(0.0, seconds - self._seconds) / (now - self._time)
            sample["cpu_percent"] = round(100 * used, 1)
        self._seconds, self._time = seconds, now
        if self._devices:
            sample["devices"] = self._read_devices()
        return sample

    def _read_devices(self) -> list[dict[str, int]]:
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            return []
        return [row for row in map(parse_line, done.stdout.splitlines()) if self._is_ours(row)]

    def _is_ours(self, row: dict[str, int]) -> bool:
        return row.get("index") in self._devices


def parse_line(line: str) -> dict[str, int]:
    """Read one line of nvidia-smi; fields that it cannot tell are left out."""
    names = ("index", "utilization_percent", "memory_used_mb", "memory_total_mb")
    values = [value.strip() for value in line.split(",")]
    return {n: int(v) for n, v in zip(names, values, strict=False) if v.isdigit()}
