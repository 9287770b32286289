"""What can be done with sweeps."""

import re
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.errors import BadRequest, Conflict, FieldProblem, InvalidPayload, NotFound
from app.ids import new_id
from app.jobs.lifecycle import OPEN, Status
from app.jobs.schemas import Warn
from app.jobs.service import cancel_job
from app.jobs.spec import JobSpec
from app.jobs.store import Once
from app.jobs.submit import Origin, Submission, as_given, once_for, said_before, submit
from app.models import Sweep
from app.presets.service import expand
from app.sweeps import store, view
from app.sweeps.schemas import NewSweep, SweepOut, SweepPage, SweepQuery
from app.sweeps.variants import Variant, variants
from trainer_core.problems import explain

_CURSOR = re.compile(r"swp_[0-9A-HJKMNP-TV-Z]{26}")
_MOST_PROBLEMS = 50
_NO_PLAN = "leave it out: a plan is one job's, and the runs of a sweep differ"


def create_sweep(
    session: Session, project_id: str, new: NewSweep, key: str | None = None
) -> SweepOut:
    """Check every run and write them all; with a key used before, return that request's answer.

    Raises InvalidPayload, with the run, for fields that cannot work, and Conflict for a key of
    another request: then nothing is written, once the caller has rolled back.
    """
    once = once_for(key, ["sweep", new.model_dump(mode="json", exclude_unset=True)])
    if (said := _said(session, project_id, once)) is not None:
        return said
    base, warnings = _base(session, project_id, new)
    specs = _specs(new, base)
    sweep = _write(session, project_id, new, base)
    problems: list[FieldProblem] = []
    for variant, spec in specs:
        # Not in the run's spec: a clone or retry of it is no run, and registers as the user said.
        origin = Origin(
            sweep_id=sweep.id, sweep_run=variant.number, registers=not new.register_best
        )
        try:
            submit(session, Submission(project_id, spec, origin=origin, warnings=warnings))
        except InvalidPayload as error:
            problems += map(variant.problem, error.problems)
        if len(problems) >= _MOST_PROBLEMS:
            break
    if problems:
        raise InvalidPayload(problems)
    made = view.of_sweep(session, sweep)
    store.remember(session, project_id, once, made.model_dump(mode="json"))
    return made


def _said(session: Session, project_id: str, once: Once) -> SweepOut | None:
    if not store.take_key(session, project_id, once):
        message = "a request with this Idempotency-Key is being answered right now; try again"
        raise Conflict(message, "in_flight")
    said = said_before(session, project_id, once)
    return None if said is None else SweepOut.model_validate(said)


def _base(session: Session, project_id: str, new: NewSweep) -> tuple[JobSpec, tuple[Warn, ...]]:
    """Return what all runs have in common, and what of it came from a preset.

    Raises InvalidPayload for a preset that is not there, and for fields that are wrong with it.
    """
    try:
        spec, warnings = expand(session, project_id, new.spec)
    except InvalidPayload as error:
        problems = [p.model_copy(update={"pointer": f"/spec{p.pointer}"}) for p in error.problems]
        raise InvalidPayload(problems) from error
    said = "; what the sweep varies goes before it"
    return spec, tuple(w.model_copy(update={"message": w.message + said}) for w in warnings)


def _specs(new: NewSweep, base: JobSpec) -> list[tuple[Variant, JobSpec]]:
    """Return each run with its spec; raises InvalidPayload."""
    if base.plan_id is not None:
        raise InvalidPayload([FieldProblem(pointer="/spec/plan_id", message=_NO_PLAN)])
    found: list[tuple[Variant, JobSpec]] = []
    problems: list[FieldProblem] = []
    for variant in variants(new, as_given(base)):
        try:
            spec = _spec(new, variant)
            found.append((variant, spec))
            if spec.plan_id is not None:
                wrong = FieldProblem(pointer="/plan_id", message=_NO_PLAN, value=spec.plan_id)
                problems.append(variant.problem(wrong))
        except ValidationError as error:
            told = [FieldProblem(**each.model_dump()) for each in explain(error, (), JobSpec)]
            problems += map(variant.problem, told)
        if len(problems) >= _MOST_PROBLEMS:
            break
    if problems:
        raise InvalidPayload(problems)
    _check_different(found)
    _check_pushes(found)
    return found


