"""Answer of `GET /capabilities`."""

from typing import Any

from pydantic import BaseModel, Field


class Combination(BaseModel):
    """One row of the table."""

    task: str = Field(examples=["sft"])
    backend: str = Field(examples=["hf"])
    adapter: str = Field(examples=["lora"], description="`none`: all weights are trained.")
    quantization: str = Field(
        examples=["4 bits"], description="How the base is held; `none`: in 16 or 32 bits."
    )
    strategy: str = Field(examples=["none"])
    target: str = Field(examples=["local"])
    supported: bool
    reason: str | None = Field(description="Why it is refused.")


class GpuOnly(BaseModel):
    """A value of a field that needs a GPU."""

    pointer: str = Field(examples=["/model/attn_implementation"])
    value: str = Field(examples=["flash_attention_2"])
    reason: str = Field(description="Why, and what to use on a CPU.")


class TaskSchema(BaseModel):
    """The JSON schema of a task's block, for building forms."""

    type: str
    json_schema: dict[str, Any]


class CapabilitiesOut(BaseModel):
    """Everything that a job may combine."""

    combinations: list[Combination]
    gpu_only: list[GpuOnly] = Field(description="Refused where there is no GPU.")
    tasks: list[TaskSchema]
    job_schema: dict[str, Any] = Field(description="The JSON schema of a whole job.")
