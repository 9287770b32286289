"""Places waiting jobs: reads who waits and what is free, and reserves what `plan` decides."""

import json
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, bindparam, text
from sqlalchemy.orm import Session

from app.attempts.service import reserve
from app.holds.store import OPEN, close_over
from app.jobs.lifecycle import RULES
from app.jobs.spec import Gpus
from app.settings import get_settings
from app.tracking.store import follow
from worker.plan import Planner, Slot, Waiting, Wish

# Row locks alone keep two reconcilers from taking the same job or device. This lock gives the one
# that places the whole view: half of one would let small jobs slip past a large one's reservation.
_ALONE = text("SELECT pg_try_advisory_xact_lock(hashtext('polar.placement'))")

_QUEUED = "j.status = 'queued' AND j.cancel_requested_at IS NULL AND j.pause_requested_at IS NULL"
_READY = f"{_QUEUED} AND j.prepared_key IS NOT NULL AND coalesce(j.not_before <= now(), true)"
_GPUS = "coalesce(j.spec #>> '{compute,gpus}', '')"
_ORDER = "ORDER BY j.priority DESC, j.created_at, j.id"

# A sweep's runs beyond `max_concurrent`, in the order of the queue, wait for those before them.
_HELD = f"""
    CASE WHEN j.sweep_id IS NULL THEN false ELSE (
        SELECT coalesce(s.max_concurrent, 2147483647) <= (SELECT count(*) FROM jobs o
            WHERE o.sweep_id = j.sweep_id AND (o.status IN ('provisioning', 'running', 'finalizing')
                OR ({_READY.replace("j.", "o.")} AND (o.priority > j.priority
                    OR (o.priority = j.priority AND (o.created_at, o.id) < (j.created_at, j.id))))))
        FROM sweeps s WHERE s.id = j.sweep_id) END
"""  # noqa: S608 - constants

# A page of the jobs that could start now, behind a place in the queue, without those whose wish
# nothing free can serve any more, and those of other projects where all that is free is held for
# some: however many of them there are, they block nobody.
_PAGE = text(
    f"""
    SELECT j.id, j.project_id, j.priority, j.created_at, {_GPUS} AS gpus FROM jobs j
    WHERE {_READY} AND j.target <> 'fake' AND NOT {_HELD}
        AND (CAST(:id AS text) IS NULL OR j.priority < :priority
            OR (j.priority = :priority AND (j.created_at, j.id) > (:created_at, :id)))
        AND NOT {_GPUS} = ANY(CAST(:hopeless AS text[]))
        AND (CAST(:projects AS text[]) IS NULL OR j.project_id = ANY(CAST(:projects AS text[])))
    {_ORDER} LIMIT :page
    """  # noqa: S608 - constants
)
PAGE = 1000

_FAKE = text(
    f"SELECT j.id, j.project_id FROM jobs j WHERE {_READY} AND j.target = 'fake'"  # noqa: S608
    f" AND NOT {_HELD}"
    f" {_ORDER} LIMIT :page"
)

# The jobs that are told what they wait for: the head of the queue.
_HEAD = text(
    f"""
    SELECT j.id, j.project_id, j.target, j.waiting_for, {_GPUS} AS gpus,
        j.prepared_key IS NOT NULL AS prepared, p.status AS preparation,
        coalesce(j.not_before > now(), false) AS later,
        j.prepared_key IS NOT NULL AND {_HELD} AS held,
        to_char(j.not_before AT TIME ZONE 'UTC', 'HH24:MI:SS') AS not_before
    FROM jobs j LEFT JOIN preparations p ON p.job_id = j.id
    WHERE {_QUEUED} {_ORDER} LIMIT 5000
    """  # noqa: S608 - constants
)

