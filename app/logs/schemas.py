"""Parameters of the log route."""

from pydantic import BaseModel, Field


class LogQuery(BaseModel):
    """Which lines."""

    after: str | None = Field(
        None, max_length=20, description="Lines after this event's `seq`.", examples=["0"]
    )
    tail: int | None = Field(
        None, ge=1, le=1_000_000, description="Only the newest so many lines.", examples=[100]
    )
    attempt: int | None = Field(None, ge=1, le=1000, description="Number of the attempt.")
    rank: int | None = Field(None, ge=0, le=100_000, description="Rank of the process.")
    download: bool = Field(default=False, description="Have a browser save it as a file.")
