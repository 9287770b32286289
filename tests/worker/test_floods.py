"""Floods of logs and metrics: what is stored of them, and that nothing which counts is lost."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.attempts import service
from app.attempts.coalesce import LONGEST, MOST
from app.attempts.quota import LAST_LINES, RESERVE
from app.db import transaction
from app.settings import Settings, get_settings
from app.tracking.convert import metric_points
from tests.worker.test_attempts import again, claimed, end, event, ingest, stream
from trainer_core.events import EventWriter, RunEvent
from worker.carrier import Carrier
from worker.redact import Redactor

pytestmark = pytest.mark.usefixtures("settings")
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def quota(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> int:
    """A quota of 100 lines."""
    del settings
    monkeypatch.setenv("POLAR_LOG_LINES", "100")
    get_settings.cache_clear()
    return 100


def carry_all(work: Path, claim: service.Claim, *, final: bool) -> None:
    """Carry as the supervisor does, until nothing is left."""
    carrier = Carrier(work, claim.attempt_id, claim.token, Redactor([]))
    while True:
        with transaction() as session:
            load = carrier.carry(session, final=final)
        list(carrier.done(load))
        if load.empty:
            return


def logs(job_id: str) -> list[str]:
    return [data["message"] for kind, data in stream(job_id) if kind == "log"]


def warnings(job_id: str) -> list[str]:
    return [data["code"] for kind, data in stream(job_id) if kind == "warning"]


@pytest.mark.parametrize("lines", [1000, 50_000])
def test_b19_a_full_log_says_so_once_and_keeps_its_tail(
    tmp_path: Path, quota: int, lines: int
) -> None:
    """The first 100 lines and the last 200 are stored, whether it is one batch or many."""
    job_id, claim = claimed()
    (tmp_path / "output.log").write_text("".join(f"line {n}\n" for n in range(lines)))
    carry_all(tmp_path, claim, final=True)
    kept = [int(line.split()[1]) for line in logs(job_id)]
    assert kept == [*range(quota), *range(lines - LAST_LINES, lines)]
    assert warnings(job_id) == ["log_quota"]
    carry_all(tmp_path, claim, final=True)  # a supervisor that was restarted
    assert len(logs(job_id)) == len(kept)


def test_b19_the_tail_is_kept_when_the_end_comes_later(tmp_path: Path, quota: int) -> None:
    """What was left out while the trainer ran is looked for in the file when it has ended."""
    job_id, claim = claimed()
    output = tmp_path / "output.log"
    output.write_text("".join(f"line {n}\n" for n in range(500)))
    carrier = Carrier(tmp_path, claim.attempt_id, claim.token, Redactor([]))
    for more in ("", "line 500\nline 501\n"):
        with output.open("a") as file:
            file.write(more)
        for final in (False, True, True) if more else (False,):
            with transaction() as session:
                load = carrier.carry(session, final=final)
            list(carrier.done(load))
    kept = [int(line.split()[1]) for line in logs(job_id)]
    assert kept == [*range(quota), *range(502 - LAST_LINES, 502)]


def test_the_quota_is_the_jobs_and_its_reserve_is_bounded(quota: int) -> None:
    """Attempts share it; warnings and errors are stored beyond it, up to the reserve."""
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="training"))
    said = [event(n, "log", level="info", message=f"a{n}") for n in range(2, 202)]
    ingest(claim, *said)
    assert len(logs(job_id)) == quota
    end(claim)
    second = again(job_id, claim)
    ingest(second, event(1, "phase", phase="training"), event(2, "log", level="info", message="b"))
    assert "b" not in logs(job_id)
    errors = [event(n, "log", level="error", message=f"e{n}") for n in range(3, 3003)]
    ingest(second, *errors)
    assert logs(job_id)[-1] == f"e{2 + RESERVE}"
    assert len(logs(job_id)) == quota + RESERVE
    assert warnings(job_id) == ["log_quota"]


def point(n: int, step: int, at: datetime, **values: float) -> RunEvent:
    return RunEvent(n=n, time=at, type="metrics", data={"step": step, **values})


def test_a_flood_of_metrics_becomes_few_events_that_hold_every_point() -> None:
    """1000 points within a second: a tenth of a second each is one event, the newest on top."""
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="training"))
    points = [
        point(step + 1, step, NOON + timedelta(milliseconds=step), loss=1 / step)
        for step in range(1, 1001)
    ]
    ingest(claim, *points)
    stored = [data for kind, data in stream(job_id) if kind == "metrics"]
    assert 5 <= len(stored) <= 11
    assert (stored[-1]["step"], stored[-1]["loss"]) == (1000, 1 / 1000)
    found = [p for data in stored for p in data["points"]]
    assert {p["step"]: p["loss"] for p in found} == {step: 1 / step for step in range(1, 1001)}
    assert [p["step"] for p in found] == list(range(1, 1001))
    assert max(len(data["points"]) for data in stored) <= LONGEST
    assert ingest(claim, *points) == 0  # a replay
    mirrored = metric_points((NOON, data) for data in stored)
    assert [(p["step"], p["value"]) for p in mirrored] == [(s, 1 / s) for s in range(1, 1001)]
    assert mirrored[-1]["timestamp"] == int((NOON.timestamp() + 1) * 1000)


@pytest.mark.parametrize("between", [timedelta(milliseconds=10), timedelta(seconds=1)])
def test_metrics_at_the_speed_of_training_are_stored_one_by_one(between: timedelta) -> None:
    """Up to 200 a second, also when they come late in one batch."""
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="training"))
    ingest(claim, *[point(n + 1, n, NOON + n * between, loss=n) for n in range(1, 401)])
    stored: list[dict[str, Any]] = [data for kind, data in stream(job_id) if kind == "metrics"]
    assert stored == [{"step": n, "loss": n} for n in range(1, 401)]
    assert MOST == 20


def test_the_trainers_own_file_is_read_through_the_flood(tmp_path: Path) -> None:
    """From `events.jsonl` to the mirror: every point of 2000 written at once."""
    job_id, claim = claimed()
    writer = EventWriter(tmp_path / "events.jsonl")
    writer.emit("phase", phase="training")
    for step in range(1, 2001):
        writer.emit("metrics", step=step, loss=1.0 / step)
    carry_all(tmp_path, claim, final=True)
    stored = [(NOON, data) for kind, data in stream(job_id) if kind == "metrics"]
    assert {p["step"]: p["value"] for p in metric_points(stored)} == {
        step: 1.0 / step for step in range(1, 2001)
    }
