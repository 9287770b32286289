"""Answers of `/api/train/*`: each with a word that XGen's pages understand, and with ours."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

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
