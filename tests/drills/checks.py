"""What must hold for every job of a wave, whatever broke."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar.stack import proctree
from tests.drills.stack import DrillWorld
from tests.drills.wave import Case
from tests.services import wait_until

STORED = ("metrics", "warning", "log")


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: the job's status, and its attempts' outcomes with their reasons."""

    status: str
    attempts: tuple[str, ...]
    seconds: float


def check_job(world: DrillWorld, case: Case, losses: dict[int, float]) -> Outcome:
    """Check one job against the undisturbed run; returns how it ended."""
    job = world.get(case.job_id)
    expected = "cancelled" if case.moment == "cancel" else "succeeded"
    assert job["status"] == expected, (case.moment, job["status"], job["reason"], job["message"])
    attempts = _attempts(world, case.job_id)
    _one_at_a_time(attempts)
    events = world.events(case.job_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    _nothing_from_the_fenced(world, case.job_id, attempts)
    for attempt in attempts:
        _every_event(world, case.job_id, attempt)
    _same_losses(events, losses, whole=expected == "succeeded")
    _one_model(world, case.job_id, published=expected == "succeeded")
    _nothing_left(world, case.job_id)
    return Outcome(
        expected, tuple(_ending(attempt) for attempt in attempts), round(case.seconds, 1)
    )


def _attempts(world: DrillWorld, job_id: str) -> list[dict[str, Any]]:
    names = ("id", "number", "outcome", "reason", "claimed_at", "finished_at", "last_n")
    rows = world.sql(
        "SELECT id, number, outcome, reason, claimed_at, finished_at, last_n FROM attempts"
        " WHERE job_id = %s ORDER BY number",
        job_id,
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def _ending(attempt: dict[str, Any]) -> str:
    return str(attempt["reason"] or attempt["outcome"])


def _one_at_a_time(attempts: list[dict[str, Any]]) -> None:
    """No attempt held a lease while another one did, by the database's clock."""
    for earlier, later in itertools.pairwise(attempts):
        assert earlier["finished_at"] is not None
        assert later["claimed_at"] is None or later["claimed_at"] >= earlier["finished_at"]


def _nothing_from_the_fenced(
    world: DrillWorld, job_id: str, attempts: list[dict[str, Any]]
) -> None:
    """Once an attempt was over, no event and no checkpoint of it was accepted."""
    number = {attempt["id"]: attempt["number"] for attempt in attempts}
    rows = world.sql(
        "SELECT attempt_id FROM job_events WHERE job_id = %s AND attempt_id IS NOT NULL"
        " ORDER BY seq",
        job_id,
    )
    order = [number[row[0]] for row in rows]
    assert order == sorted(order), order
    late = world.sql(
        "SELECT c.attempt_id, c.step FROM checkpoints c JOIN attempts a ON a.id = c.attempt_id"
        " WHERE c.job_id = %s AND c.created_at > a.finished_at",
        job_id,
    )
    assert late == []


def _every_event(world: DrillWorld, job_id: str, attempt: dict[str, Any]) -> None:
    """What the trainer said up to the last accepted number is there, each once."""
    path = world.inside("attempts") / attempt["id"] / "events.jsonl"
    said = _whole_lines(path)
    assert [event["n"] for event in said] == list(range(1, len(said) + 1))
    if attempt["outcome"] == "succeeded":
        assert attempt["last_n"] == len(said)
    assert attempt["last_n"] <= len(said)
    wanted = [
        (event["n"], event["type"], event["data"])
        for event in said
        if event["n"] <= attempt["last_n"] and event["type"] in STORED
    ]
    kept = world.sql(
        "SELECT n, type, data FROM job_events WHERE job_id = %s AND attempt_id = %s AND n IS NOT"
        " NULL AND type = ANY(%s) ORDER BY seq",
        *(job_id, attempt["id"], list(STORED)),
    )
    assert list(told_apart(kept)) == [(kind, data) for _, kind, data in wanted]
    last = {n for n, _, _ in kept}
    assert last <= {n for n, _, _ in wanted}


def told_apart(kept: list[tuple[int, str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return what was stored with floods of metrics, which become one event, taken apart again."""
    for _, kind, data in kept:
        for point in data.get("points", [data]) if kind == "metrics" else [data]:
            yield kind, {name: value for name, value in point.items() if name != "time"}


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # a torn last line is no event
    return [json.loads(line) for line in lines]


def _same_losses(events: list[dict[str, Any]], losses: dict[int, float], *, whole: bool) -> None:
    """Every loss that was ever reported is the undisturbed run's of that step, digit by digit."""
    seen: dict[int, float] = {}
    for event in events:
        if event["type"] == "metrics" and "loss" in event["data"]:
            step, loss = event["data"]["step"], event["data"]["loss"]
            assert loss == losses.get(step, loss), (step, loss, losses[step])
            seen[step] = loss
    if whole:
        assert seen == losses


def _one_model(world: DrillWorld, job_id: str, *, published: bool) -> None:
    rows = world.sql("SELECT count(*) FROM model_versions WHERE job_id = %s", job_id)
    assert rows == [(int(published),)]


def _nothing_left(world: DrillWorld, job_id: str) -> None:
    """No process, no device and no hint of the job is left."""
    wait_until(
        lambda: (
            world.sql(
                "SELECT count(*) FROM attempts WHERE job_id = %s AND released_at IS NULL", job_id
            )
            == [(0,)]
        ),
        timeout=30,
    )
    wait_until(lambda: not world.leftovers(job_id), timeout=30, every=0.2)


def check_rest(world: DrillWorld) -> None:
    """When all jobs have ended nothing is held: devices, hints, supervisors, folders."""
    assert world.sql("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == []
    wait_until(lambda: world.sql("SELECT count(*) FROM outbox") == [(0,)], timeout=60)
    stack = int(world.state.identity.partition(":")[0])
    wait_until(
        lambda: not [s for s in proctree.descendants(stack) if s.name == "polar-lease"],
        timeout=30,
    )
    left = world.inside("preparations")
    wait_until(lambda: not left.exists() or not list(left.iterdir()), timeout=30)
