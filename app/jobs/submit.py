"""From a valid JobSpec to a queued job: resolved, checked, written once."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.orm import Session

from app.datasets.service import settle
from app.errors import Conflict, FieldProblem, InvalidPayload, NotFound
from app.ids import new_id
from app.jobs import store, view
from app.jobs.hardware import Host, hosts_online
from app.jobs.references import check_devices, check_references
from app.jobs.resolution import resolve_spec
from app.jobs.schemas import JobOut, Warn
from app.jobs.spec import JobSpec
from app.jobs.store import NewJob, Once
from app.plans.pins import check_pin
from app.settings import Settings, get_settings


@dataclass(frozen=True)
class Origin:
    """What a new job was made from: another one, or a sweep, of which it is a run."""

    retry_of: str | None = None
    clone_of: str | None = None
    start_from: dict[str, Any] | None = None
    resolved: dict[str, Any] | None = None
    sweep_id: str | None = None
    sweep_run: int | None = None
    registers: bool = True
    """False: what its spec says of the registry does not count, for the sweep registers."""


@dataclass(frozen=True)
class Submission:
    """A request for a job: who asks, what for, and the key that makes it safe to repeat."""

    project_id: str
    spec: JobSpec
    idempotency_key: str | None = None
    origin: Origin = field(default_factory=Origin)
    once: Once | None = None  # for a call whose content is not the spec; see `once_for`
    warnings: tuple[Warn, ...] = ()  # of whoever made the spec


def once_for(key: str | None, asked: list[Any]) -> Once:
    """Return an idempotency key with the hash of what was asked for.

    What the call then makes of it is left out: a retry finds other checkpoints a second later.
    Raises InvalidPayload for what is nested too deeply to be written.
    """
    hours = get_settings().idempotency_hours
    if key is None:
        return Once(None, "", hours)
    try:
        content = json.dumps(asked, sort_keys=True).encode()
    except RecursionError as error:
        message = "it is nested too deeply"
        raise InvalidPayload([FieldProblem(pointer="", message=message)]) from error
    return Once(key, hashlib.sha256(content).hexdigest(), hours)


def _once(submission: Submission) -> Once:
    # In the form that an earlier version hashes, which may run beside this one.
    return once_for(submission.idempotency_key, [as_given(submission.spec), None, None, False])


def as_given(spec: JobSpec) -> dict[str, Any]:
    """Return the spec with only the fields that the caller wrote."""
    return spec.model_dump(mode="json", exclude_unset=True)


def submit(session: Session, submission: Submission) -> JobOut:
    """Check and write a job; with a key used before, return that request's answer.

    Raises InvalidPayload for fields that cannot work, NotFound and Conflict for a plan that it is
    not, Conflict `idempotency_mismatch` or `in_flight` for a key that belongs to another request.
    It may run on the event loop, so
    nothing in here may block on anything but the session.
    """
    settings = get_settings()
    once = submission.once or _once(submission)
    try:
        job = _checked(session, submission, settings)
    except (Conflict, InvalidPayload, NotFound):  # what it names may be gone since
        before = answer_before(session, submission.project_id, once)
        if before is None:
            raise
        return before
    answer = view.of_new(job)
    created = store.insert_job(session, job, once, answer.model_dump(mode="json"))
    if created is not None:
        return answer.model_copy(update={"created_at": created, "updated_at": created})
    before = answer_before(session, submission.project_id, once)
    if before is None:
        raise Conflict(
            "a request with this Idempotency-Key is being answered right now; try again",
            "in_flight",
        )
    return before


def answer_before(session: Session, project_id: str, once: Once) -> JobOut | None:
    """Return the answer that this key got before, None when it got none.

    Raises Conflict `idempotency_mismatch` for a key that belongs to another request.
    """
    said = said_before(session, project_id, once)
    return None if said is None else JobOut.model_validate(said)


def said_before(session: Session, project_id: str, once: Once) -> dict[str, Any] | None:
    """Return what this key was answered, as JSON; None and errors as `answer_before`."""
    found = store.remembered(session, project_id, once) if once.key else None
    if found is None:
        return None
    if found.body_hash != once.body_hash:
        raise Conflict(
            "this Idempotency-Key was used for another request; use a new key for a new job",
            "idempotency_mismatch",
        )
    said: dict[str, Any] = found.response
    return said


def checked(
    session: Session, project_id: str, spec: JobSpec, settings: Settings
) -> tuple[dict[str, Any], list[Warn], list[Host]]:
    """Return the resolved spec with its data settled, warnings, and the hosts that are online.

    Raises InvalidPayload for fields that cannot work.
    """
    hosts = hosts_online(session)
    problems = check_references(session, project_id, spec, settings)
    problems += check_devices(spec, hosts)
    if problems:
        raise InvalidPayload(problems)
    resolved, warnings = resolve_spec(spec, hosts)
    resolved["data"] = settle(session, project_id, resolved["data"])
    return resolved, [*warnings, *_warn_of_hosts(hosts)], hosts


def _checked(session: Session, submission: Submission, settings: Settings) -> NewJob:
    spec, origin = submission.spec, submission.origin
    resolved, warnings, _ = checked(session, submission.project_id, spec, settings)
    if spec.plan_id is not None:
        check_pin(session, submission.project_id, spec, resolved, settings)
    job_id = new_id("job")
    job = NewJob(
        id=job_id,
        project_id=submission.project_id,
        name=spec.name or f"{spec.task.type}-{job_id[-8:].lower()}",
        labels=spec.labels,
        priority=spec.priority,
        task_type=spec.task.type,
        backend=resolved["backend"],
        target="local" if spec.compute.target == "auto" else spec.compute.target,
        spec=as_given(spec),
        resolved=resolved,
        warnings=[w.model_dump() for w in (*submission.warnings, *warnings)],
        max_attempts=spec.retry.max_attempts,
        retry_of=origin.retry_of,
        clone_of=origin.clone_of,
        start_from=origin.start_from,
        sweep_id=origin.sweep_id,
        sweep_run=origin.sweep_run,
    )
    return replace(job, resolved=_published(origin.resolved or resolved, resolved, origin))


def _published(used: dict[str, Any], resolved: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """Return the spec that is used, registering as the job's own says and not as its parent did."""
    registry = resolved["publish"]["registry"] and origin.registers
    # A parent of an older version may have no such block.
    return {**used, "publish": {**used.get("publish", {}), "registry": registry}}


def _warn_of_hosts(hosts: list[Host]) -> list[Warn]:
    if hosts:
        return []
    return [Warn(code="no_worker", message="no host is online: the job waits for one")]
