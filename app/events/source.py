"""What a stream is read from: the events of one job, or those of all jobs of a project.

Each reading is one statement, so that it sees one moment: neither a commit nor the archive can come
between the state of a job and its events.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Row, TextClause, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.orm import Session

from app.events.cursor import Position, encode_position
from app.events.frames import End, Form, Frame, event_frame
from app.events.ranges import Range, ranges_after

TERMINAL = ("succeeded", "failed", "cancelled")
_TYPES = "(CAST(:types AS text[]) IS NULL OR type = ANY(:types))"
Types = Sequence[str] | None

# Postgres' own text of a jsonb value is valid JSON without a line break.
EVENT_JSON = """
    '{"seq":' || e.seq || ',"job_id":"' || e.job_id || '","time":"'
    || to_char(e.time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
    || '","type":' || to_json(e.type) || ',"data":' || e.data::text || '}'
"""
_FRAME = f"'id: ' || e.seq || chr(10) || 'data: ' || {EVENT_JSON} || chr(10) || chr(10)"
_FORMS = {Form.FRAMES: (_FRAME, "''"), Form.ITEMS: (EVENT_JSON, "','")}


@dataclass(slots=True)
class Page:
    """Events after a position, in order; `position` is how far the reading went."""

    body: str
    position: Position
    more: bool
    frames: list[Frame] = field(default_factory=list)
    """The events one by one, where they are read for live streams."""
    late: bool = False
    """Events exist that a transaction still open keeps from being read."""
    progress: dict[str, str] = field(default_factory=dict)
    """Newest progress of running jobs, as JSON."""
    end: End | None = None
    ranges: list[Range] = field(default_factory=list)
    """Not empty: what follows lies in these ranges of the archive, and nothing was read."""


class Source(Protocol):
    """Where a stream reads its events; equal sources are read once for all their clients."""

    @property
    def key(self) -> str:
        """What this is a stream of: a job's or a project's id."""
        ...

    def read(self, session: Session, after: Position, types: Types, limit: int, form: Form) -> Page:
        """Read up to `limit` events of these types (None: all) after a position."""
        ...


def _statement(sql: str) -> TextClause:
    return text(sql).bindparams(bindparam("types", type_=ARRAY(TEXT)))


@dataclass(frozen=True)
class JobState:
    """Where a job's stream stands; events up to `archived_seq` lie in the object store."""

    status: str
    last_seq: int
    archived_seq: int
    progress: str | None

    @property
    def end(self) -> End | None:
        """How the stream ends, None while the job's status may change."""
        return End(self.status, self.last_seq) if self.status in TERMINAL else None


_JOB = text(
    "SELECT status, last_seq, archived_seq, progress::text AS progress FROM jobs"
    " WHERE id = :job_id AND project_id = :project_id"
)


def job_state(session: Session, project_id: str, job_id: str) -> JobState | None:
    """Return where the job stands; None when the project has no such job."""
    row = session.execute(_JOB, {"job_id": job_id, "project_id": project_id}).first()
    return JobState(*row) if row else None


def _job_page(form: Form) -> TextClause:
    item, between = _FORMS[form]
    return _statement(
        f"""
        SELECT j.status, j.last_seq, j.archived_seq, j.progress::text, p.count, p.reached, p.body
        FROM jobs j CROSS JOIN LATERAL (
            SELECT count(*) AS count, max(e.seq) AS reached,
                coalesce(string_agg({item}, {between} ORDER BY e.seq), '') AS body
            FROM (
                SELECT * FROM job_events WHERE job_id = j.id AND seq > :after AND {_TYPES}
                ORDER BY seq LIMIT :limit
            ) AS e
        ) AS p
        WHERE j.id = :job_id AND j.project_id = :project_id
        """  # noqa: S608 - constants only
    )


_JOB_PAGES = {form: _job_page(form) for form in Form}


@dataclass(frozen=True)
class JobSource:
    """The events of one job."""

    project_id: str
    job_id: str

    @property
    def key(self) -> str:
        """The job's id."""
        return self.job_id

    def read(self, session: Session, after: Position, types: Types, limit: int, form: Form) -> Page:
        """Read a page; the end is reported with the last one of a job that is over, or is gone."""
        values = {
            "project_id": self.project_id,
            "job_id": self.job_id,
            "after": after[0],
            "types": list(types) if types else None,
            "limit": limit,
        }
        row = session.execute(_JOB_PAGES[form], values).first()
        if row is None:
            return Page("", after, more=False, end=End("deleted", after[0]))
        job = JobState(*row[:4])
        count, reached, body = row[4:]
        if after[0] < job.archived_seq:
            found = ranges_after(session, self.job_id, after[0])
            return Page("", after, more=True, end=job.end, ranges=found)
        if count == limit:
            return Page(body, (reached, "", 0), more=True)
        return Page(
            body,
            (max(job.last_seq, after[0]), "", 0),
            more=False,
            progress={self.job_id: job.progress} if job.progress else {},
            end=job.end,
        )


_HORIZON = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
_PROJECT_EVENTS = text(
    f"""
    SELECT e.xid, e.job_id, e.seq, e.type, {EVENT_JSON} AS json FROM job_events AS e
    WHERE project_id = :project_id AND (xid, job_id, seq) > (:xid, :job_id, :seq)
        AND xid < :horizon
    ORDER BY xid, job_id, seq LIMIT :limit
    """  # noqa: S608 - constants only
)
# Of a few types among many events: so many are looked at in one statement, in the index's order,
# and the last one says how far it went (`type` is null then).
SCANNED = 10_000
_PROJECT_EVENTS_OF_TYPES = _statement(
    f"""
    WITH scanned AS MATERIALIZED (
        SELECT xid, job_id, seq, type FROM job_events
        WHERE project_id = :project_id AND (xid, job_id, seq) > (:xid, :job_id, :seq)
            AND xid < :horizon
        ORDER BY xid, job_id, seq LIMIT :scanned
    ), wanted AS (
        SELECT * FROM scanned WHERE type = ANY(:types) ORDER BY xid, job_id, seq LIMIT :limit
    )
    SELECT e.xid, e.job_id, e.seq, e.type, {EVENT_JSON} AS json
    FROM wanted w JOIN job_events e ON e.job_id = w.job_id AND e.seq = w.seq
    UNION ALL (
        SELECT xid, job_id, seq, NULL, NULL FROM scanned
        WHERE (SELECT count(*) FROM scanned) = :scanned
        ORDER BY xid DESC, job_id DESC, seq DESC LIMIT 1
    )
    ORDER BY 1, 2, 3, 4
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
    late is never skipped. Archived events are read per job: they are not here.
    """

    project_id: str

    @property
    def key(self) -> str:
        """The project's id."""
        return self.project_id

    def newest(self, session: Session) -> Position:
        """Return the position after everything that can be read now."""
        return (session.scalar(_HORIZON) or 0, "", 0)

    def read(self, session: Session, after: Position, types: Types, limit: int, form: Form) -> Page:
        """Read a page; it has no end."""
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
        rows, reached = _scanned(session, values)
        events = [_of_project(row) for row in rows]
        body = form.join((name, event) for _, _, name, event in events)
        frames = [event_frame(*event) for event in events]
        if len(events) == limit:
            return Page(body, events[-1][0], more=True, frames=frames)
        if reached is not None:
            return Page(body, reached, more=True, frames=frames)
        return Page(
            body,
            max((horizon, "", 0), after),
            more=False,
            frames=frames,
            late=bool(session.scalar(_LATE, values)),
            progress=dict(session.execute(_PROJECT_PROGRESS, values).tuples().all()),
        )


def _scanned(
    session: Session, values: dict[str, Any]
) -> tuple[Sequence[Row[Any]], Position | None]:
    """Return the next events; with the position that was reached if more are to be looked at."""
    if values["types"] is None:
        return session.execute(_PROJECT_EVENTS, values).all(), None
    rows = session.execute(_PROJECT_EVENTS_OF_TYPES, values | {"scanned": SCANNED}).all()
    if rows and rows[-1].type is None:
        *rows, last = rows
        return rows, (last.xid, last.job_id, last.seq)
    return rows, None


def _of_project(row: Row[Any]) -> tuple[Position, str, str, str]:
    position = (row.xid, row.job_id, row.seq)
    return position, row.type, encode_position(position), row.json