_DEVICES = text(
    f"""
    SELECT d.worker_id, d.index AS number, d.kind, d.name, d.memory_gb,
        d.attempt_id IS NULL AS free, h.project_id AS held_for
    FROM devices d JOIN workers w ON w.id = d.worker_id
    LEFT JOIN holds h ON h.worker_id = d.worker_id AND h.device = d.index AND {OPEN}
    WHERE w.kind = 'host' AND NOT w.draining
        AND w.seen_at > now() - CAST(:timeout AS float) * interval '1 second'
    ORDER BY d.worker_id, d.index
    """  # noqa: S608 - constants
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
_CHOOSY = 200  # jobs at the head of a page for which this is looked up
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
    every other waiting job at the head of the queue what it waits for. Does nothing while another
    reconciler places.
    """
    if not session.execute(_ALONE).scalar():
        return 0
    close_over(session)
    head = session.execute(_HEAD).all()
    if not head:
        return 0
    hosts = _hosts(session)
    planner = Planner(hosts)
    projects = _plan(session, planner, choosy=len(hosts) > 1)
    assignments = list(planner.result.assignments)
    ready = [job for job in head if _could_start(job) and job.target != "fake"]
    reasons = _reasons(planner, ready, projects)
    if ready and not hosts and _all_draining(session):
        reasons = dict.fromkeys(reasons, "every worker online is being drained")
    _explain(session, head, _not_ready(session, head) | reasons)
    placed = _place_fake(session, stepper_id) if get_settings().fake_target else 0
    for a in assignments:
        placed += _start(session, a.job_id, projects[a.job_id], a.worker_id, a.devices)
    return placed


def _could_start(job: Row[Any]) -> bool:
    return bool(job.prepared and not job.later and not job.held)


def _plan(session: Session, planner: Planner, *, choosy: bool) -> dict[str, str]:
    """Plan for ready jobs until nothing is free or nobody is left; returns their projects."""
    projects: dict[str, str] = {}
    hopeless: set[str] = set()
    after: dict[str, Any] = {"id": None, "priority": None, "created_at": None}
    while planner.has_room:
        only = planner.open_to if projects else None  # the head of the queue is told its place
        where = {**after, "hopeless": sorted(hopeless), "page": PAGE, "projects": only and [*only]}
        page = session.execute(_PAGE, where).all()
        avoid = _avoid(session, [row.id for row in page][:_CHOOSY]) if choosy else {}
        for row in page:
            hosts = avoid.get(row.id, frozenset())
            planner.add(Waiting(row.id, wish(row.gpus), hosts, row.project_id))
            projects[row.id] = row.project_id
        if len(page) < PAGE:
            break
        hopeless |= {gpus for gpus in {row.gpus for row in page} if not planner.serves(wish(gpus))}
        after = {name: getattr(page[-1], name) for name in after}
    return projects


def _reasons(
    planner: Planner, ready: Iterable[Row[Any]], planned: Container[str]
) -> dict[str, str]:
    """Say what ready jobs wait for, those behind the last one that was planned for included."""
    waiting = planner.result.waiting
    for job in ready:
        if job.id not in planned:
            planner.add(Waiting(job.id, wish(job.gpus), project=job.project_id))
    return {job.id: waiting[job.id] for job in ready if job.id in waiting}


def _place_fake(session: Session, stepper_id: str) -> int:
    ready = session.execute(_FAKE, {"page": PAGE}).all()
    return sum(_start(session, job.id, job.project_id, stepper_id, []) for job in ready)


@lru_cache(maxsize=256)
def wish(gpus: str) -> Wish:
    """Return what a JobSpec's `compute.gpus` block, as JSON, asks of a host; empty: nothing."""
    if not gpus:
        return Wish()
    asked = Gpus.model_validate_json(gpus)
    return Wish(asked.count, "cuda", asked.name, asked.min_memory_gb)


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
        slot = Slot(row.number, row.kind, row.name, row.memory_gb, row.free, row.held_for)
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
    """Say why jobs are not even candidates: data, a back-off that has its own words, a sweep."""
    timeout = {"timeout": get_settings().worker_timeout}
    preparers = bool(session.execute(_PREPARERS, timeout).scalar())
    reasons = {}
    for job in queue:
        if job.later:
            reasons[job.id] = job.waiting_for or f"back-off until {job.not_before} UTC"
        elif not job.prepared:
            reasons[job.id] = _data(job.preparation, preparers=preparers)
        elif job.held:
            reasons[job.id] = "other runs of its sweep, which runs no more at once"
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
