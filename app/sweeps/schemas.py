"""Bodies and answers of `/sweeps`."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from app.jobs.lifecycle import FailureReason
from app.jobs.schemas import StatusName, Time
from app.jobs.spec import JobSpec
from app.presets.schemas import PresetJob
from trainer_core.spec import Strict

SweepName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"),
    Field(description="Its runs are called `<name>-1`, `<name>-2`, …"),
]
Axis = Annotated[str, StringConstraints(pattern=r"^[a-z_0-9]+(\.[A-Za-z_0-9]+){0,15}$")]
SweepStatus = Literal["running", "finished", "cancelled"]


class Metric(Strict):
    """What the best run is told by."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@/-]{0,127}$")] = (
        Field(description="As in `GET /jobs/{id}/metrics`.", examples=["eval_loss"])
    )
    goal: Literal["min", "max"]
    by: Literal["final", "best"] = Field(
        "final",
        description="Its value at the end, or the best one on the way "
        "(with `checkpoint.load_best_model_at_end`).",
    )


def _kind(value: Any) -> str:
    """Say what a spec is meant to be, so that nobody is told what the other kind lacks."""
    if isinstance(value, BaseModel):
        return type(value).__name__
    return PresetJob.__name__ if isinstance(value, dict) and "preset" in value else JobSpec.__name__


SweepSpec = Annotated[
    Annotated[JobSpec, Tag(JobSpec.__name__)] | Annotated[PresetJob, Tag(PresetJob.__name__)],
    Discriminator(_kind),
]


class NewSweep(Strict):
    """A spec, what is varied in it, and what decides; give `grid` or `runs`."""

    name: SweepName
    spec: SweepSpec = Field(
        description="What all runs have in common, as for `POST /jobs`; so may `preset` be in it."
    )
    grid: dict[Axis, Annotated[list[Any], Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Dotted field → its values, each of which takes the field's place; every "
        "combination is a run, the last field varies fastest. Null takes the field out.",
    )
    runs: list[dict[str, Any]] | None = Field(
        None, min_length=1, description="What is different in each run: JSON merge patches."
    )
    metric: Metric
    max_concurrent: int | None = Field(
        None, ge=1, le=10_000, description="So many of its runs have devices at once."
    )
    register_best: bool = Field(
        default=True,
        description="Register the best run's model, and none of the others; false: each run does "
        "as its `publish.registry` says.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> "NewSweep":
        if (self.grid is None) == (self.runs is None):
            raise ValueError("give either `grid` or `runs`")
        return self


class RunOut(BaseModel):
    """A run of a sweep."""

    number: int
    job_id: str
    name: str
    status: StatusName
    reason: FailureReason | None
    fields: dict[str, Any] = Field(
        description="Those in which the runs' specs differ, by dotted name.",
        examples=[{"training.learning_rate": 0.0002}],
    )
    value: float | None = Field(
        description="Of the metric: the newest while it runs, and what counts once the sweep has "
        "finished."
    )


class ModelRef(BaseModel):
    """A version in the registry."""

    name: str
    version: int


class Best(BaseModel):
    """The best run."""

    job_id: str
    number: int
    value: float
    model: ModelRef | None = Field(description="What was registered of it.")


class SweepSummary(BaseModel):
    """A sweep in a list."""

    id: str
    name: str
    status: SweepStatus
    counts: dict[StatusName, int] = Field(description="Its runs by status; those deleted are not.")
    metric: Metric
    max_concurrent: int | None
    register_best: bool
    best: Best | None = Field(description="Once it has finished.")
    reason: str | None = Field(
        description="Why there is no best run, no model of it, a run left out, or no end yet."
    )
    cancel_requested_at: Time | None
    created_at: Time
    finished_at: Time | None


class SweepOut(SweepSummary):
    """A sweep with its runs."""

    spec: dict[str, Any] = Field(description="What its runs have in common, as it was given.")
    runs: list[RunOut]
    links: dict[str, str]


class SweepPage(BaseModel):
    """A page of sweeps, newest first."""

    items: list[SweepSummary]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")


class SweepQuery(BaseModel):
    """Filter and paging of `GET /sweeps`."""

    status: SweepStatus | None = Field(None, description="Only those.")
    limit: int = Field(50, ge=1, le=200, description="Sweeps on a page.")
    cursor: str | None = Field(None, max_length=200, description="From the page before.")
