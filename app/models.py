"""The tables; only stores and services use them. Guards in Postgres itself: `migrations/`."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    Text,
    UniqueConstraint,
    func,
    or_,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column

Json = dict[str, Any]
DEFAULT_PROJECT = "prj_default"


class Base(DeclarativeBase):
    """Maps Python types to Postgres: text, timestamptz, jsonb."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own name and form
        str: Text,
        datetime: TIMESTAMP(timezone=True),
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
    }


def _now() -> Any:
    return mapped_column(server_default=func.now())


def _project() -> Any:
    return mapped_column(ForeignKey("projects.id"), index=True)


class Project(Base):
    """Owner of everything else; nothing crosses its border."""

    __tablename__ = "projects"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = _now()


class ApiKey(Base):
    """A key, stored hashed (sha256); `prefix` is its public part."""

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    name: Mapped[str]
    role: Mapped[str]
    prefix: Mapped[str] = mapped_column(unique=True)
    hash: Mapped[str]
    created_at: Mapped[datetime] = _now()
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Secret(Base):
    """A write-only value, encrypted with the key file."""

    __tablename__ = "secrets"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    ciphertext: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = _now()
    updated_at: Mapped[datetime] = _now()


class IdempotencyKey(Base):
    """The first answer to a request; `response` is null while it is in flight."""

    __tablename__ = "idempotency_keys"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    body_hash: Mapped[str]
    status_code: Mapped[int | None]
    response: Mapped[Json | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)


class Preset(Base):
    """A part of a spec that a project keeps by name."""

    __tablename__ = "presets"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    description: Mapped[str] = mapped_column(server_default=text("''"))
    spec: Mapped[Json] = mapped_column(comment="a part of a JobSpec")
    created_at: Mapped[datetime] = _now()
    updated_at: Mapped[datetime] = _now()


class Sweep(Base):
    """Jobs that differ in some fields, and the best of them."""

    __tablename__ = "sweeps"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    name: Mapped[str]
    spec: Mapped[Json] = mapped_column(comment="what its runs have in common, as it was given")
    overrides: Mapped[list[Any]] = mapped_column(comment="of each run, in their order")
    metric: Mapped[Json] = mapped_column(comment="name, goal and by")
    max_concurrent: Mapped[int | None]
    register_best: Mapped[bool]
    status: Mapped[str] = mapped_column(
        server_default=text("'running'"), comment="running, finished or cancelled"
    )
    values: Mapped[Json | None] = mapped_column(
        comment="of the metric at the end, by the number of the run"
    )
    best: Mapped[Json | None] = mapped_column(
        comment="job_id, number, value and model of the best run"
    )
    reason: Mapped[str | None] = mapped_column(comment="why there is no best, or no model")
    cancel_requested_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = _now()
    finished_at: Mapped[datetime | None]
    finish_at: Mapped[datetime] = mapped_column(
        server_default=func.now(), comment="not finished before, once all runs have ended"
    )
    damaged_since: Mapped[datetime | None] = mapped_column(
        comment="when metrics of a run were first found damaged"
    )
    __table_args__ = (
        Index("ix_sweeps_page", "project_id", "id"),
        Index("ix_sweeps_running", "id", postgresql_where=text("status = 'running'")),
    )


