"""What can be done with jobs; shared by routes, handlers and supervisors."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from app.errors import Conflict, FieldProblem, InvalidPayload, NotFound
from app.events.archiving import archive_prefix
from app.events.store import append_events
from app.jobs import store, view
from app.jobs.lifecycle import OPEN, TERMINAL, Change, Status, transition
from app.jobs.schemas import CloneRequest, JobOut, JobPatch, RetryRequest
from app.jobs.spec import JobSpec
from app.jobs.submit import Origin, Submission, answer_before, once_for, submit
from app.models import Job, ModelVersion
from app.registry.service import delete_files, mark_deleted
from app.settings import get_settings
from app.storage import Store
from trainer_core.problems import explain

_AT_ONCE = (Status.QUEUED, Status.PAUSED)


def find_job(session: Session, project_id: str, job_id: str, *, lock: bool = False) -> Job:
    """Return the project's job; raises NotFound."""
    job = store.get_job(session, project_id, job_id, lock=lock)
    if job is None:
        raise NotFound(f"there is no job {job_id}", "job_not_found")
    return job


def show_job(session: Session, project_id: str, job_id: str) -> JobOut:
    """Return the job as it looks from outside; raises NotFound."""
    return view.of_job(session, find_job(session, project_id, job_id))


def cancel_job(session: Session, project_id: str, job_id: str) -> JobOut:
    """Cancel a waiting job now, or ask the holder of a running one to stop it.

    Doing it twice changes nothing. Raises Conflict for a job that has succeeded or failed.
    """
    job = find_job(session, project_id, job_id, lock=True)
    status = Status(job.status)
    if status in (Status.SUCCEEDED, Status.FAILED):
        raise Conflict(
            f"the job has {status.value} already, so nothing is left to cancel; "
            "it can be deleted, retried or cloned",
            "job_finished",
        )
    if status in OPEN and store.request_cancel(session, job.id):
        if status in _AT_ONCE:
            transition(session, job.id, Status.CANCELLED, Change(message="cancelled on request"))
        else:
            data = {"status": status.value, "phase": job.phase, "cancel_requested": True}
            append_events(session, job.id, [{"type": "status", "data": data}])
        store.wake_workers(session, "cancel")
    session.refresh(job)
    return view.of_job(session, job)


def patch_job(session: Session, project_id: str, job_id: str, patch: JobPatch) -> JobOut:
    """Change name, labels or priority; raises Conflict for the priority of a finished job."""
    job = find_job(session, project_id, job_id, lock=True)
    values = patch.model_dump(exclude_unset=True)
    if "priority" in values and Status(job.status) in TERMINAL:
        raise Conflict(
            f"the job is {job.status}: its priority has no effect any more", "job_finished"
        )
    if values:
        session.execute(update(Job).where(Job.id == job.id).values(**values))
        store.wake_workers(session, "priority")
        session.refresh(job)
    return view.of_job(session, job)


def check_deletable(session: Session, project_id: str, job_id: str) -> Job:
    """Return the locked job; raises Conflict while anything of it is in use."""
    job = find_job(session, project_id, job_id, lock=True)
    if Status(job.status) not in TERMINAL:
        raise Conflict(f"the job is {job.status}; cancel it first", "job_not_finished")
    if held := store.unreleased(session, job.id):
        raise Conflict(
            f"the machine of attempt {held[0]} is not released yet; try again shortly",
            "not_released",
        )
    if get_settings().mlflow_url and store.is_mirrored_still(session, job.id):
        raise Conflict("its MLflow run is not closed yet; try again shortly", "not_released")
    if waiting := store.dependants(session, job.id):
        raise Conflict(f"job {waiting[0]} starts from it and is not finished", "in_use")
    if sweep := store.registering_sweep(session, job.id):
        raise Conflict(
            f"sweep {sweep} is not finished and may register its model: wait for its end, or "
            "cancel the sweep first",
            "in_use",
        )
    return job


@dataclass(frozen=True)
class Leftovers:
    """What a deleted job has in the store: prefixes, and the version that goes with them."""

    prefixes: list[str]
    version: ModelVersion | None = None


