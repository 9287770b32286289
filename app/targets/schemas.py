"""Answer of `GET /targets`."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from trainer_core.spec import Strict


class DeviceOut(BaseModel):
    """A slot that one attempt at a time may hold."""

    index: int
    kind: str = Field(examples=["cuda"])
    name: str
    memory_gb: float | None
    busy: bool
    held: bool = Field(description="Kept for the next job of a project.")
    attempt_id: str | None = Field(description="Who holds it, when that is the caller's own job.")


class WorkerOut(BaseModel):
    """A process of ours that says that it lives."""

    id: str
    kind: str = Field(examples=["host"])
    hostname: str
    online: bool
    draining: bool = Field(description="It gets no new attempt until the drain is taken back.")
    hand_back: bool = Field(description="What runs there is asked to go on elsewhere.")
    started_at: datetime
    seen_at: datetime
    info: dict[str, Any]
    devices: list[DeviceOut]


class DrainRequest(Strict):
    """How a host is emptied."""

    now: bool = Field(
        default=False,
        description="Have its attempts write a checkpoint and go on elsewhere, instead of letting"
        " them finish.",
    )


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
