"""What a push means to its job: the events that tell of it, and the wish to try again."""

from typing import Any

from sqlalchemy.orm import Session

from app.attempts.retention import retire
from app.attempts.store import wake
from app.errors import Conflict
from app.events.store import append_events
from app.hub import store
from app.hub.store import Due, Outcome
from app.jobs import view
from app.jobs.schemas import JobOut
from app.jobs.service import find_job
from app.models import HubPush
from app.settings import get_settings

LONGEST_BACKOFF = 600.0
LONGEST_ASKED = 3600.0  # a hub that asks for more is asked again after this


def backoff(failures: int, asked: float | None) -> float:
    """Return the seconds until the next try: ever longer, and as long as the hub asks for."""
    own: float = min(get_settings().retry_base * 2.0 ** min(failures, 20), LONGEST_BACKOFF)
    return max(own, min(asked or 0.0, LONGEST_ASKED))


def settle(session: Session, due: Due, outcome: Outcome) -> None:
    """Write how a push ended and tell of it; of failures that are tried again, the first.

    That one failed whose place a newer one has taken meanwhile is not worth a word. A checkpoint
    that stayed for the push alone is retired.
    """
    row = store.settle(session, due, outcome)
    if row is None:
        return
    retire(session, due.job_id)
    told = "pushed" if outcome.state == "pushed" else row.state
    again = told == "pending" and due.failures > 0
    if told == "pushed" or (row.is_newest and not again):
        _tell(session, due.job_id, due.hub, _facts(due, outcome) | {"state": told})


def _facts(due: Due, outcome: Outcome) -> dict[str, Any]:
    facts = {
        "kind": due.folder.kind,
        "step": due.folder.step,
        "commit": outcome.commit,
        "message": outcome.message,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _tell(session: Session, job_id: str, hub: dict[str, Any], data: dict[str, Any]) -> None:
    place = {"repo_id": hub.get("repo_id", ""), "revision": hub.get("revision", "main")}
    append_events(session, job_id, [{"type": "hub", "data": place | data}])


def retry(session: Session, project_id: str, job_id: str) -> JobOut:
    """Have a push that failed made again; one that waits for its next try is made now.

    Raises NotFound, and Conflict where nothing is left to push.
    """
    job = find_job(session, project_id, job_id, lock=True)
    hub = store.hub_of(job.spec)
    if hub is None:
        raise Conflict("its spec names no publish.hub: clone it with one", "no_hub")
    if not store.again(session, job.id):
        row = session.get(HubPush, job.id)
        raise Conflict(_nothing_left(row, job.status), "nothing_to_push")
    _tell(session, job.id, hub, {"state": "pending"})
    wake(session, "hub")
    session.expire_all()
    return view.of_job(session, find_job(session, project_id, job_id))


def _nothing_left(row: HubPush | None, status: str) -> str:
    if row is None:
        return f"the job is {status} and has nothing to push to the hub so far"
    if row.state == "pushed":
        return f"it is on the hub already, in commit {row.commit}"
    return "the job was cancelled, and nothing of it is pushed"