class Job(Base):
    """What the caller asked for, and where it stands."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    name: Mapped[str]
    labels: Mapped[Json] = mapped_column(server_default=text("'{}'"))
    priority: Mapped[int] = mapped_column(server_default=text("0"))
    status: Mapped[str] = mapped_column(server_default=text("'queued'"))
    phase: Mapped[str | None]
    reason: Mapped[str | None]
    message: Mapped[str | None]
    waiting_for: Mapped[str | None]
    task_type: Mapped[str]
    backend: Mapped[str]
    target: Mapped[str]
    spec: Mapped[Json]
    resolved: Mapped[Json]
    warnings: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    retry_of: Mapped[str | None]
    clone_of: Mapped[str | None]
    start_from: Mapped[Json | None] = mapped_column(
        comment="checkpoint of another job to start from: {job_id, step, prefix}"
    )
    sweep_id: Mapped[str | None] = mapped_column(ForeignKey("sweeps.id"))
    sweep_run: Mapped[int | None]
    max_attempts: Mapped[int]
    progress: Mapped[Json | None]
    latest_metrics: Mapped[Json | None]
    last_seq: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    archived_seq: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    log_lines: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    log_bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    prepared_key: Mapped[str | None]
    unregistered: Mapped[Json | None] = mapped_column(
        comment="the model version that it could become"
    )
    not_before: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    pause_requested_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = _now()
    updated_at: Mapped[datetime] = _now()
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    __table_args__ = (
        Index("ix_jobs_page", "project_id", "id"),
        Index(
            "ix_jobs_open",
            "priority",
            "created_at",
            postgresql_where=text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
        ),
        Index(
            "ix_jobs_queued",
            text("priority DESC"),
            "created_at",
            "id",
            postgresql_where=text("status = 'queued'"),
        ),
        Index("ix_jobs_labels", "labels", postgresql_using="gin"),
        Index("ix_jobs_xgen_run", "project_id", text("(spec #>> '{labels,xgen/run}')")),
        Index(
            "ix_jobs_sweep",
            "sweep_id",
            "sweep_run",
            postgresql_where=text("sweep_id IS NOT NULL"),
        ),
        Index(
            "ix_jobs_unarchived",
            "finished_at",
            postgresql_where=text("archived_seq < last_seq AND finished_at IS NOT NULL"),
        ),
    )


class Preparation(Base):
    """The job's data being tokenised, under a lease of its own and before any device is taken."""

    __tablename__ = "preparations"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    project_id: Mapped[str] = _project()
    status: Mapped[str] = mapped_column(server_default=text("'waiting'"))
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    worker_id: Mapped[str | None]
    lease_token: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    hinted_at: Mapped[datetime | None]
    key: Mapped[str | None] = mapped_column(comment="prepared data that it is about to use")
    report: Mapped[Json | None]
    created_at: Mapped[datetime] = _now()
    finished_at: Mapped[datetime | None]


class Plan(Base):
    """What a job will do and need, worked out under a lease; or a preview of its rows."""

    __tablename__ = "plans"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    identity: Mapped[str] = mapped_column(comment="hash of what is asked for")
    spec: Mapped[Json]
    resolved: Mapped[Json]
    warnings: Mapped[list[Any]]
    hardware: Mapped[Json | None] = mapped_column(comment="null: unknown, no host was online")
    found: Mapped[Json] = mapped_column(comment="what data and model were, by field")
    samples: Mapped[int | None] = mapped_column(comment="of a preview: how many")
    status: Mapped[str] = mapped_column(
        server_default=text("'waiting'"), comment="waiting, running, done or failed"
    )
    estimate: Mapped[Json | None] = mapped_column(comment="by the first rows")
    exact: Mapped[Json | None] = mapped_column(comment="by all rows")
    key: Mapped[str | None] = mapped_column(comment="of the prepared data")
    problem: Mapped[Json | None] = mapped_column(comment="reason and message of a failure")
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    worker_id: Mapped[str | None]
    lease_token: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    hinted_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = _now()
    expires_at: Mapped[datetime] = _now()
    finished_at: Mapped[datetime | None]
    # As the database's clock says, which is the same for every host; read with the row.
    expired: Mapped[bool] = column_property(expires_at <= func.now())
    __table_args__ = (Index("ix_plans_identity", "project_id", "identity"),)


