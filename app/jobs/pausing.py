"""Pause and resume: wishes written down here, carried out by whoever holds the job."""

from typing import Any

from sqlalchemy.orm import Session

from app.errors import Conflict
from app.events.store import append_events
from app.jobs import store, view
from app.jobs.lifecycle import TERMINAL, Change, Status, transition
from app.jobs.schemas import JobOut
from app.jobs.service import find_job
from app.models import Job
from app.outbox import PREPARE_QUEUE, hint

PUBLISHING = "publishing"


def pause_job(session: Session, project_id: str, job_id: str) -> JobOut:
    """Set a waiting job aside now, or ask the holder of a running one for a checkpoint.

    Doing it twice changes nothing. Raises Conflict for a job that is over, is to be cancelled, or
    has only its model left to be stored.
    """
    job = find_job(session, project_id, job_id, lock=True)
    _refuse_ended(job, "pause")
    status = Status(job.status)
    if status is Status.FINALIZING or job.phase == PUBLISHING:
        raise Conflict(
            "the job's training is over and its model is being stored, which frees the machine"
            " sooner than a pause would; it can be cancelled",
            "job_finalizing",
        )
    if store.request_pause(session, job.id, wanted=True):
        if status is Status.QUEUED:
            transition(session, job.id, Status.PAUSED)
        else:
            _say(session, job, wanted=True)
        store.wake_workers(session, "pause")
    session.refresh(job)
    return view.of_job(session, job)


def resume_job(session: Session, project_id: str, job_id: str) -> JobOut:
    """Queue a paused job again, or take back a pause that is still being carried out.

    An attempt that was told to stop before still stops, and the job goes on from its checkpoint.
    For a job that is not paused nothing is done. Raises Conflict for a job that is over or is to
    be cancelled.
    """
    job = find_job(session, project_id, job_id, lock=True)
    _refuse_ended(job, "resume")
    status = Status(job.status)
    if store.request_pause(session, job.id, wanted=False) or status is Status.PAUSED:
        if status is Status.PAUSED:
            _queue(session, job)
        else:
            _say(session, job, wanted=False)
        store.wake_workers(session, "resume")
    session.refresh(job)
    return view.of_job(session, job)


def _refuse_ended(job: Job, what: str) -> None:
    if Status(job.status) in TERMINAL:
        raise Conflict(
            f"the job is over ({job.status}), so there is nothing to {what}; it can be retried,"
            " cloned or deleted",
            "job_finished",
        )
    if job.cancel_requested_at is not None:
        raise Conflict(
            f"the job is being cancelled, so there is nothing to {what}; once it is cancelled it"
            " can be retried or cloned",
            "job_cancelling",
        )


def _queue(session: Session, job: Job) -> None:
    """Let the job wait again; its data are asked for if the pause came before they were there."""
    unprepared = job.prepared_key is None
    transition(session, job.id, Status.QUEUED, Change(phase="preparing" if unprepared else None))
    if unprepared:
        hint(session, job.project_id, PREPARE_QUEUE, "prepare", job.id)


def _say(session: Session, job: Job, *, wanted: bool) -> None:
    data: dict[str, Any] = {"status": job.status, "phase": job.phase, "pause_requested": wanted}
    append_events(session, job.id, [{"type": "status", "data": data}])
