"""Jobs in Postgres."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pydantic_core import to_json
from sqlalchemy import ColumnElement, Row, and_, func, or_, select, text, update
from sqlalchemy.orm import Session

from app.models import (
    Attempt,
    CheckpointRow,
    HubPush,
    Job,
    MlflowRun,
    ModelVersion,
    Preparation,
    Worker,
)


@dataclass(frozen=True)
class NewJob:
    """A job about to be written; everything was checked."""

    id: str
    project_id: str
    name: str
    labels: dict[str, str]
    priority: int
    task_type: str
    backend: str
    target: str
    spec: dict[str, Any]
    resolved: dict[str, Any]
    warnings: list[dict[str, Any]]
    max_attempts: int
    retry_of: str | None = None
    clone_of: str | None = None
    start_from: dict[str, Any] | None = None
    sweep_id: str | None = None
    sweep_run: int | None = None


@dataclass(frozen=True)
class Once:
    """An idempotency key with the hash of the request that it belongs to."""

    key: str | None
    body_hash: str
    hours: int


# One statement and one round trip, in the driver's own form: the key, the job, its first event,
# its preparation and the hint.
# Who holds the advisory lock is in flight; the loser finds no row and looks which case it is.
_INSERT = """
WITH once AS (
    INSERT INTO idempotency_keys AS k (project_id, key, body_hash, status_code, response)
    SELECT %(project_id)s, CAST(%(key)s AS text), %(body_hash)s, 201,
        CAST(%(answer)s AS jsonb) || jsonb_build_object('created_at', now(), 'updated_at', now())
    WHERE CAST(%(key)s AS text) IS NOT NULL AND pg_try_advisory_xact_lock(
        hashtextextended(%(project_id)s || '/' || CAST(%(key)s AS text), 0))
    ON CONFLICT (project_id, key) DO UPDATE SET body_hash = excluded.body_hash,
        response = excluded.response, created_at = now()
        WHERE k.created_at < now() - CAST(%(hours)s AS int) * interval '1 hour'
    RETURNING 1
), job AS (
    INSERT INTO jobs (id, project_id, name, labels, priority, phase, task_type, backend, target,
        spec, resolved, warnings, max_attempts, retry_of, clone_of, start_from,
        sweep_id, sweep_run, last_seq)
    SELECT %(id)s, %(project_id)s, %(name)s, CAST(%(labels)s AS jsonb), %(priority)s, 'preparing',
        %(task_type)s, %(backend)s, %(target)s, CAST(%(spec)s AS jsonb),
        CAST(%(resolved)s AS jsonb), CAST(%(warnings)s AS jsonb), %(max_attempts)s,
        %(retry_of)s, %(clone_of)s, CAST(%(start_from)s AS jsonb), %(sweep_id)s,
        CAST(%(sweep_run)s AS int), 1
    WHERE CAST(%(key)s AS text) IS NULL OR EXISTS (SELECT FROM once)
    RETURNING id, project_id, created_at
), event AS (
    INSERT INTO job_events (job_id, seq, project_id, type, data)
    SELECT id, 1, project_id, 'status', '{"status": "queued", "phase": "preparing"}' FROM job
), preparation AS (
    INSERT INTO preparations (job_id, project_id) SELECT id, project_id FROM job
), hint AS (
    INSERT INTO outbox (project_id, queue, handler, args)
    SELECT project_id, 'prepare', 'prepare', jsonb_build_array(id) FROM job
)
SELECT created_at FROM job
"""


def insert_job(
    session: Session, job: NewJob, once: Once, answer: dict[str, Any]
) -> datetime | None:
    """Write a queued job with its first event, preparation and hint; return its creation time.

    `answer` is remembered under the idempotency key. None: that key was used before. No nudge:
    nobody follows a job that nobody knows yet, and streams over all jobs look once a second.
    """
    values = {
        **{name: getattr(job, name) for name in _PLAIN},
        **{name: _json(getattr(job, name)) for name in _JSON},
        "key": once.key,
        "body_hash": once.body_hash,
        "hours": once.hours,
        "answer": _json(answer),
    }
    row = session.connection().exec_driver_sql(_INSERT, values).first()
    if row is None:
        return None
    created: datetime = row[0]
    return created


_JSON = ("labels", "spec", "resolved", "warnings", "start_from")
_PLAIN = (
    *("id", "project_id", "name", "priority", "task_type", "backend", "target"),
    *("max_attempts", "retry_of", "clone_of", "sweep_id", "sweep_run"),
)


def _json(value: Any) -> str | None:
    return None if value is None else to_json(value).decode()


def remembered(session: Session, project_id: str, once: Once) -> Row[Any] | None:
    """Return `body_hash` and `response` of a key that is not too old."""
    query = text(
        """SELECT body_hash, response FROM idempotency_keys
        WHERE project_id = :project_id AND key = :key
            AND created_at >= now() - CAST(:hours AS int) * interval '1 hour'"""
    )
    return session.execute(
        query, {"project_id": project_id, "key": once.key, "hours": once.hours}
    ).first()


def get_job(session: Session, project_id: str, job_id: str, *, lock: bool = False) -> Job | None:
    """Return the project's job; `lock` keeps others from changing it until the commit."""
    query = select(Job).where(Job.project_id == project_id, Job.id == job_id)
    if lock:  # what this session has read before may be old by now
        query = query.with_for_update().execution_options(populate_existing=True)
    return session.scalar(query)


def list_jobs(
    session: Session,
    project_id: str,
    columns: Sequence[str],
    conditions: Sequence[ColumnElement[bool]],
    limit: int,
) -> list[Row[Any]]:
    """Return a page of jobs, newest first, with only these columns."""
    query = (
        select(*(getattr(Job, name) for name in columns))
        .where(Job.project_id == project_id, *conditions)
        .order_by(Job.id.desc())
        .limit(limit)
    )
    return list(session.execute(query))


