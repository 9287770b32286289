"""Bodies and answers of `/datasets`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from app.jobs.schemas import Time
from trainer_core.spec import Strict

DatasetName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]
NAME_HELP = "Letters, digits, `.`, `_` and `-`. A name that exists gets its next version."


class RegisterDataset(Strict):
    """A data set that stays where it is."""

    name: DatasetName = Field(description=NAME_HELP)
    source: Literal["hub", "s3"]
    location: str = Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="hub: repository id, `org/name`; s3: `s3://bucket/key`.",
    )


class UploadForm(Strict):
    """What is said of an upload, as fields of its form or as query parameters."""

    name: DatasetName
    file_name: str = Field(min_length=1, max_length=255)
    sha256: Sha256 | None = None


class UploadQuery(BaseModel):
    """Of a file sent as it is, without a form."""

    name: str | None = Field(
        None, max_length=128, description=NAME_HELP, examples=["shop-dialogues"]
    )
    file_name: str | None = Field(
        None,
        max_length=255,
        description="Its ending says the format: `.jsonl`, `.csv`, `.zip`, …",
        examples=["shop.jsonl"],
    )
    sha256: str | None = Field(
        None, max_length=64, description="If given, an upload of other content is refused."
    )


class ProblemOut(BaseModel):
    """Something that preparation will object to."""

    line: int | None = Field(description="Line (row of a Parquet file); null: the file.")
    message: str


class DatasetOut(BaseModel):
    """One version of a data set."""

    id: str = Field(description="Name it in a job as `data.train[].path`.")
    name: str = Field(examples=["shop-dialogues"])
    version: int = Field(examples=[1])
    source: Literal["upload", "hub", "s3"]
    location: str = Field(description="Repository id or `s3://` address.")
    file_name: str | None
    size: int | None
    sha256: str | None
    file_format: str | None = Field(description="jsonl, json, csv, parquet or zip; null: not read.")
    row_format: str | None = Field(
        description="messages, sharegpt, alpaca, prompt_completion, text or another one of a "
        "source's `format`; null: none fits, or several do (`problems` says which)."
    )
    columns: list[str] | None
    rows: int | None
    problems: list[ProblemOut]
    created_at: Time
    links: dict[str, str]


class DatasetPage(BaseModel):
    """Data sets, newest first."""

    items: list[DatasetOut]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")


class DatasetQuery(BaseModel):
    """Filters and paging of `GET /datasets`."""

    name: str | None = Field(None, max_length=128, description="All versions of this one.")
    limit: int = Field(50, ge=1, le=200, description="Entries of a page.")
    cursor: str | None = Field(None, max_length=200, description="From the page before.")


class PreviewRow(BaseModel):
    """One row as it is in the file, as far as it is shown."""

    line: int
    values: dict[str, Any]
    problem: str | None
    shortened: bool = Field(description="Long texts and lists are cut, as `…` says.")


class Preview(BaseModel):
    """The first rows."""

    dataset_id: str
    rows: list[PreviewRow]
    note: str | None = Field(description="Why there are no rows, or fewer than asked for.")
