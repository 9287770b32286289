"""Ingest in batches of 500 over 50 jobs against bare `COPY` into the same table, in turns."""

import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from app.attempts import service
from app.db import transaction
from bench.streams_rig import Rig, running
from trainer_core.events import RunEvent

BATCH, JOBS = 500, 50
LIMIT = 0.7
LEASE = "bench"


def measure(folder: Path) -> list[tuple[bool, str]]:
    """Measure and return what was found about the limit."""
    rounds, batches = (3, 2) if os.environ.get("BENCH_QUICK") else (7, 6)
    with running(folder) as rig:
        ours, bare = _jobs(rig), _jobs(rig)
        _let_anything_in(rig, list(bare))
        rates: dict[str, list[float]] = {"ingest": [], "copy": []}
        done = {"ingest": 0, "copy": 0}
        sides = {"ingest": _ingest(ours), "copy": _copy(rig, bare)}
        for side, write in sides.items():
            _round(write, done, side, 1)  # warm both
        for number in range(rounds):
            for side in sorted(sides, reverse=number % 2 == 0):
                rates[side].append(_round(sides[side], done, side, batches))
        ratio = statistics.median(
            a / b for a, b in zip(rates["ingest"], rates["copy"], strict=True)
        )
        print(f"batches of {BATCH} over {JOBS} jobs (events/s)")
        for side, found in rates.items():
            print(f"{side:8} {statistics.median(found):10.0f}")
        for number in range(done["ingest"]):
            sides["ingest"]([_events(number)])  # everything again, as after a crash
        gaps = _gaps(rig, list(ours), done["ingest"] * BATCH)
    said = f"ingest: {ratio:.2f}× of bare COPY (at least {LIMIT}×), {gaps} jobs with a gap"
    return [(ratio >= LIMIT and gaps == 0, said)]


Write = Callable[[list[list[RunEvent]]], None]


def _round(write: Write, done: dict[str, int], side: str, batches: int) -> float:
    events = [_events(number) for number in range(done[side], done[side] + batches)]
    began = time.perf_counter()
    write(events)
    seconds = time.perf_counter() - began
    done[side] += batches
    return batches * BATCH * JOBS / seconds


def _events(batch: int) -> list[RunEvent]:
    """Return a batch as a trainer writes them: mostly metrics, some lines of its log."""
    at = datetime.now(UTC)
    events = []
    for n in range(batch * BATCH + 1, (batch + 1) * BATCH + 1):
        if n % 5:
            data = {"step": n, "epoch": n / 5000, "loss": 1 + 1 / n, "learning_rate": 1.8e-4}
            data |= {"grad_norm": 0.731, "tokens_per_second": 5120.5}
            kind = "metrics"
        else:
            data, kind = {"level": "info", "message": f"step {n} of 100000 is done"}, "log"
        # Two a second apart: none of these is a flood that would be joined.
        time_ = datetime.fromtimestamp(at.timestamp() + n, UTC)
        events.append(RunEvent.model_construct(n=n, time=time_, type=kind, data=data))
    return events


def _jobs(rig: Rig) -> dict[str, str]:
    """Make running jobs, each with a claimed attempt."""
    made = {job: f"att_{secrets.token_hex(13).upper()}" for job in rig.jobs(JOBS)}
    with rig.connect() as connection:
        for status in ("provisioning", "running"):
            connection.execute(
                "UPDATE jobs SET status = %s WHERE id = ANY(%s)", [status, list(made)]
            )
        for job, attempt in made.items():
            connection.execute(
                """INSERT INTO attempts (id, project_id, job_id, number, target, nonce,
                lease_token, lease_expires_at, claimed_at) VALUES (%s, 'prj_default', %s, 1,
                'local', 'n', %s, now() + interval '1 hour', now())""",
                [attempt, job, LEASE],
            )
    return made


def _let_anything_in(rig: Rig, jobs: list[str]) -> None:
    """Let the guards of the table take any seq of these jobs, so that COPY needs nothing else."""
    with rig.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE jobs SET last_seq = 1000000000 WHERE id = ANY(%s)", [jobs])


def _ingest(jobs: dict[str, str]) -> Write:
    def write(batches: list[list[RunEvent]]) -> None:
        for events in batches:
            for attempt in jobs.values():
                with transaction() as session:
                    service.ingest(session, attempt, LEASE, events)

    return write


def _copy(rig: Rig, jobs: dict[str, str]) -> Write:
    connection = rig.connect()
    into = """COPY job_events (job_id, seq, project_id, time, attempt_id, n, type, data)
        FROM STDIN"""

    def write(batches: list[list[RunEvent]]) -> None:
        for events in batches:
            for job, attempt in jobs.items():
                with connection.transaction(), connection.cursor().copy(into) as copy:
                    for e in events:
                        data = json.dumps(e.data)
                        row = (job, e.n, "prj_default", e.time, attempt, e.n, e.type, data)
                        copy.write_row(row)

    return write


def _gaps(rig: Rig, jobs: list[str], expected: int) -> int:
    """Return how many jobs do not hold each of `expected` numbers once, in the order of seq."""
    query = """SELECT count(*) FROM (
        SELECT j.id FROM jobs j JOIN job_events e ON e.job_id = j.id WHERE j.id = ANY(%s)
        GROUP BY j.id HAVING count(*) = %s AND max(j.last_seq) = %s AND max(e.seq) = %s
            AND count(DISTINCT e.n) = %s AND bool_and(e.n = e.seq)) AS whole"""
    with rig.connect() as connection:
        values = [jobs, expected, expected, expected, expected]
        row = connection.execute(query, values).fetchone()
    assert row is not None
    return len(jobs) - int(row[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for good, said in measure(Path(name)):
            print("ok " if good else "NOT", said)
    sys.exit(0)
