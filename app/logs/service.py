"""Reads a job's `log` events as text, page by page, holding no session in between."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.db import transaction
from app.errors import NotFound
from app.events.service import parse_cursor, require_job
from app.logs.schemas import LogQuery

PAGE = 1000

_FILTER = """
    job_id = :job_id AND type = 'log' AND seq > :after AND seq <= :last
    AND (CAST(:attempt_id AS text) IS NULL OR attempt_id = :attempt_id)
    AND (CAST(:rank AS int) IS NULL OR coalesce(data ->> 'rank', '0') = CAST(:rank AS text))
"""
_LINES = text(
    f"""
    SELECT seq, to_char(time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS time,
        coalesce(data ->> 'level', 'info') AS level, data ->> 'rank' AS rank,
        coalesce(data ->> 'message', '') AS message
    FROM job_events WHERE {_FILTER} ORDER BY seq LIMIT :limit
    """  # noqa: S608 - constants only
)
_TAIL = text(
    f"""
    SELECT coalesce(min(seq) - 1, :after) FROM (
        SELECT seq FROM job_events WHERE {_FILTER} ORDER BY seq DESC LIMIT :tail) AS newest
    """  # noqa: S608 - constants only
)
_ATTEMPT = text("SELECT id FROM attempts WHERE job_id = :job_id AND number = :number")


@dataclass(frozen=True)
class LogRange:
    """Which log events are read: those of `after` < seq ≤ `last`."""

    job_id: str
    after: int
    last: int
    attempt_id: str | None = None
    rank: int | None = None

    def values(self) -> dict[str, object]:
        """Return the statements' parameters."""
        return vars(self)


def find_range(project_id: str, job_id: str, query: LogQuery) -> LogRange:
    """Return what to read; raises NotFound and BadRequest."""
    with transaction() as session:
        job = require_job(session, project_id, job_id)
        attempt_id = query.attempt and _attempt(session, job_id, query.attempt)
        after = parse_cursor(job, query.after)
        wanted = LogRange(job_id, after, job.last_seq, attempt_id or None, query.rank)
        if query.tail is None:
            return wanted
        after = session.execute(_TAIL, {**wanted.values(), "tail": query.tail}).scalar_one()
        return LogRange(job_id, after, job.last_seq, wanted.attempt_id, wanted.rank)


def _attempt(session: Session, job_id: str, number: int) -> str:
    found = session.scalar(_ATTEMPT, {"job_id": job_id, "number": number})
    if found is None:
        raise NotFound(f"job {job_id} has no attempt {number}", "attempt_not_found")
    return str(found)


def lines(wanted: LogRange) -> Iterator[str]:
    """Yield blocks of text: `<time> <level> [rank n] <message>` a line."""
    after = wanted.after
    while True:
        with transaction() as session:
            values = {**wanted.values(), "after": after, "limit": PAGE}
            rows = session.execute(_LINES, values).all()
        if rows:
            yield "".join(_line(row.time, row.level, row.rank, row.message) for row in rows)
            after = rows[-1].seq
        if len(rows) < PAGE:
            return


def _line(time: str, level: str, rank: str | None, message: str) -> str:
    who = f" [rank {rank}]" if rank is not None else ""
    return f"{time} {level:<7}{who} {message}\n"
