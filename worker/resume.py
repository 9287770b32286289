"""Finds the newest whole checkpoint of a job: on this host, or committed in the store."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts.service import StoredCheckpoint, newest_checkpoints
from app.db import transaction
from app.storage import ObjectMissing, Store
from trainer_core.publish.manifest import BrokenFolder, read_manifest, verify
from worker.transfer import download_folder

CHECKPOINTS = "checkpoints"
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

        One that is damaged is passed over for the next. Raises StoreUnavailable.
        """
        for candidate in self._candidates():
            folder = self._open(candidate)
            if folder is not None:
                return folder
        return None

    def _candidates(self) -> list[Earlier]:
        with transaction() as session:
            numbers = _numbers(session, self._job_id)
            stored = newest_checkpoints(session, self._job_id)
            start = _start_from(session, self._job_id)
        found = [Earlier((numbers[c.attempt_id], c.step), None, c) for c in stored]
        for attempt_id, number in numbers.items():
            found += self._local(self._attempts / attempt_id, number)
        # The same one may be found twice: what is here already needs no download.
        found.sort(key=lambda e: (e.order, e.folder is not None), reverse=True)
        return [*found, *([Earlier((0, start.step), None, start)] if start else [])]

    def _local(self, folder: Path, number: int) -> Iterator[Earlier]:
        for path in (folder / CHECKPOINTS).glob("step-*"):
            try:
                yield Earlier((number, read_manifest(path).step), path, None)
            except BrokenFolder:
                continue

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
        except (BrokenFolder, ObjectMissing, OSError) as error:
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


def _numbers(session: Session, job_id: str) -> dict[str, int]:
    rows = session.execute(
        text("SELECT id, number FROM attempts WHERE job_id = :job_id"), {"job_id": job_id}
    )
    return {row.id: row.number for row in rows}


def _start_from(session: Session, job_id: str) -> StoredCheckpoint | None:
    start = session.execute(
        text("SELECT start_from FROM jobs WHERE id = :job_id"), {"job_id": job_id}
    ).scalar()
    if not start:
        return None
    return StoredCheckpoint(start["step"], start["prefix"], "", 0)
