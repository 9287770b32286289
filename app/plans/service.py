"""Plans and previews: made once for what is asked, and shown as far as they are."""

import hashlib
import json
import re

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.errors import FieldProblem, InvalidPayload
from app.ids import new_id
from app.jobs.hardware import hardware_for
from app.jobs.schemas import Warn
from app.jobs.spec import JobSpec
from app.jobs.submit import as_given, checked
from app.models import Plan
from app.outbox import PREPARE_QUEUE, hint
from app.plans.identity import found_now
from app.plans.machines import machines
from app.plans.pins import find_plan, planned_part
from app.plans.schemas import Figures, PlanOut, PlanProblem, PreviewOut
from app.settings import get_settings

PLAN_HOURS = 24.0
PREVIEW_HOURS = 0.25
_FIELD = re.compile(r"^([a-z_]+(?:\[\d+\])?(?:\.[A-Za-z0-9_]+(?:\[\d+\])?)*)(?![A-Za-z0-9_])")
_BLOCKS = ("task", "model", "data", "training", "adapter", "quantization", "evaluation")


def begin(session: Session, project_id: str, spec: JobSpec, samples: int | None) -> Plan:
    """Return the live plan of a spec, or preview of so many samples; a new one where there is none.

    Raises InvalidPayload for fields that cannot work.
    """
    if spec.plan_id is not None:
        message = "leave it out here: it pins a job to a plan"
        raise InvalidPayload([FieldProblem(pointer="/plan_id", message=message)])
    settings = get_settings()
    resolved, warnings, hosts = checked(session, project_id, spec, settings)
    found = found_now(session, project_id, spec, resolved, settings)
    hardware = hardware_for(spec.compute.gpus, hosts) if hosts else None
    given = as_given(spec)
    asked = [planned_part(given), resolved, found, samples]
    identity = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    live = _live(session, project_id, identity)
    if live is not None:
        return live
    plan = Plan(
        id=new_id("plan"),
        project_id=project_id,
        identity=identity,
        spec=given,
        resolved=resolved,
        warnings=[w.model_dump() for w in warnings],
        hardware=None if hardware is None else hardware.model_dump(),
        found=found,
        samples=samples,
        expires_at=text(f"now() + interval '{_hours(samples):g} hours'"),
    )
    session.add(plan)
    session.flush()
    hint(session, project_id, PREPARE_QUEUE, "plan", plan.id)
    session.refresh(plan)
    return plan


def _hours(samples: int | None) -> float:
    return PLAN_HOURS if samples is None else PREVIEW_HOURS


def _live(session: Session, project_id: str, identity: str) -> Plan | None:
    """The one that others have asked for; two who ask at once find each other's."""
    lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
    session.execute(lock, {"name": f"plan/{project_id}/{identity}"})
    query = select(Plan).where(
        Plan.project_id == project_id,
        Plan.identity == identity,
        Plan.status != "failed",
        Plan.expires_at > text("now()"),
    )
    return session.scalar(query.order_by(Plan.id.desc()).limit(1))


def show(session: Session, project_id: str, plan_id: str) -> PlanOut:
    """Return the plan as far as it is; raises NotFound."""
    return _out(session, find_plan(session, project_id, plan_id))


def _out(session: Session, plan: Plan) -> PlanOut:
    said = plan.exact or plan.estimate
    figures = None if said is None else Figures.model_validate(said)
    return PlanOut(
        id=plan.id,
        status=plan.status,
        exact=plan.exact is not None,
        figures=figures,
        waiting_for=_waiting_for(session, plan),
        problem=_problem(plan),
        machines=machines(session, plan.project_id, plan.spec, figures),
        spec=plan.spec,
        resolved=plan.resolved,
        warnings=[Warn.model_validate(warning) for warning in plan.warnings],
        links={"self": f"/plans/{plan.id}"},
        created_at=plan.created_at,
        expires_at=plan.expires_at,
        finished_at=plan.finished_at,
    )


_PREPARERS = text(
    "SELECT EXISTS (SELECT FROM workers WHERE kind = 'prepare'"
    " AND seen_at > now() - CAST(:timeout AS float) * interval '1 second')"
)


def _preparers(session: Session) -> bool:
    return bool(session.scalar(_PREPARERS, {"timeout": get_settings().worker_timeout}))


def _waiting_for(session: Session, plan: Plan) -> str | None:
    if plan.status not in ("waiting", "running") or plan.estimate is not None:
        return None
    if plan.status == "running":
        return "its first rows are being read"
    return "a prepare worker" if _preparers(session) else "no prepare worker online"


def _problem(plan: Plan) -> PlanProblem | None:
    if plan.problem is None:
        return None
    message = str(plan.problem["message"])
    return PlanProblem(reason=plan.problem["reason"], message=message, pointer=pointer_of(message))


def pointer_of(message: str) -> str | None:
    """Return the JSON pointer of the field that a trainer's message begins with, if it does."""
    named = _FIELD.match(message)
    if named is None or named[1].partition(".")[0] not in _BLOCKS:
        return None
    return "/" + named[1].replace(".", "/").replace("[", "/").replace("]", "")


def said_of_preview(session: Session, plan_id: str) -> PreviewOut:
    """Return a preview as far as it is; raises InvalidPayload where there is none to be had."""
    plan = session.get_one(Plan, plan_id)
    problem = _problem(plan)
    if problem is not None:
        of_spec = not problem.message.startswith("samples")
        pointer = f"/spec{problem.pointer or ''}" if of_spec else "/samples"
        raise InvalidPayload(
            [FieldProblem(pointer=pointer, message=problem.message)], problem.reason
        )
    said = plan.estimate or {}
    return PreviewOut(
        samples=said.get("samples"),
        warnings=said.get("warnings", []),
        waiting_for=_waiting_for(session, plan),
    )


def is_told(session: Session, plan_id: str) -> bool:
    """Say whether it is in vain to wait: there is something to show, or nobody who makes it."""
    over = Plan.estimate.is_not(None) | Plan.status.in_(("done", "failed"))
    return bool(session.scalar(select(over).where(Plan.id == plan_id))) or not _preparers(session)
