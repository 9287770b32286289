"""Carries the attempts of targets that have no supervisor of ours: launch, observe, stop, end.

Each step is short and may be repeated; what is slow happens between transactions, and every write
is guarded by the attempt's lease.
"""

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol

from sqlalchemy import text

from app.attempts import service as attempts
from app.attempts.commits import Publication, StoredFile
from app.attempts.service import Ending, LeaseLost
from app.db import transaction
from app.jobs.lifecycle import FailureReason
from app.jobs.spec import Compute
from app.settings import Settings
from app.storage import Store
from trainer_core.events import RunEvent
from trainer_core.publish.manifest import MANIFEST, FileEntry, Manifest
from trainer_core.spec import Launch, Paths, TrainSpec
from worker.endings import Said, ending_of
from worker.process import Exit
from worker.target import Handle, Observation, Target, TargetError

_log = logging.getLogger(__name__)


class Stepped(Target, Protocol):
    """A target whose events are fetched instead of tailed on its own machine."""

    def tail(self, handle: Handle, after: int) -> list[RunEvent]:
        """Return the run's events behind number `after`."""
        ...


@dataclass(frozen=True)
class _Row:
    """An unfinished attempt that this process carries."""

    id: str
    job_id: str
    project_id: str
    job_name: str
    number: int
    token: str | None
    handle: dict[str, Any] | None
    last_n: int
    resolved: dict[str, Any]
    compute: dict[str, Any] | None
    labels: dict[str, Any]
    claimed: bool
    silent: bool
    renew: bool


_MINE = text(
    """
    SELECT a.id, a.job_id, a.project_id, j.name AS job_name, a.number, a.lease_token AS token,
        a.handle, a.last_n, j.resolved, j.spec -> 'compute' AS compute, j.labels,
        a.claimed_at IS NOT NULL AS claimed,
        coalesce(coalesce(a.event_at, a.claimed_at) < now() - CAST(CASE WHEN a.event_at IS NULL
            THEN :start ELSE :stall END AS float) * interval '1 second', false) AS silent,
        coalesce(a.lease_expires_at < now() + CAST(:margin AS float) * interval '1 second', false)
            AS renew
    FROM attempts a JOIN jobs j ON j.id = a.job_id
    WHERE a.target = :target AND a.worker_id = :worker AND a.finished_at IS NULL
    ORDER BY a.id LIMIT 200
    """
)
_HANDLE = text("UPDATE attempts SET handle = CAST(:handle AS jsonb) WHERE id = :id")


