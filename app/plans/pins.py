"""A job that is pinned to a plan: refused where it is not what was planned."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.errors import Conflict, FieldProblem, NotFound
from app.jobs.spec import JobSpec
from app.models import Plan
from app.plans.identity import found_now
from app.settings import Settings

UNPLANNED = ("name", "labels", "priority", "retry", "plan_id")
"""Fields of a job that change nothing of what is planned."""


def planned_part(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec, as it was given, that decide what is planned."""
    return {name: value for name, value in spec.items() if name not in UNPLANNED}


def find_plan(session: Session, project_id: str, plan_id: str) -> Plan:
    """Return a plan that is not over; raises NotFound."""
    query = select(Plan).where(
        Plan.project_id == project_id, Plan.id == plan_id, Plan.samples.is_(None)
    )
    plan = session.scalar(query.execution_options(populate_existing=True))
    if plan is None or plan.expired:
        message = f"there is no plan {plan_id}, or its time is over: POST /plans makes one"
        raise NotFound(message, "plan_not_found")
    return plan


def check_pin(
    session: Session,
    project_id: str,
    spec: JobSpec,
    resolved: dict[str, Any],
    settings: Settings,
) -> None:
    """Refuse a job that is not what its plan says; a plan that is not exact yet is fine.

    Raises NotFound for a plan that is not there, Conflict `plan_failed` and `plan_outdated`.
    """
    plan = find_plan(session, project_id, str(spec.plan_id))
    if plan.status == "failed":
        raise Conflict(f"{plan.id} has failed; GET /plans/{plan.id} says why", "plan_failed")
    now = found_now(session, project_id, spec, resolved, settings)
    given = spec.model_dump(mode="json", exclude_unset=True)
    problems = [
        FieldProblem(pointer=pointer, message="it is not what was planned")
        for pointer in _differing(planned_part(plan.spec), planned_part(given), "")
    ] or [
        FieldProblem(pointer=_pointer(field), message="its content has changed since the plan")
        for field in sorted(plan.found.keys() & now.keys())
        if plan.found[field] != now[field]
    ]
    if problems:
        said = "; ".join(f"{each.pointer}: {each.message}" for each in problems[:5])
        raise Conflict(
            f"the job is not what {plan.id} says: {said}. POST /plans makes a new plan",
            "plan_outdated",
            problems,
        )


def _differing(planned: Any, given: Any, pointer: str) -> Iterator[str]:
    if isinstance(planned, dict) and isinstance(given, dict):
        for name in sorted(planned.keys() | given.keys()):
            yield from _differing(planned.get(name), given.get(name), f"{pointer}/{name}")
    elif planned != given:
        yield pointer


def _pointer(field: str) -> str:
    return "/" + field.replace(".", "/").replace("[", "/").replace("]", "")


_EXPIRE = text(
    "UPDATE plans SET expires_at = now() WHERE project_id = :project AND id = :id"
    " AND key IS DISTINCT FROM :key AND key IS NOT NULL RETURNING created_at"
)


def broken_pin(session: Session, project_id: str, plan_id: str, key: str) -> str | None:
    """Return why data or model are not the planned ones any more; None where they are.

    `key` is that of what the job has prepared. Such a plan is over: nobody gets it again.
    """
    values = {"project": project_id, "id": plan_id, "key": key}
    row = session.execute(_EXPIRE, values).first()
    if row is None:
        return None
    return (
        f"plan_id: the data or the model has changed since {plan_id} was made "
        f"({row.created_at:%Y-%m-%d %H:%M} UTC): POST /plans makes a new plan"
    )


_WAS_PLANNED = text(
    "SELECT EXISTS (SELECT FROM plans WHERE project_id = :project AND key = :key"
    " AND status = 'done')"
)


def was_planned(session: Session, project_id: str, key: str) -> bool:
    """Say whether a plan has left prepared data with this key in the store."""
    return bool(session.scalar(_WAS_PLANNED, {"project": project_id, "key": key}))