class Attempt(Base):
    """One try on one machine. Outcome and clean-up are separate: see `released_at`."""

    __tablename__ = "attempts"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    number: Mapped[int]
    target: Mapped[str]
    worker_id: Mapped[str | None]
    devices: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    handle: Mapped[Json | None]
    nonce: Mapped[str]
    lease_token: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    hinted_at: Mapped[datetime | None]
    last_n: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    # Not used any more; earlier code selects it, so a later release takes it away.
    carried_offset: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    log_offset: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    resumed_step: Mapped[int | None]
    last_step: Mapped[int | None]
    telemetry: Mapped[Json | None]
    outcome: Mapped[str | None]
    reason: Mapped[str | None]
    message: Mapped[str | None]
    exit_code: Mapped[int | None]
    cleanup_error: Mapped[str | None]
    created_at: Mapped[datetime] = _now()
    claimed_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    event_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    released_at: Mapped[datetime | None]
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index(
            "uq_attempts_live",
            "job_id",
            unique=True,
            postgresql_where=text("finished_at IS NULL"),
        ),
        Index("ix_attempts_unreleased", "created_at", postgresql_where=text("released_at IS NULL")),
    )


class JobEvent(Base):
    """A fact of a job; `seq` counts from 1 without gaps (a restore leaps once): the SSE id."""

    __tablename__ = "job_events"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    project_id: Mapped[str]
    time: Mapped[datetime] = _now()
    attempt_id: Mapped[str | None]
    n: Mapped[int | None] = mapped_column(BigInteger)
    type: Mapped[str]
    data: Mapped[Json]
    xid: Mapped[int] = mapped_column(
        BigInteger, server_default=text("pg_current_xact_id()::text::bigint")
    )
    __table_args__ = (
        Index("ix_job_events_all", "project_id", "xid", "job_id", "seq"),
        Index("ix_job_events_type", "job_id", "type", "seq"),
        Index(
            "uq_job_events_run",
            "attempt_id",
            "n",
            unique=True,
            postgresql_where=text("n IS NOT NULL"),
        ),
    )


class EventRange(Base):
    """Events of an ended job that lie in the object store; ranges follow each other from 1."""

    __tablename__ = "event_ranges"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    first_seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    last_seq: Mapped[int] = mapped_column(BigInteger)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    key: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    counts: Mapped[Json] = mapped_column(comment="events of each type")
    last_xid: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = _now()
    __table_args__ = (Index("ix_event_ranges_xid", "project_id", "last_xid"),)


class CheckpointRow(Base):
    """A whole checkpoint in the store; exists only once its manifest was verified."""

    __tablename__ = "checkpoints"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"))
    step: Mapped[int]
    prefix: Mapped[str]
    manifest_sha256: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = _now()
    deleted_at: Mapped[datetime | None]
    purged_at: Mapped[datetime | None]
    __table_args__ = (
        UniqueConstraint("attempt_id", "step"),
        Index(
            "ix_checkpoints_unpurged",
            "id",
            postgresql_where=text("deleted_at IS NOT NULL AND purged_at IS NULL"),
        ),
    )


class Artifact(Base):
    """A file that is kept; `path` is its name within the job, `key` its object in the store."""

    __tablename__ = "artifacts"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt_id: Mapped[str | None]
    kind: Mapped[str]
    path: Mapped[str]
    key: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    created_at: Mapped[datetime] = _now()
    __table_args__ = (UniqueConstraint("job_id", "path"),)


class Dataset(Base):
    """One version of a data set: an uploaded object, or a reference to a hub or S3 location."""

    __tablename__ = "datasets"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    name: Mapped[str]
    version: Mapped[int]
    source: Mapped[str]
    location: Mapped[str]
    file_name: Mapped[str | None]
    size: Mapped[int | None] = mapped_column(BigInteger)
    sha256: Mapped[str | None]
    file_format: Mapped[str | None]
    row_format: Mapped[str | None]
    columns: Mapped[list[Any] | None]
    rows: Mapped[int | None] = mapped_column(BigInteger)
    problems: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    created_at: Mapped[datetime] = _now()
    deleted_at: Mapped[datetime | None]
    __table_args__ = (UniqueConstraint("project_id", "name", "version"),)


