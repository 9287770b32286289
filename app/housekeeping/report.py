"""What a round of housekeeping removed, or would remove: counts, bytes and examples by kind."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

EXAMPLES = 10
KEPT_DAYS = 30
_log = logging.getLogger(__name__)


@dataclass
class Removed:
    """Things of one kind; `bytes` in the store."""

    count: int = 0
    bytes: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Report:
    """One round. With `dry_run` nothing is removed, and the report says what would be."""

    dry_run: bool = False
    scanned: bool = False
    kinds: dict[str, Removed] = field(default_factory=dict)
    error: str | None = None

    def add(self, kind: str, count: int, size: int = 0, examples: Sequence[str] = ()) -> None:
        """Count things of a kind; each kind that was looked at has an entry, also an empty one."""
        entry = self.kinds.setdefault(kind, Removed())
        entry.count += count
        entry.bytes += size
        entry.examples += examples[: EXAMPLES - len(entry.examples)]

    def counts(self) -> dict[str, int]:
        """Return kind → how many."""
        return {kind: removed.count for kind, removed in self.kinds.items()}

    def document(self) -> dict[str, Any]:
        """Return the report as it is stored and shown."""
        return {kind: vars(removed) for kind, removed in self.kinds.items()}


_INSERT = text(
    """
    INSERT INTO housekeeping_runs (dry_run, scanned, report, error, started_at)
    VALUES (:dry_run, :scanned, :report, :error,
        now() - CAST(:seconds AS float) * interval '1 second')
    """
).bindparams(bindparam("report", type_=JSONB))
_FORGET = text(
    "DELETE FROM housekeeping_runs"
    " WHERE finished_at < now() - CAST(:days AS int) * interval '1 day'"
)


def keep(session: Session, report: Report, seconds: float) -> None:
    """Write the report of a round that took so long, and forget those of long ago."""
    values = {
        "dry_run": report.dry_run,
        "scanned": report.scanned,
        "report": report.document(),
        "error": report.error,
        "seconds": seconds,
    }
    session.execute(_INSERT, values)
    session.execute(_FORGET, {"days": KEPT_DAYS})


def scanned_lately(session: Session, hours: float) -> bool:
    """Say whether a round has looked through the store within so many hours."""
    query = text(
        "SELECT EXISTS (SELECT FROM housekeeping_runs WHERE scanned AND NOT dry_run"
        " AND error IS NULL"
        " AND finished_at > now() - CAST(:hours AS float) * interval '1 hour')"
    )
    return bool(session.scalar(query, {"hours": hours}))