class Stepper:
    """Steps the attempts of one target that were placed by this reconciler."""

    def __init__(self, target: Stepped, objects: Store, settings: Settings, worker_id: str) -> None:
        self._target = target
        self._objects = objects
        self._settings = settings
        self._worker_id = worker_id

    def step(self) -> int:
        """Do what is due for every attempt; returns how many moved."""
        rows = self._mine()
        moved = 0
        for row in rows:
            if row.handle is None:
                moved += self._launch(row)
        watched = [row for row in rows if row.claimed and row.handle is not None]
        seen = self._target.observe_many([self._handle(row) for row in watched])
        for row in watched:
            moved += self._watch(row, seen.get(row.id))
        return moved

    def _mine(self) -> Sequence[_Row]:
        values = {
            "target": self._target.name,
            "worker": self._worker_id,
            "start": self._settings.start_timeout,
            "stall": self._settings.stall_timeout,
            "margin": self._settings.lease - self._settings.lease_renew,
        }
        with transaction() as session:
            return [_Row(**row) for row in session.execute(_MINE, values).mappings()]

    def _handle(self, row: _Row) -> Handle:
        return Handle(self._target.name, row.id, row.handle or {})

    def _launch(self, row: _Row) -> int:
        """Claim and launch; one that was launched before its handle was kept is found again."""
        token = row.token if row.claimed else self._claim(row)
        if token is None:
            return 1
        launch = Launch(
            attempt_id=row.id,
            job_id=row.job_id,
            job_name=row.job_name,
            number=row.number,
            spec=TrainSpec.model_validate(row.resolved),
            paths=Paths(work=f"{self._target.name}/{row.id}"),
            labels=row.labels,
        )
        try:
            handle = self._target.launch(launch, Compute.model_validate(row.compute or {}))
        except TargetError as error:
            self._end(row, token, Ending("failed", error.reason, str(error)))
            return 1
        with transaction() as session:
            session.execute(_HANDLE, {"id": row.id, "handle": json.dumps(handle.data)})
        return 1

    def _claim(self, row: _Row) -> str | None:
        with transaction() as session:
            held = attempts.claim(session, row.id, self._worker_id, secrets.token_hex(16))
        return held.token if held else None

    def _watch(self, row: _Row, seen: Observation | None) -> int:
        """Carry what is new, obey a cancel or a pause, and end what has ended."""
        token = row.token or ""
        try:
            if self._wants_stop(row, token):
                self._stop(row)
                return 0
            fresh = self._target.tail(self._handle(row), row.last_n)
            if fresh:
                with transaction() as session:
                    attempts.ingest(session, row.id, token, fresh)
            if seen is not None and seen.state != "running":
                self._ended(row, token, seen)
            elif row.silent:
                self._stop(row)
                reason = FailureReason.STALLED if row.last_n else FailureReason.START_TIMEOUT
                self._end(row, token, Ending("failed", reason, "no event for too long"))
            return len(fresh)
        except LeaseLost as error:
            _log.warning("%s", error)
            self._stop(row)
            return 0

    def _wants_stop(self, row: _Row, token: str) -> bool:
        with transaction() as session:
            ask = attempts.renew if row.renew else attempts.intent
            wanted = ask(session, row.id, token)
        if not (wanted.cancel or wanted.pause):
            return False
        seen = self._target.observe_many([self._handle(row)]).get(row.id)
        return seen is None or seen.state == "running"

    def _stop(self, row: _Row) -> None:
        try:
            self._target.stop(self._handle(row))
        except TargetError as error:
            _log.warning("stopping %s: %s; again at the next step", row.id, error)

    def _ended(self, row: _Row, token: str, seen: Observation) -> None:
        if seen.state == "gone":
            message = "the machine is gone"
            self._end(row, token, Ending("lost", FailureReason.MACHINE_LOST, message))
            return
        said_all = self._target.tail(self._handle(row), 0)
        result = next((e.data for e in said_all if e.type == "result"), None)
        said = Said(result["reason"], result["message"]) if result else None
        ending = ending_of(Exit(seen.exit_code), said, oom_killed=False)
        if ending is None and self._publish(row, token):
            self._stop(row)
            return
        stopped = Ending("interrupted", FailureReason.INTERRUPTED, "stopped on request")
        self._end(row, token, ending or stopped)

    def _end(self, row: _Row, token: str, ending: Ending) -> None:
        with transaction() as session:
            attempts.finish(session, row.id, token, ending)
            attempts.release(session, row.id)
        self._stop(row)

    def _publish(self, row: _Row, token: str) -> bool:
        """Put a model of one small file in the store and succeed; False when cancelled before."""
        with transaction() as session:
            if not attempts.finalize(session, row.id, token):
                return False
        prefix = f"{row.project_id}/jobs/{row.job_id}/{row.id}/model/"
        card = f"# {row.job_name}\n\nMade by the target {self._target.name}.\n".encode()
        entry = FileEntry(path="README.md", size=len(card), sha256=sha256(card).hexdigest())
        manifest = Manifest(
            kind="model",
            step=0,
            files=[entry],
            spec_hash="",
            data_hash="",
            created=datetime.now(UTC),
        )
        content = manifest.model_dump_json(indent=1).encode()
        self._objects.put_bytes(f"{prefix}README.md", card)
        self._objects.put_bytes(f"{prefix}{MANIFEST}", content)
        file = StoredFile("model/README.md", f"{prefix}README.md", "model", len(card), entry.sha256)
        base = str(row.resolved["model"]["name_or_path"])
        made = Publication(prefix, sha256(content).hexdigest(), [file], "adapter", base)
        with transaction() as session:
            if not attempts.commit_model(session, row.id, token, made):
                return False
            attempts.release(session, row.id)
        return True
