"""Fine-tuning jobs: the services of `/jobs`, asked and answered in OpenAI's words."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, text
from sqlalchemy.orm import Session

from app.db import transaction
from app.errors import InvalidPayload
from app.jobs.hardware import hosts_online
from app.jobs.schemas import JobOut
from app.jobs.submit import Submission, answer_before, once_for, submit
from app.models import Job
from app.openai import finding, ids, metrics, store, view
from app.openai.mapping import LABELS, spec_of
from app.openai.models import checkpoint_name
from app.openai.repeats import made_before
from app.openai.request import CheckpointQuery, JobListQuery, JobRequest
from app.openai.schemas import (
    CheckpointMetrics,
    FineTuningCheckpoint,
    FineTuningCheckpointPage,
    FineTuningJob,
    FineTuningJobPage,
    ends,
    seconds,
)
from app.series import service as series

Change = Callable[[Session, str, str], JobOut]


def create(
    session: Session,
    project_id: str,
    request: JobRequest,
    key: str | None,
    tried: str | None = None,
) -> FineTuningJob:
    """Make a job; with a key used before, return that request's job as it stands now.

    Without a key, `tried` says how often the client has sent it before: see `made_before`.
    Raises InvalidPayload with the request's parameters, and Conflict as `submit` does.
    """
    once = once_for(key, ["openai", request.model_dump(mode="json", exclude_unset=True)])
    made = answer_before(session, project_id, once)
    if made is None:
        spec, draft = spec_of(session, project_id, request, hosts_online(session))
        if key is None and (found := made_before(session, project_id, spec, tried)) is not None:
            return show(session, project_id, found)
        try:
            made = submit(session, Submission(project_id, spec, key, once=once))
        except InvalidPayload as error:
            raise draft.in_its_words(error.problems) from error
    return show(session, project_id, made.id)


def show(session: Session, project_id: str, given: str) -> FineTuningJob:
    """Return the job; raises NotFound."""
    [shown] = view.of_jobs(session, [finding.find(session, project_id, given)])
    return shown


def change(session: Session, project_id: str, given: str, how: Change) -> FineTuningJob:
    """Cancel, pause or resume a job; raises NotFound, and Conflict for a wrong moment."""
    job = finding.find(session, project_id, given)
    how(session, project_id, job.id)
    session.refresh(job)
    [shown] = view.of_jobs(session, [job])
    return shown


def list_jobs(
    session: Session, project_id: str, query: JobListQuery, metadata: Mapping[str, str]
) -> FineTuningJobPage:
    """Return a page of jobs that have this metadata, newest first; raises InvalidPayload."""
    conditions = list(_conditions(query, metadata))
    jobs = store.list_jobs(session, project_id, conditions, query.limit + 1)
    data = view.of_jobs(session, jobs[: query.limit])
    return FineTuningJobPage(data=data, has_more=len(jobs) > query.limit, **ends(data))


def _conditions(query: JobListQuery, metadata: Mapping[str, str]) -> list[ColumnElement[bool]]:
    labels: Any = Job.labels
    found: list[ColumnElement[bool]] = []
    if metadata:
        found.append(labels.contains({f"{LABELS}{k}": v for k, v in metadata.items()}))
    if query.metadata == "null":
        none = text("NOT EXISTS (SELECT FROM jsonb_object_keys(jobs.labels) AS k WHERE k ^@ :own)")
        found.append(none.bindparams(own=LABELS))  # type: ignore[arg-type]
    if query.after is not None:
        found.append(Job.id < ids.job_after(query.after))
    return found


def checkpoints(project_id: str, given: str, query: CheckpointQuery) -> FineTuningCheckpointPage:
    """Return the job's checkpoints with what was measured until then.

    Raises NotFound and InvalidPayload.
    """
    with transaction() as session:
        job_id = finding.find(session, project_id, given).id
        after = None if query.after is None else ids.checkpoint_after(query.after)
        rows = store.list_checkpoints(session, job_id, after, query.limit + 1)
    steps = metrics.steps_of(series.find(project_id, job_id)) if rows else {}
    data = [
        FineTuningCheckpoint(
            id=ids.ftckpt_id(row.id),
            created_at=seconds(row.created_at),
            fine_tuning_job_id=ids.ftjob_id(job_id),
            fine_tuned_model_checkpoint=checkpoint_name(job_id, row.step),
            step_number=row.step,
            metrics=_measured(steps, row.step),
        )
        for row in rows[: query.limit]
    ]
    return FineTuningCheckpointPage(data=data, has_more=len(rows) > query.limit, **ends(data))


def _measured(steps: metrics.Steps, step: int) -> CheckpointMetrics:
    """Validation is always over all validation rows that a job evaluates on."""
    newest = metrics.newest_at(steps, step)
    full = {f"full_{name}": value for name, value in newest.items() if name.startswith("valid_")}
    return CheckpointMetrics(step=step, **newest, **full)
