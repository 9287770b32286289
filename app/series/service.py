"""Reads a job's `metrics` events as series, thinned out in Postgres.

What has been archived is brought back into a table of this transaction alone, so that one statement
serves both, whatever the number of points.
"""

import csv
import io
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any

from sqlalchemy import TextClause, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.orm import Session

from app.db import statement, transaction
from app.events.archive import get_archive
from app.events.ranges import Range, ranges_of
from app.events.service import require_job
from app.events.source import JobState
from app.series.schemas import Point, SeriesQuery

Row = tuple[str, int, float, datetime]
_IN_MEMORY = 4 * 2**20
_TRIES = 10

_KEPT = "SELECT seq, time, data FROM job_events WHERE job_id = :job_id AND type = 'metrics'"
_ARCHIVED = """
    UNION ALL SELECT (line ->> 'seq')::bigint, (line ->> 'time')::timestamptz, line -> 'data'
    FROM archived_metrics
"""


# A step that was repeated after a restart counts once, with its newest value.
def _points(events: str) -> TextClause:
    return text(
        f"""
        WITH single AS (
            SELECT e.seq, p.place, p.data,
                coalesce((p.data ->> 'time')::timestamptz, e.time) AS time
            FROM ({events}) AS e CROSS JOIN LATERAL jsonb_array_elements(
                CASE WHEN jsonb_typeof(e.data -> 'points') = 'array' THEN e.data -> 'points'
                ELSE jsonb_build_array(e.data) END
            ) WITH ORDINALITY AS p(data, place)
        ), points AS (
            SELECT DISTINCT ON (m.key, step) m.key AS name, (s.data ->> 'step')::bigint AS step,
                (m.value)::float8 AS value, s.time
            FROM single s CROSS JOIN LATERAL jsonb_each(s.data) AS m(key, value)
            WHERE jsonb_typeof(s.data -> 'step') = 'number' AND jsonb_typeof(m.value) = 'number'
                AND CASE WHEN CAST(:names AS text[]) IS NULL THEN m.key NOT IN ('step', 'epoch')
                    ELSE m.key = ANY(:names) END
            ORDER BY m.key, step, s.seq DESC, s.place DESC
        ), counted AS (
            SELECT *, count(*) OVER (PARTITION BY name) AS total,
                row_number() OVER (PARTITION BY name ORDER BY step) - 1 AS place
            FROM points
        ), placed AS (
            SELECT *, place * (:max_points / 4) / total AS bucket FROM counted
        ), ranked AS (
            SELECT *,
                row_number() OVER (PARTITION BY name, bucket ORDER BY step) AS first,
                row_number() OVER (PARTITION BY name, bucket ORDER BY step DESC) AS last,
                row_number() OVER (PARTITION BY name, bucket ORDER BY value, step) AS smallest,
                row_number() OVER (PARTITION BY name, bucket ORDER BY value DESC, step) AS largest
            FROM placed
        )
        SELECT name, step, value, time FROM ranked
        WHERE total <= :max_points OR 1 IN (first, last, smallest, largest)
        ORDER BY name, step
        """  # noqa: S608 - constants only
    ).bindparams(bindparam("names", type_=ARRAY(TEXT)))


_POINTS = {False: _points(_KEPT), True: _points(_KEPT + _ARCHIVED)}
_TABLE = text("CREATE TEMPORARY TABLE archived_metrics (line jsonb) ON COMMIT DROP")


@dataclass(frozen=True)
class Source:
    """A job whose series are wanted, as it was a moment ago."""

    project_id: str
    job_id: str
    job: JobState
    ranges: list[Range]


def find(project_id: str, job_id: str) -> Source:
    """Return where the job's series lie; raises NotFound."""
    with statement() as session:
        job = require_job(session, project_id, job_id)
        ranges = ranges_of(session, job_id) if job.archived_seq else []
    return Source(project_id, job_id, job, ranges)


@contextmanager
def read_points(source: Source, query: SeriesQuery) -> Iterator[Iterable[Row]]:
    """Yield (name, step, value, time) by name and step; raises NotFound and Unavailable."""
    names = [name.strip() for name in query.names.split(",")] if query.names else None
    values = {"job_id": source.job_id, "names": names, "max_points": query.max_points}
    with _snapshot(source) as (session, archived):
        yield (tuple(row) for row in session.execute(_POINTS[archived], values))


@contextmanager
def _snapshot(source: Source) -> Iterator[tuple[Session, bool]]:
    """Yield a session that sees all events of one moment, and whether some come from the archive.

    The store is read before, without a session; when more was archived meanwhile, again.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as lines:
        for _ in range(_TRIES):
            reached = source.job.archived_seq
            _fetch(source.ranges, lines)
            with transaction() as session:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
                job = require_job(session, source.project_id, source.job_id)
                if job.archived_seq == reached:
                    if reached:
                        _bring_back(session, lines)
                    yield session, reached > 0
                    return
            source = find(source.project_id, source.job_id)
        raise RuntimeError(f"the archive of {source.job_id} did not stand still")


def _fetch(ranges: list[Range], lines: IO[bytes]) -> None:
    lines.seek(0)
    lines.truncate()
    for event in get_archive().events(ranges, 0, ("metrics",)):
        # What COPY's text format takes for an escape.
        lines.write(event.json.replace("\\", "\\\\").encode() + b"\n")


def _bring_back(session: Session, lines: IO[bytes]) -> None:
    session.execute(_TABLE)
    driver: Any = session.connection().connection.driver_connection
    lines.seek(0)
    with driver.cursor() as cursor, cursor.copy("COPY archived_metrics FROM STDIN") as copy:
        while block := lines.read(2**18):
            copy.write(block)


def by_name(points: Iterable[Row]) -> dict[str, list[Point]]:
    """Return the series."""
    series: dict[str, list[Point]] = {}
    for name, step, value, time in points:
        series.setdefault(name, []).append((step, value, time))
    return series


def as_csv(points: Iterable[Row]) -> Iterator[str]:
    """Yield lines of CSV: `metric,step,value,time`."""
    yield "metric,step,value,time\n"
    for name, step, value, time in points:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow((name, step, repr(value), time.isoformat()))
        yield line.getvalue()
