"""Holds in Postgres. Whoever makes or uses one has locked the device's row before.

A hold is open until it is used, given back, over, or its host takes no jobs. Its time is looked at
by every reader: no process has to end it.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.ids import new_id
from app.settings import get_settings

OPEN = "ended_at IS NULL AND expires_at > now()"
_ONLINE = (
    "w.kind = 'host' AND NOT w.draining"
    " AND w.seen_at > now() - CAST(:timeout AS float) * interval '1 second'"
)

# Jobs without a wish run on GPUs where there are any: nobody would use a hold of a CPU then.
_DEVICE = f"""
    SELECT d.worker_id, d.index AS number, d.kind, d.name, d.memory_gb,
        d.attempt_id IS NOT NULL AS busy,
        w.draining, {_ONLINE} AS online,
        d.kind = 'cuda' OR NOT EXISTS (SELECT FROM devices o JOIN workers w ON w.id = o.worker_id
            WHERE o.kind = 'cuda' AND {_ONLINE}) AS used_by_jobs,
        (SELECT project_id FROM holds h
            WHERE h.worker_id = d.worker_id AND h.device = d.index AND {OPEN}) AS held_by
    FROM devices d JOIN workers w ON w.id = d.worker_id
"""  # noqa: S608 - constants
_LOCK = text(
    f"{_DEVICE} WHERE d.worker_id = :worker_id AND d.index = :index FOR NO KEY UPDATE OF d"
)
_DEVICES = text(
    f"{_DEVICE} WHERE w.kind = 'host' AND w.seen_at > now() - interval '1 day'"
    " ORDER BY d.worker_id, d.index"
)
_COLUMNS = (
    "id, project_id, worker_id, device, device_name, secret, created_at, expires_at, ended_at,"  # noqa: S608
    f" reason, attempt_id, {OPEN} AS open,"
    " (SELECT job_id FROM attempts WHERE attempts.id = holds.attempt_id) AS job_id"
)
_OF_DEVICE = text(
    f"SELECT {_COLUMNS} FROM holds"  # noqa: S608 - constants
    f" WHERE worker_id = :worker_id AND device = :index AND {OPEN}"
)
# Of a device without an open hold: one whose time is over is in nobody's way any more.
_MAKE_ROOM = text(
    "UPDATE holds SET ended_at = expires_at, reason = 'over'"
    " WHERE worker_id = :worker_id AND device = :index AND ended_at IS NULL"
)
_INSERT = text(
    f"""
    INSERT INTO holds (id, project_id, worker_id, device, device_name, secret, expires_at)
    VALUES (:id, :project_id, :worker_id, :index, :name, :secret,
        now() + CAST(:seconds AS float) * interval '1 second')
    RETURNING {_COLUMNS}
    """  # noqa: S608 - constants
)


def lock_device(session: Session, worker_id: str, index: int) -> Row[Any] | None:
    """Lock a device against holds and attempts; returns what it is and whether it can be had."""
    where = {"worker_id": worker_id, "index": index, "timeout": get_settings().worker_timeout}
    return session.execute(_LOCK, where).first()


def devices(session: Session) -> list[Row[Any]]:
    """Return all devices of hosts that were seen within a day."""
    return list(session.execute(_DEVICES, {"timeout": get_settings().worker_timeout}))


def hold_of(session: Session, worker_id: str, index: int) -> Row[Any] | None:
    """Return the open hold of a device."""
    return session.execute(_OF_DEVICE, {"worker_id": worker_id, "index": index}).first()


_LOCK_PROJECT = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
_COUNT = text(
    f"SELECT count(*) FROM holds WHERE project_id = :project_id AND {OPEN}"  # noqa: S608
)


def count_open(session: Session, project_id: str) -> int:
    """Return how many holds of the project are open; nobody adds one until the commit."""
    session.execute(_LOCK_PROJECT, {"name": f"holds/{project_id}"})
    return int(session.execute(_COUNT, {"project_id": project_id}).scalar_one())


def insert_hold(
    session: Session, project_id: str, device: Row[Any], secret: str | None
) -> Row[Any]:
    """Keep a locked device without an open hold for the project's next job."""
    values = {
        "id": new_id("hold"),
        "project_id": project_id,
        "worker_id": device.worker_id,
        "index": device.number,
        "name": device.name,
        "secret": secret,
        "seconds": get_settings().hold,
    }
    session.execute(_MAKE_ROOM, values)
    return session.execute(_INSERT, values).one()


_OTHERS = text(
    f"""
    SELECT EXISTS (SELECT FROM holds WHERE worker_id = :worker_id
        AND device = ANY(CAST(:indexes AS integer[])) AND project_id <> :project_id AND {OPEN})
    """  # noqa: S608 - constants
)
_USE = text(
    f"""
    UPDATE holds SET ended_at = now(), reason = 'used', attempt_id = :attempt_id
    WHERE worker_id = :worker_id AND device = ANY(CAST(:indexes AS integer[])) AND {OPEN}
    """  # noqa: S608 - constants
)


def are_held_for_others(
    session: Session, project_id: str, worker_id: str, indexes: Sequence[int]
) -> bool:
    """Say whether one of these locked devices is kept for another project."""
    where = {"worker_id": worker_id, "indexes": list(indexes), "project_id": project_id}
    return bool(session.execute(_OTHERS, where).scalar())


def use(session: Session, worker_id: str, indexes: Sequence[int], attempt_id: str) -> None:
    """End the holds of these locked devices: the attempt has them."""
    values = {"worker_id": worker_id, "indexes": list(indexes), "attempt_id": attempt_id}
    session.execute(_USE, values)


_END = text(
    f"""
    UPDATE holds SET ended_at = now(), reason = 'given_back'
    WHERE id = :id AND project_id = :project_id AND {OPEN}
    """  # noqa: S608 - constants
)
_GET = text(
    f"SELECT {_COLUMNS} FROM holds WHERE id = :id AND project_id = :project_id"  # noqa: S608
)
_LIST = text(
    f"SELECT {_COLUMNS} FROM holds WHERE project_id = :project_id"  # noqa: S608 - constants
    " ORDER BY id DESC LIMIT :most"
)


def end(session: Session, project_id: str, hold_id: str) -> None:
    """Give a device back before anybody has used it; silent where the hold is over."""
    session.execute(_END, {"id": hold_id, "project_id": project_id})


def get_hold(session: Session, project_id: str, hold_id: str) -> Row[Any] | None:
    """Return a hold of the project."""
    return session.execute(_GET, {"id": hold_id, "project_id": project_id}).first()


def list_holds(session: Session, project_id: str, most: int) -> list[Row[Any]]:
    """Return the newest holds of the project."""
    return list(session.execute(_LIST, {"project_id": project_id, "most": most}))


_CLOSE = text(
    f"""
    UPDATE holds h SET ended_at = least(now(), expires_at),
        reason = CASE WHEN expires_at <= now() THEN 'over' ELSE 'host_gone' END
    WHERE ended_at IS NULL AND (expires_at <= now() OR NOT EXISTS (
        SELECT FROM devices d JOIN workers w ON w.id = d.worker_id
        WHERE d.worker_id = h.worker_id AND d.index = h.device AND {_ONLINE}))
    """  # noqa: S608 - constants
)


def close_over(session: Session) -> None:
    """Write down which holds have ended by their time, or because their host takes no jobs."""
    session.execute(_CLOSE, {"timeout": get_settings().worker_timeout})
