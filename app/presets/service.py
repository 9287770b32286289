"""Presets: kept by name, and what becomes of a job that names one."""

import json
import re
from typing import Any

from pydantic import ValidationError
from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.comparison.fields import flat
from app.errors import BadRequest, Conflict, FieldProblem, InvalidPayload, NotFound
from app.jobs.schemas import JobOut, Warn
from app.jobs.service import merge_patch
from app.jobs.spec import JobSpec
from app.jobs.submit import Submission, answer_before, once_for, submit
from app.models import Preset
from app.presets.schemas import PresetBody, PresetJob, PresetList, PresetOut, PresetQuery
from trainer_core.problems import explain, explain_errors

MOST = 200
LARGEST = 64 * 1024  # bytes of JSON: a page of presets has many of them
_CURSOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHOWN = 30  # fields that a warning names


def put_preset(session: Session, project_id: str, name: str, body: PresetBody) -> PresetOut:
    """Keep a part of a spec, in place of an earlier one of this name.

    Raises InvalidPayload for fields that no job could have, Conflict when there are too many.
    """
    if problems := _problems(body.spec):
        raise InvalidPayload(problems)
    _check_number(session, project_id, name)
    values = {"spec": body.spec, "description": body.description}
    new = insert(Preset).values(project_id=project_id, name=name, **values)
    upsert = new.on_conflict_do_update(
        index_elements=[Preset.project_id, Preset.name], set_={**values, "updated_at": func.now()}
    )
    session.execute(upsert)
    return show_preset(session, project_id, name)


def _problems(spec: dict[str, Any]) -> list[FieldProblem]:
    """What is wrong with a part of a spec; that it is a part is not."""
    size = len(json.dumps(spec, ensure_ascii=False).encode(errors="replace"))
    if size > LARGEST:
        message = (
            f"it has {size} bytes as JSON, and a preset {LARGEST} at most: keep less in it, or in "
            "a file of your own"
        )
        return [FieldProblem(pointer="/spec", message=message)]
    if "plan_id" in spec:
        message = "leave it out: a plan is one job's"
        return [FieldProblem(pointer="/spec/plan_id", message=message)]
    try:
        JobSpec.model_validate(spec)
    except ValidationError as error:
        wrong = [e for e in error.errors(include_url=False) if e["type"] != "missing"]
        found = explain_errors(wrong, JobSpec, ("spec",))
        return [FieldProblem(**problem.model_dump()) for problem in found]
    return []


def _check_number(session: Session, project_id: str, name: str) -> None:
    lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
    session.execute(lock, {"name": f"presets/{project_id}"})
    others = select(func.count()).where(Preset.project_id == project_id, Preset.name != name)
    if (session.scalar(others) or 0) >= MOST:
        raise Conflict(f"a project has {MOST} presets at most: delete one", "too_many_presets")


def _find(session: Session, project_id: str, name: str) -> Preset | None:
    query = select(Preset).where(Preset.project_id == project_id, Preset.name == name)
    return session.scalar(query.execution_options(populate_existing=True))


def show_preset(session: Session, project_id: str, name: str) -> PresetOut:
    """Return a preset; raises NotFound."""
    found = _find(session, project_id, name)
    if found is None:
        raise NotFound(f"there is no preset {name}: GET /presets lists them", "preset_not_found")
    return _view(found)


def _view(row: Preset) -> PresetOut:
    return PresetOut(**{name: getattr(row, name) for name in PresetOut.model_fields})


def list_presets(session: Session, project_id: str, query: PresetQuery) -> PresetList:
    """Return a page of the project's presets, by name; BadRequest for a cursor that is none."""
    wanted = select(Preset).where(Preset.project_id == project_id)
    if query.cursor is not None:
        if not _CURSOR.fullmatch(query.cursor):
            message = f"cursor {query.cursor[:60]!r} is not from a page of this list"
            raise BadRequest(message, "invalid_cursor")
        wanted = wanted.where(Preset.name > query.cursor)
    rows = session.scalars(wanted.order_by(Preset.name).limit(query.limit + 1)).all()
    items = [_view(row) for row in rows[: query.limit]]
    more = len(rows) > query.limit
    return PresetList(items=items, next_cursor=items[-1].name if more else None)


def delete_preset(session: Session, project_id: str, name: str) -> None:
    """Delete a preset; jobs that were made from it stay as they are. Raises NotFound."""
    gone = delete(Preset).where(Preset.project_id == project_id, Preset.name == name)
    if session.execute(gone.returning(Preset.name)).first() is None:
        raise NotFound(f"there is no preset {name}: GET /presets lists them", "preset_not_found")


def expand(
    session: Session, project_id: str, given: JobSpec | PresetJob
) -> tuple[JobSpec, tuple[Warn, ...]]:
    """Return the whole spec of a job that may name a preset, and what came from there.

    Raises InvalidPayload for a preset that is not there, and for fields that are wrong or missing.
    """
    if isinstance(given, JobSpec):
        return given, ()
    name, own = given.preset, given.own()
    preset = _find(session, project_id, name) if isinstance(name, str) else None
    if preset is None:
        message = "there is no such preset in this project: GET /presets lists them"
        shown = name[:128] if isinstance(name, str) else None
        raise InvalidPayload([FieldProblem(pointer="/preset", message=message, value=shown)])
    try:
        spec = JobSpec.model_validate(merge_patch(preset.spec, own))
    except ValidationError as error:
        found = [FieldProblem(**each.model_dump()) for each in explain(error, (), JobSpec)]
        raise InvalidPayload([_with_source(each, own, preset.name) for each in found]) from error
    return spec, (_warning(preset, own),)


def _with_source(wrong: FieldProblem, own: dict[str, Any], preset: str) -> FieldProblem:
    place: Any = own
    for part in wrong.pointer.split("/")[1:]:
        place = place.get(part) if isinstance(place, dict) else None
    if place is not None:
        return wrong
    return wrong.model_copy(update={"message": f"{wrong.message} (with preset {preset})"})


def _warning(preset: Preset, own: dict[str, Any]) -> Warn:
    from_it = sorted(name for name in flat(preset.spec) if not _is_own(name, own))
    shown = ", ".join(from_it[:_SHOWN]) or "nothing"
    more = f" and {len(from_it) - _SHOWN} more" if len(from_it) > _SHOWN else ""
    return Warn(code="preset", message=f"from preset {preset.name}: {shown}{more}")


def _is_own(name: str, own: dict[str, Any]) -> bool:
    """Say whether the job itself decides a field: names it, or replaces what is around it."""
    place: Any = own
    for part in name.split("."):
        if not isinstance(place, dict):
            return True
        if part not in place:
            return False
        place = place[part]
    return True


def submit_from(
    session: Session, project_id: str, given: PresetJob, idempotency_key: str | None
) -> JobOut:
    """As `app.jobs.submit`, for a job that names a preset.

    With a key used before, return that request's answer, whatever became of the preset.
    """
    once = once_for(idempotency_key, ["preset", given.preset, given.own()])
    if before := answer_before(session, project_id, once):
        return before
    spec, warnings = expand(session, project_id, given)
    submission = Submission(project_id, spec, idempotency_key, once=once, warnings=warnings)
    return submit(session, submission)
