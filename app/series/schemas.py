"""Parameters and answers of the metrics route."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

Point = tuple[int, float, datetime]


class SeriesQuery(BaseModel):
    """Which series, and how fine."""

    names: str | None = Field(
        None,
        max_length=2000,
        description="Only these metrics, with commas between.",
        examples=["loss,eval_loss"],
    )
    max_points: int = Field(
        1000,
        ge=4,
        le=100_000,
        description="Points per series. A longer one is cut into buckets of steps, of which the "
        "first, last, smallest and largest point remain.",
    )
    format: Literal["json", "csv"] | None = Field(
        None, description="Wins over the header `Accept`."
    )


class Series(BaseModel):
    """Metrics by name."""

    series: dict[str, list[Point]] = Field(
        description="Points [step, value, time] in the order of steps. Of a step that was "
        "repeated after a restart, the newest value counts.",
        examples=[{"loss": [[1, 2.31, "2026-11-30T10:00:00Z"]]}],
    )
