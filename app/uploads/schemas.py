"""What is said of an upload."""

from typing import Literal

from pydantic import BaseModel, Field

from app.jobs.schemas import Time
from app.problem import Problem


class UploadOut(BaseModel):
    """An upload on its way to be a data set."""

    id: str
    status: Literal["receiving", "checking", "done", "refused"]
    name: str = Field(examples=["shop-dialogues"])
    file_name: str = Field(examples=["shop.jsonl"])
    length: int = Field(description="Bytes of the whole file.")
    offset: int = Field(description="Bytes that are safe here; go on behind them.")
    dataset_id: str | None = Field(description="The data set that it became.")
    problem: Problem | None = Field(description="Why it was refused.")
    created_at: Time
    expires_at: Time = Field(description="It is gone then, unless bytes arrive before.")
    links: dict[str, str]
