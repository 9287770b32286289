"""Bodies and answers of `/plans`."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.jobs.schemas import Time, Warn
from app.jobs.spec import JobSpec
from trainer_core.plans.results import Bounds, Disk, Memory, Notice, Rows, Sample, Steps, Tokens
from trainer_core.spec import Strict

MOST_SAMPLES = 50


class Machine(BaseModel):
    """A host that could take the job, and what the job would cost there."""

    target: str = Field(examples=["local"])
    machine: str = Field(description="The host's name.")
    devices: list[str] = Field(description="Names of its devices that the job could have.")
    free_devices: int
    price_per_hour: float = Field(description="In USD; hosts of one's own cost nothing.")
    seconds: float | None = Field(
        description="By the speed of finished jobs of the same task and model; null: there is none."
    )
    cost_usd: float | None
    reason: str | None = Field(description="Why there is no time.")


class Figures(BaseModel):
    """What the rows tell."""

    device: str = Field(description="`cpu`, or how many GPUs.")
    steps: Steps | None = Field(description="Null for a task that trains nothing.")
    rows: Rows
    tokens: Tokens
    memory: Memory
    disk: Disk
    warnings: list[Notice] = Field(description="What the data look like they should not.")
    bounds: Bounds | None = Field(
        None, description="Of an estimate: how far it may be off. Null: all rows were read."
    )


class PlanProblem(BaseModel):
    """Why there is no plan."""

    reason: str = Field(examples=["invalid_data"])
    message: str
    pointer: str | None = Field(description="The field that is to be changed, where one is.")


class PlanOut(BaseModel):
    """A plan: at first by the first rows, then by all of them."""

    id: str
    status: Literal["waiting", "running", "done", "failed"]
    exact: bool = Field(description="Whether `figures` are those of all rows.")
    figures: Figures | None = Field(description="Null until the first rows are read.")
    waiting_for: str | None = Field(description="Why there is nothing yet.")
    problem: PlanProblem | None
    machines: list[Machine]
    spec: dict[str, Any] = Field(description="As it was given.")
    resolved: dict[str, Any] = Field(description="With every default filled in.")
    warnings: list[Warn]
    links: dict[str, str]
    created_at: Time
    expires_at: Time
    finished_at: Time | None


class PreviewRequest(Strict):
    """What is looked at, and how many samples."""

    spec: JobSpec
    samples: int = Field(5, ge=1, le=MOST_SAMPLES)


class PreviewOut(BaseModel):
    """The first training samples as the model will see them."""

    samples: list[Sample] | None = Field(description="Null until they are read: ask again.")
    warnings: list[Notice]
    waiting_for: str | None = Field(description="Why there is nothing yet.")
