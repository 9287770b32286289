"""Answers of the checkpoint and artifact routes."""

from pydantic import BaseModel, Field

from app.jobs.schemas import Time


class CheckpointOut(BaseModel):
    """A whole checkpoint in the store."""

    id: str
    step: int
    attempt_id: str
    attempt: int = Field(description="Number of the attempt that wrote it.")
    size: int = Field(description="Bytes of all its files.")
    sha256: str = Field(description="Of its manifest, which holds the sha256 of every file.")
    location: str = Field(description="`s3://bucket/prefix` of its folder.")
    created_at: Time


class CheckpointList(BaseModel):
    """The job's checkpoints."""

    items: list[CheckpointOut]


class ArtifactOut(BaseModel):
    """A file that the job keeps."""

    path: str = Field(examples=["model/adapter_model.safetensors"])
    kind: str = Field(examples=["model"])
    size: int
    sha256: str
    attempt_id: str | None
    url: str = Field(description="Where it is downloaded, below this API's address.")
    created_at: Time


class ArtifactList(BaseModel):
    """The job's files."""

    items: list[ArtifactOut]
    archive: str = Field(description="Where all of them are downloaded as one tar file.")