class ModelVersion(Base):
    """The publication pointer: one version of a published model. Its commit decides success."""

    __tablename__ = "model_versions"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    name: Mapped[str]
    version: Mapped[int]
    job_id: Mapped[str | None] = mapped_column(unique=True)
    prefix: Mapped[str]
    manifest_sha256: Mapped[str]
    kind: Mapped[str] = mapped_column(comment="full, adapter or merged")
    base_model: Mapped[str]
    template_hash: Mapped[str | None]
    metrics: Mapped[Json] = mapped_column(server_default=text("'{}'"))
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = _now()
    pointer_written_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    __table_args__ = (UniqueConstraint("project_id", "name", "version"),)


class MlflowRun(Base):
    """How far the job's MLflow run follows its events."""

    __tablename__ = "mlflow_runs"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    project_id: Mapped[str] = _project()
    experiment_id: Mapped[str | None]
    run_id: Mapped[str | None]
    synced_seq: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    closed_status: Mapped[str | None]
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    error: Mapped[str | None]
    next_at: Mapped[datetime] = _now()


class HubPush(Base):
    """What of a job is to be pushed to a hub, and how far that has come; one row at most."""

    __tablename__ = "hub_pushes"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    project_id: Mapped[str] = _project()
    kind: Mapped[str] = mapped_column(comment="checkpoint or model")
    step: Mapped[int | None] = mapped_column(comment="of a checkpoint")
    prefix: Mapped[str]
    manifest_sha256: Mapped[str]
    state: Mapped[str] = mapped_column(
        server_default=text("'pending'"), comment="pending, pushed, failed or dropped"
    )
    message: Mapped[str | None]
    commit: Mapped[str | None] = mapped_column(comment="of the newest push that arrived")
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    lease_token: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    leased_prefix: Mapped[str | None] = mapped_column(comment="what its holder reads")
    next_at: Mapped[datetime] = _now()
    failing_since: Mapped[datetime | None]
    pushed_at: Mapped[datetime | None]
    __table_args__ = (
        Index("ix_hub_pushes_pending", "next_at", postgresql_where=text("state = 'pending'")),
    )


class Webhook(Base):
    """An address that is told what happens in its project; who sends to it holds its lease."""

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    url: Mapped[str]
    description: Mapped[str] = mapped_column(server_default=text("''"))
    events: Mapped[list[Any]]
    active: Mapped[bool] = mapped_column(server_default=text("true"))
    ciphertext: Mapped[bytes] = mapped_column(LargeBinary, comment="of the secret")
    failures: Mapped[int] = mapped_column(
        server_default=text("0"), comment="since the last delivery that arrived"
    )
    lease_token: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    tried_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = _now()
    updated_at: Mapped[datetime] = _now()


class WebhookDelivery(Base):
    """What one webhook is to be told, or was; `number` is the order in which it happened."""

    __tablename__ = "webhook_deliveries"
    id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    project_id: Mapped[str] = _project()
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    event: Mapped[str]
    body: Mapped[str] = mapped_column(comment="the very characters that are signed")
    status: Mapped[str] = mapped_column(
        server_default=text("'pending'"), comment="pending, delivered or failed"
    )
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    failures: Mapped[int] = mapped_column(
        server_default=text("0"), comment="since it was last asked for"
    )
    response_status: Mapped[int | None]
    error: Mapped[str | None]
    next_at: Mapped[datetime] = _now()
    failing_since: Mapped[datetime | None]
    pending_since: Mapped[datetime] = mapped_column(
        server_default=func.now(), comment="when it was last asked for"
    )
    created_at: Mapped[datetime] = _now()
    delivered_at: Mapped[datetime | None]
    __table_args__ = (
        Index("ix_webhook_deliveries_page", "webhook_id", "id"),
        Index(
            "ix_webhook_deliveries_in_order",
            "webhook_id",
            "number",
            postgresql_where=text("status = 'pending' AND failures < 5"),
        ),
        Index(
            "ix_webhook_deliveries_beside",
            "webhook_id",
            "next_at",
            postgresql_where=text("status = 'pending' AND failures >= 5"),
        ),
        Index(
            "ix_webhook_deliveries_age",
            "pending_since",
            postgresql_where=text("status = 'pending'"),
        ),
    )


