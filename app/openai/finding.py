"""The jobs that have a place in OpenAI's API: those with task `sft` or `dpo`."""

from sqlalchemy.orm import Session

from app.errors import NotFound
from app.jobs.service import find_job
from app.models import Job
from app.openai import ids, store


def find(session: Session, project_id: str, given: str) -> Job:
    """Return the job of a fine-tuning job's id; raises NotFound."""
    job = find_job(session, project_id, ids.job_of(given))
    if job.task_type not in store.TASKS:
        raise NotFound(
            f"job {given} trains by {job.task_type!r}, for which this API has no word: "
            f"GET /jobs/{job.id} shows it",
            "job_not_found",
        )
    return job
