"""What a back-up must hold, and what a restored database must forget of its former processes.

`polar backup` and `polar restore` copy; what the rows mean is known here alone.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts.endings import Ending, end_attempt, release
from app.attempts.store import lock
from app.events.store import append_events
from app.jobs.lifecycle import FailureReason

_OPEN = "j.status NOT IN ('succeeded', 'failed', 'cancelled')"

# `needed`: without it a job or a user would miss something. What belongs to an ended job may be on
# its way out: its rows go after its objects.
_REFERENCES = text(
    f"""
    SELECT 'project' AS kind, id AS key, NULL::bigint AS size, NULL AS sha256, true AS needed
        FROM projects
    UNION ALL
    SELECT 'file', location AS key, size, sha256, true FROM datasets
        WHERE source = 'upload' AND deleted_at IS NULL
    UNION ALL
    SELECT 'folder', prefix, size, manifest_sha256, true FROM model_versions
        WHERE deleted_at IS NULL
    UNION ALL
    SELECT 'folder', c.prefix, c.size, c.manifest_sha256, {_OPEN}
        FROM checkpoints c JOIN jobs j ON j.id = c.job_id WHERE c.deleted_at IS NULL
    UNION ALL
    SELECT 'folder', project_id || '/prepared/' || prepared_key || '/', NULL, NULL,
        bool_or({_OPEN}) FROM jobs j WHERE prepared_key IS NOT NULL
        GROUP BY project_id, prepared_key
    UNION ALL
    SELECT 'folder', start_from ->> 'prefix', NULL, NULL, bool_or({_OPEN})
        FROM jobs j WHERE start_from ->> 'prefix' IS NOT NULL AND {_OPEN}
        GROUP BY start_from ->> 'prefix'
    UNION ALL
    SELECT 'file', key, size, sha256, true FROM event_ranges
    UNION ALL
    SELECT 'file', b.key, b.size, NULL, u.status = 'receiving'
        FROM upload_blocks b JOIN uploads u ON u.id = b.upload_id
    UNION ALL
    SELECT 'file', key, size, sha256, false FROM artifacts
    """  # noqa: S608 - constants
)


def references(session: Session, snapshot: str) -> Iterator[dict[str, Any]]:
    """Yield what the rows of an exported snapshot refer to in the object store.

    A `file` is an object with its size and sha256; a `folder` is a prefix with a `manifest.json`,
    whose sha256 is given where it is known; a `project` is the first segment of keys. The session
    must not have been used before.
    """
    name = snapshot.replace("'", "")
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    session.execute(text(f"SET TRANSACTION SNAPSHOT '{name}'"))
    for row in session.execute(_REFERENCES).mappings():
        yield dict(row)


# Clients may hold ids that the back-up knows nothing of, and no id is given out twice: numbers go
# on from the time in milliseconds, which no job's events reach by being counted. The database's
# guard against gaps stands aside for this one statement.
_LEAP = (
    "ALTER TABLE jobs DISABLE TRIGGER gap_free",
    f"""
    UPDATE jobs AS j SET last_seq = greatest(
        last_seq + 1000000000, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE {_OPEN}
    """,  # noqa: S608 - constants
    "ALTER TABLE jobs ENABLE TRIGGER gap_free",
)
_OPEN_JOBS = text(f"SELECT id, last_seq FROM jobs AS j WHERE {_OPEN} ORDER BY id")  # noqa: S608
_LIVE = text("SELECT id FROM attempts WHERE finished_at IS NULL ORDER BY id")
_UNRELEASED = text(
    "SELECT id FROM attempts WHERE finished_at IS NOT NULL AND released_at IS NULL ORDER BY id"
)
_RESTORED = Ending(
    "interrupted", FailureReason.INTERRUPTED, "the service was restored from a back-up"
)
# Nobody of the former world will come back: its hosts offer nothing, its leases are nobody's.
_FORGET = (
    "UPDATE preparations SET status = 'waiting', lease_token = NULL, lease_expires_at = NULL,"
    " hinted_at = NULL, tries = greatest(tries - 1, 0) WHERE status = 'running'",
    "UPDATE plans SET status = 'waiting', lease_token = NULL, lease_expires_at = NULL,"
    " hinted_at = NULL, tries = greatest(tries - 1, 0) WHERE status = 'running'",
    "DELETE FROM devices WHERE attempt_id IS NULL",
    "UPDATE workers SET seen_at = now() - interval '1 day' WHERE kind = 'host'",
    "DELETE FROM workers WHERE kind <> 'host'",
    "DELETE FROM outbox WHERE queue LIKE 'host.%'",
    "DELETE FROM idempotency_keys WHERE response IS NULL",
    # Newer models of the lost world may be on the hub by now, and this may be a copy of it.
    "UPDATE hub_pushes SET state = 'failed', lease_token = NULL, lease_expires_at = NULL,"
    " leased_prefix = NULL, message ="
    " 'the service was restored from a back-up: POST /jobs/{id}/hub/retry pushes it'"
    " WHERE state = 'pending'",
    # They may have arrived since, and who is told here is told by two worlds.
    "UPDATE webhooks SET lease_token = NULL, lease_expires_at = NULL",
    "UPDATE webhook_deliveries SET status = 'failed', error ="
    " 'the service was restored from a back-up: POST …/redeliver sends it'"
    " WHERE status = 'pending'",
)


def settle(session: Session) -> int:
    """End what ran when the back-up was taken, so that it goes on here; returns how many attempts.

    An attempt ends as interrupted: its job is placed again and goes on from its newest whole
    checkpoint, or is cancelled if that was asked for. Events of open jobs get numbers that were
    never given out, and the first of them tells clients that those after the back-up are void.
    """
    _leap(session)
    live = list(session.execute(_LIVE).scalars())
    for attempt_id in live:
        found = lock(session, attempt_id)
        if found is not None:
            end_attempt(session, found[0], _RESTORED)
            release(session, attempt_id)
    for attempt_id in session.execute(_UNRELEASED).scalars().all():
        release(session, attempt_id)
    for statement in _FORGET:
        session.execute(text(statement))
    return len(live)


def _leap(session: Session) -> None:
    kept: dict[str, int] = {row.id: row.last_seq for row in session.execute(_OPEN_JOBS)}
    for statement in _LEAP:
        session.execute(text(statement))
    for job_id, last_seq in kept.items():
        message = (
            f"the service was restored from a back-up taken after event {last_seq}: events after "
            "that one, received before the restore, are void; the job goes on here"
        )
        data = {"code": "restored", "message": message}
        append_events(session, job_id, [{"type": "warning", "data": data}])