class Worker(Base):
    """A process of ours that says that it lives; hosts also offer devices."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    kind: Mapped[str] = mapped_column(comment="host, control, prepare or reconciler")
    hostname: Mapped[str]
    pid: Mapped[int]
    info: Mapped[Json] = mapped_column(server_default=text("'{}'"))
    draining: Mapped[bool] = mapped_column(server_default=text("false"))
    hand_back: Mapped[bool] = mapped_column(
        server_default=text("false"), comment="draining, and what runs there moves elsewhere now"
    )
    started_at: Mapped[datetime] = _now()
    seen_at: Mapped[datetime] = _now()


class Device(Base):
    """A slot of a host that one attempt at a time may hold: a GPU, or a share of the CPU."""

    __tablename__ = "devices"
    worker_id: Mapped[str] = mapped_column(
        ForeignKey("workers.id", ondelete="CASCADE"), primary_key=True
    )
    index: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    kind: Mapped[str] = mapped_column(comment="cpu or cuda")
    name: Mapped[str]
    memory_gb: Mapped[float | None]
    attempt_id: Mapped[str | None] = mapped_column(
        ForeignKey("attempts.id", ondelete="SET NULL"), index=True
    )


class Hold(Base):
    """A device that is kept for the project's next job, until a time on the database's clock."""

    __tablename__ = "holds"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    worker_id: Mapped[str]
    device: Mapped[int]
    device_name: Mapped[str]
    secret: Mapped[str | None] = mapped_column(comment="name of what came with the call")
    created_at: Mapped[datetime] = _now()
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    reason: Mapped[str | None] = mapped_column(comment="used, given_back, over or host_gone")
    attempt_id: Mapped[str | None] = mapped_column(comment="that used it")
    __table_args__ = (
        Index(
            "uq_holds_device",
            "worker_id",
            "device",
            unique=True,
            postgresql_where=text("ended_at IS NULL"),
        ),
    )


class Upload(Base):
    """A data set that arrives in pieces; `form` is what was said of it."""

    __tablename__ = "uploads"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = _project()
    form: Mapped[Json]
    length: Mapped[int] = mapped_column(BigInteger)
    received: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    status: Mapped[str] = mapped_column(
        server_default=text("'receiving'"), comment="receiving, checking, done or refused"
    )
    checker: Mapped[str | None]
    checking_until: Mapped[datetime | None] = mapped_column()
    dataset_id: Mapped[str | None]
    problem: Mapped[Json | None]
    created_at: Mapped[datetime] = _now()
    expires_at: Mapped[datetime] = mapped_column()
    finished_at: Mapped[datetime | None]
    # As the database's clock says, which is the same for every host; read with the row.
    expired: Mapped[bool] = column_property(expires_at <= func.now())
    unattended: Mapped[bool] = column_property(
        or_(checking_until.is_(None), checking_until <= func.now())
    )


class UploadBlock(Base):
    """Bytes of an upload that stand in the store."""

    __tablename__ = "upload_blocks"
    upload_id: Mapped[str] = mapped_column(
        ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True
    )
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    project_id: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    key: Mapped[str]


class HousekeepingRun(Base):
    """What a round of housekeeping removed, or would have."""

    __tablename__ = "housekeeping_runs"
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    dry_run: Mapped[bool]
    scanned: Mapped[bool]
    report: Mapped[Json]
    error: Mapped[str | None]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime] = _now()
    __table_args__ = (Index("ix_housekeeping_runs_finished_at", "finished_at"),)


class Outbox(Base):
    """A hint that leaves for the broker after its transaction has committed."""

    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    project_id: Mapped[str] = _project()
    queue: Mapped[str]
    handler: Mapped[str]
    args: Mapped[list[Any]]
    created_at: Mapped[datetime] = _now()
    taken_until: Mapped[datetime | None]
