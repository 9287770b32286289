"""What webhooks are to be told, written in the transaction in which it happened."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from app.ids import new_id
from app.models import WebhookDelivery

Json = dict[str, Any]

JOB_EVENTS = {
    "running": "job.started",
    "succeeded": "job.succeeded",
    "failed": "job.failed",
    "cancelled": "job.cancelled",
    "paused": "job.paused",
}
"""Status that a job has come to → what webhooks are told."""

TEST = "webhook.test"

# Locked as their deliveries' foreign key will: one that is deleted meanwhile must not undo what
# happened to the job.
_LISTENING = text(
    """
    SELECT id, now() AS now FROM webhooks
    WHERE project_id = :project_id AND active AND jsonb_exists(events, :event) ORDER BY id
    FOR KEY SHARE
    """
)


@dataclass(frozen=True)
class Happened:
    """What a delivery tells: which event of which project, when, and its `data` and `links`."""

    project_id: str
    event: str
    time: datetime
    content: Json


def announce(
    session: Session, project_id: str, event: str, view: Callable[[], Json], link: str
) -> None:
    """Tell every webhook of the project that wants it; `view`, its data, is asked for then only."""
    values = {"project_id": project_id, "event": event}
    listening = session.execute(_LISTENING, values).all()
    if listening:
        content = {"data": view(), "links": {"self": link}}
        happened = Happened(project_id, event, listening[0].now, content)
        write(session, [row.id for row in listening], happened)


def write(session: Session, webhooks: Sequence[str], happened: Happened) -> list[str]:
    """Write a delivery for each of these webhooks; returns the deliveries' ids."""
    rows = [
        {
            "id": (delivery_id := new_id("dlv")),
            "project_id": happened.project_id,
            "webhook_id": webhook_id,
            "event": happened.event,
            "body": _body(delivery_id, happened),
        }
        for webhook_id in webhooks
    ]
    session.execute(insert(WebhookDelivery).values(rows))
    session.execute(text("SELECT pg_notify('polar_work', 'webhooks')"))
    return [str(row["id"]) for row in rows]


def _body(delivery_id: str, happened: Happened) -> str:
    time = happened.time.astimezone(UTC)
    document = {"id": delivery_id, "type": happened.event, "time": time, **happened.content}
    return json.dumps(document, ensure_ascii=False, default=datetime.isoformat)


_JOB = text(
    """
    SELECT id, name, labels, status, reason, message, task_type, progress, latest_metrics,
        created_at, started_at, finished_at
    FROM jobs WHERE id = :job_id
    """
)


def announce_job(
    session: Session, project_id: str, job_id: str, status: str, model: Json | None
) -> None:
    """Tell of a job that has come to this status; `model`: what it published, as name and version.

    No spec and no address of a source is told: whoever may know them asks for the job.
    """
    event = JOB_EVENTS.get(status)
    if event is None:
        return

    def view() -> Json:
        row = dict(session.execute(_JOB, {"job_id": job_id}).mappings().one())
        times = {name: at and at.astimezone(UTC) for name, at in row.items() if _is_time(name)}
        return {"job": {**row, **times, "model": model}}

    announce(session, project_id, event, view, f"/jobs/{job_id}")


def _is_time(name: str) -> bool:
    return name.endswith("_at")
