"""Hints for workers, written in the caller's transaction and sent by the reconciler's relay."""

from sqlalchemy import insert
from sqlalchemy.orm import Session

from app.models import Outbox

PREPARE_QUEUE = "prepare"
CONTROL_QUEUE = "control"


def host_queue(worker_id: str) -> str:
    """Return the queue that only this host's worker reads."""
    return f"host.{worker_id}"


def hint(session: Session, project_id: str, queue: str, handler: str, *ids: str) -> None:
    """Ask for `handler(*ids)` on `queue` after the commit; Postgres decides if it still acts."""
    session.execute(
        insert(Outbox).values(project_id=project_id, queue=queue, handler=handler, args=list(ids))
    )
