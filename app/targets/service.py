"""What the hosts are doing, seen from one project."""

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.settings import get_settings
from app.targets.schemas import DeviceOut, TargetList, TargetOut, WorkerOut

_WORKERS = text(
    """
    SELECT id, kind, hostname, draining, started_at, seen_at, info,
        seen_at > now() - CAST(:seconds AS float) * interval '1 second' AS online
    FROM workers WHERE seen_at > now() - interval '1 day' ORDER BY kind, id
    """
)
_DEVICES = text(
    """
    SELECT d.worker_id, d.index, d.kind, d.name, d.memory_gb, d.attempt_id IS NOT NULL AS busy,
        CASE WHEN a.project_id = :project_id THEN d.attempt_id END AS attempt_id
    FROM devices d LEFT JOIN attempts a ON a.id = d.attempt_id ORDER BY d.worker_id, d.index
    """
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
    devices: dict[str, list[DeviceOut]] = {}
    for row in session.execute(_DEVICES, {"project_id": project_id}):
        devices.setdefault(row.worker_id, []).append(_device(row))
    workers = [
        WorkerOut(**row._mapping, devices=devices.get(row.id, []))
        for row in session.execute(_WORKERS, {"seconds": settings.worker_timeout})
    ]
    load = {row.target: (row.queued, row.running) for row in session.execute(_LOAD)}
    names = ("local", "fake") if settings.fake_target else ("local",)
    return TargetList(items=[_target(name, workers, *load.get(name, (0, 0))) for name in names])


def _device(row: Row[tuple[object, ...]]) -> DeviceOut:
    return DeviceOut.model_validate({k: v for k, v in row._mapping.items() if k != "worker_id"})


def _target(name: str, workers: list[WorkerOut], queued: int, running: int) -> TargetOut:
    usable = [w for w in workers if w.online and not w.draining]
    free = sum(not device.busy for worker in usable for device in worker.devices)
    return TargetOut(name=name, queued=queued, running=running, free_devices=free, workers=workers)
