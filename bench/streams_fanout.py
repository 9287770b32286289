"""Commit → client: the API's streams against the bare fan-out program, in turns."""

import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.streams_rig import Rig, Writer, path_of, running, watching

RATE = 100.0


@dataclass(frozen=True)
class Case:
    """How many clients follow how many jobs, and how much later than bare it may be."""

    clients: int
    jobs: int
    limit: float


CASES = (Case(1000, 50, 3.0), Case(200, 1, 1.5))


def measure(folder: Path) -> list[tuple[bool, str]]:
    """Measure both cases and return what was found about each limit."""
    quick = bool(os.environ.get("BENCH_QUICK"))
    rounds, seconds = (2, 5.0) if quick else (5, 10.0)
    verdicts = []
    with running(folder) as rig:
        for case in CASES:
            jobs = rig.jobs(case.jobs)
            print(f"{case.clients} clients on {case.jobs} jobs, {RATE:.0f} events/s (ms)")
            print(f"{'':8} {'p50':>8} {'p99':>8} {'lost':>6} {'double':>6}")
            found: dict[str, list[dict[str, float]]] = {"bare": [], "api": []}
            for number in range(rounds):
                sides = ("bare", "api") if number % 2 == 0 else ("api", "bare")
                for side in sides:
                    found[side].append(_round(rig, case, jobs, side, seconds))
            ratios = [a["p99"] / b["p99"] for a, b in zip(found["api"], found["bare"], strict=True)]
            ratio = statistics.median(ratios)
            broken = sum(r["lost"] + r["double"] for r in found["api"])
            verdicts.append(
                (
                    ratio <= case.limit and broken == 0,
                    f"fan-out to {case.clients} on {case.jobs}: p99 {ratio:.2f}× of bare "
                    f"(at most {case.limit}×), {broken:.0f} events lost or double",
                )
            )
    return verdicts


def _round(rig: Rig, case: Case, jobs: list[str], side: str, seconds: float) -> dict[str, float]:
    writer = Writer(rig, jobs, publish=side == "bare")
    paths = [
        (path_of(jobs[n % len(jobs)]), writer.last[jobs[n % len(jobs)]])
        for n in range(case.clients)
    ]
    port = rig.bare_port if side == "bare" else rig.port
    with watching(port, rig.key, paths) as compare:
        writer.run(seconds, RATE)
        result = compare(writer.committed)
    print(
        f"{side:8} {result['p50'] * 1000:8.1f} {result['p99'] * 1000:8.1f}"
        f" {result['lost']:6.0f} {result['double']:6.0f}",
        flush=True,
    )
    return result


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for good, said in measure(Path(name)):
            print("ok " if good else "NOT", said)
    sys.exit(0)
