"""Answer of `GET /capabilities`."""

from typing import Any

from pydantic import BaseModel, Field


class Combination(BaseModel):
    """One row of the table."""

    task: str = Field(examples=["sft"])
    backend: str = Field(examples=["hf"])
    adapter: str = Field(examples=["lora"], description="`none`: all weights are trained.")
    strategy: str = Field(examples=["none"])
    target: str = Field(examples=["local"])
    supported: bool
    reason: str | None = Field(description="Why it is refused.")


class TaskSchema(BaseModel):
    """The JSON schema of a task's block, for building forms."""

    type: str
    json_schema: dict[str, Any]


class CapabilitiesOut(BaseModel):
    """Everything that a job may combine."""

    combinations: list[Combination]
    tasks: list[TaskSchema]
    job_schema: dict[str, Any] = Field(description="The JSON schema of a whole job.")