def _spec(new: NewSweep, variant: Variant) -> JobSpec:
    spec = dict(variant.spec)
    named = any(field.partition(".")[0] == "name" for field in variant.overrides)
    if not named:
        spec["name"] = f"{new.name}-{variant.number}"
    return JobSpec.model_validate(spec)


def _check_different(found: list[tuple[Variant, JobSpec]]) -> None:
    seen: list[dict[str, Any]] = []
    for variant, spec in found:
        own = {name: value for name, value in as_given(spec).items() if name != "name"}
        if own in seen:
            message = f"it is the same as run {seen.index(own) + 1}: leave one of them out"
            raise InvalidPayload([variant.problem(FieldProblem(pointer="", message=message))])
        seen.append(own)


def _check_pushes(found: list[tuple[Variant, JobSpec]]) -> None:
    """Each run pushes by itself, so no two may push to the same place."""
    places: dict[tuple[str, str], int] = {}
    for variant, spec in found:
        hub = spec.publish.hub
        if hub is None:
            continue
        first = places.setdefault((hub.repo_id, hub.revision), variant.number)
        if first != variant.number:
            message = (
                f"it would push over what run {first} has pushed: leave publish.hub out, or give "
                "each run a place of its own"
            )
            wrong = FieldProblem(pointer="/publish/hub", message=message)
            raise InvalidPayload([variant.problem(wrong)])


def _write(session: Session, project_id: str, new: NewSweep, base: JobSpec) -> Sweep:
    given = new.model_dump(mode="json")
    overrides = given["runs"] or [variant.overrides for variant in variants(new, as_given(base))]
    sweep = Sweep(
        id=new_id("swp"),
        project_id=project_id,
        name=new.name,
        spec=as_given(base),
        overrides=overrides,
        metric=given["metric"],
        max_concurrent=new.max_concurrent,
        register_best=new.register_best,
    )
    session.add(sweep)
    session.flush()
    session.refresh(sweep)
    return sweep


def find_sweep(session: Session, project_id: str, sweep_id: str, *, lock: bool = False) -> Sweep:
    """Return the project's sweep; raises NotFound."""
    found = store.get_sweep(session, project_id, sweep_id, lock=lock)
    if found is None:
        raise NotFound(f"there is no sweep {sweep_id}", "sweep_not_found")
    return found


def show_sweep(session: Session, project_id: str, sweep_id: str) -> SweepOut:
    """Return the sweep with its runs; raises NotFound."""
    return view.of_sweep(session, find_sweep(session, project_id, sweep_id))


def list_sweeps(session: Session, project_id: str, query: SweepQuery) -> SweepPage:
    """Return a page of sweeps, newest first; raises BadRequest for a cursor that is none."""
    if query.cursor is not None and not _CURSOR.fullmatch(query.cursor):
        message = f"cursor {query.cursor[:60]!r} is not from a page of this list"
        raise BadRequest(message, "invalid_cursor")
    rows = store.list_sweeps(session, project_id, query.status, query.cursor, query.limit + 1)
    page = rows[: query.limit]
    counts = store.counts(session, [sweep.id for sweep in page])
    items = [view.summary(sweep, counts[sweep.id]) for sweep in page]
    more = len(rows) > query.limit
    return SweepPage(items=items, next_cursor=items[-1].id if more else None)


def cancel_sweep(session: Session, project_id: str, sweep_id: str) -> SweepOut:
    """Cancel every run that has not ended; raises Conflict when all of them had.

    Doing it twice changes nothing.
    """
    sweep = find_sweep(session, project_id, sweep_id, lock=True)
    if sweep.status == "finished":
        message = "all of its runs have ended, so nothing is left to cancel"
        raise Conflict(message, "sweep_finished")
    if sweep.cancel_requested_at is None:
        sweep.cancel_requested_at = session.scalars(select(func.now())).one()
        for job in store.runs(session, sweep.id):
            if Status(job.status) in OPEN:
                with suppress(Conflict):  # it has ended meanwhile
                    cancel_job(session, project_id, job.id)
    session.flush()
    return view.of_sweep(session, sweep)


def run_ids(session: Session, project_id: str, sweep_id: str) -> list[str]:
    """Return the ids of the sweep's runs in their order; raises NotFound."""
    find_sweep(session, project_id, sweep_id)
    return [job.id for job in store.runs(session, sweep_id)]
