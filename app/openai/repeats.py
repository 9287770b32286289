"""Creates that a client repeats by itself: one whose answer was lost has made its job already.

The official clients send no Idempotency-Key, and count in a header how often they have tried.
"""

import hashlib
import json
from typing import Annotated

from fastapi import Header
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.jobs.lifecycle import Status
from app.jobs.spec import JobSpec
from app.jobs.submit import as_given
from app.models import Job

MINUTES = 30
"""A client tries three times, and waits ten minutes for each answer."""
_IN_VAIN = (Status.FAILED, Status.CANCELLED)

RetryCount = Annotated[
    str | None,
    Header(
        alias="X-Stainless-Retry-Count",
        max_length=10,
        description="How often the client has sent this request before; official clients say it. "
        f"From 1 on, the job that the same request made within {MINUTES} minutes is the answer, "
        "unless it failed or was cancelled.",
    ),
]


def made_before(session: Session, project_id: str, spec: JobSpec, count: str | None) -> str | None:
    """Return the id of the job that an earlier try of this request has made; None without any.

    A try that is still being answered is waited for. Takes a lock until the transaction's end.
    """
    if count is None:
        return None
    given = as_given(spec)
    said = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
    session.execute(lock, {"name": f"create/{project_id}/{said}"})
    if not count.isdecimal() or int(count) == 0:
        return None
    query = select(Job.id).where(
        Job.project_id == project_id,
        Job.created_at > text(f"now() - interval '{MINUTES} minutes'"),
        Job.status.not_in(_IN_VAIN),
        Job.spec == given,
    )
    return session.scalar(query.order_by(Job.id.desc()).limit(1))
