"""Writes events with the job's own gap-free sequence, in one statement."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.db import touch

# The row lock that UPDATE takes on the job serialises its writers, so `seq` has no gaps; a rolled
# back transaction gives its numbers back. Numbering happens after duplicates were filtered out.
_APPEND = text(
    """
    WITH job AS (
        UPDATE jobs SET last_seq = last_seq + :count WHERE id = :job_id
        RETURNING project_id, last_seq - :count AS base
    )
    INSERT INTO job_events (job_id, seq, project_id, time, attempt_id, n, type, data)
    SELECT :job_id, job.base + e.ord, job.project_id,
        coalesce(CAST(e.value ->> 'time' AS timestamptz), now()),
        :attempt_id, CAST(e.value ->> 'n' AS bigint), e.value ->> 'type', e.value -> 'data'
    FROM job, jsonb_array_elements(CAST(:events AS jsonb)) WITH ORDINALITY AS e(value, ord)
    """
)


def append_events(
    session: Session,
    job_id: str,
    events: Sequence[dict[str, Any]],
    attempt_id: str | None = None,
) -> None:
    """Append events (`type`, `data`, optional `time` and `n`) to the job, in order."""
    if not events:
        return
    session.execute(
        _APPEND,
        {
            "job_id": job_id,
            "count": len(events),
            "attempt_id": attempt_id,
            "events": json.dumps(list(events), ensure_ascii=False),
        },
    )
    touch(session, job_id)
