"""Rows of `event_ranges`: which events of a job lie in the object store, and where."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

AT_ONCE = 16


@dataclass(frozen=True)
class Range:
    """Events `first_seq` to `last_seq` of a job in one compressed object."""

    job_id: str
    first_seq: int
    last_seq: int
    key: str
    size: int
    sha256: str
    counts: dict[str, Any]

    def may_hold(self, types: tuple[str, ...] | None) -> bool:
        """Say whether the range has events of these types (None: of any)."""
        return types is None or any(kind in self.counts for kind in types)


_COLUMNS = "job_id, first_seq, last_seq, key, size, sha256, counts"
_AFTER = text(
    f"SELECT {_COLUMNS} FROM event_ranges WHERE job_id = :job_id AND last_seq > :after"  # noqa: S608
    " ORDER BY first_seq LIMIT :limit"
)
_ALL = text(
    f"SELECT {_COLUMNS} FROM event_ranges WHERE job_id = :job_id ORDER BY first_seq"  # noqa: S608
)
_EXPIRED = text(
    "SELECT EXISTS (SELECT FROM event_ranges WHERE project_id = :project_id AND last_xid >= :xid)"
)


def ranges_after(session: Session, job_id: str, after: int, limit: int = AT_ONCE) -> list[Range]:
    """Return the next ranges with events after `after`."""
    values = {"job_id": job_id, "after": after, "limit": limit}
    return [Range(*row) for row in session.execute(_AFTER, values)]


def ranges_of(session: Session, job_id: str) -> list[Range]:
    """Return all ranges of the job, in order."""
    return [Range(*row) for row in session.execute(_ALL, {"job_id": job_id})]


def has_archived_since(session: Session, project_id: str, xid: int) -> bool:
    """Say whether events of this transaction or later ones have left for the archive."""
    return bool(session.scalar(_EXPIRED, {"project_id": project_id, "xid": xid}))
