"""Answers of `/api/train/*`: each with a word that XGen's pages understand, and with ours."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from app.jobs.lifecycle import Status
from app.jobs.schemas import Warn
from app.xgen.words import Word


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
