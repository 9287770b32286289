"""Answers of `/models`."""

from typing import Any

from pydantic import BaseModel, Field

from app.jobs.schemas import Time


class VersionOut(BaseModel):
    """One version of a published model."""

    id: str
    name: str = Field(examples=["ko-shop-sft"])
    version: int = Field(examples=[3])
    kind: str = Field(description="full, adapter or merged.", examples=["adapter"])
    base_model: str = Field(examples=["HuggingFaceTB/SmolLM2-135M-Instruct"])
    template_hash: str | None = Field(description="Of the chat template that it was trained with.")
    metrics: dict[str, Any] = Field(examples=[{"eval_loss": 1.21}])
    size: int = Field(description="Bytes of all its files.")
    manifest_sha256: str
    location: str = Field(description="`s3://bucket/prefix` of its folder.")
    job_id: str | None
    created_at: Time
    links: dict[str, str]


class FileOut(BaseModel):
    """A file of a model."""

    path: str = Field(examples=["adapter_model.safetensors"])
    size: int
    sha256: str
    url: str


class VersionDetail(VersionOut):
    """A version with its files."""

    files: list[FileOut]


class VersionPage(BaseModel):
    """Versions of a model, newest first."""

    items: list[VersionOut]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")


class ModelOut(BaseModel):
    """A model, with its newest version."""

    name: str
    versions: int
    newest: VersionOut


class ModelPage(BaseModel):
    """Models by name."""

    items: list[ModelOut]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")


class PageQuery(BaseModel):
    """Paging."""

    limit: int = Field(50, ge=1, le=200, description="Entries of a page.")
    cursor: str | None = Field(None, max_length=200, description="From the page before.")
