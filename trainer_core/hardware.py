"""What a run gets of a machine."""

from pydantic import BaseModel, Field


class Hardware(BaseModel):
    """What a run gets: GPUs (0: CPU only), the memory of each in GB, and what it can do."""

    gpus: int = Field(0, ge=0)
    gpu_memory_gb: float | None = Field(None, gt=0)
    bf16: bool = Field(False, description="Whether bf16 is fast on these GPUs.")
    cpu_threads: int = Field(1, ge=1)
