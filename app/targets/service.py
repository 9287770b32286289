"""What the hosts are doing, seen from one project."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.errors import NotFound
from app.holds.store import OPEN
from app.preparations.service import hint_waiting
from app.settings import get_settings
from app.targets.schemas import DeviceOut, TargetList, TargetOut, WorkerOut

_SELECT = """
    SELECT id, kind, hostname, draining, hand_back, started_at, seen_at, info,
        seen_at > now() - CAST(:seconds AS float) * interval '1 second' AS online
    FROM workers WHERE {0} ORDER BY kind, id
"""
_RECENT = text(_SELECT.format("seen_at > now() - interval '1 day'"))
_HOST = text(_SELECT.format("id = :id AND project_id = :project_id AND kind = 'host'"))
_DEVICES = text(
    f"""
    SELECT d.worker_id, d.index, d.kind, d.name, d.memory_gb, d.attempt_id IS NOT NULL AS busy,
        EXISTS (SELECT FROM holds h WHERE h.worker_id = d.worker_id AND h.device = d.index
            AND {OPEN}) AS held,
        CASE WHEN a.project_id = :project_id THEN d.attempt_id END AS attempt_id
    FROM devices d LEFT JOIN attempts a ON a.id = d.attempt_id ORDER BY d.worker_id, d.index
    """  # noqa: S608 - constants
)
_LOAD = text(
    """
    SELECT target, count(*) FILTER (WHERE status = 'queued') AS queued,
        count(*) FILTER (WHERE status IN ('provisioning', 'running', 'finalizing')) AS running
    FROM jobs WHERE status NOT IN ('succeeded', 'failed', 'cancelled') GROUP BY target
    """
)


def list_targets(session: Session, project_id: str) -> TargetList:
    """Return each target with its hosts and load; other projects' attempts stay nameless."""
    settings = get_settings()
    rows = session.execute(_RECENT, {"seconds": settings.worker_timeout})
    workers = _with_devices(session, project_id, rows)
    load = {row.target: (row.queued, row.running) for row in session.execute(_LOAD)}
    names = ("local", "fake") if settings.fake_target else ("local",)
    return TargetList(items=[_target(name, workers, *load.get(name, (0, 0))) for name in names])


_DRAIN = text(
    """
    UPDATE workers SET draining = true, hand_back = hand_back OR CAST(:now AS boolean)
    WHERE id = :id AND project_id = :project_id AND kind = 'host'
    """
)
_UNDRAIN = text(
    """
    UPDATE workers SET draining = false, hand_back = false
    WHERE id = :id AND project_id = :project_id AND kind = 'host'
    """
)


def drain(session: Session, project_id: str, worker_id: str, *, now: bool) -> WorkerOut:
    """Give the project's host no new attempts; with `now` have its attempts move elsewhere.

    Raises NotFound.
    """
    where = {"id": worker_id, "project_id": project_id}
    session.execute(_DRAIN, {**where, "now": now})
    return _told(session, project_id, worker_id)


def undrain(session: Session, project_id: str, worker_id: str) -> WorkerOut:
    """Let the project's host get attempts again; raises NotFound."""
    session.execute(_UNDRAIN, {"id": worker_id, "project_id": project_id})
    hint_waiting(session)  # the host's prepare worker has passed over theirs
    return _told(session, project_id, worker_id)


def _told(session: Session, project_id: str, worker_id: str) -> WorkerOut:
    seconds = get_settings().worker_timeout
    values = {"id": worker_id, "project_id": project_id, "seconds": seconds}
    found = _with_devices(session, project_id, session.execute(_HOST, values))
    if not found:
        raise NotFound(f"there is no host {worker_id}; GET /targets lists them", "host_not_found")
    session.execute(text("SELECT pg_notify('polar_work', 'drain')"))
    return found[0]


def _with_devices(session: Session, project_id: str, rows: Iterable[Row[Any]]) -> list[WorkerOut]:
    devices: dict[str, list[DeviceOut]] = {}
    for row in session.execute(_DEVICES, {"project_id": project_id}):
        devices.setdefault(row.worker_id, []).append(_device(row))
    return [WorkerOut(**row._mapping, devices=devices.get(row.id, [])) for row in rows]


def _device(row: Row[tuple[object, ...]]) -> DeviceOut:
    return DeviceOut.model_validate({k: v for k, v in row._mapping.items() if k != "worker_id"})


def _target(name: str, workers: list[WorkerOut], queued: int, running: int) -> TargetOut:
    usable = [w for w in workers if w.online and not w.draining]
    free = sum(not (d.busy or d.held) for worker in usable for d in worker.devices)
    return TargetOut(name=name, queued=queued, running=running, free_devices=free, workers=workers)
