"""Answers of `/api/train/*`: each with a word that XGen's pages understand, and with ours."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, SecretStr

from app.holds.schemas import HoldState
from app.jobs.lifecycle import Status
from app.jobs.schemas import Warn
from app.xgen.words import Word
from trainer_core.spec import Strict

_Text = Annotated[
    str,
    BeforeValidator(lambda given: "" if given is None else given),
    Field(max_length=1024, json_schema_extra={"type": ["string", "null"]}),
]


class TrainJob(BaseModel):
    """A job in the words of XGen."""

    job_id: str
    mlflow_run_id: str | None = Field(description="The caller's own name for the job.")
    name: str
    status: Word
    polar_status: Status = Field(description="The same in the words of `/jobs`.")
    phase: str | None
    message: str | None = Field(description="Why it failed, or what it waits for.")
    progress: dict[str, Any] | None
    metrics: dict[str, Any] | None = Field(description="The newest ones.")
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


class TrainStatus(TrainJob):
    """A job with all that the page shows."""

    success: bool = Field(
        True, description="That the call succeeded; how the job does is `status`."
    )
    warnings: list[Warn]
    links: dict[str, str]


class TrainJobs(BaseModel):
    """The jobs of the project, newest first."""

    jobs: list[TrainJob]
    total: int = Field(description="How many are here.")
    truncated: bool = Field(description="There are older ones: `GET /jobs` pages through all.")


class MlflowRequest(Strict):
    """Which run is asked for."""

    mlflow_url: _Text = Field("", description="This service's own, or empty.")
    mlflow_exp_id: _Text = Field("", description="Id or name of its experiment; empty: any.")
    mlflow_run_id: str = Field(
        min_length=1,
        max_length=255,
        description="Its id in MLflow, the form's `mlflow_run_id`, or the job's id.",
    )


def _as_text(given: Any) -> Any:
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


class InstanceRequest(Strict):
    """The offer that is to be held for the project's next job."""

    offer_id: Annotated[
        str,
        BeforeValidator(_as_text),
        Field(
            min_length=1,
            max_length=255,
            description="Of `GET /api/train/offers`.",
            json_schema_extra={"type": ["string", "integer"]},
        ),
    ]
    offer_info: dict[str, Any] | None = Field(
        None, description="The page's copy of the offer; the service goes by its own."
    )
    hf_hub_token: SecretStr | None = Field(
        None, max_length=4096, description="Kept as a secret, which the answer names; may be empty."
    )
    template_name: Literal["", "budget", "high_performance", "research"] | None = Field(
        None, description="Warning: a device that has joined is as it is."
    )
    auto_destroy: bool | None = Field(
        None, description="False: warning, because a device always goes free after the job."
    )


class InstanceOut(BaseModel):
    """A device that is, or was, held for the project's next job."""

    success: bool = Field(True, description="That the call succeeded.")
    instance_id: str
    status: Word
    polar_status: HoldState = Field(
        description="`held` until a job uses it, it is given back, or its time is over."
    )
    message: str
    offer_id: str
    worker_id: str
    device: int
    device_name: str
    hf_hub_token: str | None = Field(description="Name of the secret with it.")
    created_at: datetime
    expires_at: datetime = Field(description="When it goes free if no job has used it.")
    ended_at: datetime | None
    attempt_id: str | None = Field(description="That used it.")
    job_id: str | None
    warnings: list[Warn] = Field(default_factory=list)


class InstanceList(BaseModel):
    """The project's newest holds, open or over."""

    instances: list[InstanceOut]


class MlflowInfo(BaseModel):
    """A run as this service mirrors it to MLflow."""

    success: bool = True
    job_id: str
    mlflow_run_id: str | None
    status: Word
    polar_status: Status
    run_id: str | None = Field(description="In MLflow; null until it is there.")
    run_name: str
    run_status: Literal["SCHEDULED", "RUNNING", "FINISHED", "FAILED", "KILLED"]
    experiment_id: str | None
    experiment_name: str
    url: str | None
    metrics: dict[str, Any] = Field(description="The newest ones.")
    params: dict[str, str]
    tags: dict[str, str]
    start_time: datetime | None
    end_time: datetime | None
