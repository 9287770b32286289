"""Reads a job's `log` events as text, from the archive and Postgres, holding no session between."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.db import statement
from app.errors import NotFound
from app.events.archive import ArchivedEvent, get_archive
from app.events.ranges import Range, ranges_after, ranges_of
from app.events.service import parse_cursor, require_job
from app.logs.schemas import LogQuery

PAGE = 1000

_FILTER = """
    job_id = :job_id AND type = 'log' AND seq > :after AND seq <= :last
    AND (CAST(:attempt_id AS text) IS NULL OR attempt_id = :attempt_id)
    AND (CAST(:rank AS int) IS NULL OR coalesce(data ->> 'rank', '0') = CAST(:rank AS text))
"""
# With the job's row, so that both are seen at one moment: what the archive takes is not missed.
_LINES = text(
    f"""
    SELECT j.archived_seq, n.* FROM jobs j LEFT JOIN LATERAL (
        SELECT seq, to_char(time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS time,
            coalesce(data ->> 'level', 'info') AS level, data ->> 'rank' AS rank,
            coalesce(data ->> 'message', '') AS message
        FROM job_events WHERE {_FILTER} ORDER BY seq LIMIT :limit
    ) AS n ON true
    WHERE j.id = :job_id ORDER BY n.seq
    """  # noqa: S608 - constants only
)
_TAIL = text(
    f"""
    SELECT j.archived_seq, n.count, n.first FROM jobs j CROSS JOIN LATERAL (
        SELECT count(*) AS count, min(seq) AS first FROM (
            SELECT seq FROM job_events WHERE {_FILTER} ORDER BY seq DESC LIMIT :tail) AS newest
    ) AS n
    WHERE j.id = :job_id
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
    archived: bool = False
    """Some of them lie in the object store."""

    def values(self) -> dict[str, object]:
        """Return the statements' parameters."""
        return vars(self)

    def holds(self, event: ArchivedEvent) -> bool:
        """Say whether an archived `log` event is one of these."""
        if event.seq > self.last or self.attempt_id not in (None, event.attempt_id):
            return False
        return self.rank is None or str(_data(event).get("rank", 0)) == str(self.rank)


def find_range(project_id: str, job_id: str, query: LogQuery) -> LogRange:
    """Return what to read, but for `tail`; raises NotFound and BadRequest."""
    with statement() as session:
        job = require_job(session, project_id, job_id)
        attempt_id = query.attempt and _attempt(session, job_id, query.attempt)
        after = parse_cursor(job, query.after)
    archived = after < job.archived_seq
    return LogRange(job_id, after, job.last_seq, attempt_id or None, query.rank, archived)


def _attempt(session: Session, job_id: str, number: int) -> str:
    found = session.scalar(_ATTEMPT, {"job_id": job_id, "number": number})
    if found is None:
        raise NotFound(f"job {job_id} has no attempt {number}", "attempt_not_found")
    return str(found)


def newest_of(wanted: LogRange, count: int) -> LogRange:
    """Return the range of the newest `count` lines."""
    with statement() as session:
        archived, found, first = session.execute(_TAIL, {**wanted.values(), "tail": count}).one()
        ranges = ranges_of(session, wanted.job_id) if found < count else []
    if archived > wanted.after and found < count:
        first = _archived_tail(wanted, ranges, count - found) or first
    return replace(wanted, after=wanted.after if first is None else first - 1)


def _archived_tail(wanted: LogRange, ranges: list[Range], count: int) -> int | None:
    first = None
    for each in reversed(ranges):
        events = list(get_archive().events([each], wanted.after, ("log",)))
        for event in filter(wanted.holds, reversed(events)):
            first, count = event.seq, count - 1
            if count == 0:
                return first
    return first


def lines(wanted: LogRange) -> Iterator[str]:
    """Yield blocks of text: `<time> <level> [rank n] <message>` a line."""
    after = wanted.after
    while after < wanted.last:
        with statement() as session:
            values = {**wanted.values(), "after": after, "limit": PAGE}
            rows = session.execute(_LINES, values).all()
            archived = rows[0].archived_seq if rows else 0
            ranges = ranges_after(session, wanted.job_id, after) if after < archived else []
        if ranges:
            yield from _archived(wanted, ranges, after)
            after = ranges[-1].last_seq
            continue
        yield (block := _of_rows(rows))
        if not block or len(rows) < PAGE:
            return
        after = rows[-1].seq


def _archived(wanted: LogRange, ranges: list[Range], after: int) -> Iterator[str]:
    for each in ranges:
        events = get_archive().events([each], after, ("log",))
        yield "".join(_of_event(event) for event in events if wanted.holds(event))


def _of_event(event: ArchivedEvent) -> str:
    whole = json.loads(event.json)
    data, time = whole["data"], f"{whole['time'][:-4]}Z"  # milliseconds
    rank = data.get("rank")
    return _line(
        time, data.get("level", "info"), rank if rank is None else str(rank), data.get("message")
    )


def _data(event: ArchivedEvent) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.json)["data"]
    return found


def _of_rows(rows: Iterable[Row[Any]]) -> str:
    return "".join(
        _line(row.time, row.level, row.rank, row.message) for row in rows if row.seq is not None
    )


def _line(time: str, level: str, rank: str | None, message: str | None) -> str:
    who = f" [rank {rank}]" if rank is not None else ""
    return f"{time} {level:<7}{who} {message or ''}\n"
