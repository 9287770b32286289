"""Parameters and answer of comparisons."""

from typing import Any

from pydantic import BaseModel, Field

from app.jobs.schemas import StatusName

CurvePoint = tuple[int, float]


class ComparisonQuery(BaseModel):
    """Which metrics, how fine, and paging."""

    names: str | None = Field(
        None,
        max_length=2000,
        description="Only these metrics, with commas between.",
        examples=["loss,eval_loss"],
    )
    max_points: int = Field(
        200, ge=4, le=2000, description="Points of each curve, thinned out as by `/metrics`."
    )
    limit: int = Field(50, ge=1, le=50, description="Jobs on a page; of large ones it has fewer.")
    cursor: str | None = Field(None, max_length=200, description="From the page before.")


class CompareQuery(ComparisonQuery):
    """Which jobs as well."""

    jobs: str = Field(
        "",
        max_length=2000,
        pattern=r"^\s*(job_[0-9A-Z]{26}(\s*,\s*job_[0-9A-Z]{26}){0,49}\s*)?$",
        description="Ids of up to 50 jobs, with commas between.",
    )


class Compared(BaseModel):
    """One of the jobs, with only the fields in which they differ."""

    id: str
    name: str
    status: StatusName
    fields: dict[str, Any] = Field(
        description="By dotted name, from the resolved specs.",
        examples=[{"training.learning_rate": 0.0002}],
    )
    metrics: dict[str, "Range"] = Field(description="By name; a metric it lacks is left out.")
    curves: dict[str, list[CurvePoint]] = Field(description="Points [step, value] by name.")


class Range(BaseModel):
    """What became of a metric."""

    last: float
    smallest: float
    largest: float


class Comparison(BaseModel):
    """Jobs side by side, in the order asked for; of a sweep in that of its runs."""

    jobs: list[Compared]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")
