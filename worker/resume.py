"""Finds the newest whole checkpoint of a job: on this host, or committed in the store."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts.service import StoredCheckpoint, newest_checkpoints
from app.db import transaction
from app.storage import ChecksumMismatch, ObjectMissing, Store
from trainer_core.events import RunEvent, read_events
from trainer_core.publish.manifest import BrokenFolder, read_manifest, verify
from worker.transfer import download_folder

CHECKPOINTS, EVENTS = "checkpoints", "events.jsonl"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Earlier:
    """A whole checkpoint that an attempt could go on from; higher `order` is newer."""

    order: tuple[int, int]
    folder: Path | None
    stored: StoredCheckpoint | None


class Resumer:
    """Looks for a job's checkpoints; `work` is the folder of the attempt that wants one."""

    def __init__(self, home: Path, store: Store, job_id: str, work: Path) -> None:
        self._attempts = home / "attempts"
        self._store = store
        self._job_id = job_id
        self._work = work

    def find(self) -> Path | None:
        """Return a verified checkpoint folder; None to begin from the start.

        One that is damaged or gone is passed over for the next. Raises StoreUnavailable, and
        OSError where this host cannot take one: beginning from the start would lose its steps.
        """
        for candidate in self._candidates():
            folder = self._open(candidate)
            if folder is not None:
                return folder
        return None

    def _candidates(self) -> list[Earlier]:
        with transaction() as session:
            attempts = _attempts(session, self._job_id)
            stored = newest_checkpoints(session, self._job_id)
            start = _start_from(session, self._job_id)
        found = [Earlier((attempts[c.attempt_id].number, c.step), None, c) for c in stored]
        for attempt_id, attempt in attempts.items():
            found += self._local(self._attempts / attempt_id, attempt)
        # The same one may be found twice: what is here already needs no download.
        found.sort(key=lambda e: (e.order, e.folder is not None), reverse=True)
        return [*found, *([Earlier((0, start.step), None, start)] if start else [])]

    def _local(self, folder: Path, attempt: "_Attempt") -> Iterator[Earlier]:
        """Yield checkpoints up to which every event of the attempt was accepted.

        Behind others lie steps that the job would never hear of: their carrier was frozen or cut
        off, and what it carries now is refused.
        """
        known, last = _checkpoint_events(folder / EVENTS)
        for path in (folder / CHECKPOINTS).glob("step-*"):
            try:
                step = read_manifest(path).step
            except BrokenFolder:
                continue
            if known.get(step, last) <= attempt.last_n:
                yield Earlier((attempt.number, step), path, None)

    def _open(self, candidate: Earlier) -> Path | None:
        try:
            if candidate.folder is not None:
                verify(candidate.folder)
                return candidate.folder
            if candidate.stored is None:
                return None
            stored = candidate.stored
            folder = self._work / "resume" / f"step-{stored.step:08d}"
            sha256 = stored.manifest_sha256 or None
            return download_folder(self._store, stored.prefix, folder, sha256)
        except (BrokenFolder, ObjectMissing, ChecksumMismatch, FileNotFoundError) as error:
            _log.warning("a checkpoint is passed over: %s", error)
            return None


def unstored_step(session: Session, folder: Path) -> int | None:
    """Return the step of an attempt's checkpoint folder on this host, None when it is stored."""
    step, attempt_id = read_manifest(folder).step, folder.parent.parent.name
    stored = session.execute(
        text("SELECT 1 FROM checkpoints WHERE attempt_id = :id AND step = :step"),
        {"id": attempt_id, "step": step},
    )
    return step if stored.first() is None else None


@dataclass(frozen=True)
class _Attempt:
    """Which one it was, and the number of its last accepted event."""

    number: int
    last_n: int


def _attempts(session: Session, job_id: str) -> dict[str, _Attempt]:
    rows = session.execute(
        text("SELECT id, number, last_n FROM attempts WHERE job_id = :job_id"), {"job_id": job_id}
    )
    return {row.id: _Attempt(row.number, row.last_n) for row in rows}


def _checkpoint_events(path: Path) -> tuple[dict[int, int], int]:
    """Return the number of each step's `checkpoint` event, and that of the last event."""
    known: dict[int, int] = {}
    last = 0
    for event in _readable(path):
        last = event.n
        if event.type == "checkpoint":
            known[int(event.data["step"])] = event.n
    return known, last


def _readable(path: Path) -> Iterator[RunEvent]:
    if not path.exists():
        return
    try:
        for event, _ in read_events(path):
            yield event
    except (ValidationError, json.JSONDecodeError) as error:
        _log.warning("%s: not readable to its end: %s", path, error)


def _start_from(session: Session, job_id: str) -> StoredCheckpoint | None:
    start = session.execute(
        text("SELECT start_from FROM jobs WHERE id = :job_id"), {"job_id": job_id}
    ).scalar()
    if not start:
        return None
    return StoredCheckpoint(start["step"], start["prefix"], "", 0)
