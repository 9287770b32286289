"""Rows of `mlflow_runs`: which job's run is due, and how far it has come."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.settings import get_settings

# While one mirror works on a run the others leave it alone; one that dies is forgotten after this.
CLAIM_SECONDS = 120.0
EVENTS_PER_STEP = 2000
LONGEST_BACKOFF = 600.0
GIVEN_UP_DAYS = 30  # from a job's end
FIRST_AFTER = 1.0  # a job that starts has the machine to itself; a short one is carried at once


@dataclass(frozen=True)
class Due:
    """A run to bring up to date, with what the job says now."""

    job_id: str
    project: str
    experiment_id: str | None
    run_id: str | None
    synced_seq: int
    failures: int
    name: str
    labels: dict[str, Any]
    spec: dict[str, Any]
    resolved: dict[str, Any]
    status: str
    reason: str | None
    message: str | None
    last_seq: int
    started_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    attempts: int


def follow(session: Session, job_id: str, project_id: str) -> None:
    """Mirror this job from now on; nothing is done where no MLflow server is configured."""
    if get_settings().mlflow_url is None:
        return
    session.execute(
        text(
            "INSERT INTO mlflow_runs (job_id, project_id, next_at) VALUES (:job, :project,"
            " now() + CAST(:delay AS float) * interval '1 second') ON CONFLICT DO NOTHING"
        ),
        {"job": job_id, "project": project_id, "delay": FIRST_AFTER},
    )


_CLAIM = text(
    """
    UPDATE mlflow_runs SET next_at = now() + CAST(:claim AS float) * interval '1 second'
    WHERE job_id = (
        SELECT m.job_id FROM mlflow_runs m JOIN jobs j ON j.id = m.job_id
        WHERE m.closed_status IS NULL AND m.next_at <= now()
            AND (m.run_id IS NULL OR j.last_seq > m.synced_seq OR j.finished_at IS NOT NULL)
        ORDER BY m.next_at LIMIT 1 FOR UPDATE OF m SKIP LOCKED)
    RETURNING job_id
    """
)
_DUE = text(
    """
    SELECT m.job_id, p.name AS project, m.experiment_id, m.run_id, m.synced_seq, m.failures,
        j.name, j.labels, j.spec, j.resolved, j.status, j.reason, j.message, j.last_seq,
        j.started_at, j.created_at, j.finished_at,
        (SELECT count(*) FROM attempts a WHERE a.job_id = j.id) AS attempts
    FROM mlflow_runs m JOIN jobs j ON j.id = m.job_id JOIN projects p ON p.id = m.project_id
    WHERE m.job_id = :job
    """
)


def claim_due(session: Session) -> Due | None:
    """Take the run that has waited longest for an update; None when all are up to date."""
    job = session.execute(_CLAIM, {"claim": CLAIM_SECONDS}).scalar()
    if job is None:
        return None
    return Due(**session.execute(_DUE, {"job": job}).mappings().one())


def metrics_after(session: Session, due: Due) -> tuple[list[tuple[datetime, dict[str, Any]]], int]:
    """Return the job's next metrics events and the sequence number up to which they are whole."""
    rows = session.execute(
        text(
            "SELECT seq, time, data FROM job_events WHERE job_id = :job AND type = 'metrics'"
            " AND seq > :after AND seq <= :upto ORDER BY seq LIMIT :limit"
        ),
        {
            "job": due.job_id,
            "after": due.synced_seq,
            "upto": due.last_seq,
            "limit": EVENTS_PER_STEP,
        },
    ).all()
    reached = rows[-1].seq if len(rows) == EVENTS_PER_STEP else due.last_seq
    return [(row.time, row.data) for row in rows], reached


def save_run(session: Session, job_id: str, experiment_id: str, run_id: str) -> None:
    """Keep which run of MLflow is the job's."""
    session.execute(
        text("UPDATE mlflow_runs SET experiment_id = :exp, run_id = :run WHERE job_id = :job"),
        {"exp": experiment_id, "run": run_id, "job": job_id},
    )


def save_progress(session: Session, job_id: str, synced_seq: int, wait: float) -> None:
    """Keep how far the run has come; it is looked at again after `wait` seconds."""
    session.execute(
        text(
            "UPDATE mlflow_runs SET synced_seq = greatest(synced_seq, :seq), failures = 0,"
            " error = NULL, next_at = now() + CAST(:wait AS float) * interval '1 second'"
            " WHERE job_id = :job"
        ),
        {"seq": synced_seq, "wait": wait, "job": job_id},
    )


def save_closed(session: Session, job_id: str, status: str, error: str | None = None) -> None:
    """Keep that the run is closed for good; it is never looked at again."""
    session.execute(
        text("UPDATE mlflow_runs SET closed_status = :status, error = :error WHERE job_id = :job"),
        {"status": status, "error": error, "job": job_id},
    )


_GIVE_UP = text(
    """
    UPDATE mlflow_runs m SET closed_status = 'GIVEN_UP', error = coalesce(error, :why)
    FROM jobs j WHERE j.id = m.job_id AND m.closed_status IS NULL
        AND j.finished_at < now() - CAST(:days AS int) * interval '1 day'
        AND (m.failures > 0 OR :removed)
    RETURNING 1
    """
)


def give_up(session: Session) -> int:
    """Close runs that MLflow has refused ever since their jobs ended, or is not there for any more.

    Events are kept in Postgres for the mirror, so its waiting needs an end. Returns how many.
    """
    values = {
        "days": GIVEN_UP_DAYS,
        "removed": get_settings().mlflow_url is None,
        "why": "no MLflow server is configured any more",
    }
    return len(session.execute(_GIVE_UP, values).all())


def save_failure(session: Session, due: Due, error: str) -> float:
    """Keep that MLflow did not answer; returns the seconds until the next try."""
    wait = min(2.0**due.failures, LONGEST_BACKOFF)
    session.execute(
        text(
            "UPDATE mlflow_runs SET failures = failures + 1, error = :error,"
            " next_at = now() + CAST(:wait AS float) * interval '1 second' WHERE job_id = :job"
        ),
        {"error": error[:500], "wait": wait, "job": due.job_id},
    )
    return wait


@dataclass(frozen=True)
class Published:
    """The model that the job published."""

    name: str
    version: int
    prefix: str
    kind: str
    base_model: str
    manifest_sha256: str
    metrics: dict[str, Any]


def published(session: Session, job_id: str) -> Published | None:
    """Return the model version that the job made, None for one that made none."""
    row = session.execute(
        text(
            "SELECT name, version, prefix, kind, base_model, manifest_sha256, metrics"
            " FROM model_versions WHERE job_id = :job"
        ),
        {"job": job_id},
    ).first()
    return None if row is None else Published(*row)


def small_files(session: Session, job_id: str, limit: int) -> list[tuple[str, str]]:
    """Return (path, key) of the job's artifacts up to `limit` bytes that people read."""
    rows = session.execute(
        text(
            "SELECT path, key FROM artifacts WHERE job_id = :job AND size <= :limit"
            " AND path ~ '[.](json|md|txt|jinja|jsonl)$' ORDER BY path"
        ),
        {"job": job_id, "limit": limit},
    )
    return [(row.path, row.key) for row in rows]
