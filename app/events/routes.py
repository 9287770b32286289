"""`/jobs/{id}/events` and `/events`: live streams (server-sent events) and pages of the same."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from app.auth import Caller, Role, require
from app.events import frames, service
from app.events.feed import Feed
from app.events.schemas import (
    STREAM_CONTENT,
    EventPage,
    EventQuery,
    JobEventPage,
    JobEventQuery,
    StreamHeaders,
)
from app.events.source import JobSource, ProjectSource, Source
from app.events.stream import EventStream, Stream
from app.http import JobId
from app.settings import get_settings

router = APIRouter(tags=["events"])

_Responses = dict[int | str, dict[str, Any]]
_STREAM: _Responses = {
    200: {"content": STREAM_CONTENT, "description": "A page, or an endless stream"},
    400: {"description": "A cursor that is not the id of an event"},
}
_OF_JOB: _Responses = {**_STREAM, 404: {"description": "No such job"}}
Headers = Annotated[StreamHeaders, Header()]


@router.get(
    "/jobs/{job_id}/events",
    summary="Follow a job",
    response_model=JobEventPage,
    responses=_OF_JOB,
)
async def job_events(
    request: Request,
    job_id: JobId,
    query: Annotated[JobEventQuery, Query()],
    headers: Headers,
    caller: Caller = require(Role.VIEWER),
) -> Any:
    """Return events after a `seq`: as a page, or with `Accept: text/event-stream` as a stream.

    The stream replays what is stored, then goes on live, and ends with
    `{"type":"end","status":…,"last_seq":…}`. If it breaks off without that, connect again with
    the newest id as `Last-Event-ID`: nothing is lost or repeated.
    """
    feed: Feed = request.app.state.feed
    types = service.parse_types(query.types)
    where = (caller.project_id, job_id, headers.last_event_id or query.after)
    start = await feed.query(service.start_of_job, *where)
    source = JobSource(caller.project_id, job_id)
    if not headers.wants_stream:
        page = await feed.read(source, start.after, types, query.limit, frames.Form.ITEMS)
        return Response(service.job_page(page), media_type="application/json")
    return _stream(feed, source, start, _Wishes(types, query.heartbeat, caller.key_id))


@router.get("/events", summary="Follow all jobs", response_model=EventPage, responses=_STREAM)
async def all_events(
    request: Request,
    query: Annotated[EventQuery, Query()],
    headers: Headers,
    caller: Caller = require(Role.VIEWER),
) -> Any:
    """Return the events of all jobs of the project, in one order, as a page or as a stream.

    Ids are opaque. The stream has no end; resume as with a job's stream. Events of jobs that
    ended long ago are read per job: a stream that would begin before one of them begins with
    `{"type":"resync"}`, and the page says `expired`.
    """
    feed: Feed = request.app.state.feed
    types = service.parse_types(query.types)
    cursor = headers.last_event_id or query.after or (None if headers.wants_stream else "0")
    start = await feed.query(service.start_of_project, caller.project_id, cursor)
    source = ProjectSource(caller.project_id)
    if not headers.wants_stream:
        page = await feed.read(source, start.after, types, query.limit, frames.Form.ITEMS)
        whole = service.project_page(page, expired=start.expired)
        return Response(whole, media_type="application/json")
    return _stream(feed, source, start, _Wishes(types, query.heartbeat, caller.key_id))


@dataclass(frozen=True)
class _Wishes:
    types: list[str] | None
    heartbeat: str
    key_id: str | None


def _stream(feed: Feed, source: Source, start: service.Start, wishes: _Wishes) -> EventStream:
    is_event = wishes.heartbeat == "event"
    return EventStream(
        Stream(
            feed=feed,
            source=source,
            position=start.after,
            newest=start.newest,
            progress=start.progress,
            expired=start.expired,
            types=wishes.types,
            key_id=wishes.key_id,
            heartbeat=get_settings().heartbeat,
            heartbeat_frame=frames.HEARTBEAT_EVENT if is_event else frames.HEARTBEAT_COMMENT,
        )
    )
