"""Pages of events, and the checks before a stream is opened."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.errors import FieldProblem, InvalidPayload, NotFound
from app.events.cursor import (
    Position,
    decode_position,
    encode_position,
    invalid_cursor,
    parse_seq,
)
from app.events.ranges import has_archived_since
from app.events.schemas import EVENT_TYPES
from app.events.source import JobState, Page, ProjectSource, job_state


def require_job(session: Session, project_id: str, job_id: str) -> JobState:
    """Return where the job stands; raises NotFound."""
    job = job_state(session, project_id, job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id} in this project", "job_not_found")
    return job


def parse_types(text: str | None) -> list[str] | None:
    """Return the wanted types, None for all; raises InvalidPayload for an unknown one."""
    if text is None:
        return None
    types = [part.strip() for part in text.split(",")]
    problems = [
        FieldProblem(
            pointer="",
            message=f"query types: there is no type {name!r}; known are {', '.join(EVENT_TYPES)}",
            value=name,
        )
        for name in types
        if name not in EVENT_TYPES
    ]
    if problems:
        raise InvalidPayload(problems, "unknown_type")
    return types


def parse_cursor(job: JobState, cursor: str | None) -> int:
    """Return the `seq` that a client sent (none: 0); raises BadRequest past the newest event."""
    after = parse_seq(cursor) if cursor else 0
    if after > job.last_seq:
        why = f"it is past the job's newest event, {job.last_seq}"
        raise invalid_cursor(str(after), why)
    return after


@dataclass(frozen=True)
class Start:
    """Where a stream begins, and how far its source has got.

    `expired`: events that follow `after` have left for the archive, where they are read per job.
    """

    after: Position
    newest: Position
    progress: dict[str, str]
    expired: bool = False


def start_of_job(session: Session, project_id: str, job_id: str, cursor: str | None) -> Start:
    """Check job and cursor (none: from the start); raises NotFound and BadRequest."""
    job = require_job(session, project_id, job_id)
    progress = {job_id: job.progress} if job.progress else {}
    return Start((parse_cursor(job, cursor), "", 0), (job.last_seq, "", 0), progress)


def start_of_project(session: Session, project_id: str, cursor: str | None) -> Start:
    """Check the cursor of a stream over all jobs (none: what happens from now on)."""
    newest = ProjectSource(project_id).newest(session)
    if not cursor:
        return Start(newest, newest, {})
    after = decode_position(cursor)
    if after > newest:
        raise invalid_cursor(cursor, "it is past the newest event")
    return Start(after, newest, {}, has_archived_since(session, project_id, after[0]))


def job_page(page: Page) -> str:
    """Return a JobEventPage as JSON."""
    return _page_json(page, str(page.position[0]))


def project_page(page: Page, *, expired: bool) -> str:
    """Return an EventPage as JSON."""
    next_after = f'"{encode_position(page.position)}"'
    return _page_json(page, next_after, f',"expired":{"true" if expired else "false"}')


def _page_json(page: Page, next_after: str, rest: str = "") -> str:
    more = "true" if page.more else "false"
    return f'{{"data":[{page.body}],"next_after":{next_after},"has_more":{more}{rest}}}'
