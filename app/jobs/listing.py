"""Pages of jobs: filters, cursors and slim lists."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from app.errors import BadRequest, FieldProblem, InvalidPayload
from app.jobs import store
from app.jobs.schemas import JobPage, JobQuery, Summary
from app.models import Job

_ID = re.compile(r"^job_[0-9A-HJKMNP-TV-Z]{26}$")
_FIELDS = tuple(Summary.model_fields)
_LIKE = str.maketrans({"\\": r"\\", "%": r"\%", "_": r"\_"})


def list_jobs(
    session: Session, project_id: str, query: JobQuery, labels: Mapping[str, str]
) -> JobPage:
    """Return a page of the project's jobs; raises BadRequest for a cursor that is not ours."""
    columns = _columns(query.fields)
    conditions = [*_conditions(query), *(_has_label(k, v) for k, v in labels.items())]
    if query.cursor:
        conditions.append(Job.id < _opened(query.cursor))
    rows = store.list_jobs(session, project_id, columns, conditions, query.limit + 1)
    items = [Summary.model_validate(dict(row._mapping)) for row in rows[: query.limit]]
    more = len(rows) > query.limit
    return JobPage(items=items, next_cursor=_cursor(items[-1].id) if more else None)


def _columns(fields: str | None) -> tuple[str, ...]:
    if fields is None:
        return _FIELDS
    wanted = [name.strip() for name in fields.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in _FIELDS]
    if unknown:
        message = f"query fields: there is no field {unknown[0]}; known are {', '.join(_FIELDS)}"
        raise InvalidPayload([FieldProblem(pointer="", message=message, value=unknown[0])])
    return ("id", *(name for name in dict.fromkeys(wanted) if name != "id"))


def _conditions(query: JobQuery) -> list[ColumnElement[bool]]:
    exact = {
        Job.task_type: query.task,
        Job.target: query.target,
        Job.backend: query.backend,
        Job.sweep_id: query.sweep,
    }
    found: list[ColumnElement[bool]] = [c == value for c, value in exact.items() if value]
    if query.status:
        found.append(Job.status.in_(query.status))
    if query.created_after:
        found.append(Job.created_at > query.created_after)
    if query.created_before:
        found.append(Job.created_at < query.created_before)
    if query.q:
        found.append(Job.name.ilike(f"%{query.q.translate(_LIKE)}%", escape="\\"))
    return found


def _has_label(key: str, value: str) -> ColumnElement[bool]:
    labels: Any = Job.labels
    contained: ColumnElement[bool] = labels.contains({key: value})
    return contained


def _cursor(job_id: str) -> str:
    return base64.urlsafe_b64encode(job_id.encode()).decode().rstrip("=")


def _opened(cursor: str) -> str:
    try:
        job_id = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        job_id = ""
    if not _ID.match(job_id):
        raise BadRequest("this cursor is not from a page of jobs; start without one", "bad_cursor")
    return job_id
