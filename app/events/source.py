"""What a stream is read from: the events of one job, or those of all jobs of a project."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Row, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.orm import Session

from app.db import transaction
from app.events.cursor import START, Position, encode_position

TERMINAL = ("succeeded", "failed", "cancelled")
_TIME = """to_char(time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS time"""
_TYPES = "(CAST(:types AS text[]) IS NULL OR type = ANY(:types))"


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as clients see it; `json` is one line."""

    position: Position
    id: str
    type: str
    json: str


@dataclass(frozen=True, slots=True)
class End:
    """A job's stream is over."""

    status: str
    last_seq: int


@dataclass(slots=True)
class Page:
    """Events after a position, in order; `position` is how far the reading went."""

    events: list[StoredEvent]
    position: Position
    more: bool
    late: bool = False
    """Events exist that a transaction still open keeps from being read."""
    progress: dict[str, str] = field(default_factory=dict)
    """Newest progress of running jobs, as JSON."""
    end: End | None = None


Types = Sequence[str] | None


class Source(Protocol):
    """Where a stream reads its events; equal sources are read once for all their clients."""

    @property
    def key(self) -> str:
        """What this is a stream of: a job's or a project's id."""
        ...

    def read(self, after: Position, types: Types, limit: int) -> Page:
        """Read up to `limit` events of these types (None: all) after a position."""
        ...


def _statement(sql: str) -> Any:
    return text(sql).bindparams(bindparam("types", type_=ARRAY(TEXT)))


_JOB = text(
    "SELECT status, last_seq, progress::text AS progress FROM jobs"
    " WHERE id = :job_id AND project_id = :project_id"
)
_JOB_EVENTS = _statement(
    f"""
    SELECT job_id, seq, type, {_TIME}, data::text AS data FROM job_events
    WHERE job_id = :job_id AND seq > :after AND seq <= :last AND {_TYPES}
    ORDER BY seq LIMIT :limit
    """  # noqa: S608 - constants only
)


@dataclass(frozen=True)
class JobState:
    """Where a job's stream stands."""

    status: str
    last_seq: int
    progress: str | None

    @property
    def is_over(self) -> bool:
        """Whether the job's status can never change again."""
        return self.status in TERMINAL


def job_state(session: Session, project_id: str, job_id: str) -> JobState | None:
    """Return status, newest seq and progress; None when the project has no such job."""
    row = session.execute(_JOB, {"job_id": job_id, "project_id": project_id}).first()
    return JobState(*row) if row else None


@dataclass(frozen=True)
class JobSource:
    """The events of one job."""

    project_id: str
    job_id: str

    @property
    def key(self) -> str:
        """The job's id."""
        return self.job_id

    def read(self, after: Position, types: Types, limit: int) -> Page:
        """Read a page; the end is reported with the last one of a job that is over, or is gone."""
        with transaction() as session:
            job = job_state(session, self.project_id, self.job_id)
            if job is None:
                return Page([], after, more=False, end=End("deleted", after[0]))
            return self.read_in(session, job, after[0], types, limit)

    def read_in(
        self, session: Session, job: JobState, after: int, types: Types, limit: int
    ) -> Page:
        """Read a page of a job whose state was read before, in the same transaction."""
        values = {
            "job_id": self.job_id,
            "after": after,
            "last": job.last_seq,
            "types": list(types) if types else None,
            "limit": limit,
        }
        events = [
            StoredEvent((row.seq, "", 0), str(row.seq), row.type, _as_json(row))
            for row in session.execute(_JOB_EVENTS, values)
        ]
        if len(events) == limit:
            return Page(events, events[-1].position, more=True)
        # Everything up to `last_seq` was committed with it: a short page has seen it all.
        return Page(
            events,
            (max(job.last_seq, after), "", 0),
            more=False,
            progress={self.job_id: job.progress} if job.progress else {},
            end=End(job.status, job.last_seq) if job.is_over else None,
        )


_HORIZON = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
_PROJECT_EVENTS = _statement(
    f"""
    SELECT xid, job_id, seq, type, {_TIME}, data::text AS data FROM job_events
    WHERE project_id = :project_id AND (xid, job_id, seq) > (:xid, :job_id, :seq)
        AND xid < :horizon AND {_TYPES}
    ORDER BY xid, job_id, seq LIMIT :limit
    """  # noqa: S608 - constants only
)
_LATE = text(
    "SELECT EXISTS (SELECT FROM job_events WHERE project_id = :project_id AND xid >= :horizon)"
)
_PROJECT_PROGRESS = text(
    f"""
    SELECT id, progress::text FROM jobs
    WHERE project_id = :project_id AND status NOT IN {TERMINAL} AND progress IS NOT NULL
    """  # noqa: S608 - constants only
)


@dataclass(frozen=True)
class ProjectSource:
    """The events of all jobs of a project, in the order of their transactions.

    Only what every open transaction has left behind is read, so that an event that is committed
    late is never skipped.
    """

    project_id: str

    @property
    def key(self) -> str:
        """The project's id."""
        return self.project_id

    def newest(self) -> Position:
        """Return the position after everything that can be read now."""
        with transaction() as session:
            return (session.scalar(_HORIZON) or 0, "", 0)

    def read(self, after: Position, types: Types, limit: int) -> Page:
        """Read a page; it has no end."""
        with transaction() as session:
            horizon: int = session.scalar(_HORIZON) or 0
            values = {
                "project_id": self.project_id,
                "xid": after[0],
                "job_id": after[1],
                "seq": after[2],
                "horizon": horizon,
                "types": list(types) if types else None,
                "limit": limit,
            }
            events = [_of_project(row) for row in session.execute(_PROJECT_EVENTS, values)]
            if len(events) == limit:
                return Page(events, events[-1].position, more=True)
            return Page(
                events,
                max((horizon, "", 0), after),
                more=False,
                late=bool(session.scalar(_LATE, values)),
                progress=dict(session.execute(_PROJECT_PROGRESS, values).tuples().all()),
            )


def _of_project(row: Row[Any]) -> StoredEvent:
    position = (row.xid, row.job_id, row.seq)
    return StoredEvent(position, encode_position(position), row.type, _as_json(row))


def _as_json(row: Row[Any]) -> str:
    # `data` is Postgres' own text of a jsonb value: valid JSON without a line break.
    return (
        f'{{"seq":{row.seq},"job_id":"{row.job_id}","time":"{row.time}",'
        f'"type":{json.dumps(row.type)},"data":{row.data}}}'
    )


_MOVED = text("SELECT id, last_seq, progress::text FROM jobs WHERE id = ANY(:ids)").bindparams(
    bindparam("ids", type_=ARRAY(TEXT))
)


def newest_of(job_ids: Sequence[str]) -> dict[str, tuple[Position, str | None]]:
    """Return (newest position, progress) of each of these jobs that still exists."""
    with transaction() as session:
        rows = session.execute(_MOVED, {"ids": list(job_ids)})
        return {job_id: ((seq, "", 0), progress) for job_id, seq, progress in rows}


__all__ = [
    "START",
    "End",
    "JobSource",
    "JobState",
    "Page",
    "ProjectSource",
    "Source",
    "StoredEvent",
    "job_state",
    "newest_of",
]
