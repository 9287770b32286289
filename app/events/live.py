"""What is new in many jobs at once, in one statement: what the feed reads for all its clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.events.cursor import Position
from app.events.frames import End, Frame, event_frame
from app.events.reader import Reader
from app.events.source import EVENT_JSON, JobState

_NEW = f"""
    SELECT j.id, j.status, j.last_seq, j.archived_seq, j.progress::text, n.seq, n.type, n.json
    FROM unnest(%(ids)s::text[], %(afters)s::bigint[]) AS w(id, after) JOIN jobs j ON j.id = w.id
    LEFT JOIN LATERAL (
        SELECT e.seq, e.type, {EVENT_JSON} AS json FROM job_events e
        WHERE e.job_id = j.id AND e.seq > w.after ORDER BY e.seq LIMIT %(limit)s
    ) AS n ON true
    ORDER BY j.id, n.seq
"""  # noqa: S608 - constants only
_MOVED = "SELECT id, last_seq, progress::text FROM jobs WHERE id = ANY(%(ids)s)"


@dataclass(slots=True)
class News:
    """What is new in a job; `position` is how far the reading went."""

    position: Position
    frames: list[Frame] = field(default_factory=list)
    more: bool = False
    progress: dict[str, str] = field(default_factory=dict)
    end: End | None = None
    archived: bool = False
    """Events after the position asked for have left for the archive."""


async def read_new(reader: Reader, after: Mapping[str, int], limit: int) -> dict[str, News]:
    """Read up to `limit` events of each job after its seq; a job that is gone has ended."""
    values = {"ids": list(after), "afters": list(after.values()), "limit": limit}
    found: dict[str, News] = {}
    rows = await reader.fetch(_NEW, values)
    for job_id, status, last_seq, archived_seq, progress, seq, kind, event in rows:
        news = found.get(job_id)
        if news is None:
            job = JobState(status, last_seq, archived_seq, progress)
            news = found[job_id] = _opened(job, job_id, after[job_id])
        if seq is not None:
            news.frames.append(event_frame((seq, "", 0), kind, str(seq), event))
    for news in found.values():
        if len(news.frames) == limit:
            news.more, news.end = True, None
            news.position = news.frames[-1].position or news.position
        elif news.archived:
            news.end = None
    gone = {job_id: News((seq, "", 0), end=End("deleted", seq)) for job_id, seq in after.items()}
    return gone | found


def _opened(job: JobState, job_id: str, after: int) -> News:
    return News(
        (max(job.last_seq, after), "", 0),
        progress={job_id: job.progress} if job.progress else {},
        end=job.end,
        archived=after < job.archived_seq,
    )


async def newest_of(
    reader: Reader, job_ids: Sequence[str]
) -> dict[str, tuple[Position, str | None]]:
    """Return (newest position, progress) of each of these jobs that still exists."""
    rows = await reader.fetch(_MOVED, {"ids": list(job_ids)})
    return {job_id: ((seq, "", 0), progress) for job_id, seq, progress in rows}
