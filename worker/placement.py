"""Places waiting jobs: reads who waits and what is free, and reserves what `plan` decides."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row, bindparam, text
from sqlalchemy.orm import Session

from app.attempts.service import reserve
from app.jobs.lifecycle import RULES
from app.jobs.spec import Compute
from app.settings import get_settings
from app.tracking.store import follow
from worker.plan import Slot, Waiting, Wish, plan

# Row locks alone keep two reconcilers from taking the same job or device. This lock gives the one
# that places the whole view: half of one would let small jobs slip past a large one's reservation.
_ALONE = text("SELECT pg_try_advisory_xact_lock(hashtext('polar.placement'))")

_QUEUE = text(
    """
    SELECT j.id, j.project_id, j.target, j.waiting_for, j.spec -> 'compute' AS compute,
        j.prepared_key IS NOT NULL AS prepared, p.status AS preparation,
        coalesce(j.not_before > now(), false) AS later,
        to_char(j.not_before AT TIME ZONE 'UTC', 'HH24:MI:SS') AS not_before
    FROM jobs j LEFT JOIN preparations p ON p.job_id = j.id
    WHERE j.status = 'queued' AND j.cancel_requested_at IS NULL AND j.pause_requested_at IS NULL
    ORDER BY j.priority DESC, j.created_at, j.id
    LIMIT 5000
    """
)

_DEVICES = text(
    """
    SELECT d.worker_id, d.index AS number, d.kind, d.name, d.memory_gb, d.attempt_id IS NULL AS free
    FROM devices d JOIN workers w ON w.id = d.worker_id
    WHERE w.kind = 'host' AND NOT w.draining
        AND w.seen_at > now() - CAST(:timeout AS float) * interval '1 second'
    ORDER BY d.worker_id, d.index
    """
)

_PREPARERS = text(
    """
    SELECT EXISTS (SELECT FROM workers p WHERE kind = 'prepare'
        AND seen_at > now() - CAST(:timeout AS float) * interval '1 second'
        AND NOT EXISTS (SELECT FROM workers h
            WHERE h.draining AND starts_with(p.id, h.id || '.prepare.')))
    """
)

_DRAINING = text(
    """
    SELECT EXISTS (SELECT FROM workers WHERE kind = 'host' AND draining
        AND seen_at > now() - CAST(:timeout AS float) * interval '1 second')
    """
)

# Where the machine, not the job, ended one of the job's last tries: another host may be better.
_AVOID = text(
    """
    SELECT job_id, array_agg(DISTINCT worker_id) AS hosts FROM attempts
    WHERE job_id IN :jobs AND finished_at > now() - interval '1 day' AND worker_id IS NOT NULL
        AND outcome IN ('failed', 'lost') AND reason IN :reasons
    GROUP BY job_id
    """
).bindparams(bindparam("jobs", expanding=True), bindparam("reasons", expanding=True))
_CHOOSY = 200  # jobs at the head of the queue for which this is looked up
_MACHINES_FAULT = [reason.value for reason, rule in RULES.items() if rule.machine]

_EXPLAIN = text(
    """
    UPDATE jobs SET waiting_for = w.reason
    FROM jsonb_each_text(CAST(:reasons AS jsonb)) AS w(id, reason)
    WHERE jobs.id = w.id AND jobs.status = 'queued'
    """
)


def place(session: Session, stepper_id: str) -> int:
    """Reserve devices for the jobs whose turn it is; returns how many were placed.

    `stepper_id` is the reconciler that carries jobs of targets without a host of ours. Says on
    every other waiting job what it waits for. Does nothing while another reconciler places.
    """
    if not session.execute(_ALONE).scalar():
        return 0
    queue = session.execute(_QUEUE).all()
    if not queue:
        return 0
    ready = [job for job in queue if job.prepared and not job.later]
    reasons = _not_ready(session, queue)
    placed = sum(
        _start(session, job.id, job.project_id, stepper_id, [])
        for job in ready
        if job.target == "fake"
    )
    local = [job for job in ready if job.target != "fake"]
    hosts = _hosts(session)
    avoid = _avoid(session, [job.id for job in local][:_CHOOSY]) if len(hosts) > 1 else {}
    waiting = (Waiting(j.id, wish(j.compute), avoid.get(j.id, frozenset())) for j in local)
    result = plan(waiting, hosts)
    if not hosts and local and _all_draining(session):
        result.waiting = dict.fromkeys(result.waiting, "every worker online is being drained")
    projects = {job.id: job.project_id for job in local}
    for a in result.assignments:
        placed += _start(session, a.job_id, projects[a.job_id], a.worker_id, a.devices)
    _explain(session, queue, {**reasons, **result.waiting})
    return placed


def wish(compute: dict[str, Any] | None) -> Wish:
    """Return what a JobSpec's `compute` block asks of a host."""
    gpus = Compute.model_validate(compute or {}).gpus
    if gpus is None:
        return Wish()
    return Wish(gpus.count, "cuda", gpus.name, gpus.min_memory_gb)


def _start(
    session: Session, job_id: str, project_id: str, worker_id: str, devices: Sequence[int]
) -> bool:
    if reserve(session, job_id, worker_id, devices) is None:
        return False
    follow(session, job_id, project_id)
    return True


def _hosts(session: Session) -> dict[str, Sequence[Slot]]:
    hosts: dict[str, list[Slot]] = {}
    for row in session.execute(_DEVICES, {"timeout": get_settings().worker_timeout}):
        slot = Slot(row.number, row.kind, row.name, row.memory_gb, row.free)
        hosts.setdefault(row.worker_id, []).append(slot)
    return dict(hosts)


def _avoid(session: Session, jobs: Sequence[str]) -> dict[str, frozenset[str]]:
    if not jobs:
        return {}
    rows = session.execute(_AVOID, {"jobs": jobs, "reasons": _MACHINES_FAULT})
    return {row.job_id: frozenset(row.hosts) for row in rows}


def _all_draining(session: Session) -> bool:
    timeout = {"timeout": get_settings().worker_timeout}
    return bool(session.execute(_DRAINING, timeout).scalar())


def _not_ready(session: Session, queue: Iterable[Row[Any]]) -> dict[str, str]:
    """Say why jobs are not even candidates: their data, or a back-off that has its own words."""
    timeout = {"timeout": get_settings().worker_timeout}
    preparers = bool(session.execute(_PREPARERS, timeout).scalar())
    reasons = {}
    for job in queue:
        if job.later:
            reasons[job.id] = job.waiting_for or f"back-off until {job.not_before} UTC"
        elif not job.prepared:
            reasons[job.id] = _data(job.preparation, preparers=preparers)
    return reasons


def _data(preparation: str | None, *, preparers: bool) -> str:
    if preparation == "running":
        return "its data is being prepared"
    return "a prepare worker" if preparers else "no prepare worker online"


def _explain(session: Session, queue: Iterable[Row[Any]], reasons: dict[str, str]) -> None:
    before = {job.id: job.waiting_for for job in queue}
    changed = {job: reason for job, reason in reasons.items() if before[job] != reason}
    if changed:
        session.execute(_EXPLAIN, {"reasons": json.dumps(changed)})
