"""What is said of an upload."""

from typing import Literal

from pydantic import BaseModel, Field

from app.jobs.schemas import Time
from app.problem import Problem

Status = Literal["receiving", "checking", "done", "refused"]


class UploadOut(BaseModel):
    """An upload on its way to be a data set."""

    id: str
    status: Status
    name: str = Field(examples=["shop-dialogues"])
    file_name: str = Field(examples=["shop.jsonl"])
    length: int = Field(description="Bytes of the whole file.")
    offset: int = Field(description="Bytes that are safe here; go on behind them.")
    dataset_id: str | None = Field(description="The data set that it became.")
    problem: Problem | None = Field(description="Why it was refused.")
    created_at: Time
    expires_at: Time = Field(description="It is gone then, unless bytes arrive before.")
    links: dict[str, str]


class UploadPage(BaseModel):
    """Uploads, newest first."""

    items: list[UploadOut]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")


def _unfinished() -> list[Status]:
    return ["receiving", "checking"]


class UploadListQuery(BaseModel):
    """Filters and paging of `GET /uploads`."""

    status: list[Status] = Field(
        default_factory=_unfinished,
        description="Any of these; without it those that are not finished.",
    )
    limit: int = Field(50, ge=1, le=200, description="Entries of a page.")
    cursor: str | None = Field(None, max_length=200, description="From the page before.")
