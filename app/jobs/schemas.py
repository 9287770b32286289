"""Bodies and answers of `/jobs`."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from app.jobs.lifecycle import FailureReason, Status, Turn
from app.jobs.spec import JobName, Labels
from trainer_core.spec import Strict

Time = Annotated[datetime, AfterValidator(lambda value: value.astimezone(UTC))]
StatusName = Literal[
    "queued",
    "provisioning",
    "running",
    "finalizing",
    "paused",
    "succeeded",
    "failed",
    "cancelled",
]


class Warn(BaseModel):
    """Something that the caller should know and that does not stop the job."""

    code: str = Field(examples=["no_worker"])
    message: str


class AttemptOut(BaseModel):
    """One try on one machine."""

    id: str
    number: int
    target: str
    machine: str | None = Field(description="The host's name; its id while the host is unknown.")
    devices: list[Any]
    outcome: str | None
    reason: FailureReason | None
    message: str | None
    exit_code: int | None
    resumed_step: int | None
    last_step: int | None
    steps_lost: int | None = Field(description="Steps that the next attempt had to repeat.")
    telemetry: dict[str, Any] | None
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    released_at: Time | None = Field(description="When the machine was free again.")


class MlflowRef(BaseModel):
    """Where the run is found in MLflow."""

    experiment_id: str | None
    run_id: str | None
    url: str | None


class ModelRefOut(BaseModel):
    """The model version that the job published."""

    id: str
    name: str
    version: int


class HubRef(BaseModel):
    """What of the job is on a hub, and whether more is on its way."""

    repo_id: str = Field(examples=["org/shop-sft"])
    revision: str = Field(description="The branch.", examples=["main"])
    url: str
    state: Literal["pending", "pushed", "failed", "dropped"] = Field(
        description="`failed`: `POST /jobs/{id}/hub/retry` tries again. `dropped`: the job was "
        "cancelled."
    )
    message: str | None = Field(description="Why it is not there yet.")
    kind: Literal["checkpoint", "model"] = Field(description="What `state` is about.")
    step: int | None = Field(description="Of a checkpoint.")
    commit: str | None = Field(description="Of the newest push that arrived.")
    pushed_at: Time | None


class ExternalRefs(BaseModel):
    """The job's traces in other systems."""

    mlflow: MlflowRef | None = None
    storage: str = Field(description="`s3://bucket/prefix` of everything that the job keeps.")
    model: ModelRefOut | None = None
    hub: HubRef | None = Field(None, description="Null until there is something to push.")


class Summary(BaseModel):
    """A job in a list; `fields=` leaves out the others."""

    id: str
    name: str | None = None
    labels: dict[str, str] | None = None
    priority: int | None = None
    status: Status | None = None
    phase: str | None = None
    reason: FailureReason | None = None
    message: str | None = None
    waiting_for: str | None = None
    task_type: str | None = None
    backend: str | None = None
    target: str | None = None
    retry_of: str | None = None
    clone_of: str | None = None
    sweep_id: str | None = None
    progress: dict[str, Any] | None = None
    latest_metrics: dict[str, Any] | None = None
    created_at: Time | None = None
    updated_at: Time | None = None
    started_at: Time | None = None
    finished_at: Time | None = None


class JobPage(BaseModel):
    """A page of jobs, newest first."""

    items: list[Summary]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")


class JobOut(BaseModel):
    """A job: what was asked for, what it became, and where it stands."""

    id: str
    name: str
    labels: dict[str, str]
    priority: int
    status: Status
    phase: str | None
    reason: FailureReason | None
    message: str | None
    turn: Turn | None = Field(description="Who must act after a failure.")
    waiting_for: str | None
    queue_position: int | None = Field(description="1: the next one to be placed.")
    cancel_requested_at: Time | None
    pause_requested_at: Time | None = Field(
        description="Since when it is to be paused, or is; a resume clears it."
    )
    task_type: str
    backend: str
    target: str
    spec: dict[str, Any] = Field(description="As it was given.")
    resolved: dict[str, Any] = Field(description="With every default filled in.")
    warnings: list[Warn]
    retry_of: str | None
    clone_of: str | None
    start_from: dict[str, Any] | None
    sweep_id: str | None = Field(None, description="The sweep that it is a run of.")
    max_attempts: int
    progress: dict[str, Any] | None
    latest_metrics: dict[str, Any] | None
    attempts: list[AttemptOut]
    links: dict[str, str]
    external_refs: ExternalRefs
    created_at: Time
    updated_at: Time
    started_at: Time | None
    finished_at: Time | None


class JobQuery(BaseModel):
    """Filters and paging of `GET /jobs`."""

    limit: int = Field(50, ge=1, le=200, description="Jobs on a page.")
    cursor: str | None = Field(None, max_length=200, description="From the page before.")
    status: list[StatusName] = Field(default_factory=list, description="Any of these.")
    task: str | None = Field(None, max_length=64, description="Task type, such as `sft`.")
    target: str | None = Field(None, max_length=64, description="Where it runs.")
    backend: str | None = Field(None, max_length=64, description="Library, such as `hf`.")
    sweep: str | None = Field(None, max_length=64, description="Runs of this sweep: its id.")
    created_after: AwareDatetime | None = Field(None, description="RFC 3339 with an offset.")
    created_before: AwareDatetime | None = Field(None, description="RFC 3339 with an offset.")
    q: str | None = Field(None, max_length=128, description="Part of the name.")
    fields: str | None = Field(
        None,
        max_length=500,
        description="Names of the fields to return, with commas; `id` is always there.",
    )


class JobPatch(Strict):
    """What may change after submission; a field left out stays."""

    model_config = ConfigDict(validate_default=False)

    name: JobName = Field(default_factory=str)
    labels: Labels = Field(default_factory=dict, description="Replaces all labels.")
    priority: int = Field(0, ge=-100, le=100)

    @field_validator("name", "labels", "priority", mode="before")
    @classmethod
    def _not_null(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("null is no value here: leave the field out to keep what is")
        return value


class RetryRequest(Strict):
    """How a finished job is tried again."""

    from_scratch: bool = Field(
        default=False, description="Do not start from the parent's newest checkpoint."
    )


class CloneRequest(Strict):
    """What is different in the new job."""

    overrides: dict[str, Any] = Field(
        default_factory=dict,
        description="JSON merge patch (RFC 7386) on the spec as it was given: null removes.",
    )
