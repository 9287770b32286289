"""XGen's calls on jobs: start, look, list and stop."""

from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, literal_column, select
from sqlalchemy.orm import Session

from app.errors import FieldProblem, InvalidPayload, NotFound
from app.jobs import listing
from app.jobs.hardware import hardware_for, hosts_online
from app.jobs.lifecycle import Status
from app.jobs.schemas import JobOut, JobQuery, Summary
from app.jobs.service import cancel_job, show_job
from app.jobs.spec import Gpus, JobSpec
from app.jobs.submit import Submission, once_for, submit
from app.models import Job
from app.settings import get_settings
from app.xgen.form import TrainForm
from app.xgen.mapping import map_form
from app.xgen.mapping.draft import Draft, Surroundings
from app.xgen.mapping.tracking import REFERENCE, reference_of
from app.xgen.schemas import TrainJob, TrainJobs, TrainStatus
from app.xgen.secret_names import SecretNames, keep
from app.xgen.words import WORD_OF
from trainer_core.problems import explain

_PAGE, _PAGES = 200, 5
_FIELDS = (
    "name,status,phase,message,waiting_for,progress,latest_metrics,created_at,started_at,"
    "finished_at"
)
_RUN: ColumnElement[str | None] = literal_column(f"jobs.spec #>> '{{labels,{REFERENCE}}}'")


def start(
    session: Session, project_id: str, form: TrainForm, key: str | None = None
) -> TrainStatus:
    """Make a job of the form, its secrets in the store; raises InvalidPayload with its fields."""
    draft = map_form(form, _surroundings(session, form))
    try:
        spec = JobSpec.model_validate(draft.spec)
    except ValidationError as error:
        problems = [FieldProblem(**p.model_dump()) for p in explain(error, (), JobSpec)]
        raise _in_its_words(draft, problems) from error
    keep(session, project_id, draft)
    once = once_for(key, _asked(form, draft))
    submission = Submission(project_id, spec, once=once, warnings=tuple(draft.warnings))
    try:
        return _status(submit(session, submission))
    except InvalidPayload as error:
        raise _in_its_words(draft, error.problems) from error


def _asked(form: TrainForm, draft: Draft) -> list[Any]:
    """What the caller wrote, whatever the hosts of the moment make of it; secrets by their names,
    unknown fields, whose values say nothing, too."""
    unknown = form.model_extra or {}
    said = form.model_dump(mode="json", exclude_unset=True, exclude=set(unknown))
    return ["xgen", said, sorted(unknown), sorted(draft.secrets)]


def _surroundings(session: Session, form: TrainForm) -> Surroundings:
    settings, hosts = get_settings(), hosts_online(session)
    wanted = None if form.number_gpu == 1 else Gpus(count=form.number_gpu)
    hardware = hardware_for(wanted, hosts) if hosts else None
    return Surroundings(settings, hardware, SecretNames(settings))


def _in_its_words(draft: Draft, problems: list[FieldProblem]) -> InvalidPayload:
    """The same problems, each at the form's field that it comes from."""
    told = []
    for problem in problems:
        name = draft.field_of(problem.pointer)
        message = f"{name} cannot be used: {problem.message}"
        told.append(FieldProblem(pointer=f"/{name}", message=message, value=problem.value))
    return InvalidPayload(told)


def find(session: Session, project_id: str, reference: str) -> str:
    """Return the id of the job with this id, or of the newest with this `mlflow_run_id`.

    Raises NotFound.
    """
    query = (
        select(Job.id)
        .where(
            Job.project_id == project_id,
            _RUN.in_([reference]) | (Job.id == reference),
        )
        .order_by((Job.id == reference).desc(), Job.created_at.desc(), Job.id.desc())
    )
    job_id = session.scalar(query.limit(1))
    if job_id is None:
        raise NotFound(
            f"there is no job {reference}: give the job_id that the start was answered with, or the"
            " mlflow_run_id of the form",
            "job_not_found",
        )
    return str(job_id)


def show(session: Session, project_id: str, reference: str) -> TrainStatus:
    """Return where the job stands; raises NotFound."""
    return _status(show_job(session, project_id, find(session, project_id, reference)))


def stop(session: Session, project_id: str, reference: str) -> TrainStatus:
    """Cancel the job; raises NotFound, and Conflict where it has ended already."""
    return _status(cancel_job(session, project_id, find(session, project_id, reference)))


def list_jobs(session: Session, project_id: str) -> TrainJobs:
    """Return the newest thousand jobs."""
    jobs: list[TrainJob] = []
    cursor = None
    for _ in range(_PAGES):
        query = JobQuery(limit=_PAGE, cursor=cursor, fields=_FIELDS)
        page = listing.list_jobs(session, project_id, query, {})
        named = _references(session, [each.id for each in page.items])
        jobs += [_listed(each, named[each.id]) for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    return TrainJobs(jobs=jobs, total=len(jobs), truncated=cursor is not None)


def _references(session: Session, jobs: list[str]) -> dict[str, str | None]:
    found = session.execute(select(Job.id, _RUN).where(Job.id.in_(jobs)))
    return {row[0]: row[1] for row in found}


def _listed(job: Summary, reference: str | None) -> TrainJob:
    status = job.status or Status.QUEUED
    return TrainJob(
        job_id=job.id,
        mlflow_run_id=reference,
        name=job.name or job.id,
        status=WORD_OF[status],
        polar_status=status,
        phase=job.phase,
        message=job.message or job.waiting_for,
        progress=job.progress,
        metrics=job.latest_metrics,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


def _status(job: JobOut) -> TrainStatus:
    listed = _listed(Summary.model_validate(job, from_attributes=True), reference_of(job.spec))
    return TrainStatus(**listed.model_dump(), warnings=job.warnings, links=job.links)
