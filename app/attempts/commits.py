"""What makes a checkpoint or a model exist: the commit of its verified manifest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from app.attempts.retention import retire
from app.attempts.store import Held, hold, wake
from app.events.store import append_events
from app.hub.store import Folder, hub_of, want
from app.ids import new_id
from app.jobs.lifecycle import Change, Status, transition
from app.registry.service import NewVersion, create_version


@dataclass(frozen=True)
class StoredFile:
    """A file in the store: its path within the job, its object's key, size and hash."""

    path: str
    key: str
    kind: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Publication:
    """A whole model in the store, its manifest written last; `prefix` ends in '/'.

    An evaluation's has no prefix: its files alone are kept, and no model is registered.
    """

    prefix: str
    manifest_sha256: str
    files: Sequence[StoredFile]
    kind: str
    base_model: str
    template_hash: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


_CHECKPOINT = text(
    """
    INSERT INTO checkpoints
        (id, project_id, job_id, attempt_id, step, prefix, manifest_sha256, size)
    VALUES (:id, :project_id, :job_id, :attempt_id, :step, :prefix, :manifest_sha256, :size)
    ON CONFLICT (attempt_id, step) DO NOTHING RETURNING id
    """
)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A whole checkpoint in the store."""

    step: int
    prefix: str
    manifest_sha256: str
    size: int
    attempt_id: str = ""


def commit_checkpoint(
    session: Session, attempt_id: str, token: str, stored: StoredCheckpoint
) -> list[str]:
    """Make an uploaded, verified checkpoint exist; returns prefixes to delete after the commit.

    Those are what `retire` gives. Committing twice is silent. Raises LeaseLost.
    """
    held = hold(session, attempt_id, token)
    values = {
        "id": new_id("ckp"),
        "project_id": held.project_id,
        "job_id": held.job_id,
        "attempt_id": attempt_id,
        "step": stored.step,
        "prefix": stored.prefix,
        "manifest_sha256": stored.manifest_sha256,
        "size": stored.size,
    }
    if session.execute(_CHECKPOINT, values).first() is None:
        return []
    data = {"step": stored.step, "size": stored.size, "sha256": stored.manifest_sha256}
    append_events(session, held.job_id, [{"type": "checkpoint", "data": data}], attempt_id)
    hub = hub_of(held.spec)
    if hub is not None and hub.get("strategy", "end") != "end":
        folder = Folder("checkpoint", stored.prefix, stored.manifest_sha256, stored.step)
        want(session, held.job_id, held.project_id, folder)
    return retire(session, held.job_id)


_PURGED = text(
    "UPDATE checkpoints SET purged_at = now()"
    " WHERE prefix = :prefix AND deleted_at IS NOT NULL AND purged_at IS NULL"
)


def mark_purged(session: Session, prefix: str) -> None:
    """Remember that the objects of a retired checkpoint are gone."""
    session.execute(_PURGED, {"prefix": prefix})


_NEWEST = text(
    """
    SELECT c.step, c.prefix, c.manifest_sha256, c.size, c.attempt_id
    FROM checkpoints c JOIN attempts a ON a.id = c.attempt_id
    WHERE c.job_id = :job_id AND c.deleted_at IS NULL ORDER BY a.number DESC, c.step DESC
    """
)


def newest_checkpoints(session: Session, job_id: str) -> list[StoredCheckpoint]:
    """Return the job's committed checkpoints, the one to resume from first."""
    rows = session.execute(_NEWEST, {"job_id": job_id})
    return [StoredCheckpoint(*row) for row in rows]


def finalize(session: Session, attempt_id: str, token: str) -> bool:
    """Say that training is over and the model is on its way.

    False when a cancel or a pause was asked for before: that comes first. Raises LeaseLost.
    """
    held = hold(session, attempt_id, token)
    if held.cancel or held.pause:
        return False
    transition(session, held.job_id, Status.FINALIZING, Change(phase="publishing"))
    return True


_ARTIFACT = text(
    """
    INSERT INTO artifacts (id, project_id, job_id, attempt_id, kind, path, key, size, sha256)
    VALUES (:id, :project_id, :job_id, :attempt_id, :kind, :path, :key, :size, :sha256)
    ON CONFLICT (job_id, path) DO UPDATE SET attempt_id = excluded.attempt_id,
        kind = excluded.kind, key = excluded.key, size = excluded.size, sha256 = excluded.sha256
    """
)
_SUCCEED = text(
    """
    UPDATE attempts SET outcome = 'succeeded', exit_code = :exit_code, finished_at = now()
    WHERE id = :attempt_id
    """
)


def commit_model(session: Session, attempt_id: str, token: str, made: Publication) -> bool:
    """Publish and succeed in one transaction: the commit of the pointer decides.

    Returns False, having written nothing, when a cancel was asked for before. Raises LeaseLost.
    """
    held = hold(session, attempt_id, token)
    if held.cancel:
        return False
    data: dict[str, Any] = {}
    if made.prefix and held.registers:
        data["model"] = _register(session, held, made)
    elif made.prefix:
        _keep_for_sweep(session, held, made)
    _keep_artifacts(session, held, made.files)
    if made.prefix and hub_of(held.spec) is not None:
        folder = Folder("model", made.prefix, made.manifest_sha256)
        want(session, held.job_id, held.project_id, folder)
    session.execute(_SUCCEED, {"attempt_id": attempt_id, "exit_code": made.exit_code})
    transition(session, held.job_id, Status.SUCCEEDED, Change(data=data))
    wake(session, "jobs")
    return True


_JOB_NAME = text("SELECT name FROM jobs WHERE id = :job_id")


_KEEP_FOR_SWEEP = text(
    "UPDATE jobs SET unregistered = :model WHERE id = :job_id AND sweep_id IS NOT NULL"
).bindparams(bindparam("model", type_=JSONB))


def _keep_for_sweep(session: Session, held: Held, made: Publication) -> None:
    """Of a sweep's runs one alone is registered, and only once all have ended."""
    model = {
        "prefix": made.prefix,
        "manifest_sha256": made.manifest_sha256,
        "kind": made.kind,
        "base_model": made.base_model,
        "template_hash": made.template_hash,
        "metrics": made.metrics,
        "size": made.size,
    }
    session.execute(_KEEP_FOR_SWEEP, {"job_id": held.job_id, "model": model})


def _register(session: Session, held: Held, made: Publication) -> dict[str, Any]:
    name = held.spec.get("publish", {}).get("name")
    name = name or session.execute(_JOB_NAME, {"job_id": held.job_id}).scalar_one()
    new = NewVersion(
        project_id=held.project_id,
        name=name,
        job_id=held.job_id,
        prefix=made.prefix,
        manifest_sha256=made.manifest_sha256,
        kind=made.kind,
        base_model=made.base_model,
        template_hash=made.template_hash,
        metrics=made.metrics,
        size=made.size,
    )
    version = create_version(session, new)
    return {"name": version.name, "version": version.version}


def _keep_artifacts(session: Session, held: Held, files: Sequence[StoredFile]) -> None:
    rows = [
        {
            "id": new_id("art"),
            "project_id": held.project_id,
            "job_id": held.job_id,
            "attempt_id": held.attempt_id,
            "kind": file.kind,
            "path": file.path,
            "key": file.key,
            "size": file.size,
            "sha256": file.sha256,
        }
        for file in files
    ]
    session.execute(_ARTIFACT, rows)
    facts = [
        {
            "type": "artifact",
            "data": {"path": f.path, "kind": f.kind, "size": f.size, "sha256": f.sha256},
        }
        for f in files
    ]
    append_events(session, held.job_id, facts, held.attempt_id)
