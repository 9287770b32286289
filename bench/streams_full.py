"""A database of 100,000 jobs and 20 million events against one of 1,000 jobs, in turns.

Both are copies in one Postgres, each with an API of its own.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.streams_fill import fill, settle
from bench.streams_replay import replay
from bench.streams_rig import SPEC, Rig, copied, path_of, running

FEW, MANY, EVENTS = 1_000, 100_000, 200
LIMIT = 1.5
Measured = Callable[[Rig, str], float]


def measure(folder: Path) -> list[tuple[bool, str]]:
    """Measure and return what was found about the limits."""
    quick = bool(os.environ.get("BENCH_QUICK"))
    many, rounds, asks = (10_000, 3, 40) if quick else (MANY, 7, 100)
    with running(folder) as rig:
        jobs = fill(rig, 1, FEW, EVENTS)
        settle(rig)
        with copied(rig, "small") as small:
            jobs += fill(rig, FEW + 1, many - FEW, EVENTS)
            settle(rig)
            print(f"{'median ms':12} {'1,000 jobs':>12} {f'{many:,} jobs':>14}")
            return [
                _compare(name, what, (small, rig), (jobs[FEW // 2], jobs[many // 2]), rounds, asks)
                for name, what in MEASURED.items()
            ]


def _compare(
    name: str, what: Measured, rigs: tuple[Rig, Rig], jobs: tuple[str, str], rounds: int, asks: int
) -> tuple[bool, str]:
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, rounds):  # the first round warms both
        for side in (0, 1) if number % 2 else (1, 0):
            found = [what(rigs[side], jobs[side]) for _ in range(asks)]
            if number >= 0:
                times[side].append(statistics.median(found))
    small, big = (statistics.median(each) for each in times)
    print(f"{name:12} {small * 1000:12.2f} {big * 1000:14.2f}", flush=True)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    return ratio <= LIMIT, f"full database, {name}: {ratio:.2f}× of 1,000 jobs (at most {LIMIT}×)"


def _list(rig: Rig, job: str) -> float:
    del job
    return rig.kept_client().ask("GET", "/jobs")[0]


def _one(rig: Rig, job: str) -> float:
    return rig.kept_client().ask("GET", f"/jobs/{job}")[0]


def _submit(rig: Rig, job: str) -> float:
    del job
    return rig.kept_client().ask("POST", "/jobs", SPEC)[0]


def _replay(rig: Rig, job: str) -> float:
    found = replay(rig.port, path_of(job), rig.key)
    assert found["count"] == EVENTS
    assert found["ended"]
    return found["seconds"]


MEASURED: dict[str, Measured] = {
    "GET /jobs": _list,
    "GET one job": _one,
    "submit": _submit,
    "replay": _replay,
}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder_:
        for good, said in measure(Path(folder_)):
            print("ok " if good else "NOT", said)
    sys.exit(0)
