"""Reads a job's `metrics` events as series, thinned out in Postgres."""

import csv
import io
from collections.abc import Iterable, Iterator
from datetime import datetime

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.orm import Session

from app.events.service import require_job
from app.series.schemas import Point, SeriesQuery

Row = tuple[str, int, float, datetime]

# A step that was repeated after a restart counts once, with its newest value.
_POINTS = text(
    """
    WITH points AS (
        SELECT DISTINCT ON (m.key, step) m.key AS name, (e.data ->> 'step')::bigint AS step,
            (m.value)::float8 AS value, e.time
        FROM job_events e CROSS JOIN LATERAL jsonb_each(e.data) AS m(key, value)
        WHERE e.job_id = :job_id AND e.type = 'metrics'
            AND jsonb_typeof(e.data -> 'step') = 'number' AND jsonb_typeof(m.value) = 'number'
            AND CASE WHEN CAST(:names AS text[]) IS NULL THEN m.key NOT IN ('step', 'epoch')
                ELSE m.key = ANY(:names) END
        ORDER BY m.key, step, e.seq DESC
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
    """
).bindparams(bindparam("names", type_=ARRAY(TEXT)))


def read_points(
    session: Session, project_id: str, job_id: str, query: SeriesQuery
) -> Iterable[Row]:
    """Return (name, step, value, time) by name and step; raises NotFound."""
    require_job(session, project_id, job_id)
    names = [name.strip() for name in query.names.split(",")] if query.names else None
    values = {"job_id": job_id, "names": names, "max_points": query.max_points}
    return (tuple(row) for row in session.execute(_POINTS, values))


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