def prepare_deletion(
    session: Session, project_id: str, job_id: str, *, artifacts: bool
) -> Leftovers:
    """Check that the job can go, and take its model out of the registry with `artifacts`.

    Its objects go after this commit and before `delete_job`: whatever breaks off between them
    leaves a job that can be deleted again.
    """
    job = check_deletable(session, project_id, job_id)
    store.retire_checkpoints(session, job.id)  # from this commit on no retry starts from them
    if not artifacts:
        events = archive_prefix(project_id, job.id)
        return Leftovers([*store.checkpoint_prefixes(session, job.id), events])
    version = store.version_of(session, job.id)
    if version is not None:
        mark_deleted(session, project_id, version.name, version.version)
    return Leftovers([f"{project_id}/jobs/{job.id}/"], version)


def delete_objects(objects: Store, leftovers: Leftovers) -> None:
    """Delete what is left of the job in the store; doing it again is silent."""
    if leftovers.version is not None:
        delete_files(objects, leftovers.version)
    for prefix in leftovers.prefixes:
        objects.delete_prefix(prefix)


def delete_job(session: Session, project_id: str, job_id: str) -> None:
    """Delete the job's rows, events and checkpoints included."""
    job = check_deletable(session, project_id, job_id)
    session.execute(delete(Job).where(Job.id == job.id))


def retry_job(
    session: Session, project_id: str, job_id: str, request: RetryRequest, key: str | None
) -> JobOut:
    """Make a new job of the same spec, going on from the newest checkpoint.

    With a key used before, return that request's answer, whatever became of the parent. Raises
    Conflict for a job that is not finished, or that has nothing left to train.
    """
    once = once_for(key, ["retry", job_id, request.from_scratch])
    if before := answer_before(session, project_id, once):
        return before
    parent = find_job(session, project_id, job_id, lock=True)  # against its deletion
    status = Status(parent.status)
    if status in OPEN:
        raise Conflict(
            f"the job is {status.value}; cancel it first, or clone it", "job_not_finished"
        )
    if status is Status.SUCCEEDED and not request.from_scratch:
        raise Conflict(
            "the job has succeeded, its newest checkpoint is its end; "
            "retry with from_scratch, or clone it",
            "job_succeeded",
        )
    start = None if request.from_scratch else _newest_start(session, parent)
    origin = Origin(
        retry_of=parent.id, start_from=start, resolved=parent.resolved if start else None
    )
    spec = JobSpec.model_validate(_unpinned(parent.spec))
    return submit(session, Submission(project_id, spec, key, origin, once))


def _unpinned(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec without its plan, which was its first job's and may be over."""
    return {name: value for name, value in spec.items() if name != "plan_id"}


def _newest_start(session: Session, parent: Job) -> dict[str, Any] | None:
    checkpoint = store.newest_checkpoint(session, parent.id)
    if checkpoint is None:
        return _inherited_start(session, parent)
    return {"job_id": parent.id, "step": checkpoint.step, "prefix": checkpoint.prefix}


def _inherited_start(session: Session, parent: Job) -> dict[str, Any] | None:
    """Return what the parent itself started from, unless that has been deleted."""
    start = parent.start_from
    origin = start and store.get_job(session, parent.project_id, start["job_id"], lock=True)
    return start if origin and store.newest_checkpoint(session, origin.id) else None


def clone_job(
    session: Session, project_id: str, job_id: str, request: CloneRequest, key: str | None
) -> JobOut:
    """Make a new job of the same spec with overrides; raises InvalidPayload.

    With a key used before, return that request's answer, whatever became of the parent.
    """
    once = once_for(key, ["clone", job_id, request.overrides])
    if before := answer_before(session, project_id, once):
        return before
    parent = find_job(session, project_id, job_id)
    merged = merge_patch(_unpinned(parent.spec), request.overrides)
    try:
        spec = JobSpec.model_validate(merged)
    except ValidationError as error:
        found = explain(error, ("overrides",), JobSpec)
        problems = [FieldProblem(**problem.model_dump()) for problem in found]
        raise InvalidPayload(problems) from error
    origin = Origin(clone_of=parent.id)
    return submit(session, Submission(project_id, spec, key, origin, once))


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): objects merge, null removes, the rest replaces.

    No recursion: a patch may be nested as deeply as its parser takes it.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    waiting = [(merged, patch)]
    while waiting:
        into, changes = waiting.pop()
        for name, value in changes.items():
            if value is None:
                into.pop(name, None)
            elif isinstance(value, dict):
                own = into.get(name)
                into[name] = dict(own) if isinstance(own, dict) else {}
                waiting.append((into[name], value))
            else:
                into[name] = value
    return merged