def queue_position(session: Session, job: Job) -> int:
    """Return the job's place among all queued jobs, 1 for the first."""
    ahead = or_(
        Job.priority > job.priority,
        and_(Job.priority == job.priority, Job.created_at < job.created_at),
    )
    query = select(func.count()).where(Job.status == "queued", ahead)
    return session.scalars(query).one() + 1


def attempts(session: Session, job_id: str) -> list[tuple[Attempt, str | None]]:
    """Return the job's attempts in order, each with its host's name."""
    query = (
        select(Attempt, Worker.hostname)
        .join(Worker, Worker.id == Attempt.worker_id, isouter=True)
        .where(Attempt.job_id == job_id)
        .order_by(Attempt.number)
    )
    return [(row[0], row[1]) for row in session.execute(query)]


class Companions(NamedTuple):
    """What a job has at most one of."""

    preparation: Preparation | None
    run: MlflowRun | None
    version: ModelVersion | None
    push: HubPush | None


def companions(session: Session, job_id: str) -> Companions:
    """Return the job's preparation, MLflow run, published model version and push to a hub."""
    return Companions(
        session.get(Preparation, job_id),
        session.get(MlflowRun, job_id),
        version_of(session, job_id),
        session.get(HubPush, job_id),
    )


def newest_checkpoint(session: Session, job_id: str) -> CheckpointRow | None:
    """Return the last attempt's whole checkpoint of the highest step.

    An attempt that went back passed over what came before it: that may be damaged.
    """
    query = (
        select(CheckpointRow)
        .join(Attempt, Attempt.id == CheckpointRow.attempt_id)
        .where(CheckpointRow.job_id == job_id, CheckpointRow.deleted_at.is_(None))
        .order_by(Attempt.number.desc(), CheckpointRow.step.desc())
    )
    return session.scalar(query.limit(1))


def checkpoint_prefixes(session: Session, job_id: str) -> list[str]:
    """Return where the job's checkpoints lie in the store."""
    return list(session.scalars(select(CheckpointRow.prefix).where(CheckpointRow.job_id == job_id)))


def retire_checkpoints(session: Session, job_id: str) -> None:
    """Have nobody start from the job's checkpoints any more; their objects are still there."""
    session.execute(
        update(CheckpointRow)
        .where(CheckpointRow.job_id == job_id, CheckpointRow.deleted_at.is_(None))
        .values(deleted_at=func.now())
    )


def version_of(session: Session, job_id: str) -> ModelVersion | None:
    """Return the model version that the job published."""
    return session.scalar(select(ModelVersion).where(ModelVersion.job_id == job_id))


def unreleased(session: Session, job_id: str) -> list[str]:
    """Return the ids of the job's attempts whose machine is not free yet."""
    query = select(Attempt.id).where(Attempt.job_id == job_id, Attempt.released_at.is_(None))
    return list(session.scalars(query))


def is_mirrored_still(session: Session, job_id: str) -> bool:
    """Say whether the job's MLflow run is open and MLflow answers, so that it will be closed."""
    run = session.get(MlflowRun, job_id)
    return run is not None and run.closed_status is None and run.failures == 0


def dependants(session: Session, job_id: str) -> list[str]:
    """Return open jobs that start from this job's checkpoint or model."""
    query = text(
        """SELECT id FROM jobs WHERE status NOT IN ('succeeded', 'failed', 'cancelled') AND (
            start_from ->> 'job_id' = :id OR (resolved #>> '{model,source}' = 'job'
                AND resolved #>> '{model,name_or_path}' = :id)) LIMIT 5"""
    )
    return list(session.scalars(query, {"id": job_id}))


def registering_sweep(session: Session, job_id: str) -> str | None:
    """Return the sweep that may still register this job's model."""
    query = text(
        """SELECT s.id FROM jobs j JOIN sweeps s ON s.id = j.sweep_id
        WHERE j.id = :id AND j.unregistered IS NOT NULL AND s.status = 'running'
            AND s.register_best AND s.cancel_requested_at IS NULL"""
    )
    found: str | None = session.scalar(query, {"id": job_id})
    return found


def request_cancel(session: Session, job_id: str) -> bool:
    """Write the wish to cancel; False when it was written before."""
    query = text(
        """UPDATE jobs SET cancel_requested_at = now(), updated_at = now()
        WHERE id = :id AND cancel_requested_at IS NULL RETURNING id"""
    )
    return session.execute(query, {"id": job_id}).first() is not None


_ASK_FOR_PAUSE = text(
    """UPDATE jobs SET pause_requested_at = now(), updated_at = now()
    WHERE id = :id AND pause_requested_at IS NULL RETURNING id"""
)
_WITHDRAW_PAUSE = text(
    """UPDATE jobs SET pause_requested_at = NULL, updated_at = now()
    WHERE id = :id AND pause_requested_at IS NOT NULL RETURNING id"""
)


def request_pause(session: Session, job_id: str, *, wanted: bool) -> bool:
    """Write or withdraw the wish to pause; False when nothing was to be changed."""
    statement = _ASK_FOR_PAUSE if wanted else _WITHDRAW_PAUSE
    return session.execute(statement, {"id": job_id}).first() is not None


def now(session: Session) -> datetime:
    """Return the database's time, the only one that decides anything."""
    return session.scalars(select(func.now())).one()


def wake_workers(session: Session, why: str) -> None:
    """Wake the reconciler and the supervisors at the commit."""
    session.execute(text("SELECT pg_notify('polar_work', :why)"), {"why": why})
