"""How a job looks from outside."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from sqlalchemy.orm import Session

from app.hub.store import hub_of
from app.jobs import store
from app.jobs.lifecycle import OPEN, RULES, FailureReason, Status
from app.jobs.schemas import AttemptOut, ExternalRefs, HubRef, JobOut, MlflowRef, ModelRefOut
from app.jobs.store import Companions, NewJob
from app.models import Attempt, HubPush, Job, MlflowRun, Preparation
from app.preparations.room import is_planned
from app.settings import get_settings

_SAME = (
    *("id", "name", "labels", "priority", "task_type", "backend", "target", "spec", "resolved"),
    *("warnings", "retry_of", "clone_of", "start_from", "max_attempts", "sweep_id"),
)
_STATE = (
    *("status", "phase", "reason", "message", "cancel_requested_at", "progress"),
    *(
        "pause_requested_at",
        "latest_metrics",
        "created_at",
        "updated_at",
        "started_at",
        "finished_at",
    ),
)
_PUSH = ("state", "message", "kind", "step", "commit", "pushed_at")
_NOTHING_YET: dict[str, Any] = dict.fromkeys(
    (
        *("reason", "message", "turn", "queue_position", "cancel_requested_at", "progress"),
        *("pause_requested_at", "latest_metrics", "started_at", "finished_at"),
    )
)


def of_new(job: NewJob) -> JobOut:
    """Return the job as it looks at the moment that it is written."""
    now = datetime.now(UTC)  # replaced by the database's time
    return JobOut(
        **{name: getattr(job, name) for name in _SAME},
        **_NOTHING_YET,
        status=Status.QUEUED,
        phase="preparing",
        waiting_for=_PREPARING["waiting"],
        attempts=[],
        links=_links(job.id, Status.QUEUED),
        external_refs=ExternalRefs(storage=_storage(job.project_id, job.id)),
        created_at=now,
        updated_at=now,
    )


def of_job(session: Session, job: Job) -> JobOut:
    """Return the job with its attempts, place in the queue and traces elsewhere."""
    beside = store.companions(session, job.id)
    status = Status(job.status)
    waiting = status is Status.QUEUED
    return JobOut(
        **{name: getattr(job, name) for name in (*_SAME, *_STATE)},
        turn=RULES[FailureReason(job.reason)].turn if job.reason else None,
        waiting_for=_waiting_for(session, job, beside.preparation) if waiting else None,
        queue_position=store.queue_position(session, job) if waiting else None,
        attempts=_attempts(store.attempts(session, job.id)),
        links=_links(job.id, status),
        external_refs=_references(job, beside),
    )


_PREPARING = {
    "waiting": "a free prepare worker",
    "running": "its data, which are being prepared",
    "failed": "its data, whose preparation has failed",
}


def _waiting_for(session: Session, job: Job, preparation: Preparation | None) -> str:
    if job.not_before is not None and job.not_before > store.now(session):
        return f"the next attempt, not before {job.not_before.astimezone(UTC).isoformat()}"
    if job.prepared_key is None and preparation is not None:
        if "plan_id" in job.spec and is_planned(session, job.id):
            return "its plan, which is being made"
        return _PREPARING.get(preparation.status, "its data")
    return job.waiting_for or "a free device"


def _attempts(rows: list[tuple[Attempt, str | None]]) -> list[AttemptOut]:
    following = [row for row, _ in rows[1:]]
    return [
        AttemptOut(
            **{
                name: getattr(row, name)
                for name in AttemptOut.model_fields
                if name not in ("machine", "steps_lost")
            },
            machine=hostname or row.worker_id,
            steps_lost=_steps_lost(row, following[i] if i < len(following) else None),
        )
        for i, (row, hostname) in enumerate(rows)
    ]


def _steps_lost(row: Attempt, following: Attempt | None) -> int | None:
    if following is None or following.started_at is None or row.last_step is None:
        return None
    return max(0, row.last_step - (following.resumed_step or 0))


_POSSIBLE = {Status.PAUSED: ("cancel", "resume"), Status.FINALIZING: ("cancel",)}


def _links(job_id: str, status: Status) -> dict[str, str]:
    own = f"/jobs/{job_id}"
    parts = ("events", "logs", "metrics", "checkpoints", "artifacts")
    possible = _POSSIBLE.get(status, ("cancel", "pause") if status in OPEN else ("retry",))
    return {"self": own} | {name: f"{own}/{name}" for name in (*parts, *possible, "clone")}


def _storage(project_id: str, job_id: str) -> str:
    return f"s3://{get_settings().s3_bucket}/{project_id}/jobs/{job_id}/"


def _references(job: Job, beside: Companions) -> ExternalRefs:
    version = beside.version
    return ExternalRefs(
        storage=_storage(job.project_id, job.id),
        mlflow=beside.run and _mlflow(beside.run),
        model=version and ModelRefOut(id=version.id, name=version.name, version=version.version),
        hub=beside.push and _hub(job, beside.push),
    )


def _hub(job: Job, push: HubPush) -> HubRef:
    """As the spec has it, also where this version would not take that any more."""
    hub = hub_of(job.spec) or {}
    repo_id, revision = str(hub.get("repo_id", "")), str(hub.get("revision", "main"))
    endpoint = get_settings().hub_endpoint.rstrip("/")
    return HubRef(
        repo_id=repo_id,
        revision=revision,
        url=f"{endpoint}/{repo_id}/tree/{quote(revision, safe='')}",
        **{name: getattr(push, name) for name in _PUSH},
    )


def _mlflow(run: MlflowRun) -> MlflowRef:
    base, url = get_settings().mlflow_url, None
    if base and run.run_id:
        url = f"{base.rstrip('/')}/#/experiments/{run.experiment_id}/runs/{run.run_id}"
    return MlflowRef(experiment_id=run.experiment_id, run_id=run.run_id, url=url)
