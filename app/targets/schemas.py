"""Answer of `GET /targets`."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field


class DeviceOut(BaseModel):
    """A slot that one attempt at a time may hold."""

    index: int
    kind: str = Field(examples=["cuda"])
    name: str
    memory_gb: float | None
    busy: bool
    attempt_id: str | None = Field(description="Who holds it, when that is the caller's own job.")


class WorkerOut(BaseModel):
    """A process of ours that says that it lives."""

    id: str
    kind: str = Field(examples=["host"])
    hostname: str
    online: bool
    draining: bool
    started_at: datetime
    seen_at: datetime
    info: dict[str, Any]
    devices: list[DeviceOut]


class TargetOut(BaseModel):
    """A place where attempts run."""

    name: str
    queued: int = Field(description="Jobs that wait for it.")
    running: int = Field(description="Jobs that are on it.")
    free_devices: int
    workers: list[WorkerOut]


class TargetList(BaseModel):
    """All targets that are switched on."""

    items: list[TargetOut]
