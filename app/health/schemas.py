"""Answers of the health routes."""

from typing import Literal

from pydantic import BaseModel, Field

Part = Literal["database", "broker", "store", "mlflow", "workers"]


class Liveness(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Whether jobs can be taken, and what does not answer, by name."""

    ready: bool
    missing: list[Part] = Field(description="Without these nothing can be done.")
    degraded: list[Part] = Field(description="Jobs are taken, but they wait or are not mirrored.")
